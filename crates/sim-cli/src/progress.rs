//! The progress bar of simulations.
//!
//! It counts simulated time.
//! On a terminal, it appears after two seconds, so that short runs stay quiet.
//! If stderr is not a terminal, such as a log, it writes a line every 30 seconds.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tandem_experiment::progress::Progress;
use tandem_model::Nanos;
use tandem_report::terminal::{has_colour, is_quiet};

/// Time after which the bar appears.
const DELAY: Duration = Duration::from_secs(2);

/// Interval of lines, in seconds.
const LINE_INTERVAL: u64 = 30;

/// The bar, which is removed on drop.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// Number of lines written.
    lines: AtomicU64,
}

impl Default for Bar {
    fn default() -> Bar {
        Bar::new()
    }
}

impl Bar {
    /// Returns a bar that is not visible yet.
    pub fn new() -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let colour = if has_colour(true) { ".cyan" } else { "" };
        let style = format!(
            "{{bar:32{colour}}} {{percent:>3}} %  {{elapsed_precise}}, {{eta}} to go  {{msg}}"
        );
        // The template is valid; otherwise, the default style would do.
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        let lines = AtomicU64::new(0);
        Bar { bar, lines }
    }

    /// Writes a line if the interval has passed; only one of several workers writes it.
    fn write_line(&self) {
        let elapsed = self.bar.elapsed().as_secs();
        let lines = self.lines.load(Ordering::Relaxed);
        let due = elapsed / LINE_INTERVAL;
        let is_mine = || {
            let order = Ordering::Relaxed;
            let set = self.lines.compare_exchange(lines, due, order, order);
            set.is_ok()
        };
        if due > lines && is_mine() {
            let (bar, what) = (&self.bar, self.bar.message());
            let (done, all) = (bar.position(), bar.length().unwrap_or(0).max(1));
            let percent = u128::from(done) * 100 / u128::from(all);
            let left = u128::from(elapsed) * u128::from(all.saturating_sub(done));
            let left = left / u128::from(done.max(1));
            eprintln!("{what}: {percent} % after {elapsed} s, about {left} s to go");
        }
    }
}

impl Progress for Bar {
    fn begin(&self, total: Nanos) {
        self.bar.set_length(total.0);
        self.bar.reset();
        self.lines.store(0, Ordering::Relaxed);
    }

    fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn add(&self, time: Nanos) {
        self.bar.inc(time.0);
        if is_quiet() || !self.bar.is_hidden() || self.bar.elapsed() < DELAY {
            return;
        }
        if std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        } else {
            self.write_line();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
