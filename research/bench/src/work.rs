//! Measures a VM's work with neighbours, in every mode of sharing a host, for all workloads and neighbours.
//!
//! ```text
//! --workloads --vcpus --placements --with ──► cells ──► demo runs, mode by mode ──► medians and ranges ──► tables, page, JSON
//! ```
//!
//! A cell ([`cell`]) is a VM of one workload and its neighbours, with vCPUs free or pinned.
//! Each run of a cell is a separate demo with fresh VMs ([`tandem_demo::demo`]) that goes through all modes within seconds.
//! Each distinct VM is measured alone once ([`tandem_demo::alone`]).
//! [`measure`] runs the cells, [`figures`] holds medians and ranges over runs, [`output`] prints them.
//!
//! The main figure is work relative to the VM alone: each of two equal VMs that never sleep deserves 0.5.
//! CPU time is a second figure.
//! The last line compares Tandem with stock, a cgroup of equal weight per VM as libvirt makes it.

pub mod cell;
pub mod figures;
pub mod measure;
pub mod output;
