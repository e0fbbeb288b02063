//! Write-ahead journal: the original value of every change, on disk before the change is made.
//!
//! The journal is a file of JSON lines in the state directory (`/run/tandem` by default).
//! The first line is a [`Stamp`] of the host, the boot and the hierarchy; each further line is a [`Record`].
//! The first record of a key holds the original value and is on disk (fdatasync) before [`Journal::append`] returns.
//! Later records of the key hold the values that Tandem wrote ([`Journal::will_write`]), the newest [`KEPT`] of them.
//! They only have to outlive the process, so the journal does not sync them.
//!
//! After kill -9 at any moment, the journal lists every change and at most one change that was not made.
//! Undoing that one changes nothing.
//! A value that Tandem did not write is foreign and stays.
//!
//! **Closed keys.** A line that repeats the last line of its key closes the key: its records no longer count.
//! The next line of the key, if any, is an original again ([`Journal::will_write`] never repeats the last value).
//! A foreign write thus costs two lines and no new file, however often it recurs.
//! A crash before the closing line leaves the earlier records; the foreign value matches none of them and stays.
//! A crash between the closing line and the new original leaves no record, and Tandem has changed nothing since.
//! Once [`Journal::replace_original`] has written both lines, Tandem may change the setting again.
//!
//! **Torn ends.** A last line without a line end belongs to a change that was never made, so readers ignore it.
//! Any other line that does not parse is an error, and the restore changes nothing.
//!
//! **Versions.** A journal of a version before the later records lacks the written values, so a restore from it always writes the original.
//! Readers skip unknown fields; [`Stamp::tandem_journal`] is the format that a reader must support.
//! An older version need not read the journal of a newer one: stop the daemon, which restores everything, before a downgrade.
//!
//! **Disk failures.** A restore only needs to read; without a lock file, the directory itself is locked.
//! A journal that cannot be emptied stays, because undoing its records again changes nothing.
//! It is replaced before the next record.
//! A change that cannot be journaled is not made.
//! Otherwise the file differs from memory only in records of ended threads, which the next compaction drops.
//!
//! **Lock.** The state directory is locked (flock on the file `lock`, which holds the owner's pid).
//! Two daemons would take each other's changes for original values.
//! If another user may write to the directory or to any directory above, nothing is read.
//!
//! **Non-goal: reboots.** Cgroups and affinity masks do not survive one either, so a journal of an earlier boot is dropped.

mod error;
mod lines;
mod lock;
mod pending;
mod record;
mod shares;
pub(crate) mod state_dir;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

pub use crate::journal::error::JournalError;
pub use crate::journal::lines::Stamp;
pub use crate::journal::lock::{hold, is_abandoned};
pub use crate::journal::pending::is_pending;
pub use crate::journal::record::{Entry, KEPT, KEPT_AFFINITIES, Key, Record, check_path};

use crate::disk::{Disk, HostDisk, How};
use crate::ids::Pid;
use crate::journal::error::again;
use crate::journal::lines::{line, parse};
use crate::journal::lock::lock;
use crate::journal::shares::{ShareOwner, Shares};
pub use crate::journal::state_dir::check_state_dir;
use crate::journal::state_dir::{check_dir, check_file};

/// Bytes by which the file may exceed 1.25 times the length of its live records before it is compacted.
const SLACK: u64 = 64 << 10;

/// Delay before a failed replacement of the file is retried: on a full disk, each attempt writes up to the whole journal.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Minimum size of a write to a new file, except the last, in bytes.
const CHUNK: usize = 256 << 10;

/// The journal of one state directory, locked for as long as this lives.
#[derive(Debug)]
pub struct Journal<R: Entry = Record> {
    disk: Box<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    stamp: Stamp,
    /// The open file, or the error of opening it for writing.
    file: Result<File, io::Error>,
    /// Length of the file in bytes, always whole lines.
    length: u64,
    /// Length at which the file is compacted.
    compact_at: u64,
    /// Key and offset of the last line; `None` if unknown.
    last: Option<(R::Key, u64)>,
    /// Whether bytes beyond `length` must be truncated before the next write.
    needs_trim: bool,
    /// Whether the file must be replaced before the next write: it has a torn end, or records that no longer count.
    needs_replacing: bool,
    /// Time and error of the last failed replacement.
    not_replaced: Option<(Instant, io::Error)>,
    /// Records in file order; forgotten ones leave empty slots.
    records: Vec<Option<Charged<R>>>,
    /// Index of each key in `records`.
    known: HashMap<R::Key, usize>,
    /// Values written per key, the newest last.
    written: HashMap<R::Key, Vec<R>>,
    shares: Shares,
    lock: File,
}

/// A record and the share that it counts in.
#[derive(Debug)]
struct Charged<R> {
    record: R,
    owner: Option<ShareOwner>,
}

impl<R: Entry> Journal<R> {
    /// Locks the state directory, creating it if it is missing, and reads the journal of an earlier run.
    pub fn open(dir: &Path, stamp: Stamp) -> Result<Journal<R>, JournalError> {
        Journal::open_on(Box::new(HostDisk), dir, stamp)
    }

    /// Like [`Journal::open`], on any [`Disk`].
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
            move |source| JournalError::File { action, path, source }
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
            compact_at: 0,
            last: None,
            needs_trim: false,
            needs_replacing: false,
            not_replaced: None,
            records: Vec::new(),
            known: HashMap::new(),
            written: HashMap::new(),
            shares: Shares::default(),
            lock,
        };
        for line in lines {
            let key = line.key();
            if !journal.knows(&key) {
                let owner = journal.shares.owner(line.thread(), None);
                journal.remember(line, owner);
            } else if journal.written(&key).last() == Some(&line) {
                journal.drop_record(&key);
            } else {
                journal.remember_written(line);
            }
        }
        journal.length = journal.live_length();
        journal.compact_at = journal.length + journal.length / 4 + SLACK;
        // Drops a torn last line, records of an earlier boot, and closed records.
        let is_compact = journal.matches(&bytes);
        drop(bytes);
        if !is_compact && journal.file.is_ok() {
            // After a failure, the next write replaces the file first.
            journal.needs_replacing = journal.replace().is_err();
        }
        Ok(journal)
    }

    /// Path of the journal file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All records, the oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &R> + Clone {
        self.records.iter().flatten().map(|charged| &charged.record)
    }

    /// The record with this key.
    pub fn record(&self, key: &R::Key) -> Option<&R> {
        self.charged(key).map(|charged| &charged.record)
    }

    fn charged(&self, key: &R::Key) -> Option<&Charged<R>> {
        self.records[*self.known.get(key)?].as_ref()
    }

    /// The share that the record with this key counts in.
    fn owner(&self, key: &R::Key) -> Option<ShareOwner> {
        self.charged(key)?.owner
    }

    /// Whether the key has a record.
    pub fn knows(&self, key: &R::Key) -> bool {
        self.known.contains_key(key)
    }

    /// Values written to the key, the newest last; also empty in the journal of an earlier version.
    pub fn written(&self, key: &R::Key) -> &[R] {
        self.written.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether the value `now`, read from the system, can stem from Tandem, as far as the journal tells.
    pub fn is_ours(&self, now: &R) -> bool {
        let key = now.key();
        let written = self.written(&key);
        // Restoring the original may take several steps, and a restore may have been killed between them.
        written.is_empty()
            || written.iter().any(|written| now.results_from(written))
            || self.record(&key).is_some_and(|record| now.results_from(record))
    }

    /// Returns the error of opening the file for writing, if that failed.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        match &self.file {
            Ok(_) => Ok(()),
            Err(why) => Err(self.failed("write to", again(why))),
        }
    }

    /// Makes a record durable, unless its key has one already, which holds the original.
    /// After an error, the caller must not make the change.
    pub fn append(&mut self, record: R) -> Result<(), JournalError> {
        self.append_of(record, None)
    }

    /// Like [`Journal::append`], for a thread of `user`, or a cgroup that is changed for a VM of `user`.
    pub fn append_of(&mut self, record: R, user: Option<u32>) -> Result<(), JournalError> {
        if self.knows(&record.key()) {
            return Ok(());
        }
        self.check_room(&record, user)?;
        let text = line(&record);
        self.write(&text, true)?;
        self.last = Some((record.key(), self.length - text.len() as u64));
        let owner = self.shares.owner(record.thread(), user);
        self.remember(record, owner);
        Ok(())
    }

    /// Journals a value that is about to be written to a known key.
    /// After an error, the caller must not write it.
    pub fn will_write(&mut self, record: R) -> Result<(), JournalError> {
        let key = record.key();
        let (last, count) = {
            let written = self.written(&key);
            (written.last(), written.len())
        };
        if last == Some(&record) {
            return Ok(());
        }
        let text = line(&record);
        // A line that displaces another one needs no additional room.
        let room = if count < record.kept() {
            self.shares.check_bytes::<R>(self.owner(&key), text.len())
        } else {
            Ok(())
        };
        if let Err(error) = room.and_then(|()| self.write(&text, false)) {
            // Nothing was written to the key yet, so its value is foreign.
            if count == 0 && self.forget(&key).is_err() {
                self.drop_record(&key);
                self.needs_replacing = true;
            }
            return Err(error);
        }
        self.remember_written(record);
        Ok(())
    }

    /// Ensures that the current value stays among the kept values when the next one is announced.
    /// The values announced after it may never have been written.
    pub fn keep_current(&mut self, now: R) -> Result<(), JournalError> {
        let key = now.key();
        let written = self.written(&key);
        let is_kept = written.iter().rev().take(now.kept() - 1).any(|kept| now == *kept);
        if written.is_empty() || is_kept || self.record(&key) == Some(&now) {
            Ok(())
        } else {
            self.will_write(now)
        }
    }

    /// Writing the last announced value failed: the value before it is still current.
    pub fn write_failed(&mut self, key: &R::Key) {
        let written = self.written(key);
        let before = written.len().checked_sub(2);
        if let Some(before) = before.and_then(|before| written.get(before)).cloned() {
            // After an error, it is still among the kept values.
            let _ = self.will_write(before);
        }
    }

    /// Makes a foreign value the original, which a restore reverts to from now on.
    pub fn replace_original(&mut self, record: R) -> Result<(), JournalError> {
        let key = record.key();
        if !self.knows(&key) {
            return self.append(record);
        }
        let mut text = self.closing(&key);
        text.extend(line(&record));
        self.write(&text, true)?;
        let owner = self.owner(&key);
        self.drop_record(&key);
        self.remember(record, owner);
        Ok(())
    }

    /// Drops the records of a key, so that a restore skips it.
    /// After an error, they still count.
    pub fn forget(&mut self, key: &R::Key) -> Result<(), JournalError> {
        if !self.knows(key) {
            return Ok(());
        }
        if !self.cut_off(key) {
            self.write(&self.closing(key), false)?;
        }
        self.drop_record(key);
        if self.known.is_empty() {
            // If this fails, the closing lines have the same effect.
            let _ = self.compact();
        }
        Ok(())
    }

    /// Truncates the last line if it is the only one of this key; returns whether it did.
    fn cut_off(&mut self, key: &R::Key) -> bool {
        let (Ok(file), Some((last, at))) = (&self.file, &self.last) else {
            return false;
        };
        let is_cut = !self.needs_replacing && last == key && self.disk.set_len(file, *at).is_ok();
        if is_cut {
            self.length = *at;
            self.needs_trim = false;
            self.last = None;
        }
        is_cut
    }

    /// The lines that close a key.
    fn closing(&self, key: &R::Key) -> Vec<u8> {
        match (self.written(key).last(), self.record(key)) {
            (Some(last), _) => line(last),
            // As if Tandem had written the original value.
            (None, Some(original)) => line(original).repeat(2),
            (None, None) => Vec::new(),
        }
    }

    /// Drops all other records, which have been undone, by replacing the file in one step.
    /// After an error the file still has them; undoing them again changes nothing, and the next write replaces the file first.
    pub fn keep(&mut self, is_kept: impl Fn(&R) -> bool) -> Result<(), JournalError> {
        if !self.drop_where(|record| !is_kept(record)) && !self.needs_replacing {
            return Ok(());
        }
        self.needs_replacing = true;
        self.compact()
    }

    /// Drops records of threads that ended: they need no undoing, and leave the file with the next compaction.
    pub fn forget_ended(&mut self, has_ended: impl Fn(&R) -> bool) {
        self.drop_where(|record| record.thread().is_some() && has_ended(record));
        if self.known.is_empty() && self.length > 0 {
            let _ = self.compact();
        }
    }

    /// Whether the file is far longer than its live records, or was removed.
    pub fn wants_compaction(&self) -> bool {
        self.length >= self.compact_at || !self.known.is_empty() && self.is_unlinked()
    }

    /// Whether the file was removed from its directory.
    fn is_unlinked(&self) -> bool {
        let metadata = self.file.as_ref().map(File::metadata);
        metadata.is_ok_and(|metadata| metadata.is_ok_and(|there| there.nlink() == 0))
    }

    /// Checks the limits of [`Entry`] on the number and length of records, as [`Journal::append_of`] does.
    pub fn check_room(&self, record: &R, user: Option<u32>) -> Result<(), JournalError> {
        self.shares.check_records::<R>(record.thread())?;
        let bytes = line(record).len();
        let owner = self.shares.owner(record.thread(), user);
        self.shares.check_bytes::<R>(owner, bytes)
    }

    /// Charges a record to `user` that was charged to no user so far, or to a process of unknown user.
    pub fn charge_to(&mut self, key: &R::Key, user: u32) {
        let bytes = self.bytes_of(key);
        let at = self.known.get(key);
        if let Some(charged) = at.and_then(|at| self.records[*at].as_mut())
            && !matches!(charged.owner, Some(ShareOwner::User(_)))
        {
            self.shares.take(charged.owner, bytes);
            charged.owner = Some(ShareOwner::User(user));
            self.shares.add(charged.owner, bytes);
            self.shares.set_user(charged.record.thread(), user);
        }
    }

    /// Total length of the live lines of a key, in bytes.
    fn bytes_of(&self, key: &R::Key) -> usize {
        let lines = self.written(key).iter().chain(self.record(key));
        lines.map(|record| line(record).len()).sum()
    }

    /// User of a process with journaled threads, if known.
    pub fn user_of(&self, process: Pid) -> Option<u32> {
        self.shares.user_of(process)
    }

    /// Rewrites the file with live records only.
    /// After an error the file keeps growing; the next attempt comes when it has doubled.
    pub fn compact(&mut self) -> Result<(), JournalError> {
        let outcome = self.replace();
        match &outcome {
            Ok(()) => {
                (self.needs_replacing, self.not_replaced) = (false, None);
                self.compact_at = self.length + self.length / 4 + SLACK;
            }
            Err(why) => {
                self.not_replaced = Some((Instant::now(), again(why)));
                self.compact_at = 2 * self.length + SLACK;
            }
        }
        outcome.map_err(|source| self.failed("replace", source))
    }

    /// Replaces the file, unless an attempt failed within [`RETRY_DELAY`].
    fn replace_first(&mut self) -> Result<(), JournalError> {
        match &self.not_replaced {
            Some((at, why)) if at.elapsed() < RETRY_DELAY => {
                Err(self.failed("replace", again(why)))
            }
            _ => self.compact(),
        }
    }

    /// Adds an original that is in the file.
    fn remember(&mut self, record: R, owner: Option<ShareOwner>) {
        self.shares.add_record(record.thread(), owner);
        self.shares.add(owner, line(&record).len());
        self.known.insert(record.key(), self.records.len());
        self.records.push(Some(Charged { record, owner }));
    }

    /// Removes the records of a key from memory.
    fn drop_record(&mut self, key: &R::Key) {
        let bytes = self.bytes_of(key);
        let at = self.known.remove(key);
        let Some(Charged { record, owner }) = at.and_then(|at| self.records[at].take()) else {
            return;
        };
        self.written.remove(key);
        self.shares.take_record(record.thread());
        self.shares.take(owner, bytes);
        // Bounds the empty slots, so that a pass over the records takes time in proportion to their number.
        if self.records.len() > 2 * self.known.len() + 16 {
            self.records.retain(Option::is_some);
            let places = self.records().zip(0..);
            self.known = places.map(|(record, at)| (record.key(), at)).collect();
        }
    }

    /// Removes all matching records from memory; returns whether there were any.
    fn drop_where(&mut self, is_dropped: impl Fn(&R) -> bool) -> bool {
        let dropped = self.records().filter(|record| is_dropped(record));
        let dropped: Vec<R::Key> = dropped.map(R::key).collect();
        for key in &dropped {
            self.drop_record(key);
        }
        !dropped.is_empty()
    }

    fn remember_written(&mut self, record: R) {
        let key = record.key();
        let owner = self.owner(&key);
        self.shares.add(owner, line(&record).len());
        let kept = record.kept();
        let written = self.written.entry(key).or_default();
        if written.len() == kept {
            let first = written.remove(0);
            self.shares.take(owner, line(&first).len());
        }
        written.push(record);
    }

    /// Length of a file with live records only, in bytes.
    fn live_length(&self) -> u64 {
        if self.known.is_empty() {
            0
        } else {
            (line(&self.stamp).len() + self.shares.bytes()) as u64
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::File { action, path: self.path.clone(), source }
    }

    /// Appends whole lines to the file.
    fn write(&mut self, lines: &[u8], durable: bool) -> Result<(), JournalError> {
        if self.needs_replacing || self.is_unlinked() {
            self.replace_first()?;
        }
        let mut text = match self.length {
            0 => line(&self.stamp),
            _ => Vec::new(),
        };
        text.extend(lines);
        let file = match &self.file {
            Ok(file) => file,
            Err(why) => return Err(self.failed("write to", again(why))),
        };
        if self.needs_trim {
            let trimmed = self.disk.set_len(file, self.length);
            trimmed.map_err(|source| self.failed("cut off", source))?;
        }
        let disk = &*self.disk;
        let synced = |()| if durable { disk.sync(file) } else { Ok(()) };
        let outcome = disk.write_at(file, &text, self.length).and_then(synced);
        if let Err(source) = outcome {
            // Lines that are partial or not durable must not precede the next line.
            self.needs_trim = disk.set_len(file, self.length).is_err();
            return Err(self.failed("write to", source));
        }
        (self.needs_trim, self.last) = (false, None);
        self.length += text.len() as u64;
        Ok(())
    }

    /// Lines of a file with live records only; none without records.
    fn lines(&self) -> impl Iterator<Item = Vec<u8>> {
        let head = (!self.known.is_empty()).then(|| line(&self.stamp));
        let of_each = self.records().flat_map(|record| {
            let written = self.written(&record.key()).iter();
            std::iter::once(record).chain(written).map(line)
        });
        head.into_iter().chain(of_each)
    }

    /// Whether a file with these bytes has live records only.
    fn matches(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.lines().all(|line| match rest.strip_prefix(&line[..]) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        }) && rest.is_empty()
    }

    /// Replaces the file in one step by one with live records only; emptying it needs no room.
    fn replace(&mut self) -> io::Result<()> {
        match &self.file {
            Ok(file) if self.known.is_empty() && !self.is_unlinked() => {
                self.disk.set_len(file, 0)?
            }
            _ => self.file = Ok(self.fresh()?),
        }
        self.length = self.live_length();
        (self.last, self.needs_trim) = (None, false);
        Ok(())
    }

    /// Writes a new file and renames it over the old one.
    fn fresh(&self) -> io::Result<File> {
        let (disk, path) = (&*self.disk, self.dir.join("journal.new"));
        let file = disk.open(&path, How::Fresh)?;
        let written = self.write_all(&file);
        if let Err(error) = written.and_then(|()| disk.rename(&path, &self.path)) {
            // A partial file must not take up room that others, or the next line of the old file, need.
            let _ = disk.set_len(&file, 0);
            return Err(error);
        }
        // From here on the new file is the journal.
        // Only a crash of the machine could bring the old one back, and no journal counts after that.
        let directory = disk.open(&self.dir, How::Read);
        let _ = directory.and_then(|directory| disk.sync(&directory));
        Ok(file)
    }

    /// Writes all live records to a new file.
    fn write_all(&self, file: &File) -> io::Result<()> {
        let (mut text, mut at) = (Vec::new(), 0);
        for line in self.lines() {
            text.extend(line);
            if text.len() >= CHUNK {
                self.disk.write_at(file, &text, at)?;
                at += text.len() as u64;
                text.clear();
            }
        }
        self.disk.write_at(file, &text, at)?;
        self.disk.sync(file)
    }
}

impl<R: Entry> Drop for Journal<R> {
    /// Unlocks explicitly: a process that is being started briefly holds a copy of the descriptor, and with it the lock.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
