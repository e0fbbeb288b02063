//! Reading a record, also while it is written.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::fs::TryLockError;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::path::PathBuf;

use tandem_policy::Nanos;

use super::HEADER;
use super::Header;
use super::JOURNAL;
use super::RecordError;
use super::SEGMENT;
use super::VERSION;
use super::frame::Frame;
use super::recorder::Line;
use super::recorder::number_of;
use super::segment;

/// How often a part is looked for again that was made a segment, or went, meanwhile.
const TRIES: usize = 3;

/// A record that is there.
#[derive(Clone, Debug)]
pub struct Record {
    folder: PathBuf,
}

impl Record {
    /// Looks whether a folder is a record that this program can read.
    pub fn open(folder: &Path) -> Result<Record, RecordError> {
        let not = |why: String| RecordError::NotARecord {
            path: folder.to_owned(),
            why,
        };
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
        if *version != VERSION {
            return Err(match version.is_u64() {
                true => RecordError::Version {
                    path: folder.to_owned(),
                    found: version.to_string(),
                },
                false => not(format!("{HEADER} has no version")),
            });
        }
        let header = serde_json::from_value::<Header>(value);
        header.map_err(|error| not(format!("{HEADER}: {error}")))?;
        Ok(Record {
            folder: folder.to_owned(),
        })
    }

    /// Whether somebody writes it now.
    pub fn is_written(&self) -> bool {
        let header = File::open(self.folder.join(HEADER));
        header.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether it was ended as it should be: nothing is in a journal.
    pub fn is_complete(&self) -> Result<bool, RecordError> {
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

    /// Calls with each interval that overlaps a time by the wall clock, in ns since 1970, and its number, in their order; until an error.
    pub fn read<E: From<RecordError>>(
        &self,
        wanted: Range<Nanos>,
        mut each: impl FnMut(u64, Frame) -> Result<(), E>,
    ) -> Result<(), E> {
        for (first, part) in self.parts()? {
            for (number, frame) in self.frames(first, part, &wanted)? {
                if frame.at < wanted.end && frame.end() > wanted.start {
                    each(number, frame)?;
                }
            }
        }
        Ok(())
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
            if end == SEGMENT {
                part.segment = Some(path);
            }
        }
        Ok(parts)
    }

    /// The frames of a part, none where it holds none of the wanted time or is gone meanwhile.
    fn frames(
        &self,
        first: u64,
        mut part: Part,
        wanted: &Range<Nanos>,
    ) -> Result<BTreeMap<u64, Frame>, RecordError> {
        for _ in 0..TRIES {
            // With both, the journal is what was left when the recorder was killed just then.
            let read = match &part.segment {
                Some(path) => of_segment(path, wanted),
                None => journal(&super::part(&self.folder, first, JOURNAL)),
            };
            match read {
                Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                }
                other => return other,
            }
            match self.parts()?.remove(&first) {
                Some(now) => part = now,
                None => break,
            }
        }
        Ok(BTreeMap::new())
    }
}

/// Intervals in a row: in a segment, or in a journal as long as there is none.
#[derive(Debug, Default)]
struct Part {
    segment: Option<PathBuf>,
}

fn of_segment(path: &Path, wanted: &Range<Nanos>) -> Result<BTreeMap<u64, Frame>, RecordError> {
    let segment = segment::open(path)?;
    let summary = &segment.summary;
    match summary.from < wanted.end && summary.to > wanted.start {
        true => segment.frames(path),
        false => Ok(BTreeMap::new()),
    }
}

/// The frames of a journal; a last line that is not whole is not there.
fn journal(path: &Path) -> Result<BTreeMap<u64, Frame>, RecordError> {
    let text = fs::read(path).map_err(RecordError::io("read", path))?;
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let whole = lines.filter(|line| line.ends_with(b"\n"));
    let frames = whole.zip(1..).map(|(line, at)| {
        let line: Result<Line<Frame>, _> = serde_json::from_slice(line);
        let line =
            line.map_err(|error| RecordError::damaged(path, format!("line {at}: {error}")))?;
        Ok((line.number, line.frame))
    });
    frames.collect()
}
