//! Tests of published mechanisms and of the reproduction.

mod aple;
mod common;
mod flexs;
mod gleaner;
mod kernel_aple;
mod kernel_hvs;
mod large_vm;
mod published;
mod serial_phases;
mod survey;
