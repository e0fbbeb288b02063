//! Main function of a program: arguments in, exit status out.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, FromArgMatches};
use tandem_linux::log::is_journal;

use crate::options::CommonArgs;
use crate::{console, options, tell};

/// Exit statuses, for the help of each program.
pub const EXIT_STATUSES: &str = "Exit status: 0 done, 1 failed, 2 invalid arguments or settings, 3 nothing matched or no daemon runs, 4 parts of a record cannot be read";

/// Parses the arguments of this process; exits for help, the version and errors.
pub fn arguments<C: CommandFactory + FromArgMatches>() -> C {
    parse(std::env::args_os().collect())
}

/// Parses these arguments, of which the first is the program; exits for help, the version and errors.
pub fn parse<C: CommandFactory + FromArgMatches>(given: Vec<OsString>) -> C {
    let mut command = C::command().color(options::colour_of_answers(&given));
    let mut matches = command.clone().get_matches_from(given);
    C::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Runs a command and reports its error as `NAME: ERROR`.
pub fn run(
    name: &str,
    common: CommonArgs,
    exit_status: impl Fn(&anyhow::Error) -> u8,
    command: impl FnOnce() -> anyhow::Result<()>,
) -> ExitCode {
    let began = Instant::now();
    common.apply();
    let outcome = command();
    common.end(name, began);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let priority = if is_journal() { "<3>" } else { "" };
            tell!("{priority}{name}: {}", console::explain(&error));
            exit_status(&error).into()
        }
    }
}
