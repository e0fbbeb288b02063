//! Which errors are of what was asked for, not of the machine or of what ran.

use std::error::Error;

use crate::work::cell::CellError;
use crate::work::measure::SettingsError;
use crate::{flexs, guest, mixes};

/// Whether an error is one of arguments that cannot be. It looks at this error alone, not at its causes.
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
    fn a_name_that_nothing_has_is_an_argument_and_a_full_disk_is_none() {
        let unknown = guest::program::UnknownProgram("make".to_owned());
        assert!(is_of_an_argument(&unknown));
        assert!(is_of_an_argument(&tandem_demo::range::whole("--runs", 0, 1, 9).unwrap_err()));
        assert!(!is_of_an_argument(&std::io::Error::other("full")));
    }
}
