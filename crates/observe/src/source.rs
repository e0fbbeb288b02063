//! The interface of a source of measurements.
//!
//! ```no_run
//! use tandem_linux::ProcFs;
//! use tandem_observe::Plain;
//! use tandem_observe::Source;
//!
//! let mut source = Plain::new(ProcFs::host());
//! let vms = []; // from VM discovery
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
//! Intervals are of type [`tandem_model::states::interval`], the same for all sources and for a simulated host.

use tandem_linux::sampler::SampleError;
use tandem_linux::thread::ThreadRef;
use tandem_model::states::interval::{Interval, Missing, SourceName};
use tandem_model::{VcpuId, VmId};
use thiserror::Error;

use crate::bpf::BpfError;

/// Error of a source.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The kernel lacks the statistics, or the limit of open files of this process is too low.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Processes cannot be listed.
    #[error("cannot list {path}: {source}; is /proc mounted?")]
    List {
        /// The folder.
        path: std::path::PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// BPF programs cannot be loaded or read.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// A vCPU to watch, with its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedVcpu {
    /// Its number in its VM.
    pub vcpu: VcpuId,
    /// Its thread.
    pub thread: ThreadRef,
}

/// A VM to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVm {
    /// Its unique id.
    pub vm: VmId,
    /// Its process.
    pub process: ThreadRef,
    /// Its vCPUs, by number.
    pub vcpus: Vec<WatchedVcpu>,
}

/// Measures the time of vCPUs, interval by interval.
pub trait Source {
    /// Returns the name of the source in its intervals.
    fn name(&self) -> SourceName;

    /// Counts wake-ups of vCPUs from the next [`Source::begin`] on, if that requires additional reads; used for records.
    /// Has no effect in sources that always or never count them.
    fn count_wakeups(&mut self) {}

    /// Begins the first interval. Earlier activity does not count.
    fn begin(&mut self, vms: &[WatchedVm]) -> Result<(), ObserveError>;

    /// Returns the figures known to be unavailable for all VMs on this host. Each interval lists its own missing figures.
    fn missing(&self) -> Vec<Missing>;

    /// Returns the interval since [`Source::begin`] or the last interval. It omits VMs and vCPUs that are new or gone.
    fn interval(&mut self, vms: &[WatchedVm]) -> Result<Interval, ObserveError>;
}
