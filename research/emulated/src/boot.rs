//! One boot of a machine, whichever emulator runs it: what it needs, and why it may fail.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use crate::emulator::EmulatorError;
use crate::event::Tell;
use crate::file::FileError;
use crate::job::Job;
use crate::mailbox::MailboxError;
use crate::payload::PayloadError;

/// What a machine needs to boot, and what it is to do.
pub struct Boot<'a> {
    /// The lab's folder, where templates are.
    pub lab: &'a Path,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The initramfs.
    pub payload: &'a Path,
    /// Parameters on the kernel's command line besides the machine's own.
    pub parameters: &'a BTreeMap<String, String>,
    /// What to do.
    pub job: &'a Job,
    /// Where logs go.
    pub work: &'a Path,
    /// Longest time on the host.
    pub patience: Duration,
    /// Whether a saved machine may be used.
    pub snapshots: bool,
    /// Who hears what happens meanwhile.
    pub tell: Tell<'a>,
}

/// Why a boot did not bring all answers.
#[derive(Debug, Error)]
pub enum BootError {
    /// A file could not be read or written, or a program not run.
    #[error(transparent)]
    File(#[from] FileError),
    /// The initramfs could not be put together.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The emulator did not start, or not end as it should.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// A saved machine could not be given its job.
    #[error(transparent)]
    Mailbox(#[from] MailboxError),
    /// There is no terminal for Bochs to draw on.
    #[error("cannot open a pseudo terminal for Bochs: {0}")]
    Terminal(#[source] io::Error),
    /// Standard input, output and errors cannot all be the terminal.
    #[error("cannot duplicate a terminal: {0}")]
    Duplicate(#[source] io::Error),
    /// No CD to boot from could be made.
    #[error("genisoimage failed ({status}): {text}")]
    Cd {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        text: String,
    },
    /// The library that makes Bochs save does not compile.
    #[error("cannot compile {path}: {text}")]
    Compile {
        /// Its source.
        path: PathBuf,
        /// What the compiler said.
        text: String,
    },
    /// Bochs was asked to save the machine and did not.
    #[error("Bochs could not save the machine ({0}); --no-snapshot boots every time")]
    NotSaved(ExitStatus),
    /// Nobody says where saved machines may lie.
    #[error("neither XDG_CACHE_HOME nor HOME says where to keep saved machines")]
    NoCache,
    /// A saved machine could not be copied.
    #[error("cannot copy {from} to {to}: {source}")]
    Copy {
        /// The saved machine's folder.
        from: PathBuf,
        /// The copy's.
        to: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
