//! Plain data that Tandem's parts exchange.
//!
//! Units, sets of pCPUs, observations of VMs, decisions of policies, the states of vCPUs and the waits between them.
//! No file, clock or thread, and no policy: the daemon, the agent and the simulator share these types.

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
pub mod units;

pub use decision::{Because, Decision, Knob, Target};
pub use observation::{VcpuObservation, VcpuSettings, VmObservation, VmSettings};
pub use pcpu_set::PcpuSet;
pub use policy_set::{PolicyId, PolicySet};
pub use states::{State, VcpuTimes};
pub use units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};
