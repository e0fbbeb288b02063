//! Fair scheduling of entities on one CPU, used twice: by the host for VMs and vCPUs, and by the
//! guest for threads.

pub mod entity;
pub mod fair;
mod order;
mod tree;
