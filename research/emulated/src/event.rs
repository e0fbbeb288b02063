//! Events of a run, as progress during a run of minutes.
//!
//! The caller supplies a callback for events; the command line prints them on stderr.

use std::fmt;

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A variant is skipped, because it needs the patched kernel.
    PassedOver {
        /// Name of the variant.
        variant: String,
    },
    /// A kernel is being built.
    BuildingKernel {
        /// The kind: `stock`, `patched` and so on.
        kind: String,
    },
    /// A machine boots, or is restored, for its runs.
    Running {
        /// Name of the machine.
        machine: String,
        /// The kernel.
        kernel: String,
        /// Names of the variants.
        variants: Vec<String>,
        /// Seeds per variant.
        seeds: u64,
    },
    /// The machine boots for a snapshot.
    BootingToSave,
    /// The snapshot is complete.
    Saved {
        /// Time on the host since the start, in seconds.
        host_seconds: f64,
    },
    /// There is no snapshot, because there is no compiler for its library.
    NoCompiler,
    /// All runs of a boot are done.
    Done {
        /// Time on the host, in seconds.
        host_seconds: f64,
    },
}

/// Callback for events.
pub type Tell<'a> = &'a dyn Fn(Event);

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::PassedOver { variant } => {
                write!(f, "variant '{variant}' needs the patched kernel: skipped")
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
