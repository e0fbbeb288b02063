//! What an experiment changed, put back: by itself, after its daemon was killed, or by the next experiment.

use std::path::Path;

use tandem_linux::actuator::{ActuatorError, restore_all};
use tandem_linux::cgroup::CgroupError;
use tandem_linux::restore::RestoreReport;
use tandem_linux::{ProcFs, cgroup};
use thiserror::Error;

/// Why something is not as it was before.
#[derive(Debug, Error)]
pub enum PutBackError {
    /// The cgroups of this host.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] ActuatorError),
    /// A change that could not be undone.
    #[error("could not put back {what}: {error}")]
    Left {
        /// Which.
        what: String,
        /// Why.
        error: String,
    },
}

/// Puts back all that the journal in a directory lists.
pub fn put_back(dir: &Path) -> Result<(), PutBackError> {
    complete(&restore_all(cgroup::open(&ProcFs::host())?, dir)?)
}

/// An error if a restore left something.
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
    fn what_was_left_is_named() {
        let mut report = RestoreReport::default();
        assert!(complete(&report).is_ok());
        report.failures.push(RestoreFailure {
            what: "the weight of /a".to_owned(),
            error: "read-only".to_owned(),
        });
        assert_eq!(
            complete(&report).unwrap_err().to_string(),
            "could not put back the weight of /a: read-only"
        );
    }
}
