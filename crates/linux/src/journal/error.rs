//! Errors of a journal, each with its remedy.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cgroup::Version;
use crate::ids::Pid;

/// Why the journal could not be used.
#[derive(Debug, Error)]
pub enum JournalError {
    /// Another process holds the state directory.
    #[error(
        "{dir} is in use by {}; stop it first, or give this one a directory of its own with \
         --state-dir (but never two for the same VMs)", holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The state directory.
        dir: PathBuf,
        /// The process that holds it, if known.
        holder: Option<u32>,
    },
    /// Another user could have written the file or directory.
    #[error(
        "{path} cannot be trusted: {what}. A user who can write there could have this command change any cgroup; nothing was \
         changed. Look at what is in it, then 'chown root {path}' and 'chmod go-w {path}', or name another --state-dir"
    )]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// The user or group that owns it or may write to it.
        what: String,
    },
    /// The path is not a regular file.
    #[error(
        "{path} is not a regular file (but a folder, a pipe or a device); nothing was changed. Move it away, or name another --state-dir"
    )]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A line is not a Tandem record.
    #[error(
        "{path}, line {line}: {what}. Nothing was restored. Fix or remove that line (each line \
         names a changed setting and its original value), then run '{restore}' again"
    )]
    Malformed {
        /// The journal.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The defect.
        what: String,
        /// The command that restores from the journal.
        restore: &'static str,
    },
    /// The first line is not a head that this version reads.
    #[error(
        "{path} does not begin as this Tandem's journals do: {what}. Nothing was restored. If another Tandem wrote it, run its \
         '{restore}'; if it is damaged, restore by hand the settings that its other lines name with their original values. Then move it away"
    )]
    NoHead {
        /// The journal.
        path: PathBuf,
        /// The defect.
        what: String,
        /// The command that restores from the journal.
        restore: &'static str,
    },
    /// The journal is of another hierarchy of this boot.
    #[error(
        "{path} is about cgroup {theirs_version} at {theirs}, this host's cpu controller is cgroup \
         {ours_version} at {ours}; mount it as it was, or remove the journal if nothing is left of \
         those changes"
    )]
    OtherHierarchy {
        /// The journal.
        path: PathBuf,
        /// The hierarchy's mount point in the journal.
        theirs: PathBuf,
        /// The interface in the journal.
        theirs_version: Version,
        /// The mount point now.
        ours: PathBuf,
        /// The interface now.
        ours_version: Version,
    },
    /// One process would fill the journal.
    #[error(
        "{most} changes of process {pid} are journaled already, which is more than any VM needs; no more of its threads are changed"
    )]
    TooMany {
        /// The process of the threads.
        pid: Pid,
        /// Maximum number of records.
        most: usize,
    },
    /// One user, or all together, would fill the journal.
    #[error(
        "the journaled changes{whose} would take more than {} MiB; no more are made there until there is room: have fewer vCPUs, \
         or cgroups with shorter paths", most >> 20
    )]
    TooLong {
        /// The user or process; empty for all together.
        whose: String,
        /// Maximum number of bytes.
        most: usize,
    },
}

impl JournalError {
    /// Whether a file operation failed, so that no change could be made.
    pub fn is_of_disk(&self) -> bool {
        matches!(self, JournalError::File { .. })
    }
}

/// Copies an error.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}
