//! What a bench left out, and what went wrong: name and reason of each.

/// What did not give a figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Programs and variants that cannot run here.
    pub skipped: Vec<(String, String)>,
    /// Programs that should have run and did not.
    pub failed: Vec<(String, String)>,
}
