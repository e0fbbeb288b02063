//! Which errors are about an option of the simulator's commands, and so about what was asked for, not about what happened.

use std::error::Error;

use tandem_experiment::compare::UnknownMetric;
use tandem_experiment::figures::NoTable;
use tandem_experiment::input::InputError;
use tandem_experiment::policies::PolicyError;
use tandem_experiment::vary::VaryError;
use tandem_sim::scenario::load::{LoadError, Place};

use crate::recording::RecordingError;

/// Whether an error, its causes left aside, says what is wrong with an option.
pub fn is_of_an_argument(error: &(dyn Error + 'static)) -> bool {
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
    fn a_setting_on_the_command_line_is_an_argument_and_one_in_a_file_is_none() {
        let place = |option| Place::Given { option, key: "seed".into(), value: "x".into() };
        let given = LoadError::at(&place("--set"), "no number");
        assert!(is_of_an_argument(&given));
        let line = Place::Line { file: "a.toml".into(), line: 3 };
        assert!(!is_of_an_argument(&LoadError::at(&line, "no number")));
        assert!(is_of_an_argument(&InputError::Runs(0)));
        assert!(!is_of_an_argument(&std::io::Error::other("full")));
    }
}
