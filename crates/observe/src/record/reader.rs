//! Reading a record, even while it is written.
//!
//! Parts are read in the order of recording. An unreadable part is skipped and reported as [`Damage`]; in a journal, only the damaged
//! lines are lost. The name of a part contains the number of its first interval, and the end of a record the number of written and
//! dropped intervals. So missing parts and an unreadable end are reported, too.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::damage::{Damage, Damages, Span};
use super::frame::Frame;
use super::recorder::{Line, number_of};
use super::segment::Summary;
use super::wanted::Wanted;
use super::{END, End, HAS_END, HEADER, Header, JOURNAL, RecordError, SEGMENT, VERSIONS, segment};

/// Maximum number of attempts to read a part that was replaced by a segment, or removed, meanwhile.
const TRIES: usize = 3;

/// A record on disk.
#[derive(Clone, Debug)]
pub struct Record {
    folder: PathBuf,
    header: Header,
}

impl Record {
    /// Opens a folder that holds a record of a readable version.
    pub fn open(folder: &Path) -> Result<Record, RecordError> {
        let not = |why: String| RecordError::NotARecord { path: folder.to_owned(), why };
        let metadata = fs::metadata(folder).map_err(RecordError::io("read", folder))?;
        if !metadata.is_dir() {
            return Err(not("it is no folder".to_owned()));
        }
        let path = folder.join(HEADER);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(not(format!("it has no {HEADER}")));
            }
            other => other.map_err(RecordError::io("read", &path))?,
        };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| not(format!("{HEADER}: {error}")))?;
        let version = &value["tandem_record"];
        let Some(number) = version.as_u64() else {
            return Err(not(format!("{HEADER} has no version")));
        };
        if !u32::try_from(number).is_ok_and(|number| VERSIONS.contains(&number)) {
            return Err(RecordError::Version {
                path: folder.to_owned(),
                found: version.to_string(),
            });
        }
        let header = serde_json::from_value(value);
        Ok(Record {
            folder: folder.to_owned(),
            header: header.map_err(|error| not(format!("{HEADER}: {error}")))?,
        })
    }

    /// Whether a recorder is writing it.
    pub fn is_written(&self) -> bool {
        let header = File::open(self.folder.join(HEADER));
        header.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Returns how it was ended; `None` if it is being written or was cut off, and for version 1. The file is renamed into place after
    /// syncing, so an unreadable one is damaged.
    pub fn end(&self) -> Result<Option<End>, RecordError> {
        let path = self.folder.join(END);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(text) => match serde_json::from_str(&text) {
                Ok(end) => Ok(Some(end)),
                Err(error) => Err(RecordError::damaged(&path, error)),
            },
            Err(error) => Err(RecordError::io("read", &path)(error)),
        }
    }

    /// Whether it was ended on request. A record of version 1 was if it has no journal.
    pub fn is_complete(&self) -> Result<bool, RecordError> {
        if self.header.tandem_record >= HAS_END {
            // An unreadable end is reported by `read`.
            let end = self.end().ok().flatten();
            return Ok(end.is_some_and(|end| end.error.is_none()));
        }
        let parts = self.parts()?;
        Ok(parts.values().all(|part| part.segment.is_some()))
    }

    /// Returns the size of all its files in bytes.
    pub fn bytes(&self) -> Result<u64, RecordError> {
        let entries = fs::read_dir(&self.folder).map_err(RecordError::io("read", &self.folder))?;
        // Files may be removed meanwhile.
        let files = entries.filter_map(|entry| entry.ok()?.metadata().ok());
        Ok(files.map(|file| file.len()).sum())
    }

    /// Calls `each` with each wanted interval and its number, in the order of recording, until an error. Returns the damages that
    /// may have cost some of them.
    pub fn read<E: From<RecordError>>(
        &self,
        wanted: impl Into<Wanted>,
        mut each: impl FnMut(u64, Frame) -> Result<(), E>,
    ) -> Result<Vec<Damage>, E> {
        let wanted = wanted.into();
        let mut damages = Damages::default();
        let (end, unreadable_end) = match self.end() {
            Ok(end) => (end, None),
            Err(error) => (None, Some(error)),
        };
        // The number of the first interval of the next part; `None` if unknown.
        let mut next = end.as_ref().map(|end| end.dropped);
        let mut parts = self.parts()?;
        while let Some((mut first, mut part)) = parts.pop_first() {
            if let Some(expected) = next.filter(|expected| *expected < first) {
                match self.parts()?.remove_entry(&expected) {
                    // It was renamed while the folder was listed.
                    Some(found) => {
                        parts.insert(first, part);
                        (first, part) = found;
                    }
                    None => damages.add(self.missing(expected, Some(first))),
                }
            }
            let read = match self.part(first, part, &wanted) {
                Ok(Some(read)) => read,
                // Only the oldest parts are removed while a record is written.
                Ok(None) => {
                    next = (!self.is_written()).then_some(first);
                    continue;
                }
                Err(error) => {
                    let after = parts.keys().next().copied();
                    let after = after.or(end.as_ref().map(|end| end.intervals));
                    damages.add(Damage {
                        what: error.to_string(),
                        first,
                        intervals: after.and_then(|after| after.checked_sub(first)),
                    });
                    next = after;
                    continue;
                }
            };
            next = Some(first.saturating_add(read.intervals));
            match (read.damage, &read.span) {
                (Some(damage), Some(span)) => damages.add_within(damage, span, &wanted),
                (Some(damage), None) => damages.add(damage),
                (None, _) => {}
            }
            if let Some(span) = read.span {
                damages.read(span, &wanted);
            }
            for (number, frame) in read.frames {
                if wanted.has(&frame) {
                    each(number, frame)?;
                }
            }
        }
        let all = end.map(|end| end.intervals);
        if let (Some(next), Some(all)) = (next, all)
            && next < all
        {
            damages.add(self.missing(next, Some(all)));
        }
        if let Some(error) = unreadable_end {
            damages.add(Damage {
                what: error.to_string(),
                first: next.unwrap_or(0),
                intervals: None,
            });
        }
        Ok(damages.finish(&wanted))
    }

    /// Returns the damage of missing intervals in this range.
    fn missing(&self, first: u64, to: Option<u64>) -> Damage {
        Damage {
            what: format!(
                "{} lacks a segment: no file has interval {first}",
                self.folder.display()
            ),
            first,
            intervals: to.and_then(|to| to.checked_sub(first)),
        }
    }

    /// Lists the parts by the number of their first interval.
    fn parts(&self) -> Result<BTreeMap<u64, Part>, RecordError> {
        let entries = fs::read_dir(&self.folder).map_err(RecordError::io("read", &self.folder))?;
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(RecordError::io("read", &self.folder))?;
            let path = entry.path();
            let end = path.extension().and_then(|end| end.to_str());
            let (Some(end @ (SEGMENT | JOURNAL)), Some(first)) = (end, number_of(&path)) else {
                continue;
            };
            let part = parts.entry(first).or_default();
            match end {
                SEGMENT => part.segment = Some(path),
                _ => part.has_journal = true,
            }
        }
        Ok(parts)
    }

    /// Reads a part; `None` if it was removed meanwhile.
    fn part(
        &self,
        first: u64,
        mut part: Part,
        wanted: &Wanted,
    ) -> Result<Option<Read>, RecordError> {
        let journal = super::part(&self.folder, first, JOURNAL);
        for _ in 0..TRIES {
            let read = match &part.segment {
                // With both, the recorder was killed before it removed the journal.
                Some(path) => match of_segment(path, wanted) {
                    Err(error) if part.has_journal && !is_gone(&error) => {
                        of_journal(&journal, first).map_err(|_| error)
                    }
                    other => other,
                },
                None => of_journal(&journal, first),
            };
            match read {
                Err(error) if is_gone(&error) => {}
                other => return other.map(Some),
            }
            match self.parts()?.remove(&first) {
                Some(now) => part = now,
                None => break,
            }
        }
        Ok(None)
    }
}

/// Consecutive intervals, in a segment or, before that is written, in a journal.
#[derive(Debug, Default)]
struct Part {
    segment: Option<PathBuf>,
    has_journal: bool,
}

/// The result of reading a part.
#[derive(Debug, Default)]
struct Read {
    /// `None` if no frame was read.
    span: Option<Span>,
    /// Number of intervals in it, including unreadable ones.
    intervals: u64,
    /// The frames; empty for a segment without wanted ones.
    frames: BTreeMap<u64, Frame>,
    /// The unreadable lines.
    damage: Option<Damage>,
}

fn is_gone(error: &RecordError) -> bool {
    let RecordError::Io { source, .. } = error else {
        return false;
    };
    source.kind() == io::ErrorKind::NotFound
}

fn of_segment(path: &Path, wanted: &Wanted) -> Result<Read, RecordError> {
    let segment = segment::open(path)?;
    let summary = &segment.summary;
    let span = Span::of(summary);
    let frames = if wanted.overlaps(&span.wall, span.steady.as_ref()) {
        segment.frames(path)?
    } else {
        BTreeMap::new()
    };
    Ok(Read { intervals: summary.intervals, span: Some(span), frames, damage: None })
}

/// Reads the frames of a journal. Ignores an incomplete last line, and skips unreadable ones.
fn of_journal(path: &Path, first: u64) -> Result<Read, RecordError> {
    let text = fs::read(path).map_err(RecordError::io("read", path))?;
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let whole = lines.filter(|line| line.ends_with(b"\n"));
    let mut read = Read::default();
    for (line, at) in whole.zip(1u64..) {
        read.intervals = at;
        let line: Result<Line<Frame>, _> = serde_json::from_slice(line);
        match (line, &mut read.damage) {
            (Ok(line), _) => {
                read.frames.insert(line.number, line.frame);
            }
            (Err(_), Some(damage)) => {
                damage.intervals = damage.intervals.map(|lost| lost + 1);
            }
            (Err(error), none) => {
                let error = RecordError::damaged(path, format!("line {at}: {error}"));
                *none = Some(Damage {
                    what: error.to_string(),
                    first: first + at - 1,
                    intervals: Some(1),
                });
            }
        }
    }
    read.span = Summary::of(first, read.frames.values()).map(|summary| Span::of(&summary));
    Ok(read)
}
