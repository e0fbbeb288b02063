//! The page of a survey.

use tandem_report::survey_page;
use tandem_report::survey_page::Ranking;
use tandem_report::survey_page::Section;

/// The whole page.
pub fn html(rankings: &[Ranking], sections: &[Section]) -> String {
    survey_page::html(rankings, sections, &super::command(), &super::footer())
}
