//! The fleet's state of turns.

use std::time::Instant;

use super::again::Again;
use super::keeper::TurnKeeper;
use super::stats::TurnStats;
use super::watchdog::Watchdog;
use super::watchdog_starter::WatchdogStarter;

/// The turn thread and its watchdog.
#[derive(Default)]
pub(crate) struct Turns {
    /// Starts the watchdog, if there is to be one.
    pub watchdog: Option<WatchdogStarter>,
    /// `None` until a VM takes turns, and between two turn threads.
    pub keeper: Option<TurnKeeper>,
    /// Starts of turn threads.
    pub keepers: Again,
    /// Errors since they were last taken.
    pub errors: Vec<String>,
    /// Statistics of earlier turn threads.
    earlier: Option<TurnStats>,
}

impl Turns {
    /// Returns the statistics of all turns; `None` before the first one.
    pub fn stats(&self) -> Option<TurnStats> {
        let now = self.keeper.as_ref().map(TurnKeeper::stats);
        match (&self.earlier, now) {
            (Some(earlier), Some(now)) => Some(earlier.plus(&now)),
            (earlier, now) => now.or_else(|| earlier.clone()),
        }
    }

    /// Drops the keeper, whose thread has ended, and keeps its statistics.
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

    /// Starts another watchdog if one was lost.
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
