//! Tells errors of arguments from errors of the machine or of a run.

use std::error::Error;

use crate::work::cell::CellError;
use crate::work::measure::SettingsError;
use crate::{flexs, guest, mixes};

/// Returns whether an error stems from invalid arguments. Looks at this error alone, not at its causes.
pub fn is_of_an_argument(error: &(dyn Error + 'static)) -> bool {
    tandem_demo::is_of_an_argument(error)
        || error.is::<CellError>()
        || error.is::<SettingsError>()
        || error.is::<mixes::MixError>()
        || error.is::<flexs::mix::MixError>()
        || error.is::<guest::program::UnknownProgram>()
        || error.is::<guest::variant::VariantError>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_argument_errors() {
        let unknown = guest::program::UnknownProgram("make".to_owned());
        assert!(is_of_an_argument(&unknown));
        assert!(is_of_an_argument(&tandem_demo::range::whole("--runs", 0, 1, 9).unwrap_err()));
        assert!(!is_of_an_argument(&std::io::Error::other("full")));
    }
}
