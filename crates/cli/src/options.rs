//! Options of every command: how much is said, and whether with colour.

use std::ffi::OsString;
use std::time::Duration;
use std::time::Instant;

use clap::Args;
use clap::ColorChoice;
use clap::ValueEnum;
use rustix::time::ClockId;
use rustix::time::clock_gettime;
use tandem_linux::service::Level;
use tandem_report::terminal;
use tandem_report::terminal::Colour;

use crate::console;

/// The version, and where it is known the commit.
pub const VERSION: &str = env!("TANDEM_VERSION");

const HEADING: &str = "Options of every command";

/// Options that stand before or behind any command.
#[derive(Clone, Copy, Debug, Args)]
pub struct CommonArgs {
    /// Say more on standard error: settings in force, each change that the daemon makes and why, how long the command took
    #[arg(short, long, global = true, help_heading = HEADING)]
    verbose: bool,
    /// Say nothing but results and errors
    #[arg(short, long, global = true, help_heading = HEADING)]
    quiet: bool,
    /// Colour: on terminals unless NO_COLOR is set, always, or never
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, help_heading = HEADING)]
    color: ColorChoice,
}

impl CommonArgs {
    /// Makes them count for the whole process. Who wants both more and less wants results.
    pub fn apply(&self) {
        console::set_level(match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (false, true) => Level::Verbose,
            (false, false) => Level::Normal,
        });
        terminal::set_quiet(self.quiet);
        terminal::set_colour(match self.color {
            ColorChoice::Auto => Colour::Auto,
            ColorChoice::Always => Colour::Always,
            ColorChoice::Never => Colour::Never,
        });
    }

    /// Says how long the command took, where more is to be said.
    pub fn end(&self, began: Instant) {
        if console::level() == Level::Verbose {
            let used = clock_gettime(ClockId::ProcessCPUTime);
            let used = Duration::try_from(used).unwrap_or_default();
            let took = began.elapsed();
            tell!("tandem: took {took:.1?}, {used:.1?} of CPU time");
        }
    }
}

/// Whether help, and errors of arguments, have colour: they are written before the options are known.
pub fn colour_of_answers(arguments: &[OsString]) -> ColorChoice {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let texts: Vec<&str> = own.filter_map(|argument| argument.to_str()).collect();
    let given = texts.iter().enumerate().rev().find_map(|(position, text)| {
        match text.strip_prefix("--color")? {
            "" => texts.get(position + 1).copied(),
            rest => rest.strip_prefix('='),
        }
    });
    given
        .and_then(|given| ColorChoice::from_str(given, true).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_known_before_arguments_are_parsed() {
        let of = |text: &str| {
            let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            colour_of_answers(&arguments)
        };
        assert_eq!(of("tandem host top"), ColorChoice::Auto);
        assert_eq!(of("tandem --color never host"), ColorChoice::Never);
        assert_eq!(of("tandem host top --color=always"), ColorChoice::Always);
        assert_eq!(of("tandem host top --color"), ColorChoice::Auto);
        assert_eq!(
            of("tandem guest run -- ls --color=never"),
            ColorChoice::Auto
        );
    }
}
