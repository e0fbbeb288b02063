//! Progress on stderr: a bar on a terminal, plain lines elsewhere; never on stdout, which belongs to
//! the result. Nothing where nothing but results is wanted ([`crate::terminal`]).

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::{has_colour, is_quiet};

/// Progress of something with a known number of steps.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    /// Written before every message.
    prefix: String,
    /// Whether the bar goes away with this.
    owner: bool,
}

impl Progress {
    /// Begins; `steps` of which [`Progress::step`] counts.
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
            // The template is known; should it not parse, the default style serves as well.
            if let Ok(style) = ProgressStyle::with_template(&style) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar
        });
        Progress { bar, prefix: String::new(), owner: true }
    }

    /// A progress nobody sees.
    pub fn hidden() -> Progress {
        Progress { bar: Some(ProgressBar::hidden()), prefix: String::new(), owner: true }
    }

    /// The same progress for a part of the work, whose name goes before its messages.
    pub fn within(&self, part: &str) -> Progress {
        Progress { bar: self.bar.clone(), prefix: format!("{}{part}, ", self.prefix), owner: false }
    }

    /// What is being done from now on.
    pub fn say(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}{what}", self.prefix)),
            None => drop(writeln!(std::io::stderr(), "{}{what}", self.prefix)),
        }
    }

    /// A detail of what is being done, which only a bar has room for.
    pub fn detail(&self, what: &str) {
        if self.bar.is_some() {
            self.say(what);
        }
    }

    /// Something worth keeping on the screen.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("{}{what}", self.prefix)),
            None => drop(writeln!(std::io::stderr(), "{}{what}", self.prefix)),
        }
    }

    /// One step done.
    pub fn step(&self) {
        self.steps(1);
    }

    /// Several steps done, or skipped.
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
