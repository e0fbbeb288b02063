//! How much of its work a VM gets done beside others, under every way to share a host: all workloads, all neighbours.
//!
//! ```text
//! --workloads --vcpus --placements --with ──► cells ──► demo runs, mode by mode ──► medians and ranges ──► tables, page, JSON
//! ```
//!
//! A cell ([`cell`]) is a VM of one workload and its neighbours, with vCPUs free or pinned. Each run of a cell is a demo of its own
//! with fresh VMs ([`tandem_demo::demo`]) that goes through all modes, so that modes are compared within seconds of each other; each
//! distinct VM is measured alone once ([`tandem_demo::alone`]). [`measure`] runs the cells, [`figures`] holds medians and ranges over runs,
//! [`output`] shows them.
//!
//! Work relative to alone is the figure: 0.5 is what one of two equal VMs that never sleep deserves. CPU time stands beside it. The
//! last line compares Tandem with stock, a cgroup of equal weight per VM as libvirt makes it.

pub mod cell;
pub mod figures;
pub mod measure;
pub mod output;
