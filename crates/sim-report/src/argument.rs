//! Classifies errors: whether an error is the fault of an option of the simulator's commands, rather than of the run.

use std::error::Error;

use tandem_experiment::compare::UnknownMetric;
use tandem_experiment::figures::NoTable;
use tandem_experiment::input::InputError;
use tandem_experiment::mixed::MixedError;
use tandem_experiment::mixed::mix::MixError;
use tandem_experiment::policies::PolicyError;
use tandem_experiment::vary::VaryError;
use tandem_sim::scenario::load::{LoadError, Place};

use crate::recording::RecordingError;

/// Returns whether an error reports an invalid option; its causes are not considered.
pub fn is_of_an_argument(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref() {
        Some(MixedError::Mix(error)) => return matches!(error, MixError::TooSmall { .. }),
        Some(MixedError::Scenario(error)) => return is_of_an_argument(error),
        _ => {}
    }
    let of_setting = match error.downcast_ref() {
        Some(LoadError::Malformed(_)) => true,
        Some(LoadError::Wrong { place, .. }) => matches!(place, Place::Given { .. }),
        _ => false,
    };
    of_setting
        || error.is::<InputError>()
        || error.is::<PolicyError>()
        || error.is::<VaryError>()
        || error.is::<UnknownMetric>()
        || error.is::<RecordingError>()
        || error.is::<NoTable>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_settings_are_arguments() {
        let place = |option| Place::Given { option, key: "seed".into(), value: "x".into() };
        let given = LoadError::at(&place("--set"), "no number");
        assert!(is_of_an_argument(&given));
        let line = Place::Line { file: "a.toml".into(), line: 3 };
        assert!(!is_of_an_argument(&LoadError::at(&line, "no number")));
        assert!(is_of_an_argument(&InputError::Runs(0)));
        assert!(!is_of_an_argument(&std::io::Error::other("full")));
    }
}
