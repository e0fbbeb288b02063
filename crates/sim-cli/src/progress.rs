//! The progress bar of simulations.
//!
//! It counts simulated time. It appears on a terminal once two seconds have gone by, so that short runs stay quiet. Where standard
//! error is something else, such as a log, it gets a line every half minute.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tandem_experiment::progress::Progress;
use tandem_model::Nanos;
use tandem_report::terminal::{has_colour, is_quiet};

/// What runs shorter needs no bar.
const QUIET: Duration = Duration::from_secs(2);

/// Between two lines, seconds.
const LINE: u64 = 30;

/// The bar; goes away with this.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// Lines written.
    lines: AtomicU64,
}

impl Default for Bar {
    fn default() -> Bar {
        Bar::new()
    }
}

impl Bar {
    /// A bar that is not visible yet.
    pub fn new() -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let colour = if has_colour(true) { ".cyan" } else { "" };
        let style = format!(
            "{{bar:32{colour}}} {{percent:>3}} %  {{elapsed_precise}}, {{eta}} to go  {{msg}}"
        );
        // The template is known; should it not parse, the default style serves as well.
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        let lines = AtomicU64::new(0);
        Bar { bar, lines }
    }

    /// Writes the line that is due, if there is one; one worker of several does.
    fn write_line(&self) {
        let elapsed = self.bar.elapsed().as_secs();
        let lines = self.lines.load(Ordering::Relaxed);
        let due = elapsed / LINE;
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
        if is_quiet() || !self.bar.is_hidden() || self.bar.elapsed() < QUIET {
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
