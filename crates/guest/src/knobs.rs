//! Settings that the agent changes: vCPUs of the workload (consolidation), retention, and affinity of its threads.
//!
//! A dry run has none of them, only a cpuset hierarchy to read.

use std::os::fd::BorrowedFd;

use tandem_linux::thread::Pid;
use tandem_model::Nanos;

use crate::actuator::{Actuator, ActuatorError};
use crate::cpusets::Cpusets;
use crate::pinning::Pinning;
use crate::retention::Retention;

/// Access to the VM's settings.
pub(crate) enum Knobs {
    /// All settings may change.
    Live {
        /// Journals, changes and reverts.
        actuator: Box<Actuator>,
        /// Retention, unless it is off.
        retention: Option<Retention>,
        /// Per-thread vCPUs, if enabled.
        pinning: Option<Pinning>,
    },
    /// A dry run changes nothing.
    Dry(Cpusets),
}

/// Number of threads that were bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// At their creation.
    pub(crate) at_birth: u64,
    /// At the end of a period.
    pub(crate) later: u64,
}

impl Knobs {
    /// Returns true in a dry run.
    pub(crate) fn is_dry(&self) -> bool {
        matches!(self, Knobs::Dry(_))
    }

    /// Returns a file that becomes readable when new threads are to be bound.
    pub(crate) fn births_file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Knobs::Live { pinning: Some(pinning), .. } => pinning.births_file(),
            _ => None,
        }
    }

    /// Returns the cpuset hierarchy.
    pub(crate) fn cpusets(&self) -> &Cpusets {
        match self {
            Knobs::Live { actuator, .. } => actuator.cpusets(),
            Knobs::Dry(cpusets) => cpusets,
        }
    }

    /// Returns the idle time that yielding threads have burnt; `None` without such threads.
    pub(crate) fn burnt(&self) -> Option<Nanos> {
        match self {
            Knobs::Live { retention: Some(retention), .. } => retention.burnt(),
            _ => None,
        }
    }

    /// With per-thread vCPUs, binds threads that were created, and all new ones of these processes.
    pub(crate) fn bind(
        &mut self,
        processes: Option<&[Pid]>,
    ) -> Result<Option<Bound>, ActuatorError> {
        let Knobs::Live { actuator, pinning: Some(pinning), .. } = self else {
            return Ok(None);
        };
        let at_birth = pinning.bind_born(actuator)?;
        let later = match processes {
            Some(processes) => pinning.bind_new(actuator, processes)?,
            None => 0,
        };
        Ok(Some(Bound { at_birth, later }))
    }
}
