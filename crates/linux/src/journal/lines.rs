//! Text format of a journal: a head and records, one per line.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::Version;
use crate::journal::error::JournalError;
use crate::journal::record::Entry;

/// The format of this version's records.
const FORMAT: u32 = 1;

/// Maximum length of quoted text in an error, in characters.
const MAX_SHOWN: usize = 300;

/// The first line: identifies the host, boot and hierarchy of the records.
/// Readers skip fields that later versions add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Format of the records: readers of this or a later format can restore from them.
    pub tandem_journal: u32,
    /// Random ID of this boot, from the kernel.
    pub boot: String,
    /// Version of the cgroup interface.
    pub version: Version,
    /// Mount point of the hierarchy.
    pub mount: PathBuf,
}

impl Stamp {
    /// A stamp in the current format.
    pub fn new(boot: String, version: Version, mount: PathBuf) -> Stamp {
        Stamp { tandem_journal: FORMAT, boot, version, mount }
    }
}

/// One line of JSON; for strings, numbers and enums of them serialization cannot fail.
pub(crate) fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Truncates an error text, which may quote the file, and escapes its control characters.
fn shown(what: &str) -> String {
    let most = what.chars().take(MAX_SHOWN);
    let mut shown = String::new();
    for c in most {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    if what.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Parses the records in a file's bytes; none if they are of an earlier boot.
pub(crate) fn parse<R: Entry>(
    path: &Path,
    bytes: &[u8],
    ours: &Stamp,
) -> Result<Vec<R>, JournalError> {
    let malformed = |line: usize, what: String| JournalError::Malformed {
        path: path.to_owned(),
        line,
        what: shown(&what),
        restore: R::RESTORE,
    };
    // The writer died before it completed the text after the last line end.
    let whole = match bytes.iter().rposition(|&byte| byte == b'\n') {
        Some(end) => &bytes[..end],
        None => return Ok(Vec::new()),
    };
    let mut lines = whole.split(|&byte| byte == b'\n').zip(1..);
    let Some((first, _)) = lines.next() else {
        return Ok(Vec::new());
    };
    let no_head = |what: String| JournalError::NoHead {
        path: path.to_owned(),
        what: shown(&what),
        restore: R::RESTORE,
    };
    let stamp: Stamp = serde_json::from_slice(first)
        .map_err(|error| no_head(format!("not the head of a Tandem journal ({error})")))?;
    if stamp.tandem_journal > FORMAT {
        let what = format!(
            "it has format {}, this Tandem reads formats up to {FORMAT}",
            stamp.tandem_journal
        );
        return Err(no_head(what));
    }
    let mut records: Vec<R> = Vec::new();
    for (text, number) in lines {
        let record: R = serde_json::from_slice(text)
            .map_err(|error| malformed(number, format!("not a Tandem record ({error})")))?;
        let checked = record.check();
        checked.map_err(|what| malformed(number, format!("not a Tandem record ({what})")))?;
        records.push(record);
    }
    if stamp.boot != ours.boot {
        return Ok(Vec::new());
    }
    if (stamp.version, &stamp.mount) != (ours.version, &ours.mount) && !records.is_empty() {
        return Err(JournalError::OtherHierarchy {
            path: path.to_owned(),
            theirs: shown(&stamp.mount.to_string_lossy()).into(),
            theirs_version: stamp.version,
            ours: ours.mount.clone(),
            ours_version: ours.version,
        });
    }
    Ok(records)
}
