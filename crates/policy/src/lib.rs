//! Tandem's user-level vCPU scheduling policies.
//!
//! Everything here is pure: observations in, decisions out. No file, no clock, no thread. The same
//! code decides in the host daemon, in tests and in simulators.

pub mod accounting_group;
pub mod assess;
pub mod decision;
pub mod fair_share;
pub mod flexs;
pub mod flexw;
pub mod gleaner;
pub mod observation;
pub mod pcpu_set;
pub mod per_thread;
pub mod placement;
pub mod scalability;
pub mod units;

pub use assess::Assessment;
pub use assess::assess;
pub use decision::Because;
pub use decision::Decision;
pub use flexs::FlexS;
pub use flexs::FlexSConfig;
pub use flexw::FlexW;
pub use flexw::FlexWConfig;
pub use observation::VcpuObservation;
pub use observation::VmObservation;
pub use pcpu_set::PcpuSet;
pub use units::Nanos;
pub use units::PcpuId;
pub use units::VcpuId;
pub use units::VmId;
pub use units::Weight;
