//! Experiments: running scenarios many times and saying what came out. Nothing here prints.

pub mod averages;
pub mod interval;
pub mod statistics;
