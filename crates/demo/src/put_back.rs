//! Reverts the changes of an experiment: at its end, after its daemon was killed, or before the next experiment.

use std::path::Path;

use tandem_linux::actuator::{ActuatorError, restore_all};
use tandem_linux::cgroup::CgroupError;
use tandem_linux::restore::RestoreReport;
use tandem_linux::{ProcFs, cgroup};
use thiserror::Error;

/// Changes could not be reverted.
#[derive(Debug, Error)]
pub enum PutBackError {
    /// The cgroups of this host are unusable.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The journal could not be read.
    #[error(transparent)]
    Journal(#[from] ActuatorError),
    /// A change could not be reverted.
    #[error("cannot revert {what}: {error}")]
    Left {
        /// The change.
        what: String,
        /// The cause.
        error: String,
    },
}

/// Reverts all changes in the journal of a directory.
pub fn put_back(dir: &Path) -> Result<(), PutBackError> {
    complete(&restore_all(cgroup::open(&ProcFs::host())?, dir)?)
}

/// Returns an error if a restore failed in part.
pub fn complete(report: &RestoreReport) -> Result<(), PutBackError> {
    match report.failures.first() {
        None => Ok(()),
        Some(failure) => {
            Err(PutBackError::Left { what: failure.what.clone(), error: failure.error.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::restore::RestoreFailure;

    use super::*;

    #[test]
    fn failed_revert_is_named() {
        let mut report = RestoreReport::default();
        assert!(complete(&report).is_ok());
        report.failures.push(RestoreFailure {
            what: "the weight of /a".to_owned(),
            error: "read-only".to_owned(),
        });
        assert_eq!(
            complete(&report).unwrap_err().to_string(),
            "cannot revert the weight of /a: read-only"
        );
    }
}
