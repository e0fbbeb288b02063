//! The knobs that the agent turns: vCPUs of the workload (consolidation), retention, and the affinity of its threads.
//!
//! In a dry run there are none, only a hierarchy to look at.

use std::os::fd::BorrowedFd;

use tandem_linux::thread::Pid;
use tandem_model::Nanos;

use crate::actuator::{Actuator, ActuatorError};
use crate::cpusets::Cpusets;
use crate::pinning::Pinning;
use crate::retention::Retention;

/// What the agent may change.
pub(crate) enum Knobs {
    /// Everything that is there.
    Live {
        /// Journals, changes and restores.
        actuator: Box<Actuator>,
        /// Unless it is switched off.
        retention: Option<Retention>,
        /// With a vCPU for each thread.
        pinning: Option<Pinning>,
    },
    /// Nothing.
    Dry(Cpusets),
}

/// How many threads were bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// As they were born.
    pub(crate) at_birth: u64,
    /// At a period.
    pub(crate) later: u64,
}

impl Knobs {
    /// Whether nothing may be changed.
    pub(crate) fn is_dry(&self) -> bool {
        matches!(self, Knobs::Dry(_))
    }

    /// A file that can be read once threads were born that are to be bound.
    pub(crate) fn births_file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Knobs::Live { pinning: Some(pinning), .. } => pinning.births_file(),
            _ => None,
        }
    }

    /// The cpuset hierarchy, to look at.
    pub(crate) fn cpusets(&self) -> &Cpusets {
        match self {
            Knobs::Live { actuator, .. } => actuator.cpusets(),
            Knobs::Dry(cpusets) => cpusets,
        }
    }

    /// Idle time that yielding threads burnt so far; `None` where there are none.
    pub(crate) fn burnt(&self) -> Option<Nanos> {
        match self {
            Knobs::Live { retention: Some(retention), .. } => retention.burnt(),
            _ => None,
        }
    }

    /// With a vCPU for each thread: binds those that were born, and of these processes all that are new.
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
