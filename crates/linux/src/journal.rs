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
//! **What counts no more.** A line that repeats the last one that its thing was given closes the thing: nothing of it is journaled from there
//! on, and the next line about it, if there is one, is an original again. ([`Journal::will_write`] never writes what was given last.) So
//! what somebody else set costs two lines, not another file, whoever sets it how often. Killed before the closing line, the
//! journal holds what it held before somebody set it: that is none of the values that Tandem gave, and stays. Killed between it and the
//! new original, nothing is journaled of the thing, which has not been changed since: what somebody set stays, too. Only after both
//! does [`Journal::replace_original`] return, and may the thing be changed again.
//!
//! A last line without its end is a record that was being written: its change was never made, so it is ignored. Any other
//! line that does not parse is an error, and nothing is touched.
//!
//! **Versions.** A Tandem that knows nothing of the later lines undoes all lines, the last first, and ends at the originals
//! too, at the first of several. But of what was made ([`Entry::takes_away`]) it would take away what somebody else made there since. So a record
//! that is forgotten is cut off where it is the last line, as it is when what it announced failed; otherwise, for those, the file is
//! compacted, once in 10 s. Whoever may journal nothing for long has to ask whether it is due ([`Journal::wants_compaction`]). A journal without later lines, of such a Tandem, does not tell whose a value is: the original wins. Fields that are
//! not known are read over; [`Stamp::tandem_journal`] says which readers can put a journal back.
//!
//! **Disks that fail.** Reading is enough to restore: without a lock file the directory is locked, and where the journal cannot be
//! emptied it stays, which does no harm: what it lists is put back, to undo that again changes nothing, and before anything else is
//! journaled it is replaced. What cannot be journaled is not changed. The file and what is remembered of it never differ but for
//! that, and for threads that ended, whose records go with the next compaction.
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
mod pending;
mod record;
mod shares;

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
use crate::journal::shares::{Shares, Whose};
pub use crate::state_dir::check_state_dir;
use crate::state_dir::{check_dir, check_file};

/// The file is compacted when it is so much longer, in bytes, than a quarter as long again as what counts.
const SLACK: u64 = 64 << 10;

/// For what the version before would take for ours, the file is compacted once in so long.
const BROUGHT_DOWN: Duration = Duration::from_secs(10);

/// Where the file has to be replaced first and cannot be, that is tried again after so long: what a full disk refuses is all of it.
const TRIED_AGAIN: Duration = Duration::from_secs(1);

/// So many bytes of a new file are written at once.
const PIECE: usize = 256 << 10;

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
    /// When it is so long it is compacted.
    compact_at: u64,
    /// What the last line is a record of, and where that line begins; `None`: it may be anything.
    last: Option<(R::Key, u64)>,
    /// The file has a closed record that the version before would undo.
    misleads: bool,
    /// When it was brought down for that the last time.
    brought_down: Option<Instant>,
    /// What is in the file behind `length` has to go first.
    needs_trim: bool,
    /// The file has to be replaced first: it holds an earlier boot's, or a torn end.
    needs_replacing: bool,
    /// When that failed the last time, and why.
    not_replaced: Option<(Instant, io::Error)>,
    /// In their order; those that are forgotten leave their places empty.
    records: Vec<Option<Counted<R>>>,
    /// Where each is in `records`.
    known: HashMap<R::Key, usize>,
    /// What each thing was given, the newest last.
    written: HashMap<R::Key, Vec<R>>,
    shares: Shares,
    lock: File,
}

/// A record, and who it counts for.
#[derive(Debug)]
struct Counted<R> {
    record: R,
    whose: Option<Whose>,
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
            misleads: false,
            brought_down: None,
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
            match journal.knows(&key) {
                false => {
                    let whose = journal.shares.whose(line.thread(), None);
                    journal.remember(line, whose);
                }
                true if journal.written(&key).last() == Some(&line) => journal.drop_record(&key),
                true => journal.remember_written(line),
            }
        }
        journal.length = journal.live_length();
        journal.compact_at = journal.length + journal.length / 4 + SLACK;
        // Takes away a torn last line, the records of an earlier boot, and what counts no more.
        let is_as_it_should_be = journal.reads(&bytes);
        drop(bytes);
        if !is_as_it_should_be && journal.file.is_ok() {
            // What cannot be done now is done before the next record.
            journal.needs_replacing = journal.replace().is_err();
        }
        Ok(journal)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All records, the oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &R> + Clone {
        self.records.iter().flatten().map(|counted| &counted.record)
    }

    /// The record about this.
    pub fn record(&self, key: &R::Key) -> Option<&R> {
        self.counted(key).map(|counted| &counted.record)
    }

    fn counted(&self, key: &R::Key) -> Option<&Counted<R>> {
        self.records[*self.known.get(key)?].as_ref()
    }

    /// Who the record about this counts for.
    fn whose(&self, key: &R::Key) -> Option<Whose> {
        self.counted(key)?.whose
    }

    /// Whether there is a record about this.
    pub fn knows(&self, key: &R::Key) -> bool {
        self.known.contains_key(key)
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
        written.is_empty()
            || written.iter().any(|written| now.comes_of(written))
            || self.record(&key).is_some_and(|record| now.comes_of(record))
    }

    /// Why nothing can be journaled, if the file could not be opened for that.
    pub fn check_writable(&self) -> Result<(), JournalError> {
        match &self.file {
            Ok(_) => Ok(()),
            Err(why) => Err(self.failed("write to", again(why))),
        }
    }

    /// Makes a record durable, unless there is one about the same thing, which tells the original. On an error there is none, and the change must
    /// not be made.
    pub fn append(&mut self, record: R) -> Result<(), JournalError> {
        self.append_of(record, None)
    }

    /// The same of a thread of this user's, or of a cgroup for a VM of this user's.
    pub fn append_of(&mut self, record: R, user: Option<u32>) -> Result<(), JournalError> {
        if self.knows(&record.key()) {
            return Ok(());
        }
        self.check_room(&record, user)?;
        let text = line(&record);
        self.write(&text, true)?;
        self.last = Some((record.key(), self.length - text.len() as u64));
        let whose = self.shares.whose(record.thread(), user);
        self.remember(record, whose);
        Ok(())
    }

    /// What is journaled already is about to get the value in `record`. On an error it must not be.
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
        // One more line in the place of another takes no room.
        let room = match count < record.kept() {
            true => self.shares.check_bytes::<R>(self.whose(&key), text.len()),
            false => Ok(()),
        };
        if let Err(error) = room.and_then(|()| self.write(&text, false)) {
            // It was given nothing yet, so whatever it has is somebody else's.
            if count == 0 && self.forget(&key).is_err() {
                self.drop_record(&key);
                self.needs_replacing = true;
            }
            return Err(error);
        }
        self.remember_written(record);
        Ok(())
    }

    /// What is there now, of what it was given, stays among what is kept when the next one is announced: those before may never have
    /// come to pass.
    pub fn still_has(&mut self, now: R) -> Result<(), JournalError> {
        let key = now.key();
        let written = self.written(&key);
        let is_kept = written.iter().rev().take(now.kept() - 1).any(|kept| now == *kept);
        match written.is_empty() || is_kept || self.record(&key) == Some(&now) {
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
        if !self.knows(&key) {
            return self.append(record);
        }
        let mut text = self.closing(&key);
        text.extend(line(&record));
        self.write(&text, true)?;
        let whose = self.whose(&key);
        self.drop_record(&key);
        self.remember(record, whose);
        Ok(())
    }

    /// What is journaled of this counts no more, and is not to be put back. On an error it does.
    pub fn forget(&mut self, key: &R::Key) -> Result<(), JournalError> {
        let Some(record) = self.record(key) else {
            return Ok(());
        };
        let takes_away = record.takes_away();
        if !self.cut_off(key) {
            self.write(&self.closing(key), false)?;
            self.misleads |= takes_away;
        }
        self.drop_record(key);
        if self.known.is_empty() || self.has_to_be_brought_down(Instant::now()) {
            // Where that fails, the lines say as much.
            let _ = self.compact();
        }
        Ok(())
    }

    /// Takes the file's last line away if that is all there is of this; whether it is gone.
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

    /// Whether what the version before would take for ours is to go from the file now. Whoever has it come about again and again does not have
    /// it written as often.
    fn has_to_be_brought_down(&self, now: Instant) -> bool {
        let is_due = |at| now.saturating_duration_since(at) >= BROUGHT_DOWN;
        self.misleads && self.brought_down.is_none_or(is_due)
    }

    /// The lines that close a thing.
    fn closing(&self, key: &R::Key) -> Vec<u8> {
        match (self.written(key).last(), self.record(key)) {
            (Some(last), _) => line(last),
            // As if it had been given its own value.
            (None, Some(original)) => line(original).repeat(2),
            (None, None) => Vec::new(),
        }
    }

    /// Forgets the records that are not to be kept, by replacing the file in one step. On an error it holds them still: they have been undone, and
    /// to undo them again changes nothing. Before anything else is journaled it is replaced.
    pub fn keep(&mut self, is_kept: impl Fn(&R) -> bool) -> Result<(), JournalError> {
        if !self.drop_where(|record| !is_kept(record)) && !self.needs_replacing {
            return Ok(());
        }
        self.needs_replacing = true;
        self.compact()
    }

    /// Forgets records of threads that have ended: they need no undoing, whatever the file says, and go with the next compaction.
    pub fn forget_ended(&mut self, has_ended: impl Fn(&R) -> bool) {
        self.drop_where(|record| record.thread().is_some() && has_ended(record));
        if self.known.is_empty() && self.length > 0 {
            let _ = self.compact();
        }
    }

    /// Whether the file holds far more than counts, or for too long what the version before would take for ours.
    pub fn wants_compaction(&self) -> bool {
        self.wants_compaction_at(Instant::now())
    }

    /// The same at this time.
    pub fn wants_compaction_at(&self, now: Instant) -> bool {
        self.length >= self.compact_at
            || self.has_to_be_brought_down(now)
            || !self.known.is_empty() && self.is_unlinked()
    }

    /// Whether somebody has removed the file.
    fn is_unlinked(&self) -> bool {
        let metadata = self.file.as_ref().map(File::metadata);
        metadata.is_ok_and(|metadata| metadata.is_ok_and(|there| there.nlink() == 0))
    }

    /// Whether there is room for a record, as [`Journal::append_of`] counts it: how many there may be, and how long, [`Entry`] says.
    pub fn check_room(&self, record: &R, user: Option<u32>) -> Result<(), JournalError> {
        self.shares.check_records::<R>(record.thread())?;
        let bytes = line(record).len();
        let whose = self.shares.whose(record.thread(), user);
        self.shares.check_bytes::<R>(whose, bytes)
    }

    /// Has a record that counts for nobody, or for a process alone because it was not known whose it is, count for this user.
    pub fn count_for(&mut self, key: &R::Key, user: u32) {
        let bytes = self.bytes_of(key);
        let at = self.known.get(key);
        if let Some(counted) = at.and_then(|at| self.records[*at].as_mut())
            && !matches!(counted.whose, Some(Whose::User(_)))
        {
            self.shares.take(counted.whose, bytes);
            counted.whose = Some(Whose::User(user));
            self.shares.add(counted.whose, bytes);
            self.shares.tell(counted.record.thread(), user);
        }
    }

    /// How long all lines about this are that count.
    fn bytes_of(&self, key: &R::Key) -> usize {
        let lines = self.written(key).iter().chain(self.record(key));
        lines.map(|record| line(record).len()).sum()
    }

    /// Whose a process is of which something is journaled, as far as that was said.
    pub fn user_of(&self, process: Pid) -> Option<u32> {
        self.shares.user_of(process)
    }

    /// Brings the file down to what counts. Where that fails it grows on, and is tried again when it is twice as long.
    pub fn compact(&mut self) -> Result<(), JournalError> {
        if self.misleads {
            self.brought_down = Some(Instant::now());
        }
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

    /// Replaces the file, unless that failed a moment ago.
    fn replace_first(&mut self) -> Result<(), JournalError> {
        match &self.not_replaced {
            Some((at, why)) if at.elapsed() < TRIED_AGAIN => {
                Err(self.failed("replace", again(why)))
            }
            _ => self.compact(),
        }
    }

    /// A record is in the file.
    fn remember(&mut self, record: R, whose: Option<Whose>) {
        self.shares.add_record(record.thread(), whose);
        self.shares.add(whose, line(&record).len());
        self.known.insert(record.key(), self.records.len());
        self.records.push(Some(Counted { record, whose }));
    }

    /// What the file says of this counts no more.
    fn drop_record(&mut self, key: &R::Key) {
        let bytes = self.bytes_of(key);
        let at = self.known.remove(key);
        let Some(Counted { record, whose }) = at.and_then(|at| self.records[at].take()) else {
            return;
        };
        self.written.remove(key);
        self.shares.take_record(record.thread());
        self.shares.take(whose, bytes);
        // So that those that are left are found in about as many steps.
        if self.records.len() > 2 * self.known.len() + 16 {
            self.records.retain(Option::is_some);
            let places = self.records().zip(0..);
            self.known = places.map(|(record, at)| (record.key(), at)).collect();
        }
    }

    /// The same of all these; whether there were any.
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
        let whose = self.whose(&key);
        self.shares.add(whose, line(&record).len());
        let kept = record.kept();
        let written = self.written.entry(key).or_default();
        if written.len() == kept {
            let first = written.remove(0);
            self.shares.take(whose, line(&first).len());
        }
        written.push(record);
    }

    /// How long the file is with what counts, and nothing else.
    fn live_length(&self) -> u64 {
        match self.known.is_empty() {
            true => 0,
            false => (line(&self.stamp).len() + self.shares.bytes()) as u64,
        }
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::File { action, path: self.path.clone(), source }
    }

    /// Writes whole lines to the end of the file.
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
            // What was written in part, or whole but is not durable, must not stay in front of the next line.
            self.needs_trim = disk.set_len(file, self.length).is_err();
            return Err(self.failed("write to", source));
        }
        (self.needs_trim, self.last) = (false, None);
        self.length += text.len() as u64;
        Ok(())
    }

    /// The lines of a file with what counts, and nothing else; none at all for none.
    fn lines(&self) -> impl Iterator<Item = Vec<u8>> {
        let head = (!self.known.is_empty()).then(|| line(&self.stamp));
        let of_each = self.records().flat_map(|record| {
            let written = self.written(&record.key()).iter();
            std::iter::once(record).chain(written).map(line)
        });
        head.into_iter().chain(of_each)
    }

    /// Whether this is such a file.
    fn reads(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.lines().all(|line| match rest.strip_prefix(&line[..]) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        }) && rest.is_empty()
    }

    /// Gives the file these lines in one step. To empty it no room is needed.
    fn replace(&mut self) -> io::Result<()> {
        match &self.file {
            Ok(file) if self.known.is_empty() && !self.is_unlinked() => {
                self.disk.set_len(file, 0)?
            }
            _ => self.file = Ok(self.fresh()?),
        }
        self.length = self.live_length();
        (self.last, self.misleads, self.needs_trim) = (None, false, false);
        Ok(())
    }

    /// Another file with these lines in the place of the old one.
    fn fresh(&self) -> io::Result<File> {
        let (disk, path) = (&*self.disk, self.dir.join("journal.new"));
        let file = disk.open(&path, How::Fresh)?;
        let written = self.write_all(&file);
        if let Err(error) = written.and_then(|()| disk.rename(&path, &self.path)) {
            // What is there of it must not take the room of others, nor of the next line of the old one.
            let _ = disk.set_len(&file, 0);
            return Err(error);
        }
        // From here on that is the journal. Only a crash of the machine could bring the old one back, and after that no
        // journal counts.
        let directory = disk.open(&self.dir, How::Read);
        let _ = directory.and_then(|directory| disk.sync(&directory));
        Ok(file)
    }

    /// Writes all that counts to a new file.
    fn write_all(&self, file: &File) -> io::Result<()> {
        let (mut text, mut at) = (Vec::new(), 0);
        for line in self.lines() {
            text.extend(line);
            if text.len() >= PIECE {
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
    /// Closing the file would not do: a process that is being started holds a copy of it for a
    /// moment, and the lock with it.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
