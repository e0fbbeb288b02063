//! What was before: one line on disk for every change, written before the change is made.
//!
//! The journal is a file of JSON lines in the state directory (`/run/tandem` by default). The first line says which host it
//! belongs to. Each further line is a [`Record`]. The first about a thing is its original value, and is on disk (fdatasync)
//! before [`Journal::append`] returns. Later ones about the same thing are what Tandem then gave it
//! ([`Journal::will_write`]): the newest [`KEPT`] of them. They only have to outlive the process, so they are not waited for.
//!
//! So after kill -9 at any moment the journal holds all that was changed, and perhaps one record of a change that was not made;
//! undoing that one changes nothing. What is none of the values that Tandem gave, somebody else set: it stays.
//!
//! A last line without its end is a record that was being written: its change was never made, so it is ignored. Any other
//! line that does not parse is an error, and nothing is touched.
//!
//! **Versions.** A Tandem that knows nothing of the later lines undoes all lines, the last first, and ends at the originals
//! too. A journal without later lines, of such a Tandem, does not tell whose a value is: the original wins. Fields that are
//! not known are read over; [`Stamp::tandem_journal`] says which readers can put a journal back.
//!
//! **Disks that fail.** Reading is enough to restore: without a lock file the directory is locked, and where the journal cannot be
//! emptied it stays, which does no harm. What cannot be journaled is not changed. The file and what is remembered
//! of it never differ but for threads that ended, whose records go with the next compaction.
//!
//! The state directory is locked (flock on the file `lock`, which holds the owner's pid): two daemons would take each other's
//! changes for the original values. Nobody else may be able to write to it, nor to any directory
//! above, or nothing is read.
//!
//! What this does not do: survive a reboot. Cgroups and affinity masks do not either, so the journal of an earlier boot is
//! dropped.

mod error;
mod lines;
mod lock;
mod record;

use std::collections::HashMap;
use std::collections::HashSet;
use std::fs;
use std::fs::File;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use rustix::fs::flock;

pub use crate::journal::error::JournalError;
pub use crate::journal::lines::Stamp;
pub use crate::journal::record::Entry;
pub use crate::journal::record::KEPT;
pub use crate::journal::record::KEPT_AFFINITIES;
pub use crate::journal::record::Key;
pub use crate::journal::record::Record;
pub use crate::journal::record::check_path;

use crate::disk::Disk;
use crate::disk::HostDisk;
use crate::disk::How;
use crate::ids::Pid;
use crate::journal::lines::line;
use crate::journal::lines::parse;
use crate::journal::lock::lock;
use crate::state_dir::check_dir;
use crate::state_dir::check_file;

/// The file is compacted when it has so many lines more than twice those that count.
const SLACK: usize = 512;

/// The journal of one state directory, locked for as long as this lives.
#[derive(Debug)]
pub struct Journal<R: Entry = Record> {
    disk: Box<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    stamp: Stamp,
    /// `None`: it cannot be written, and why.
    file: Result<File, io::Error>,
    /// Length of the file, all of it whole lines.
    length: u64,
    /// Lines in the file.
    lines: usize,
    /// With so many lines it is compacted.
    compact_at: usize,
    /// What is in the file behind `length` has to go first.
    needs_trim: bool,
    /// The file has to be replaced first: it holds an earlier boot's, or a torn end.
    needs_replacing: bool,
    records: Vec<R>,
    known: HashSet<R::Key>,
    /// What each thing was given, the newest last.
    written: HashMap<R::Key, Vec<R>>,
    per_process: HashMap<Pid, usize>,
    lock: File,
}

impl<R: Entry> Journal<R> {
    /// Locks the state directory, makes it if need be, and reads what an earlier run left.
    pub fn open(dir: &Path, stamp: Stamp) -> Result<Journal<R>, JournalError> {
        Journal::open_on(Box::new(HostDisk), dir, stamp)
    }

    /// The same on a disk that need not be this machine's.
    pub fn open_on(
        disk: Box<dyn Disk>,
        dir: &Path,
        stamp: Stamp,
    ) -> Result<Journal<R>, JournalError> {
        if let Err(source) = disk.make_dir(dir)
            && !dir.is_dir()
        {
            return Err(JournalError::File {
                action: "make the state directory",
                path: dir.to_owned(),
                source,
            });
        }
        let dir = check_dir(dir)?;
        let lock = lock(&*disk, &dir)?;
        let path = dir.join("journal");
        let failed = |action| {
            let path = path.clone();
            move |source| JournalError::File {
                action,
                path,
                source,
            }
        };
        let (file, bytes) = match disk.open(&path, How::Write) {
            Ok(file) => {
                let metadata = file.metadata().map_err(failed("look at"))?;
                check_file(&path, &metadata)?;
                let bytes = disk.read(&file).map_err(failed("read"))?;
                (Ok(file), bytes)
            }
            Err(why) => {
                let bytes = match disk.open(&path, How::Read) {
                    Ok(file) => {
                        let metadata = file.metadata().map_err(failed("look at"))?;
                        check_file(&path, &metadata)?;
                        disk.read(&file).map_err(failed("read"))?
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                    Err(error) => return Err(failed("open")(error)),
                };
                (Err(why), bytes)
            }
        };
        let lines: Vec<R> = parse(&path, &bytes, &stamp)?;
        let mut journal = Journal {
            disk,
            dir,
            path,
            stamp,
            file,
            length: 0,
            lines: 0,
            compact_at: 0,
            needs_trim: false,
            needs_replacing: false,
            records: Vec::new(),
            known: HashSet::new(),
            written: HashMap::new(),
            per_process: HashMap::new(),
            lock,
        };
        for line in lines {
            match journal.known.insert(line.key()) {
                true => journal.records.push(line),
                false => journal.remember_written(line),
            }
        }
        journal.count_processes();
        // Takes away a torn last line and the records of an earlier boot.
        let kept = journal.render(&journal.records);
        journal.length = kept.len() as u64;
        journal.lines = journal.live_lines();
        journal.compact_at = 2 * journal.lines + SLACK;
        if kept != bytes && journal.file.is_ok() {
            // What cannot be done now is done before the next record.
            journal.needs_replacing = journal.replace(&kept).is_err();
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

    /// What this was given, the newest last; nothing too in the journal of an earlier version.
    pub fn written(&self, key: &R::Key) -> &[R] {
        self.written.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether what is in `now`, read from the system, can be what it was given, as far as the journal tells.
    pub fn is_ours(&self, now: &R) -> bool {
        let key = now.key();
        let written = self.written(&key);
        // To put the original back may take more than one step, in which a restore may have been killed.
        let is_original = |record: &R| record.key() == key && now.comes_of(record);
        written.is_empty()
            || written.iter().any(|written| now.comes_of(written))
            || self.records.iter().any(is_original)
    }

    /// Why nothing can be journaled, if the file could not be opened for that.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        match &self.file {
            Ok(_) => Ok(()),
            Err(why) => Err(self.failed("write to", again(why))),
        }
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
        if let Some(pid) = self.full_of(&record) {
            let most = R::MOST_PER_PROCESS;
            return Err(JournalError::TooMany { pid, most });
        }
        self.write_line(&record, true)?;
        if let Some(thread) = record.thread() {
            *self.per_process.entry(thread.pid).or_default() += 1;
        }
        self.known.insert(record.key());
        self.records.push(record);
        Ok(())
    }

    /// What is journaled already is about to get the value in `record`. On an error it must not be.
    pub fn will_write(&mut self, record: R) -> Result<(), JournalError> {
        if self.written(&record.key()).last() != Some(&record) {
            self.write_line(&record, false)?;
            self.remember_written(record);
        }
        Ok(())
    }

    /// What is there now, of what it was given, stays among what is kept when the next one is announced: those before may never have
    /// come to pass.
    pub fn still_has(&mut self, now: R) -> Result<(), JournalError> {
        let written = self.written(&now.key());
        let is_kept = written
            .iter()
            .rev()
            .take(now.kept() - 1)
            .any(|kept| now == *kept);
        match written.is_empty() || is_kept || self.records.contains(&now) {
            true => Ok(()),
            false => self.will_write(now),
        }
    }

    /// What was announced last did not come to pass: what was in force before still is.
    pub fn was_not_written(&mut self, key: &R::Key) {
        let written = self.written(key);
        let before = written.len().checked_sub(2);
        if let Some(before) = before.and_then(|before| written.get(before)).cloned() {
            // If this fails, it is still among those that are kept.
            let _ = self.will_write(before);
        }
    }

    /// Somebody else gave a thing the value in `record`: that is to be put back from now on.
    pub fn replace_original(&mut self, record: R) -> Result<(), JournalError> {
        let key = record.key();
        let Some(at) = self.records.iter().position(|known| known.key() == key) else {
            return self.append(record);
        };
        let written = self.written.remove(&key);
        let before = std::mem::replace(&mut self.records[at], record);
        let outcome = self.compact();
        if outcome.is_err() {
            self.records[at] = before;
            if let Some(written) = written {
                self.written.insert(key, written);
            }
        }
        outcome
    }

    /// Keeps only these records, by replacing the file in one step. On an error nothing is forgotten.
    pub fn rewrite(&mut self, records: Vec<R>) -> Result<(), JournalError> {
        if records == self.records {
            return Ok(());
        }
        self.replace(&self.render(&records))?;
        self.keep(records);
        self.lines = self.live_lines();
        self.compact_at = 2 * self.lines + SLACK;
        Ok(())
    }

    /// Forgets records of threads that have ended: they need no undoing, whatever the file says, and go with the next compaction.
    pub fn forget_ended(&mut self, has_ended: impl Fn(&R) -> bool) {
        let Journal {
            known,
            written,
            per_process,
            ..
        } = self;
        self.records.retain(|record| {
            let ended = record.thread().filter(|_| has_ended(record));
            if let Some(thread) = ended {
                known.remove(&record.key());
                written.remove(&record.key());
                let count = per_process.entry(thread.pid).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    per_process.remove(&thread.pid);
                }
            }
            ended.is_none()
        });
        if self.records.is_empty() && self.length > 0 {
            let _ = self.compact();
        }
    }

    /// Whether the file holds far more than counts.
    pub fn wants_compaction(&self) -> bool {
        self.lines >= self.compact_at
    }

    /// Whether there are so many records of the thread's process that this one is refused; which process that is.
    pub fn full_of(&self, record: &R) -> Option<Pid> {
        let pid = record.thread()?.pid;
        let count = self.per_process.get(&pid).copied().unwrap_or_default();
        (count >= R::MOST_PER_PROCESS).then_some(pid)
    }

    /// Brings the file down to what counts. Where that fails it grows on, and is tried again when it is twice as long.
    pub fn compact(&mut self) -> Result<(), JournalError> {
        let outcome = self.replace(&self.render(&self.records));
        if outcome.is_ok() {
            self.lines = self.live_lines();
        }
        self.compact_at = 2 * self.lines + SLACK;
        outcome
    }

    fn keep(&mut self, records: Vec<R>) {
        self.known = records.iter().map(R::key).collect();
        let known = &self.known;
        self.written.retain(|key, _| known.contains(key));
        self.records = records;
        self.count_processes();
    }

    fn remember_written(&mut self, record: R) {
        let kept = record.kept();
        let written = self.written.entry(record.key()).or_default();
        if written.len() == kept {
            written.remove(0);
        }
        written.push(record);
    }

    fn count_processes(&mut self) {
        self.per_process.clear();
        for thread in self.records.iter().filter_map(R::thread) {
            *self.per_process.entry(thread.pid).or_default() += 1;
        }
    }

    /// The lines that the file needs, without its head.
    fn live_lines(&self) -> usize {
        self.records.len() + self.written.values().map(Vec::len).sum::<usize>()
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::File {
            action,
            path: self.path.clone(),
            source,
        }
    }

    fn write_line(&mut self, record: &R, durable: bool) -> Result<(), JournalError> {
        if self.needs_replacing {
            self.replace(&self.render(&self.records))?;
            self.needs_replacing = false;
        }
        let mut text = match self.length {
            0 => line(&self.stamp),
            _ => Vec::new(),
        };
        text.extend(line(record));
        let file = match &self.file {
            Ok(file) => file,
            Err(why) => return Err(self.failed("write to", again(why))),
        };
        if self.needs_trim {
            let trimmed = self.disk.set_len(file, self.length);
            trimmed.map_err(|source| self.failed("cut off", source))?;
        }
        let disk = &*self.disk;
        let synced = |()| match durable {
            true => disk.sync(file),
            false => Ok(()),
        };
        let outcome = disk.write_at(file, &text, self.length).and_then(synced);
        if let Err(source) = outcome {
            // What was written in part, or whole but is not durable, must not stay in front of the next line.
            self.needs_trim = disk.set_len(file, self.length).is_err();
            return Err(self.failed("write to", source));
        }
        self.needs_trim = false;
        self.length += text.len() as u64;
        self.lines += 1;
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
            for written in self.written(&record.key()) {
                text.extend(line(written));
            }
        }
        text
    }

    /// Gives the file this text in one step. To empty it no room is needed.
    fn replace(&mut self, text: &[u8]) -> Result<(), JournalError> {
        if let (Ok(file), true) = (&self.file, text.is_empty()) {
            let emptied = self.disk.set_len(file, 0);
            emptied.map_err(|source| self.failed("empty", source))?;
        } else {
            self.file = Ok(self.fresh(text)?);
        }
        self.length = text.len() as u64;
        self.needs_trim = false;
        Ok(())
    }

    /// Another file of this text in the place of the old one.
    fn fresh(&self, text: &[u8]) -> Result<File, JournalError> {
        let path = self.dir.join("journal.new");
        let disk = &*self.disk;
        let write = || -> io::Result<File> {
            let file = disk.open(&path, How::Fresh)?;
            disk.write_at(&file, text, 0)?;
            disk.sync(&file)?;
            disk.rename(&path, &self.path)?;
            Ok(file)
        };
        let file = write().map_err(|source| self.failed("replace", source))?;
        // From here on that is the journal. Only a crash of the machine could bring the old one back, and after that no
        // journal counts.
        let directory = disk.open(&self.dir, How::Read);
        let _ = directory.and_then(|directory| disk.sync(&directory));
        Ok(file)
    }
}

impl<R: Entry> Drop for Journal<R> {
    /// Closing the file would not do: a process that is being started holds a copy of it for a
    /// moment, and the lock with it.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}

/// Whether there is a journal with something in it to put back, or may be: one that cannot be looked at is no empty one, and who
/// opens it is told why.
pub fn is_pending(dir: &Path) -> bool {
    match fs::metadata(dir.join("journal")) {
        Ok(metadata) => metadata.len() > 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests;
