//! Reading a record, also while it is written.
//!
//! Parts are read one after the other, in the order in which they were recorded. One that cannot be read is skipped: what it held is
//! [`Damage`]. Of a journal only the lines that are damaged are lost. A part's name says with which interval it begins, and the end of a record how many
//! there were and how many of the first went to make room: so a part that is not there is a damage, too, and so is an end that cannot be read.

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

/// How often a part is looked for again that was made a segment, or went, meanwhile.
const TRIES: usize = 3;

/// A record that is there.
#[derive(Clone, Debug)]
pub struct Record {
    folder: PathBuf,
    header: Header,
}

impl Record {
    /// Looks whether a folder is a record that this program can read.
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

    /// Whether somebody writes it now.
    pub fn is_written(&self) -> bool {
        let header = File::open(self.folder.join(HEADER));
        header.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// How it was ended; `None` if it is being written, or was cut off. Records of version 1 do not say. It has its name only when it is on the
    /// disk: one that cannot be read is damaged.
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

    /// Whether it was ended as somebody asked: it says so. One of version 1 was if nothing is in a journal.
    pub fn is_complete(&self) -> Result<bool, RecordError> {
        if self.header.tandem_record >= HAS_END {
            // One that cannot be read is a damage of the record's (`read`), and says nothing.
            let end = self.end().ok().flatten();
            return Ok(end.is_some_and(|end| end.error.is_none()));
        }
        let parts = self.parts()?;
        Ok(parts.values().all(|part| part.segment.is_some()))
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> Result<u64, RecordError> {
        let entries = fs::read_dir(&self.folder).map_err(RecordError::io("read", &self.folder))?;
        // What is gone meanwhile has no bytes.
        let files = entries.filter_map(|entry| entry.ok()?.metadata().ok());
        Ok(files.map(|file| file.len()).sum())
    }

    /// Calls with each interval that is wanted, and its number, in the order in which they were recorded, until an error; says by which damage
    /// some of them may be missing.
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
        // The number of the interval with which the next part has to begin; `None` where nothing tells.
        let mut next = end.as_ref().map(|end| end.dropped);
        let mut parts = self.parts()?;
        while let Some((mut first, mut part)) = parts.pop_first() {
            if let Some(expected) = next.filter(|expected| *expected < first) {
                match self.parts()?.remove_entry(&expected) {
                    // It got another name while the folder was listed.
                    Some(found) => {
                        parts.insert(first, part);
                        (first, part) = found;
                    }
                    None => damages.add(self.missing(expected, Some(first))),
                }
            }
            let read = match self.part(first, part, &wanted) {
                Ok(Some(read)) => read,
                // The oldest go while a record is written, and nothing else does.
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

    /// No part has the intervals from this number to that.
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

    /// What there is, by the number of its first interval.
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

    /// What a part holds; `None` if it is gone meanwhile.
    fn part(
        &self,
        first: u64,
        mut part: Part,
        wanted: &Wanted,
    ) -> Result<Option<Read>, RecordError> {
        let journal = super::part(&self.folder, first, JOURNAL);
        for _ in 0..TRIES {
            let read = match &part.segment {
                // With both, the journal is what was left when the recorder was killed just then.
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

/// Intervals in a row: in a segment, or in a journal as long as there is none.
#[derive(Debug, Default)]
struct Part {
    segment: Option<PathBuf>,
    has_journal: bool,
}

/// What was read of a part.
#[derive(Debug, Default)]
struct Read {
    /// `None` if nothing was.
    span: Option<Span>,
    /// How many intervals it holds, readable or not.
    intervals: u64,
    /// Those of a segment only if some are wanted.
    frames: BTreeMap<u64, Frame>,
    /// What could not be.
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
    let frames = match wanted.overlaps(&span.wall, span.steady.as_ref()) {
        true => segment.frames(path)?,
        false => BTreeMap::new(),
    };
    Ok(Read { intervals: summary.intervals, span: Some(span), frames, damage: None })
}

/// The frames of a journal; a last line that is not whole is not there, and others that cannot be read are skipped.
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
