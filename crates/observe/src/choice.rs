//! The sources of a live host, by name.

use tandem_linux::procfs::ProcFs;

use crate::bpf::{BpfSource, Options};
use crate::plain::Plain;
use crate::source::{ObserveError, Source};

/// What measures a live host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// [`Plain`]: accounts that every kernel keeps.
    #[default]
    Plain,
    /// [`BpfSource`]: programs in the kernel, beside such accounts.
    Bpf,
}

impl Choice {
    /// Opens it. Programs are loaded; nothing is watched yet.
    pub fn open(self) -> Result<Box<dyn Source>, ObserveError> {
        let procfs = ProcFs::host();
        Ok(match self {
            Choice::Plain => Box::new(Plain::new(procfs)),
            Choice::Bpf => Box::new(BpfSource::open(procfs, Options::default())?),
        })
    }
}
