//! Tandem's user-level vCPU scheduling policies.
//!
//! Everything here is pure: observations in, decisions out. No file, no clock, no thread. The same
//! code decides in the host daemon, in tests and in simulators.

pub mod accounting_group;
pub mod application;
pub mod assess;
pub mod asymmetric;
pub mod decision;
pub mod fair_share;
pub mod flexs;
pub mod flexw;
pub mod gleaner;
pub mod host;
pub mod nesting;
pub mod observation;
pub mod pcpu_set;
pub mod per_thread;
pub mod placement;
pub mod policy_set;
pub mod scalability;
pub mod states;
pub mod turns;
pub mod units;

pub use assess::Assessment;
pub use assess::assess;
pub use decision::Because;
pub use decision::Decision;
pub use decision::Knob;
pub use decision::Target;
pub use flexs::FlexS;
pub use flexs::FlexSConfig;
pub use flexw::FlexW;
pub use flexw::FlexWConfig;
pub use observation::VcpuObservation;
pub use observation::VcpuSettings;
pub use observation::VmObservation;
pub use observation::VmSettings;
pub use pcpu_set::PcpuSet;
pub use policy_set::PolicyId;
pub use policy_set::PolicySet;
pub use states::State;
pub use states::VcpuTimes;
pub use units::Nanos;
pub use units::Nice;
pub use units::PcpuId;
pub use units::VcpuId;
pub use units::VmId;
pub use units::Weight;
