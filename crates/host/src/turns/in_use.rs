//! What the fleet keeps of turns.

use std::time::Instant;

use super::again::Again;
use super::keeper::TurnKeeper;
use super::stats::TurnStats;
use super::watchdog::Watchdog;
use super::watchdog_starter::WatchdogStarter;

/// What keeps the rhythm of turns.
#[derive(Default)]
pub(crate) struct Turns {
    /// Starts the watchdog, if there is to be one.
    pub watchdog: Option<WatchdogStarter>,
    /// `None` until a VM takes turns, and after its thread has ended until there is another.
    pub keeper: Option<TurnKeeper>,
    /// When keepers were started.
    pub keepers: Again,
    /// What went wrong since it was last asked for.
    pub errors: Vec<String>,
    /// Of keepers that are gone.
    earlier: Option<TurnStats>,
}

impl Turns {
    /// How well the rhythm was kept; `None`: nobody took turns yet.
    pub fn stats(&self) -> Option<TurnStats> {
        let now = self.keeper.as_ref().map(TurnKeeper::stats);
        match (&self.earlier, now) {
            (Some(earlier), Some(now)) => Some(earlier.plus(&now)),
            (earlier, now) => now.or_else(|| earlier.clone()),
        }
    }

    /// Gives up a keeper whose thread has ended.
    pub fn lose_keeper(&mut self) {
        self.earlier = self.stats();
        self.keeper = None;
    }

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
        if self.keeper.as_ref().is_none_or(|keeper| keeper.watchdog().is_some()) {
            return;
        }
        if let Some(watchdog) = self.start_watchdog()
            && let Some(keeper) = &mut self.keeper
        {
            keeper.watch(watchdog);
        }
    }
}
