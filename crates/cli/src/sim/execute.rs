//! Runs simulations under a progress bar.
//!
//! The bar counts simulated time. It appears on a terminal once two seconds have gone by, so that
//! short runs stay quiet; elsewhere there is none. Running in portions changes nothing in the
//! results: a portion ends between two events.

use std::io::IsTerminal;
use std::time::Duration;
use std::time::Instant;

use indicatif::ProgressBar;
use indicatif::ProgressDrawTarget;
use indicatif::ProgressStyle;
use tandem_policy::Nanos;
use tandem_sim::Results;
use tandem_sim::World;

/// What runs shorter needs no bar.
const QUIET: Duration = Duration::from_secs(2);

/// Portions of a run, between which the bar moves.
const PORTIONS: u64 = 500;

/// Progress of one or more simulations, in simulated time.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Begins; `total` is the simulated time of all runs together.
    pub fn begin(total: Nanos) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total.0), ProgressDrawTarget::hidden());
        let style = "{bar:32.cyan} {percent:>3} %  {elapsed_precise}, {eta} to go  {msg}";
        // The template is a constant; should it not parse, the default style serves as well.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress {
            bar,
            began: Instant::now(),
        }
    }

    /// What is being done from now on.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// So much simulated time has gone by.
    fn add(&self, time: Nanos) {
        self.bar.inc(time.0);
        if self.bar.is_hidden() && self.began.elapsed() >= QUIET && std::io::stderr().is_terminal()
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs a world to its end, at most `duration` away.
pub fn run(world: &mut World, duration: Nanos, progress: &Progress) -> Results {
    let portion = (duration.0 / PORTIONS).max(1);
    let mut counted = Nanos::ZERO;
    loop {
        let until = Nanos(world.now().0.saturating_add(portion));
        let over = world.run_until(until);
        let now = world.now().min(duration);
        progress.add(now.saturating_sub(counted));
        counted = now;
        if over {
            // What ended early is done as well.
            progress.add(duration.saturating_sub(counted));
            return world.results();
        }
    }
}
