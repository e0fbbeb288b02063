//! Why a VM is not taken into care, or not followed.

use tandem_linux::actuator::ActuatorError;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::thread::Pid;

use crate::apply::Refused;

/// Why a VM cannot be taken into care.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Its cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A change was refused.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Another daemon has it.
    #[error(
        "another Tandem daemon of this host looks after process {pid}; it is left to that one: let the two select different VMs"
    )]
    Taken {
        /// The VM's process.
        pid: Pid,
    },
    /// Other daemons cannot be told.
    #[error("cannot tell other Tandem daemons of process {pid}: {source}")]
    Claim {
        /// The VM's process.
        pid: Pid,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl FleetError {
    /// What is told of it.
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

    /// Whether the reason is the VM, or where it is: then the next try most likely fails, too.
    pub(crate) fn is_of_the_vm(&self) -> bool {
        match self {
            FleetError::Actuator(ActuatorError::Journal(error)) => !error.is_of_disk(),
            FleetError::Cgroup(_) | FleetError::Actuator(_) => true,
            FleetError::Taken { .. } | FleetError::Claim { .. } => false,
        }
    }

    /// Whether the reason is only that the VM or its cgroup has vanished meanwhile.
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
    fn another_daemons_vm_is_told_from_what_fails() {
        let taken = FleetError::Taken { pid: Pid(4711) }.refused("db");
        assert!(taken.is_others && taken.in_words().contains("process 4711"));
        let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let failed = FleetError::Claim { pid: Pid(4711), source };
        assert!(!failed.refused("db").is_others);
    }

    #[test]
    fn a_disk_that_fails_at_different_steps_is_told_of_once() {
        let words = |action, vm| {
            let error = JournalError::File {
                action,
                path: "/run/tandem/journal".into(),
                source: std::io::ErrorKind::StorageFull.into(),
            };
            let refused = FleetError::Actuator(error.into()).refused(vm);
            assert!(refused.is_of_disk);
            refused.in_words()
        };
        let told = words("write to", "db");
        assert!(told.contains("/run/tandem/journal: no storage space"), "{told}");
        assert_eq!(words("replace", "web"), told);
    }
}
