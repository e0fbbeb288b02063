//! Standard output and standard error of a program: lines, errors with their causes, exit statuses.

use std::io::Write;
use std::sync::OnceLock;

use anyhow::{Context, bail};
use tandem_linux::log::Console;
pub use tandem_linux::log::LevelFilter;
use tandem_linux::restore::RestoreReport;
pub use tandem_report::check_writable;

/// Prints a line to standard error; ignores failures.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// Prints an informational line to standard error, except with `--quiet`.
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {
        if $crate::console::level() >= $crate::console::LevelFilter::INFO {
            $crate::tell!($($words)*);
        }
    };
}

static LEVEL: OnceLock<LevelFilter> = OnceLock::new();

/// Sets the verbosity; later calls have no effect.
pub fn set_level(level: LevelFilter) {
    let _ = LEVEL.set(level);
}

/// Returns the verbosity.
pub fn level() -> LevelFilter {
    LEVEL.get().copied().unwrap_or(LevelFilter::INFO)
}

/// Prints the log of this process to standard error, under this name or with levels; `ready` to standard output if requested.
pub fn log_to_stderr(name: Option<&'static str>, print_ready: bool) {
    Console { name, print_ready, level: level() }.install();
}

/// Formats the error and its causes, outermost first, without repetitions.
pub fn explain(error: &anyhow::Error) -> String {
    tandem_report::explain(error.as_ref())
}

/// Converts an error to one of invalid arguments or settings.
pub fn wrong_argument(error: anyhow::Error) -> anyhow::Error {
    WrongArgument(explain(&error)).into()
}

/// An invalid argument or setting: exit status 2.
#[derive(Debug)]
pub struct WrongArgument(pub String);

impl std::fmt::Display for WrongArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArgument {}

/// Returns the exit status of an error: 2 for invalid arguments, 1 for any other failure.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    if error.is::<WrongArgument>() { 2 } else { 1 }
}

/// Prints to stdout; a closed pipe is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to stdout"),
    }
}

/// Prints the report of a restore; fails if it is incomplete.
pub fn print_restored(report: &RestoreReport) -> anyhow::Result<()> {
    print(&report.to_string())?;
    if !report.is_complete() {
        bail!("some changes could not be reverted; see above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_printed_once() {
        let error = anyhow::anyhow!("no permission").context("cannot write x: no permission");
        assert_eq!(explain(&error.context("mode y")), "mode y: cannot write x: no permission");
    }
}
