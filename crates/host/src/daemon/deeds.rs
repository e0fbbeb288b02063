//! The daemon's successes and failures, which determine its exit status.

use thiserror::Error;

use crate::apply::{Applied, Refused};

/// The error of a daemon that could not do any of its work.
#[derive(Debug, Error)]
pub enum NoEffect {
    /// All VMs belong to other daemons.
    #[error("all selected VMs are managed by another Tandem daemon; see the warnings above")]
    AllTaken,
    /// All changes failed.
    #[error(
        "nothing could be changed: every change that was tried was refused; see the errors above"
    )]
    NothingChanged,
}

/// The results so far.
#[derive(Debug, Default)]
pub(super) struct Deeds {
    /// Whether any VM was adopted.
    pub took: bool,
    /// Whether anything was changed.
    changed: bool,
    /// Whether a VM was another daemon's.
    was_others: bool,
    /// Whether a change was refused.
    was_refused: bool,
}

impl Deeds {
    /// Records the changes of a period.
    pub fn did(&mut self, applied: &Applied) {
        let Applied { weights, moved, swaps, others, refused: _ } = applied;
        self.changed |= *weights + *others > 0 || !moved.is_empty() || !swaps.is_empty();
    }

    /// Records another change: VMs take turns, or have groups that the daemon made.
    pub fn changed_something(&mut self) {
        self.changed = true;
    }

    /// Records failures.
    pub fn could_not(&mut self, refused: &[Refused]) {
        self.was_others |= refused.iter().any(|refused| refused.is_others);
        self.was_refused |= refused.iter().any(|refused| !refused.is_others);
    }

    /// Returns the result of a daemon that ran until its stop.
    /// A dry run may end without changes.
    pub fn end(&self, is_dry: bool) -> Result<(), NoEffect> {
        match self {
            Deeds { was_others: true, took: false, .. } => Err(NoEffect::AllTaken),
            Deeds { was_refused: true, changed: false, .. } if !is_dry => {
                Err(NoEffect::NothingChanged)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(is_others: bool) -> Refused {
        Refused { vm: "a".to_owned(), error: "no".to_owned(), is_of_disk: false, is_others }
    }

    #[test]
    fn daemon_without_changes_fails() {
        let mut deeds = Deeds::default();
        assert!(deeds.end(false).is_ok(), "it had nothing to do");
        deeds.took = true;
        deeds.did(&Applied::default());
        deeds.could_not(&[refused(true)]);
        assert!(deeds.end(false).is_ok(), "no change on its own VMs failed");
        deeds.could_not(&[refused(false)]);
        assert!(matches!(deeds.end(false), Err(NoEffect::NothingChanged)));
        assert!(deeds.end(true).is_ok(), "a dry run makes no changes");
        deeds.did(&Applied { weights: 1, ..Applied::default() });
        assert!(deeds.end(false).is_ok(), "one change was made");
    }

    #[test]
    fn daemon_without_own_vms_fails() {
        let mut deeds = Deeds::default();
        deeds.could_not(&[refused(true)]);
        assert!(matches!(deeds.end(false), Err(NoEffect::AllTaken)));
        deeds.took = true;
        assert!(deeds.end(false).is_ok());
    }
}
