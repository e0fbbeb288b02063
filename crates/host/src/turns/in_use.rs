//! What the fleet keeps of turns.

use std::time::Instant;

use super::keeper::TurnKeeper;
use super::watchdog::Watchdog;
use super::watchdog_starter::WatchdogStarter;

/// What keeps the rhythm of turns.
#[derive(Default)]
pub(crate) struct Turns {
    /// Starts the watchdog, if there is to be one.
    pub watchdog: Option<WatchdogStarter>,
    /// `None` until a VM takes turns.
    pub keeper: Option<TurnKeeper>,
    /// What went wrong since it was last asked for.
    pub errors: Vec<String>,
}

impl Turns {
    /// Starts a watchdog, if it is time to.
    pub fn start_watchdog(&mut self) -> Option<Watchdog> {
        match self.watchdog.as_mut()?.start(Instant::now())? {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                let text = format!("cannot start the watchdog of turns: {error}");
                self.errors.push(text);
                None
            }
        }
    }

    /// Starts another watchdog where one was lost.
    pub fn replace_watchdog(&mut self) {
        if self
            .keeper
            .as_ref()
            .is_none_or(|keeper| keeper.watchdog().is_some())
        {
            return;
        }
        if let Some(watchdog) = self.start_watchdog()
            && let Some(keeper) = &mut self.keeper
        {
            keeper.watch(watchdog);
        }
    }
}
