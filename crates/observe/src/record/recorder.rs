//! Writing a record: journal, segments, and bounded size.
//!
//! The journal may use 1/[`JOURNALS`] of the maximum size. It becomes a segment if the next interval would
//! not fit, or after [`INTERVALS`] intervals. Segments may use the rest except two such parts: one for the journal, and one for the segment that
//! is written from it, which is smaller. So the bound holds at all times.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use tandem_model::Nanos;

use super::frame::Frame;
use super::{END, End, HEADER, Header, JOURNAL, RecordError, VERSION, durable, part, segment};

/// Default maximum size of a record: 256 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 256 << 20;

/// Minimum value of the maximum size: 1 MiB.
pub const MIN_MAX_BYTES: u64 = 1 << 20;

/// Reciprocal of the journal's maximum part of the size.
pub(super) const JOURNALS: u64 = 8;

/// Maximum number of intervals of a segment: enough to make names and file metadata negligible.
const INTERVALS: usize = 300;

/// Maximum length of a stored error message.
const MAX_FAILURE: usize = 300;

/// A line of the journal.
#[derive(Serialize, Deserialize)]
pub(super) struct Line<F> {
    /// The interval's number.
    pub(super) number: u64,
    /// The recorded frame.
    pub(super) frame: F,
}

/// Intervals that are not yet in a segment.
struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    first: u64,
    frames: Vec<Frame>,
}

/// Writes a record.
pub struct Recorder {
    folder: PathBuf,
    /// Locked while the recorder lives.
    _header: File,
    max: u64,
    journal: Option<Journal>,
    /// The number of the next interval.
    next: u64,
    segments: VecDeque<(PathBuf, u64)>,
    /// Number of old intervals dropped.
    dropped: u64,
    /// Number of failed readings since the last interval, and the last of their errors.
    failed: u64,
    failure: Option<String>,
    /// Total number of failed readings.
    all_failed: u64,
}

impl Recorder {
    /// Creates a record in a new folder, of at most `max` bytes (at least [`MIN_MAX_BYTES`]).
    pub fn create(folder: &Path, max: u64) -> Result<Recorder, RecordError> {
        match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => free(folder)?,
            other => other.map_err(RecordError::io("make", folder))?,
        }
        let path = folder.join(HEADER);
        let to_write = RecordError::io("write", &path);
        let mut header = match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(RecordError::Exists(folder.to_owned()));
            }
            other => other.map_err(to_write)?,
        };
        // The file is new, so no other process holds the lock.
        header.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecordError::Busy(folder.to_owned()),
            TryLockError::Error(error) => RecordError::io("lock", &path)(error),
        })?;
        let header_line = Header { tandem_record: VERSION, begun: now() };
        let text = serde_json::to_string(&header_line).map_err(io::Error::from);
        let written = text.and_then(|text| writeln!(header, "{text}"));
        written.map_err(RecordError::io("write", &path))?;
        durable::file(&header, &path)?;
        durable::folder(folder)?;
        // A user may be allowed to create a folder in a parent that is not readable.
        let _ = durable::folder(above(folder));
        Ok(Recorder {
            folder: folder.to_owned(),
            _header: header,
            max: max.max(MIN_MAX_BYTES),
            journal: None,
            next: 0,
            segments: VecDeque::new(),
            dropped: 0,
            failed: 0,
            failure: None,
            all_failed: 0,
        })
    }

    /// Records a failed reading, which the next interval, or the end, reports.
    pub fn failed(&mut self, why: &str) {
        self.failed += 1;
        self.all_failed += 1;
        self.failure = Some(why.chars().take(MAX_FAILURE).collect());
    }

    /// Writes an interval. When this returns, it is in the journal and survives a kill of this process. After an error it is not in
    /// the record, but all intervals before it are.
    pub fn add(&mut self, mut frame: Frame) -> Result<(), RecordError> {
        frame.failed = self.failed;
        frame.failure.clone_from(&self.failure);
        let line = Line { number: self.next, frame: &frame };
        let line = serde_json::to_string(&line).map_err(io::Error::from);
        let mut line = line.map_err(RecordError::io("write", &self.folder))?;
        line.push('\n');
        let limit = self.max / JOURNALS;
        let bytes = line.len() as u64;
        if bytes > limit {
            return Err(RecordError::TooSmall { bytes });
        }
        if let Some(journal) = &self.journal
            && (journal.bytes + bytes > limit || journal.frames.len() >= INTERVALS)
        {
            self.close()?;
        }
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => none.insert(Journal::create(&self.folder, self.next)?),
        };
        journal.append(&line)?;
        journal.frames.push(frame);
        self.next += 1;
        self.failed = 0;
        self.failure = None;
        Ok(())
    }

    /// Converts the journal to a segment.
    fn close(&mut self) -> Result<(), RecordError> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        let (path, bytes) = segment::write(&self.folder, journal.first, &journal.frames)?;
        fs::remove_file(&journal.path).map_err(RecordError::io("remove", &journal.path))?;
        durable::folder(&self.folder)?;
        self.segments.push_back((path, bytes));
        self.journal = None;
        self.drop_oldest()
    }

    fn drop_oldest(&mut self) -> Result<(), RecordError> {
        let room = self.max - self.max / JOURNALS * 2;
        let mut held: u64 = self.segments.iter().map(|(_, bytes)| bytes).sum();
        // The newest stays, regardless of its size.
        while held > room && self.segments.len() > 1 {
            if let Some((path, bytes)) = self.segments.pop_front() {
                fs::remove_file(&path).map_err(RecordError::io("remove", &path))?;
                held -= bytes;
            }
        }
        self.dropped = match self.segments.front() {
            Some((path, _)) => number_of(path).unwrap_or(self.dropped),
            None => self.dropped,
        };
        Ok(())
    }

    /// Ends the record: moves all intervals to closed segments, and writes its end with the error, if one caused it.
    pub fn finish(mut self, error: Option<String>) -> Result<Finished, RecordError> {
        self.close()?;
        self.write_end(&End {
            at: now(),
            intervals: self.next,
            dropped: self.dropped,
            failed: self.failed,
            failure: self.failure.clone(),
            error,
        })?;
        Ok(Finished {
            intervals: self.next,
            dropped: self.dropped,
            bytes: self.segments.iter().map(|(_, bytes)| bytes).sum(),
            failed: self.all_failed,
        })
    }

    /// Writes the end, and renames it into place after syncing.
    fn write_end(&self, end: &End) -> Result<(), RecordError> {
        let unfinished = self.folder.join(format!("{END}.part"));
        let text = serde_json::to_string(end).map_err(io::Error::from);
        let text = text.map_err(RecordError::io("write", &unfinished))?;
        let mut file = File::create(&unfinished).map_err(RecordError::io("write", &unfinished))?;
        writeln!(file, "{text}").map_err(RecordError::io("write", &unfinished))?;
        durable::file(&file, &unfinished)?;
        let path = self.folder.join(END);
        fs::rename(&unfinished, &path).map_err(RecordError::io("rename", &unfinished))?;
        durable::folder(&self.folder)
    }
}

/// Returns the wall clock in ns since 1970.
fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// Returns the parent folder.
fn above(folder: &Path) -> &Path {
    match folder.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => folder,
    }
}

/// Summary of a finished record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Number of intervals written.
    pub intervals: u64,
    /// Number of old intervals dropped for space.
    pub dropped: u64,
    /// Size of the segments in bytes.
    pub bytes: u64,
    /// Number of failed readings.
    pub failed: u64,
}

/// Parses the number in the name of a part.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    let number = stem.split_once('-').map_or(stem, |(number, _)| number);
    number.parse().ok()
}

/// Checks that an existing folder can become a record.
fn free(folder: &Path) -> Result<(), RecordError> {
    let header = folder.join(HEADER);
    if let Ok(file) = File::open(&header) {
        return Err(match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => RecordError::Busy(folder.to_owned()),
            _ => RecordError::Exists(folder.to_owned()),
        });
    }
    let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty { Ok(()) } else { Err(RecordError::InTheWay(folder.to_owned())) }
}

impl Journal {
    fn create(folder: &Path, first: u64) -> Result<Journal, RecordError> {
        let path = part(folder, first, JOURNAL);
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        Ok(Journal {
            file: file.map_err(RecordError::io("write", &path))?,
            path,
            bytes: 0,
            first,
            frames: Vec::new(),
        })
    }

    fn append(&mut self, line: &str) -> Result<(), RecordError> {
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // Remove the incomplete line, which readers would ignore anyway.
            let _ = self.file.set_len(self.bytes);
            return Err(RecordError::io("write", &self.path)(error));
        }
        self.bytes += line.len() as u64;
        Ok(())
    }
}
