//! Errors of adopting or following a VM.

use tandem_linux::actuator::ActuatorError;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::thread::Pid;

use crate::apply::Refused;

/// An error of adopting or following a VM.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Its cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A change was refused.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Another daemon manages it.
    #[error(
        "another Tandem daemon of this host manages process {pid}, so this one does not: let the two select different VMs"
    )]
    Taken {
        /// The VM's process.
        pid: Pid,
    },
    /// The claim on the VM, which other daemons read, cannot be made.
    #[error("cannot tell other Tandem daemons of process {pid}: {source}")]
    Claim {
        /// The VM's process.
        pid: Pid,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl FleetError {
    /// Returns the report of this error for a VM.
    pub(crate) fn refused(&self, vm: &str) -> Refused {
        match self {
            FleetError::Actuator(error) => Refused::new(vm, error),
            other => Refused {
                vm: vm.to_owned(),
                error: other.to_string(),
                is_of_disk: false,
                is_others: matches!(other, FleetError::Taken { .. }),
            },
        }
    }

    /// Whether the reason is the VM or its cgroup, so that the next try most likely fails too.
    pub(crate) fn is_of_the_vm(&self) -> bool {
        match self {
            FleetError::Actuator(ActuatorError::Journal(error)) => !error.is_of_disk(),
            FleetError::Cgroup(_) | FleetError::Actuator(_) => true,
            FleetError::Taken { .. } | FleetError::Claim { .. } => false,
        }
    }

    /// Whether the VM or its cgroup has vanished.
    pub fn is_gone(&self) -> bool {
        match self {
            FleetError::Cgroup(error) => error.is_gone(),
            FleetError::Actuator(error) => error.is_gone(),
            FleetError::Taken { .. } | FleetError::Claim { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::journal::JournalError;

    use super::*;

    #[test]
    fn foreign_vm_is_not_a_failure() {
        let taken = FleetError::Taken { pid: Pid(4711) }.refused("db");
        assert!(taken.is_others && taken.to_string().contains("process 4711"));
        let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let failed = FleetError::Claim { pid: Pid(4711), source };
        assert!(!failed.refused("db").is_others);
    }

    #[test]
    fn disk_errors_of_all_steps_read_alike() {
        let words = |action, vm| {
            let error = JournalError::File {
                action,
                path: "/run/tandem/journal".into(),
                source: std::io::ErrorKind::StorageFull.into(),
            };
            let refused = FleetError::Actuator(error.into()).refused(vm);
            assert!(refused.is_of_disk);
            refused.to_string()
        };
        let text = words("write to", "db");
        assert!(text.contains("/run/tandem/journal: no storage space"), "{text}");
        assert_eq!(words("replace", "web"), text);
    }
}
