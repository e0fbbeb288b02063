//! Tandem's user-level vCPU scheduling policies.
//!
//! Everything here is pure: observations in, decisions out. No file, no clock, no thread. The same
//! code decides in the host daemon, in tests and in simulators.

pub mod pcpu_set;
pub mod units;

pub use pcpu_set::PcpuSet;
pub use units::Nanos;
pub use units::PcpuId;
pub use units::VcpuId;
pub use units::VmId;
pub use units::Weight;
