//! Skipped and failed programs of a bench, with reasons.

/// Programs and variants without a figure: name and reason of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Programs and variants that cannot run here.
    pub skipped: Vec<(String, String)>,
    /// Programs that should have run but did not.
    pub failed: Vec<(String, String)>,
}
