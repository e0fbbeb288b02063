//! Selects the source for a live host.

use tandem_linux::procfs::ProcFs;

use crate::bpf::{BpfSource, Options};
use crate::plain::Plain;
use crate::source::{ObserveError, Source};

/// The source for a live host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// [`Plain`]: kernel statistics, without BPF.
    #[default]
    Plain,
    /// [`BpfSource`]: BPF programs in addition.
    Bpf,
}

impl Choice {
    /// Opens the source, which loads its programs. The set of watched VMs is empty.
    pub fn open(self) -> Result<Box<dyn Source>, ObserveError> {
        let procfs = ProcFs::host();
        Ok(match self {
            Choice::Plain => Box::new(Plain::new(procfs)),
            Choice::Bpf => Box::new(BpfSource::open(procfs, Options::default())?),
        })
    }
}
