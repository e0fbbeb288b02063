//! Standard output, and whether a file can be written; errors with their causes on one line.

use std::io::Write;
use std::sync::OnceLock;

use anyhow::Context;
use anyhow::bail;
use tandem_host::config::ConfigError;
use tandem_host::daemon::DaemonError;
use tandem_host::replay::ReplayError;
use tandem_host::scalability::ScalabilityError;
use tandem_host::select::NothingMatched;
use tandem_host::select::WrongArgument;
use tandem_host::span::SpanError;
use tandem_host::why::WhyError;
use tandem_linux::restore::RestoreReport;
use tandem_linux::service::Level;
pub use tandem_report::check_writable;
use tandem_report::is_of_an_argument;

/// A line on standard error, which nobody may read: an error.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// A line on standard error that says what happened; nothing where nothing but results and errors is wanted.
macro_rules! note {
    ($($words:tt)*) => {
        if $crate::console::level() != tandem_linux::service::Level::Quiet {
            tell!($($words)*);
        }
    };
}

static LEVEL: OnceLock<Level> = OnceLock::new();

/// Says, once, how much is said.
pub fn set_level(level: Level) {
    let _ = LEVEL.set(level);
}

/// How much is said.
pub fn level() -> Level {
    LEVEL.get().copied().unwrap_or_default()
}

/// The error and its causes, from the outside in, without what has been said already.
pub fn explain(error: &anyhow::Error) -> String {
    tandem_report::explain(error.as_ref())
}

/// The same error, as one of arguments or settings that cannot be.
pub fn wrong_argument(error: anyhow::Error) -> anyhow::Error {
    WrongArgument(explain(&error)).into()
}

/// The exit status: 2 for arguments that cannot be, of which most are clap's, 3 where nothing matched, 1 for any other failure. What is
/// there in part is `replay`'s, with 4.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    let no_vm = matches!(error.downcast_ref(), Some(WhyError::NoSuchVm { .. }));
    let no_scaling = matches!(
        error.downcast_ref(),
        Some(ScalabilityError::Look(WhyError::NoSuchVm { .. }))
    );
    let outside = matches!(error.downcast_ref(), Some(SpanError::Outside { .. }));
    let none_then = error.downcast_ref().is_some_and(ReplayError::is_of_nothing) || outside;
    let unselected = matches!(error.downcast_ref(), Some(ConfigError::NothingSelected))
        || matches!(
            error.downcast_ref(),
            Some(DaemonError::Config(ConfigError::NothingSelected))
        );
    let is_wrong = |cause| is_of_an_argument(cause) || tandem_bench::is_of_an_argument(cause);
    if unselected || error.is::<WrongArgument>() || error.chain().any(is_wrong) {
        return 2;
    }
    match no_vm || no_scaling || none_then || error.is::<NothingMatched>() {
        true => 3,
        false => 1,
    }
}

/// Prints to stdout; whoever closed it has seen enough.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to stdout"),
    }
}

/// Prints what a restore did; fails if not everything was put back.
pub fn print_restored(report: &RestoreReport) -> anyhow::Result<()> {
    print(&report.to_string())?;
    match report.is_complete() {
        true => Ok(()),
        false => bail!("not everything could be put back; see above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let error = anyhow::anyhow!("no permission").context("cannot write x: no permission");
        assert_eq!(
            explain(&error.context("mode y")),
            "mode y: cannot write x: no permission"
        );
    }
}
