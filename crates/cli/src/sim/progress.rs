//! The progress bar of simulations.
//!
//! It counts simulated time. It appears on a terminal once two seconds have gone by, so that short
//! runs stay quiet; elsewhere there is none.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;
use indicatif::ProgressDrawTarget;
use indicatif::ProgressStyle;
use tandem_experiment::progress::Progress;
use tandem_policy::Nanos;
use tandem_report::terminal::has_colour;
use tandem_report::terminal::is_quiet;

/// What runs shorter needs no bar.
const QUIET: Duration = Duration::from_secs(2);

/// The bar; goes away with this.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that nobody sees yet.
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
        Bar(bar)
    }
}

impl Progress for Bar {
    fn begin(&self, total: Nanos) {
        self.0.set_length(total.0);
        self.0.reset();
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn add(&self, time: Nanos) {
        self.0.inc(time.0);
        let is_wanted = !is_quiet() && std::io::stderr().is_terminal();
        if self.0.is_hidden() && self.0.elapsed() >= QUIET && is_wanted {
            self.0.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
