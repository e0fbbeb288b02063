//! Measures how the vCPUs of VMs spend their time on a live host, and which threads make them wait.
//!
//! A [`Source`] is polled at intervals and returns an [`Interval`].
//! The interval holds each vCPU's time per state ([`tandem_model::states`]), the edges between victims and culprits, and the CPU time
//! of the rest of the host.
//! Values that a source cannot measure are listed as [`Missing`](tandem_model::states::interval::Missing) and never shown as zero.
//! All sources return the same types, so displays and diagnosis do not depend on the source.
//!
//! - [`source`]: the trait and its types.
//! - [`plain`]: the source without BPF: schedstat, CPU clocks, cgroups, KVM statistics.
//! - [`bpf`]: the source that uses BPF programs.
//! - [`choice`]: selects one of the two.
//! - [`findings`]: diagnoses slow VMs from an interval and the configuration, and suggests remedies.
//! - [`poll`]: halt polling of each vCPU, from the KVM statistics files that a VMM holds open.
//! - [`record`]: stores days of intervals in files and reads them back.
//! - [`trace`]: records every context switch for some seconds.
//!
//! This crate does not discover VMs and changes nothing on the host: the caller passes processes and threads ([`WatchedVm`]).

pub mod bpf;
pub mod choice;
pub mod findings;
pub mod listing;
pub mod moment;
pub mod plain;
pub mod poll;
pub mod record;
pub mod recorded;
pub mod source;
pub mod span;
pub mod trace;

pub use bpf::BpfSource;
pub use choice::Choice;
pub use plain::Plain;
pub use source::{ObserveError, Source, WatchedVcpu, WatchedVm};
pub use tandem_model::states::interval::Interval;
