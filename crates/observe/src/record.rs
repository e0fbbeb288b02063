//! Records: intervals stored in files, to diagnose past incidents.
//!
//! A record is a folder of [`Frame`]s: an [`Interval`] as measured, its time by the wall clock, and the
//! names, processes, weights and fair shares of the VMs. Frames are written to closed segments, Parquet files of some hundred intervals each that
//! other tools can read. Frames that are not yet in a segment are in a journal, one line per interval:
//!
//! | file | content |
//! |---|---|
//! | `record.json` | marks the folder as a record, with its version; locked while a recorder writes |
//! | `0000000300-….parquet` | a closed segment: the number of its first interval, and the check sum of its bytes |
//! | `0000000600.jsonl` | the intervals after the last segment; removed when the record is ended properly |
//! | `end.json` | marks the end of the record, with its cause; missing if the record was cut off or is being written |
//!
//! An interval is in the journal before [`Recorder::add`] returns, so it survives kill -9. A segment is written under a temporary name,
//! synced and renamed before its journal is removed. So a power cut loses at most the last journal. The
//! size is bounded by dropping the oldest segments. For the reasons see decision record 020.
//!
//! An unreadable file costs only its own intervals: [`Record::read`] continues with the next one, and reports the loss ([`Damage`]).
//! Intervals are in the order of recording, regardless of changes of the wall clock.
//!
//! Version 1, without `end.json` and settings of VMs and host, can be read.
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
pub use recorder::{DEFAULT_MAX_BYTES, Finished, MIN_MAX_BYTES, Recorder};
#[cfg(doc)]
use tandem_model::states::interval::Interval;
pub use wanted::Wanted;

/// The written version. Raised if a column changes its meaning or is removed, but not if one is added.
pub const VERSION: u32 = 2;

/// The readable versions.
const VERSIONS: RangeInclusive<u32> = 1..=VERSION;

/// The first version that writes [`END`].
const HAS_END: u32 = 2;

/// The file that marks a folder as a record.
const HEADER: &str = "record.json";

/// The file that marks the end of a record.
const END: &str = "end.json";

/// The extensions of segments and journals.
const SEGMENT: &str = "parquet";
const JOURNAL: &str = "jsonl";

/// Content of [`HEADER`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Header {
    /// [`VERSION`].
    tandem_record: u32,
    /// Begin of the record, in ns since 1970.
    begun: Nanos,
}

/// The end of a record, as in its `end.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Time of the end, in ns since 1970.
    pub at: Nanos,
    /// Number of intervals written.
    pub intervals: u64,
    /// Number of old intervals dropped for space.
    pub dropped: u64,
    /// Number of failed readings after the last interval.
    pub failed: u64,
    /// The last of these errors.
    pub failure: Option<String>,
    /// The error that ended it; `None` if it was ended on request.
    pub error: Option<String>,
}

/// Error of writing or reading a record.
#[derive(Debug, Error)]
pub enum RecordError {
    /// An operation of the system failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder already holds a record.
    #[error("{} holds a record already; name another folder, or remove this one", .0.display())]
    Exists(PathBuf),
    /// Another recorder writes it.
    #[error("another recorder writes {}; name another folder", .0.display())]
    Busy(PathBuf),
    /// The path is not an empty folder.
    #[error("{} is there and is no empty folder; a record is a new folder", .0.display())]
    InTheWay(PathBuf),
    /// The path is not a folder with a header.
    #[error("{} is not a record: {why}; name a folder that tandem host record wrote", path.display())]
    NotARecord {
        /// The given path.
        path: PathBuf,
        /// The missing or invalid part.
        why: String,
    },
    /// The version is not readable.
    #[error("{} is a record of version {found}, and this program reads versions 1 to {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The content of a file is invalid.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// An interval leaves no space for others.
    #[error("an interval takes {bytes} bytes; --max-size must be {} at least", bytes.saturating_mul(recorder::JOURNALS))]
    TooSmall {
        /// Its size.
        bytes: u64,
    },
    /// The Parquet library failed to write.
    #[error("cannot write {}: {why}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The library's error.
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

/// Returns the path of a journal or an unfinished segment with this first interval.
fn part(folder: &Path, first: u64, end: &str) -> PathBuf {
    folder.join(format!("{first:010}.{end}"))
}

#[cfg(test)]
mod tests;
