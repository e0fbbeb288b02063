//! Fair scheduling of entities on one CPU, for VMs and vCPUs on the host and for threads in the guest.

pub mod entity;
pub mod fair;
mod order;
mod tree;
