//! Simulated reproductions of published figures, and a survey of policies.
//!
//! - [`reproduce`]: claims of papers, each with its scenario, figures and verdict; [`claims_table`] and [`claims_page`] render them.
//! - [`survey`]: every policy with every program, as tables and as a page.
//! - [`papers`]: the embedded scenarios of published experiments.

pub mod claims_page;
pub mod claims_table;
pub mod papers;
pub mod programs;
pub mod relative;
pub mod reproduce;
pub mod sample;
pub mod section;
pub mod survey;
pub mod trials;

use std::error::Error;

/// Returns whether an error is due to an invalid argument; the error's causes are not examined.
pub fn is_of_an_argument(error: &(dyn Error + 'static)) -> bool {
    use survey::SurveyError;
    use trials::TrialsError;
    let of_survey = matches!(
        error.downcast_ref(),
        Some(
            SurveyError::Overcommit(_)
                | SurveyError::Pcpus(_)
                | SurveyError::Trials(TrialsError::Policy(_) | TrialsError::NoFolder(_))
        )
    );
    let is_claim = matches!(error.downcast_ref(), Some(reproduce::ReproduceError::Unknown { .. }));
    of_survey || is_claim || tandem_sim_report::is_of_an_argument(error)
}
