//! What a source of observation is asked, and what it answers.
//!
//! ```no_run
//! use tandem_linux::ProcFs;
//! use tandem_observe::Plain;
//! use tandem_observe::Source;
//!
//! let mut source = Plain::new(ProcFs::host());
//! let vms = []; // found by whoever looks for VMs
//! source.begin(&vms)?;
//! for missing in source.missing() {
//!     println!("{missing}");
//! }
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! let interval = source.interval(&vms)?;
//! println!("{} idle", interval.host.idle.unwrap_or_default());
//! # Ok::<(), tandem_observe::ObserveError>(())
//! ```
//!
//! What it answers is [`tandem_model::states::interval`]: the same for every source, and for a simulated host.

use tandem_linux::sampler::SampleError;
use tandem_linux::thread::ThreadRef;
use tandem_model::states::interval::{Interval, Missing, SourceName};
use tandem_model::{VcpuId, VmId};
use thiserror::Error;

use crate::bpf::BpfError;

/// Why nothing can be observed.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The kernel lacks the account, or this process may not have as many files open.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Processes cannot be listed.
    #[error("cannot list {path}: {source}; is /proc mounted?")]
    List {
        /// Which folder.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// BPF programs cannot be had, or not be read.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// A vCPU to look at, and the thread that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedVcpu {
    /// Its number in its VM.
    pub vcpu: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
}

/// A VM to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVm {
    /// A number that no other VM has.
    pub vm: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// Its vCPUs, by number.
    pub vcpus: Vec<WatchedVcpu>,
}

/// Measures where time goes, interval after interval.
pub trait Source {
    /// What it is called in its answers.
    fn name(&self) -> SourceName;

    /// Counts wake-ups of vCPUs from the next beginning on, where that takes reading more: for whoever records. Sources that count them
    /// anyway, or cannot, do nothing.
    fn count_wakeups(&mut self) {}

    /// Begins: what happened before does not count.
    fn begin(&mut self, vms: &[WatchedVm]) -> Result<(), ObserveError>;

    /// What it does not measure of any VM on this host, as far as that is known by now. Each interval says what was missing in it.
    fn missing(&self) -> Vec<Missing>;

    /// What happened since [`Source::begin`] or the last interval. A VM or vCPU that is new, or gone, is not in it.
    fn interval(&mut self, vms: &[WatchedVm]) -> Result<Interval, ObserveError>;
}
