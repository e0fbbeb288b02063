//! A replacement for builds without the programs, which fails to open.

use std::convert::Infallible;

use super::{BpfCost, BpfError, BpfReading, MissingEvent, Options, Watch};

/// Cannot be constructed.
#[derive(Debug)]
pub struct Bpf {
    never: Infallible,
}

impl Bpf {
    /// Returns an error with the missing build requirement.
    pub fn open(_options: Options) -> Result<Bpf, BpfError> {
        Err(BpfError::BuiltWithout { missing: env!("TANDEM_BPF_MISSING") })
    }

    /// Returns the missing events.
    pub fn missing(&self) -> Vec<MissingEvent> {
        match self.never {}
    }

    /// Sets the watched threads.
    pub fn watch(&mut self, _threads: &[Watch]) -> Result<(), BpfError> {
        match self.never {}
    }

    /// Returns the changes since the last reading.
    pub fn read(&mut self) -> Result<BpfReading, BpfError> {
        match self.never {}
    }

    /// Makes the kernel count the cost of BPF programs.
    pub fn count_costs(&mut self) -> Result<(), BpfError> {
        match self.never {}
    }

    /// Returns the cost of each program.
    pub fn cost(&self) -> Vec<BpfCost> {
        match self.never {}
    }
}
