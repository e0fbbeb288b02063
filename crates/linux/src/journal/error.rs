//! Why a journal cannot be used, each with what would be right.

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
         --state-dir (but never two for the same VMs)", holder_text(*holder)
    )]
    Locked {
        /// The state directory.
        dir: PathBuf,
        /// The process that holds it, if it could be told.
        holder: Option<u32>,
    },
    /// Others could have written what is there.
    #[error(
        "{path} cannot be trusted: {what}. Whoever can write there could have this command change any cgroup; nothing was \
         changed. Look at what is in it, then 'chown root {path}' and 'chmod go-w {path}', or name another --state-dir"
    )]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// Who owns it, or who may write to it.
        what: String,
    },
    /// Something else stands in its place.
    #[error(
        "{path} is no file (a folder, a pipe or a device); nothing was changed. Move it away, or name another --state-dir"
    )]
    NoFile {
        /// What is no file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A line is not what Tandem writes.
    #[error(
        "{path}, line {line}: {what}. Nothing was put back. Mend or remove that line (each line \
         names what was changed and its original value), then run '{restore}' again"
    )]
    Malformed {
        /// The journal.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
        /// The command that puts back what the journal lists.
        restore: &'static str,
    },
    /// The first line is not what Tandem writes.
    #[error(
        "{path} does not begin as this Tandem's journals do: {what}. Nothing was put back. If another Tandem wrote it, run its \
         '{restore}'; if it is damaged, put back by hand what its other lines name (what was changed, and its original value). Then move it away"
    )]
    NoHead {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The command that puts back what the journal lists.
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
        "{most} changes of process {pid} are journaled already, which is more than any VM needs; nothing more is changed of it"
    )]
    TooMany {
        /// Whose threads.
        pid: Pid,
        /// So many are kept.
        most: usize,
    },
    /// One user, or all together, would fill the journal.
    #[error(
        "the changes{whose} that are journaled would take more than {} MiB; nothing more is changed there until there is room: have fewer vCPUs, \
         or cgroups with shorter paths", most >> 20
    )]
    TooLong {
        /// Whose they are; nothing for those of all.
        whose: String,
        /// So many bytes are kept.
        most: usize,
    },
}

impl JournalError {
    /// Whether the journal's file could not be written, so that nothing could be changed.
    pub fn is_of_disk(&self) -> bool {
        matches!(self, JournalError::File { .. })
    }
}

fn holder_text(holder: Option<u32>) -> String {
    match holder {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

/// The same error once more.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}
