//! What a run has to tell while it lasts: minutes go by in which nothing else is seen of it.
//!
//! Whoever starts a run hands in what to do with these; the command line prints them on stderr.

use std::fmt;

/// Something that happened during a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A variant needs the patched kernel, and the run has another.
    PassedOver {
        /// Which variant.
        variant: String,
    },
    /// A kernel is being built.
    BuildingKernel {
        /// Which: `stock`, `patched` and so on.
        kind: String,
    },
    /// A boot begins, or the restoring of a saved machine, with its runs.
    Running {
        /// On which machine.
        machine: String,
        /// With which kernel.
        kernel: String,
        /// Which variants.
        variants: Vec<String>,
        /// With how many seeds each.
        seeds: u64,
    },
    /// The machine boots in order to be saved.
    BootingToSave,
    /// It has been saved.
    Saved {
        /// Seconds of this host from its start.
        host_seconds: f64,
    },
    /// It cannot be saved: there is no compiler for the library that does it.
    NoCompiler,
    /// All runs of a boot are done.
    Done {
        /// Seconds of this host that they took.
        host_seconds: f64,
    },
}

/// What is done with events.
pub type Tell<'a> = &'a dyn Fn(Event);

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::PassedOver { variant } => {
                write!(f, "variant '{variant}' needs the patched kernel: passed over")
            }
            Event::BuildingKernel { kind } => {
                write!(f, "building the {kind} kernel, which takes some ten minutes on two cores")
            }
            Event::Running { machine, kernel, variants, seeds } => {
                write!(f, "{machine}, {kernel}: {}", variants.join(", "))?;
                match seeds {
                    1 => Ok(()),
                    seeds => write!(f, ", each with {seeds} seeds"),
                }
            }
            Event::BootingToSave => f.write_str("booting the machine once, to be saved"),
            Event::Saved { host_seconds } => write!(f, "saved after {host_seconds:.0} s"),
            Event::NoCompiler => f.write_str(
                "no C compiler (Debian: gcc), so the machine is not saved after its boot",
            ),
            Event::Done { host_seconds } => write!(f, "{host_seconds:.0} s of this host"),
        }
    }
}
