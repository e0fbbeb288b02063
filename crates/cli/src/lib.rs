//! The commands of `tandem` as a library, which the research program uses too.
//!
//! It has only arguments and wiring; other crates implement the commands.

#[macro_use(note, tell)]
extern crate tandem_command;

pub mod demo;
pub mod guest;
pub mod host;
pub mod live;
pub mod placement;
pub mod vm;

use tandem_host::config::ConfigError;
use tandem_host::daemon::DaemonError;
use tandem_host::replay::ReplayError;
use tandem_host::scalability::ScalabilityError;
use tandem_host::select::{NothingMatched, WrongArgument};
use tandem_host::why::WhyError;
use tandem_observe::span::SpanError;

/// Returns the exit status of an error: 2 for invalid arguments, 3 if nothing matched, 1 for any other failure.
/// Clap itself reports most invalid arguments, and `replay` ends with 4 if parts cannot be read.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    let no_vm = matches!(error.downcast_ref(), Some(WhyError::NoSuchVm { .. }));
    let no_scaling =
        matches!(error.downcast_ref(), Some(ScalabilityError::Look(WhyError::NoSuchVm { .. })));
    let outside = matches!(error.downcast_ref(), Some(SpanError::Outside { .. }));
    let none_then = error.downcast_ref().is_some_and(ReplayError::is_of_nothing) || outside;
    let unselected = matches!(error.downcast_ref(), Some(ConfigError::NothingSelected))
        || matches!(error.downcast_ref(), Some(DaemonError::Config(ConfigError::NothingSelected)));
    let unnamed = matches!(error.downcast_ref(), Some(WhyError::NoVmNamed));
    if unselected
        || unnamed
        || error.is::<WrongArgument>()
        || error.chain().any(tandem_demo::is_of_an_argument)
    {
        return 2;
    }
    if no_vm || no_scaling || none_then || error.is::<NothingMatched>() {
        return 3;
    }
    tandem_command::console::exit_status(error)
}
