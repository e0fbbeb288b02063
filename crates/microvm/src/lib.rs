//! MicroVMs: small KVM virtual machines whose guests are synchronization workloads.
//!
//! A [`Microvm`] has 1 to 64 real vCPUs, each a host thread named `NAME/vcpuN`, and no operating system: the guest image is one freestanding C program (`guest/`).
//! Its workload runs at CPL 3, where hypervisors without hardware support also run it at native speed (see [`Ring`] for ring 0).
//! A few instructions at CPL 0 halt, send interrupts and acknowledge them.
//! The host's scheduler thus sees the vCPUs of real VMs, which halt, wake each other, hold locks and wait for each other.
//! The process starts in milliseconds and counts its finished work.
//!
//! ```text
//! MicrovmConfig ──► Microvm::start ──► snapshot, snapshot, … ──► stop ──► Report::between
//! ```
//!
//! Without KVM, the same workload code runs on plain threads ([`Backend::Threads`]).
//!
//! Non-goals: devices, disks, networks, large guest memory, and isolation within the guest.
//! x86-64 only.

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
