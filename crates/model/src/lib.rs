//! Plain data types that the daemon, the agent and the simulator share.
//!
//! Units, sets of pCPUs, machine topology, observations of VMs, decisions of policies, states of vCPUs and the waits between them.
//! This crate uses no files, clocks or threads, and contains no policy.

pub mod accounting_group;
pub mod application;
pub mod averages;
pub mod branch_counters;
pub mod decision;
pub mod length;
pub mod nesting;
pub mod observation;
pub mod pcpu_set;
pub mod policy_set;
pub mod states;
pub mod suggestion;
pub mod topology;
pub mod units;

pub use decision::{Because, Decision, Knob, Target};
pub use observation::{VcpuObservation, VcpuSettings, VmObservation, VmSettings};
pub use pcpu_set::PcpuSet;
pub use policy_set::{PolicyId, PolicySet};
pub use states::{State, VcpuTimes};
pub use topology::{Layout, Level, Topology};
pub use units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};
