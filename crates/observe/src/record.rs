//! Intervals in files, and read back: what happened last night.
//!
//! A record is a folder. What it holds are [`Frame`]s: an [`Interval`] as its source gave it, when it was by the wall clock, and the
//! VMs' names, processes, weights and dues. They are written to closed segments, each a Parquet file of some hundred intervals that other tools
//! read too; what is not in a segment yet is in a journal beside them, a line for each interval:
//!
//! | file | what |
//! |---|---|
//! | `record.json` | says that this is a record, and its version; locked as long as somebody writes it |
//! | `0000000300-….parquet` | a closed segment: the number of its first interval, and the check sum of its bytes |
//! | `0000000600.jsonl` | the intervals after the last segment; gone when the record was ended properly |
//! | `end.json` | says that the record was ended, and how: a record without it was cut off, or is being written |
//!
//! An interval is in the journal before [`Recorder::add`] returns, so what was written survives kill -9. A segment is written beside the
//! others, synced and renamed, and only then the journal goes. So after a power cut at most the last journal is missing. The
//! size is bounded: the oldest segments go first. Decision record 020 says why so.
//!
//! A file that cannot be read costs what it holds and nothing else: [`Record::read`] goes on with the next, and says what is lost ([`Damage`]).
//! Intervals are in the order in which they were recorded, whatever the wall clock was set to meanwhile.
//!
//! Version 1 had no `end.json`, and no settings of VMs and host; it is read.
//!
//! The columns are in [`table`].

mod damage;
mod durable;
mod frame;
mod reader;
mod recorder;
mod segment;
pub mod table;
mod wanted;

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_model::Nanos;
use thiserror::Error;

pub use damage::Damage;
pub use frame::{Frame, RecordedVm};
pub use reader::Record;
pub use recorder::{DEFAULT_MAX_BYTES, Finished, LEAST_MAX_BYTES, Recorder};
#[cfg(doc)]
use tandem_model::states::interval::Interval;
pub use wanted::Wanted;

/// The version of what is written. Raised when a column changes its meaning or goes; columns may be added.
pub const VERSION: u32 = 2;

/// The versions that are read.
const VERSIONS: RangeInclusive<u32> = 1..=VERSION;

/// The first version of which a record that was ended has [`END`].
const HAS_END: u32 = 2;

/// The file that makes a folder a record.
const HEADER: &str = "record.json";

/// The file that says that a record was ended.
const END: &str = "end.json";

/// The ends of the names of segments and journals.
const SEGMENT: &str = "parquet";
const JOURNAL: &str = "jsonl";

/// What is in [`HEADER`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Header {
    /// [`VERSION`].
    tandem_record: u32,
    /// When it was begun, in ns since 1970.
    begun: Nanos,
}

/// How a record was ended: what is in its `end.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When, in ns since 1970.
    pub at: Nanos,
    /// Intervals that were written.
    pub intervals: u64,
    /// How many of them, the oldest, went to make room.
    pub dropped: u64,
    /// Looks that failed after the last of them.
    pub failed: u64,
    /// What the last of these said.
    pub failure: Option<String>,
    /// Why it was ended before somebody asked for that; `None` if somebody did.
    pub error: Option<String>,
}

/// Why something cannot be recorded or read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The system refuses it.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is a record already.
    #[error("{} holds a record already; name another folder, or remove this one", .0.display())]
    Exists(PathBuf),
    /// Somebody writes it.
    #[error("another recorder writes {}; name another folder", .0.display())]
    Busy(PathBuf),
    /// Something else is there.
    #[error("{} is there and is no empty folder; a record is a new folder", .0.display())]
    InTheWay(PathBuf),
    /// No folder with a header.
    #[error("{} is not a record: {why}; name a folder that tandem host record wrote", path.display())]
    NotARecord {
        /// What was named.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// Written by another Tandem.
    #[error("{} is a record of version {found}, and this program reads versions 1 to {VERSION}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// A file does not hold what it should.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// An interval that leaves no room for others.
    #[error("an interval takes {bytes} bytes; --max-size must be {} at least", bytes.saturating_mul(recorder::JOURNALS))]
    TooSmall {
        /// Its size.
        bytes: u64,
    },
    /// The library refuses to write it.
    #[error("cannot write {}: {why}", path.display())]
    Parquet {
        /// Which file.
        path: PathBuf,
        /// What it said.
        why: String,
    },
}

impl RecordError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
        let path = path.to_owned();
        move |source| RecordError::Io { what, path, source }
    }

    fn damaged(path: &Path, why: impl ToString) -> RecordError {
        RecordError::Damaged { path: path.to_owned(), why: why.to_string() }
    }
}

/// The file of a journal, or of a segment that is not finished, whose first interval has this number.
fn part(folder: &Path, first: u64, end: &str) -> PathBuf {
    folder.join(format!("{first:010}.{end}"))
}

#[cfg(test)]
mod tests;
