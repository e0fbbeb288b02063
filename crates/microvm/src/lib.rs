//! MicroVMs: small KVM virtual machines whose guests are synchronization workloads.
//!
//! A [`Microvm`] has 1 to 64 real vCPUs, each a host thread named `NAME/vcpuN`, and no operating
//! system: the guest image is one freestanding C program (`guest/`). Its workload runs at CPL 3,
//! where a hypervisor without hardware help lets it run at native speed too ([`Ring`] says when
//! not); a few instructions at CPL 0 halt, send interrupts and end them. So a scheduler on the host meets what real VMs give it
//! (vCPUs that halt, wake each other, hold locks, wait for each other) in a process that starts in
//! milliseconds and counts the work it gets done.
//!
//! ```text
//! MicrovmConfig ──► Microvm::start ──► snapshot, snapshot, … ──► stop ──► Report::between
//! ```
//!
//! The same workload code also runs on plain threads ([`Backend::Threads`]) where there is no KVM.
//!
//! What it does not do: devices, disks, networks, guest memory to speak of, or any isolation of the
//! guest from itself. x86-64 only.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("microVMs need Linux on x86-64");

pub mod calibrate;
pub mod completion;
pub mod config;
mod cpu_state;
mod host_library;
mod image;
pub mod kvm;
pub mod memory;
pub mod pin;
pub mod report;
pub mod ring;
mod shared;
mod signals;
pub mod snapshot;
mod thread_time;
pub mod vcpu;
pub mod vm;
pub mod workload;

pub use calibrate::{Calibration, NotACalibration};
pub use completion::{Completion, Histogram};
pub use config::{Backend, ConfigError, MAX_VCPUS, MicrovmConfig, VmName};
pub use report::{Report, VcpuReport};
pub use ring::{NotARing, Ring};
pub use snapshot::{Snapshot, VcpuSnapshot};
pub use vm::{Microvm, StartError};
pub use workload::{ParameterError, Parameters, Workload};
