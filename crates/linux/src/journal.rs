//! What was before: one line on disk for every change, written before the change is made.
//!
//! The journal is a file of JSON lines in the state directory (`/run/tandem` by default). The first
//! line says which host it belongs to; each further line is a [`Record`]: the first, original value
//! of something that is about to be changed. A record is on disk (fdatasync) before
//! [`Journal::append`] returns. So after kill -9 at any moment the journal holds all that was
//! changed, and perhaps one record of a change that was not made; undoing that one changes nothing.
//!
//! A last line without its end is a record that was being written: its change was never made, so
//! it is ignored. Any other line that does not parse is an error, and nothing is touched.
//!
//! The state directory is locked (flock on the file `lock`, which holds the owner's pid): two
//! daemons would take each other's changes for the original values.
//!
//! What this does not do: survive a reboot. Cgroups and affinity masks do not either, so the
//! journal of an earlier boot is dropped.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::hash::Hash;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::fs::FlockOperation;
use rustix::fs::flock;
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_policy::Nanos;
use tandem_policy::Nice;
use tandem_policy::PcpuSet;
use thiserror::Error;

use crate::cgroup::CgroupId;
use crate::cgroup::CgroupPath;
use crate::cgroup::Knob;
use crate::cgroup::Version;
use crate::ids::Tid;
use crate::thread::StartTime;
use crate::thread::ThreadRef;

/// The format of this version's records.
const FORMAT: u32 = 1;

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
}

fn holder_text(holder: Option<u32>) -> String {
    match holder {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

/// One kind of record: the daemon's below, or that of another agent with changes of its own.
///
/// As text it says what undoing it puts back.
pub trait Entry:
    Clone + fmt::Debug + fmt::Display + PartialEq + Serialize + DeserializeOwned
{
    /// What a record is about: of two with the same key only the first tells the original.
    type Key: Clone + fmt::Debug + Eq + Hash;

    /// The command that puts back what such a journal lists.
    const RESTORE: &'static str;

    /// What the record is about.
    fn key(&self) -> Self::Key;
}

/// Something that is about to be changed, and what it was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// The cpu controller is enabled for the cgroups below this one (v2).
    Enabled {
        /// Whose children get it.
        cgroup: CgroupPath,
        /// Which cgroup that was.
        id: CgroupId,
    },
    /// A cgroup is made.
    Created {
        /// The new cgroup.
        cgroup: CgroupPath,
    },
    /// A cgroup that is not ours gets another value.
    Knob {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// Which cgroup that was.
        id: CgroupId,
        /// Which of its knobs.
        knob: Knob,
        /// The knob's text as it was.
        original: String,
    },
    /// A thread is moved.
    Moved {
        /// Which thread.
        thread: ThreadRef,
        /// Where it belongs.
        from: CgroupPath,
        /// Where it goes.
        to: CgroupPath,
    },
    /// A thread gets other pCPUs.
    Affinity {
        /// Which thread.
        thread: ThreadRef,
        /// Where it was allowed to run.
        original: PcpuSet,
    },
    /// A thread gets another nice value.
    Nice {
        /// Which thread.
        thread: ThreadRef,
        /// Its nice value.
        original: Nice,
    },
    /// A thread gets another slice.
    Slice {
        /// Which thread.
        thread: ThreadRef,
        /// Its own slice, in ns; `None`: it had the scheduler's.
        original: Option<Nanos>,
    },
}

/// What a [`Record`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Of [`Record::Enabled`].
    Enabled(CgroupPath, CgroupId),
    /// Of [`Record::Created`].
    Created(CgroupPath),
    /// Of [`Record::Knob`].
    Knob(CgroupPath, CgroupId, Knob),
    /// Of [`Record::Moved`]: one per place the thread was moved to.
    Moved(Tid, StartTime, CgroupPath),
    /// Of [`Record::Affinity`].
    Affinity(Tid, StartTime),
    /// Of [`Record::Nice`].
    Nice(Tid, StartTime),
    /// Of [`Record::Slice`].
    Slice(Tid, StartTime),
}

impl Entry for Record {
    type Key = Key;

    const RESTORE: &'static str = "tandem host restore";

    fn key(&self) -> Key {
        match self {
            Record::Enabled { cgroup, id } => Key::Enabled(cgroup.clone(), *id),
            Record::Created { cgroup } => Key::Created(cgroup.clone()),
            Record::Knob {
                cgroup, id, knob, ..
            } => Key::Knob(cgroup.clone(), *id, *knob),
            Record::Moved { thread, to, .. } => Key::Moved(thread.tid, thread.start, to.clone()),
            Record::Affinity { thread, .. } => Key::Affinity(thread.tid, thread.start),
            Record::Nice { thread, .. } => Key::Nice(thread.tid, thread.start),
            Record::Slice { thread, .. } => Key::Slice(thread.tid, thread.start),
        }
    }
}

/// What undoing it puts back.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Enabled { cgroup, .. } => write!(f, "the cpu controller below {cgroup}"),
            Record::Created { cgroup } => write!(f, "the new cgroup {cgroup}"),
            Record::Knob {
                cgroup,
                knob,
                original,
                ..
            } => write!(f, "the {knob} '{original}' of cgroup {cgroup}"),
            Record::Moved { thread, from, .. } => write!(f, "{thread} to cgroup {from}"),
            Record::Affinity { thread, original } => write!(f, "{thread} to pCPUs {original}"),
            Record::Nice { thread, original } => write!(f, "{thread} to nice value {original}"),
            Record::Slice { thread, original } => match original {
                Some(slice) => write!(f, "{thread} to a slice of {slice}"),
                None => write!(f, "{thread} to the scheduler's slice"),
            },
        }
    }
}

/// Which host, boot and hierarchy the records are about: the first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// The format of the records.
    pub tandem_journal: u32,
    /// The kernel's random number of this boot.
    pub boot: String,
    /// Which interface.
    pub version: Version,
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
}

impl Stamp {
    /// A stamp in the current format.
    pub fn new(boot: String, version: Version, mount: PathBuf) -> Stamp {
        Stamp {
            tandem_journal: FORMAT,
            boot,
            version,
            mount,
        }
    }
}

/// The journal of one state directory, locked for as long as this lives.
#[derive(Debug)]
pub struct Journal<R: Entry = Record> {
    dir: PathBuf,
    path: PathBuf,
    stamp: Stamp,
    file: File,
    /// Length of the file, all of it whole lines.
    length: u64,
    records: Vec<R>,
    known: HashSet<R::Key>,
    lock: File,
}

impl<R: Entry> Journal<R> {
    /// Locks the state directory, makes it if need be, and reads what an earlier run left.
    pub fn open(dir: &Path, stamp: Stamp) -> Result<Journal<R>, JournalError> {
        fs::create_dir_all(dir).map_err(|source| JournalError::File {
            action: "make the state directory",
            path: dir.to_owned(),
            source,
        })?;
        let lock = lock(dir)?;
        let path = dir.join("journal");
        let failed = |action| {
            let path = path.clone();
            move |source| JournalError::File {
                action,
                path,
                source,
            }
        };
        let mut file = open_or_make(&path).map_err(failed("open"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("read"))?;
        let records: Vec<R> = parse(&path, &bytes, &stamp)?;
        let known = records.iter().map(R::key).collect();
        let mut journal = Journal {
            dir: dir.to_owned(),
            path,
            stamp,
            file,
            length: 0,
            records,
            known,
            lock,
        };
        // Takes away a torn last line and the records of an earlier boot.
        let kept = journal.render(&journal.records);
        journal.length = kept.len() as u64;
        if kept != bytes {
            journal.replace(&kept)?;
        }
        Ok(journal)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All records, the oldest first.
    pub fn records(&self) -> &[R] {
        &self.records
    }

    /// Whether there is a record about this.
    pub fn knows(&self, key: &R::Key) -> bool {
        self.known.contains(key)
    }

    /// Makes a record durable, unless there is one about the same thing, which tells the original.
    pub fn note(&mut self, record: R) -> Result<(), JournalError> {
        match self.knows(&record.key()) {
            true => Ok(()),
            false => self.append(record),
        }
    }

    /// Makes a record durable. On an error there is none, and the change must not be made.
    pub fn append(&mut self, record: R) -> Result<(), JournalError> {
        let mut text = match self.length {
            0 => line(&self.stamp),
            _ => Vec::new(),
        };
        text.extend(line(&record));
        let written = self
            .file
            .seek(SeekFrom::Start(self.length))
            .and_then(|_| self.file.write_all(&text))
            .and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // Half a line must not stay in front of the next one. If even this fails, the next
            // append writes over it, and a reader before that takes it for the torn line it is.
            let _ = self.file.set_len(self.length);
            return Err(JournalError::File {
                action: "write to",
                path: self.path.clone(),
                source,
            });
        }
        self.length += text.len() as u64;
        self.known.insert(record.key());
        self.records.push(record);
        Ok(())
    }

    /// Keeps only these records, by replacing the file in one step.
    pub fn rewrite(&mut self, records: Vec<R>) -> Result<(), JournalError> {
        if records == self.records {
            return Ok(());
        }
        let text = self.render(&records);
        self.replace(&text)?;
        self.length = text.len() as u64;
        self.known = records.iter().map(R::key).collect();
        self.records = records;
        Ok(())
    }

    /// The file's text for these records; none at all for none.
    fn render(&self, records: &[R]) -> Vec<u8> {
        let mut text = Vec::new();
        if !records.is_empty() {
            text.extend(line(&self.stamp));
        }
        for record in records {
            text.extend(line(record));
        }
        text
    }

    fn replace(&mut self, text: &[u8]) -> Result<(), JournalError> {
        let path = self.dir.join("journal.new");
        let write = || -> io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(text)?;
            file.sync_data()?;
            fs::rename(&path, &self.path)?;
            File::open(&self.dir)?.sync_all()?;
            Ok(file)
        };
        self.file = write().map_err(|source| JournalError::File {
            action: "replace",
            path: self.path.clone(),
            source,
        })?;
        Ok(())
    }
}

impl<R: Entry> Drop for Journal<R> {
    /// Closing the file would not do: a process that is being started holds a copy of it for a
    /// moment, and the lock with it.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// One line of JSON. Strings, numbers and enums of them always have one.
fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Whether there is a journal with something in it to put back.
pub fn is_pending(dir: &Path) -> bool {
    fs::metadata(dir.join("journal")).is_ok_and(|metadata| metadata.len() > 0)
}

/// Opens a file of the state directory as it is, for nobody else to read.
fn open_or_make(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// So long is waited for a lock that somebody holds.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

fn lock(dir: &Path) -> Result<File, JournalError> {
    let path = dir.join("lock");
    let failed = |action| {
        let path = path.clone();
        move |source: io::Error| JournalError::File {
            action,
            path,
            source,
        }
    };
    let mut file = open_or_make(&path).map_err(failed("open"))?;
    // A process that its killed owner was just starting holds it for a moment more, until it runs its own program.
    let end = Instant::now() + LOCK_PATIENCE;
    let locked = loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            outcome => break outcome,
        }
    };
    match locked {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let holder = file.read_to_string(&mut text).ok();
            return Err(JournalError::Locked {
                dir: dir.to_owned(),
                holder: holder.and_then(|_| text.trim().parse().ok()),
            });
        }
        Err(error) => return Err(failed("lock")(error.into())),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed("write to"))?;
    Ok(file)
}

/// The records in the file's bytes; none if they are of an earlier boot.
fn parse<R: Entry>(path: &Path, bytes: &[u8], ours: &Stamp) -> Result<Vec<R>, JournalError> {
    let malformed = |line: usize, what: String| JournalError::Malformed {
        path: path.to_owned(),
        line,
        what,
        restore: R::RESTORE,
    };
    // What follows the last line's end was being written when its writer died.
    let whole = match bytes.iter().rposition(|&byte| byte == b'\n') {
        Some(end) => &bytes[..end],
        None => return Ok(Vec::new()),
    };
    let mut lines = whole.split(|&byte| byte == b'\n').zip(1..);
    let Some((first, _)) = lines.next() else {
        return Ok(Vec::new());
    };
    let stamp: Stamp = serde_json::from_slice(first)
        .map_err(|error| malformed(1, format!("not the head of a Tandem journal ({error})")))?;
    if stamp.tandem_journal != FORMAT {
        let what = format!(
            "the journal has format {}, this Tandem writes format {FORMAT}; restore with the \
             Tandem that wrote it",
            stamp.tandem_journal
        );
        return Err(malformed(1, what));
    }
    let mut records = Vec::new();
    for (text, number) in lines {
        let record = serde_json::from_slice(text)
            .map_err(|error| malformed(number, format!("not a Tandem record ({error})")))?;
        records.push(record);
    }
    if stamp.boot != ours.boot {
        return Ok(Vec::new());
    }
    if (stamp.version, &stamp.mount) != (ours.version, &ours.mount) && !records.is_empty() {
        return Err(JournalError::OtherHierarchy {
            path: path.to_owned(),
            theirs: stamp.mount,
            theirs_version: stamp.version,
            ours: ours.mount.clone(),
            ours_version: ours.version,
        });
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
