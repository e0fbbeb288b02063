//! Where the time of VMs' vCPUs goes on a live host, and who waits for whom.
//!
//! A [`Source`] is asked again and again and answers with an [`Interval`]: for each vCPU the times in the states of
//! [`tandem_model::states`], the edges between victims and culprits, and what the rest of the host used. What a source cannot
//! measure it says ([`Missing`](tandem_model::states::interval::Missing)), and is never shown as zero. Sources differ in what they see, not in what they answer, so that
//! whoever shows or judges an interval need not know which it came from.
//!
//! - [`source`]: the trait and what it answers.
//! - [`plain`]: the source that needs no BPF: schedstat, CPU clocks, cgroups, KVM's figures.
//! - [`bpf`]: what BPF programs see.
//! - [`choice`]: opens one or the other.
//! - [`findings`]: why VMs are slow, from an interval and what is configured, and what to do.
//! - [`poll`]: halt polling of each vCPU, from the files of KVM's figures that a VMM holds open.
//! - [`record`]: intervals in files, days of them, and read back.
//! - [`trace`]: some seconds in full, switch by switch.
//!
//! Nothing here finds VMs, and nothing changes anything: VMs come in as processes and threads ([`WatchedVm`]).

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
