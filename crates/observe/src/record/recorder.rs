//! Writing a record: the journal, segments, and the bound of its size.
//!
//! Of the bytes that a record may have, the journal gets a part of [`JOURNALS`]; it becomes a segment when the next interval would
//! not fit, or after [`INTERVALS`] intervals. Segments get all but two such parts: one for the journal, one for the segment that is
//! made of it, which is smaller. So the bound holds at every moment.

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

/// How large a record may be unless said otherwise: 256 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 256 << 20;

/// The least that may be said: 1 MiB.
pub const LEAST_MAX_BYTES: u64 = 1 << 20;

/// A journal has at most this part of the bytes.
pub(super) const JOURNALS: u64 = 8;

/// A segment has at most so many intervals: enough that names and the file's own description cost next to nothing.
const INTERVALS: usize = 300;

/// So much is kept of what a look said that failed.
const MOST_OF_FAILURE: usize = 300;

/// A line of the journal.
#[derive(Serialize, Deserialize)]
pub(super) struct Line<F> {
    /// The interval's number.
    pub(super) number: u64,
    /// What was recorded of it.
    pub(super) frame: F,
}

/// Intervals that are in no segment yet.
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
    /// Locked as long as this lives.
    _header: File,
    max: u64,
    journal: Option<Journal>,
    /// The number of the next interval.
    next: u64,
    segments: VecDeque<(PathBuf, u64)>,
    /// How many of the first intervals are gone.
    dropped: u64,
    /// Looks that failed since the last interval, and what the last of them said.
    failed: u64,
    failure: Option<String>,
    /// Looks that failed since the beginning.
    all_failed: u64,
}

impl Recorder {
    /// Begins a record in a new folder, of at most `max` bytes ([`LEAST_MAX_BYTES`] at least).
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
        // Nobody knows of it yet.
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
        // Who may not list the folder above may make one in it all the same.
        let _ = durable::folder(above(folder));
        Ok(Recorder {
            folder: folder.to_owned(),
            _header: header,
            max: max.max(LEAST_MAX_BYTES),
            journal: None,
            next: 0,
            segments: VecDeque::new(),
            dropped: 0,
            failed: 0,
            failure: None,
            all_failed: 0,
        })
    }

    /// A look failed: the next interval, or the end, says so.
    pub fn failed(&mut self, why: &str) {
        self.failed += 1;
        self.all_failed += 1;
        self.failure = Some(why.chars().take(MOST_OF_FAILURE).collect());
    }

    /// Writes an interval: it is in the journal when this returns, and survives if this process is killed. After an error it is not in
    /// the record, and all before it are.
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

    /// Makes a segment of the journal.
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
        // The newest stays, however large.
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

    /// Ends the record: everything is in closed segments, and it says that it was ended, and why if nobody asked for that.
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

    /// It has its name only when it is on the disk.
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

/// By the wall clock, in ns since 1970.
fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Nanos(since.map_or(0, |since| since.as_nanos() as u64))
}

/// The folder that has a name of this one.
fn above(folder: &Path) -> &Path {
    match folder.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => folder,
    }
}

/// What a record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Intervals that were written.
    pub intervals: u64,
    /// How many of them, the oldest, went to make room.
    pub dropped: u64,
    /// Bytes of the segments.
    pub bytes: u64,
    /// Looks that failed.
    pub failed: u64,
}

/// The number in the name of a part.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    let number = stem.split_once('-').map_or(stem, |(number, _)| number);
    number.parse().ok()
}

/// Whether a folder that is there may become a record; if not, why.
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
            // A line that is not whole would not be read anyway.
            let _ = self.file.set_len(self.bytes);
            return Err(RecordError::io("write", &self.path)(error));
        }
        self.bytes += line.len() as u64;
        Ok(())
    }
}
