//! What a daemon did and could not do, on which depends how it ends.

use thiserror::Error;

use crate::apply::{Applied, Refused};

/// Nothing came of what a daemon was told to do.
#[derive(Debug, Error)]
pub enum InVain {
    /// Nothing was done, and others did it.
    #[error(
        "every VM that is selected was another Tandem daemon's: this one looked after none; see the warnings above"
    )]
    AllTaken,
    /// Whatever was tried was refused.
    #[error(
        "nothing could be changed: every change that was tried was refused; see the errors above"
    )]
    NothingChanged,
}

/// What it came to so far.
#[derive(Debug, Default)]
pub(super) struct Deeds {
    /// Whether any VM was taken into care.
    pub took: bool,
    /// Whether anything was changed.
    changed: bool,
    /// Whether a VM was another daemon's.
    was_others: bool,
    /// Whether a change was refused.
    was_refused: bool,
}

impl Deeds {
    /// Counts what came of a period's decisions, but for what was refused.
    pub fn did(&mut self, applied: &Applied) {
        let Applied { weights, moved, swaps, others, refused: _ } = applied;
        self.changed |= *weights + *others > 0 || !moved.is_empty() || !swaps.is_empty();
    }

    /// Something else was changed: VMs take turns, or are in groups that were made for them.
    pub fn changed_something(&mut self) {
        self.changed = true;
    }

    /// Counts what was refused.
    pub fn could_not(&mut self, refused: &[Refused]) {
        self.was_others |= refused.iter().any(|refused| refused.is_others);
        self.was_refused |= refused.iter().any(|refused| !refused.is_others);
    }

    /// How a daemon ends that ran until it was told to stop. In a dry run nothing is to be changed.
    pub fn end(&self, is_dry: bool) -> Result<(), InVain> {
        match self {
            Deeds { was_others: true, took: false, .. } => Err(InVain::AllTaken),
            Deeds { was_refused: true, changed: false, .. } if !is_dry => {
                Err(InVain::NothingChanged)
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
    fn a_daemon_that_could_change_nothing_fails() {
        let mut deeds = Deeds::default();
        assert!(deeds.end(false).is_ok(), "it had nothing to do");
        deeds.took = true;
        deeds.did(&Applied::default());
        deeds.could_not(&[refused(true)]);
        assert!(deeds.end(false).is_ok(), "of its own VMs nothing was refused");
        deeds.could_not(&[refused(false)]);
        assert!(matches!(deeds.end(false), Err(InVain::NothingChanged)));
        assert!(deeds.end(true).is_ok(), "nothing was to be changed");
        deeds.did(&Applied { weights: 1, ..Applied::default() });
        assert!(deeds.end(false).is_ok(), "some of it went");
    }

    #[test]
    fn a_daemon_whose_vms_are_all_others_fails() {
        let mut deeds = Deeds::default();
        deeds.could_not(&[refused(true)]);
        assert!(matches!(deeds.end(false), Err(InVain::AllTaken)));
        deeds.took = true;
        assert!(deeds.end(false).is_ok());
    }
}
