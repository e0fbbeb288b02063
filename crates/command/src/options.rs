//! Options of every command: verbosity and colour.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use clap::{Args, ColorChoice, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use tandem_linux::log::LevelFilter;
use tandem_report::terminal;
use tandem_report::terminal::Colour;

use crate::{console, tell};

/// Version, with the commit if known.
pub const VERSION: &str = env!("TANDEM_VERSION");

const HEADING: &str = "Options of every command";

/// Options that may stand before or after any command.
#[derive(Clone, Copy, Debug, Args)]
pub struct CommonArgs {
    /// More on standard error: current settings, each change of the daemon with its reason, duration of the command
    #[arg(short, long, global = true, help_heading = HEADING)]
    verbose: bool,
    /// Results and errors only
    #[arg(short, long, global = true, help_heading = HEADING)]
    quiet: bool,
    /// Colour: on terminals unless NO_COLOR is set, always, or never
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, help_heading = HEADING)]
    color: ColorChoice,
}

impl CommonArgs {
    /// Applies them to the whole process; `--quiet` overrides `--verbose`.
    pub fn apply(&self) {
        console::set_level(match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::ERROR,
            (false, true) => LevelFilter::DEBUG,
            (false, false) => LevelFilter::INFO,
        });
        terminal::set_quiet(self.quiet);
        terminal::set_colour(match self.color {
            ColorChoice::Auto => Colour::Auto,
            ColorChoice::Always => Colour::Always,
            ColorChoice::Never => Colour::Never,
        });
    }

    /// With `--verbose`, reports the duration of the command.
    pub fn end(&self, name: &str, began: Instant) {
        if console::level() == LevelFilter::DEBUG {
            let used = clock_gettime(ClockId::ProcessCPUTime);
            let used = Duration::try_from(used).unwrap_or_default();
            let took = began.elapsed();
            tell!("{name}: took {took:.1?}, {used:.1?} of CPU time");
        }
    }
}

/// Returns the colour setting of help and argument errors, which precede the parsing of options.
pub fn colour_of_answers(arguments: &[OsString]) -> ColorChoice {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let texts: Vec<&str> = own.filter_map(|argument| argument.to_str()).collect();
    let given = texts.iter().enumerate().rev().find_map(|(position, text)| {
        match text.strip_prefix("--color")? {
            "" => texts.get(position + 1).copied(),
            rest => rest.strip_prefix('='),
        }
    });
    given.and_then(|given| ColorChoice::from_str(given, true).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_found_before_parsing() {
        let of = |text: &str| {
            let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            colour_of_answers(&arguments)
        };
        assert_eq!(of("tandem host top"), ColorChoice::Auto);
        assert_eq!(of("tandem --color never host"), ColorChoice::Never);
        assert_eq!(of("tandem host top --color=always"), ColorChoice::Always);
        assert_eq!(of("tandem host top --color"), ColorChoice::Auto);
        assert_eq!(of("tandem guest run -- ls --color=never"), ColorChoice::Auto);
    }
}
