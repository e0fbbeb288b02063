//! Fair scheduling of entities: VMs and vCPUs on the host, threads in the guest.

pub mod entity;
pub mod fair;
pub mod ids;
mod order;
mod tree;
