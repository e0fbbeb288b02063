//! One boot of a machine, independent of the emulator: inputs and errors.

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

/// Inputs of a boot.
pub struct Boot<'a> {
    /// Folder of the lab, with templates.
    pub lab: &'a Path,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The initramfs.
    pub payload: &'a Path,
    /// Parameters on the kernel's command line in addition to the machine's own.
    pub parameters: &'a BTreeMap<String, String>,
    /// The job.
    pub job: &'a Job,
    /// Folder for logs and the machine's files.
    pub work: &'a Path,
    /// Maximum time on the host.
    pub patience: Duration,
    /// Whether snapshots may be used.
    pub snapshots: bool,
    /// Callback for events.
    pub tell: Tell<'a>,
}

/// Error of a boot.
#[derive(Debug, Error)]
pub enum BootError {
    /// Accessing a file or running a program failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Building the initramfs failed.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The emulator failed.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// Posting the job to a snapshot failed.
    #[error(transparent)]
    Mailbox(#[from] MailboxError),
    /// Opening a terminal for Bochs failed.
    #[error("cannot open a pseudo terminal for Bochs: {0}")]
    Terminal(#[source] io::Error),
    /// Duplicating the terminal for standard input, output and errors failed.
    #[error("cannot duplicate a terminal: {0}")]
    Duplicate(#[source] io::Error),
    /// Writing the boot CD failed.
    #[error("genisoimage failed ({status}): {text}")]
    Cd {
        /// Exit status.
        status: ExitStatus,
        /// Its stderr.
        text: String,
    },
    /// Compiling the library that makes Bochs save failed.
    #[error("cannot compile {path}: {text}")]
    Compile {
        /// Its source.
        path: PathBuf,
        /// The compiler's stderr.
        text: String,
    },
    /// Bochs did not save the machine.
    #[error("Bochs could not save the machine ({0}); --no-snapshot boots every time")]
    NotSaved(ExitStatus),
    /// The environment has no cache folder.
    #[error("no folder for snapshots: neither XDG_CACHE_HOME nor HOME is set")]
    NoCache,
    /// Copying a snapshot failed.
    #[error("cannot copy {from} to {to}: {source}")]
    Copy {
        /// Folder of the snapshot.
        from: PathBuf,
        /// Folder of the copy.
        to: PathBuf,
        /// OS error.
        source: io::Error,
    },
}
