//! Progress on stderr: a bar on a terminal, plain lines elsewhere.
//!
//! It never writes to stdout, which is reserved for results, and writes nothing in quiet mode ([`crate::terminal`]).

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::{has_colour, is_quiet};

/// Progress of a task with a known number of steps.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Prefix of every message.
    prefix: String,
    /// Whether dropping this removes the bar.
    owner: bool,
}

impl Progress {
    /// Starts a progress of `steps` steps, which [`Progress::step`] counts.
    pub fn begin(steps: u64) -> Progress {
        if is_quiet() {
            return Progress::hidden();
        }
        let is_terminal = std::io::stderr().is_terminal();
        let bar = is_terminal.then(|| {
            let bar = ProgressBar::new(steps);
            let colour = if has_colour(is_terminal) { ".cyan" } else { "" };
            let style =
                format!("{{bar:32{colour}}} {{elapsed_precise}} / {{duration_precise}}  {{msg}}");
            // The template is constant; the default style is the fallback.
            if let Ok(style) = ProgressStyle::with_template(&style) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar
        });
        Progress { bar, prefix: String::new(), owner: true }
    }

    /// Returns a progress without output.
    pub fn hidden() -> Progress {
        Progress { bar: Some(ProgressBar::hidden()), prefix: String::new(), owner: true }
    }

    /// Returns the same progress for a part of the work, with the part's name before its messages.
    pub fn within(&self, part: &str) -> Progress {
        Progress { bar: self.bar.clone(), prefix: format!("{}{part}, ", self.prefix), owner: false }
    }

    /// Shows the current activity.
    pub fn say(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}{what}", self.prefix)),
            None => drop(writeln!(std::io::stderr(), "{}{what}", self.prefix)),
        }
    }

    /// Shows a detail of the current activity, only on a bar.
    pub fn detail(&self, what: &str) {
        if self.bar.is_some() {
            self.say(what);
        }
    }

    /// Prints a message that stays on the screen.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("{}{what}", self.prefix)),
            None => drop(writeln!(std::io::stderr(), "{}{what}", self.prefix)),
        }
    }

    /// Counts a completed step.
    pub fn step(&self) {
        self.steps(1);
    }

    /// Counts several completed or skipped steps.
    pub fn steps(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(count);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|_| self.owner) {
            bar.finish_and_clear();
        }
    }
}
