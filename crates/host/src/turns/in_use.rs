//! What the fleet keeps of turns.

use std::process::Command;

use super::keeper::TurnKeeper;

/// What keeps the rhythm of turns.
#[derive(Default)]
pub(crate) struct Turns {
    /// How to start the watchdog.
    pub watchdog: Option<Command>,
    /// `None` until a VM takes turns.
    pub keeper: Option<TurnKeeper>,
    /// What went wrong since it was last asked for.
    pub errors: Vec<String>,
}
