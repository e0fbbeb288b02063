//! A replacement for builds without the programs, which fails to open.

use std::convert::Infallible;
use std::time::Duration;

use tandem_linux::procfs::ProcFs;
use tandem_model::states::trace::HostTrace;

use super::TraceOptions;
use crate::bpf::BpfError;
use crate::source::WatchedVm;

/// Cannot be constructed.
#[derive(Debug)]
pub struct Tracer {
    never: Infallible,
}

impl Tracer {
    /// Returns an error with the missing build requirement.
    pub fn open(_procfs: ProcFs, _options: TraceOptions) -> Result<Tracer, BpfError> {
        Err(BpfError::BuiltWithout { missing: env!("TANDEM_BPF_MISSING") })
    }

    /// Traces.
    pub fn trace(
        self,
        _vms: &[WatchedVm],
        _length: Duration,
        _is_enough: impl FnMut() -> bool,
    ) -> Result<HostTrace, BpfError> {
        match self.never {}
    }
}
