//! What is there where the programs were not built: an answer that says so.

use std::convert::Infallible;

use super::{BpfCost, BpfError, BpfReading, MissingEvent, Options, Watch};

/// Never opens.
#[derive(Debug)]
pub struct Bpf {
    never: Infallible,
}

impl Bpf {
    /// Says why there are no programs.
    pub fn open(_options: Options) -> Result<Bpf, BpfError> {
        Err(BpfError::BuiltWithout { missing: env!("TANDEM_BPF_MISSING") })
    }

    /// What this kernel does not tell.
    pub fn missing(&self) -> Vec<MissingEvent> {
        match self.never {}
    }

    /// Watches these threads and no others.
    pub fn watch(&mut self, _threads: &[Watch]) -> Result<(), BpfError> {
        match self.never {}
    }

    /// What happened since the last reading.
    pub fn read(&mut self) -> Result<BpfReading, BpfError> {
        match self.never {}
    }

    /// Has the kernel count what BPF programs cost.
    pub fn count_costs(&mut self) -> Result<(), BpfError> {
        match self.never {}
    }

    /// What each program cost.
    pub fn cost(&self) -> Vec<BpfCost> {
        match self.never {}
    }
}
