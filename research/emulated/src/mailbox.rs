//! Delivers a job to a machine that is restored from a snapshot.
//!
//! The agent polls some pages of its memory, each of which starts with a mark and its number.
//! The host finds those pages in a copy of the snapshot's memory file, and writes the job there.
//! The restored machine finds the job in the pages.
//! This involves no input device and no clock of the host, so two machines restored with the same job behave identically.
//!
//! The mark is computed at run time, so that the program's file contains no page with it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::time::Duration;
use std::{ptr, thread};

use thiserror::Error;

use crate::file::FileError;

/// Error of a mailbox.
#[derive(Debug, Error)]
pub enum MailboxError {
    /// The length in the mailbox is out of range.
    #[error("the mailbox says {0} bytes, more than it holds")]
    Length(usize),
    /// The job is not UTF-8.
    #[error("the job in the mailbox is not text: {0}")]
    Text(#[from] FromUtf8Error),
    /// The job does not fit.
    #[error("the job has {bytes} bytes, and a mailbox holds {room}; run fewer variants at a time")]
    Full {
        /// Length of the job.
        bytes: usize,
        /// Maximum length.
        room: usize,
    },
    /// Accessing the saved memory failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A page is missing or not unique.
    #[error(
        "page {page} of the mailbox is in {path} {times} times, not once; remove the snapshot, and \
         the machine boots again"
    )]
    Page {
        /// Number of the page.
        page: usize,
        /// Path of the saved memory.
        path: PathBuf,
        /// Number of occurrences.
        times: usize,
    },
}

/// Size of a page.
const PAGE: usize = 4096;

/// Pages of a mailbox: a job may have this many times [`ROOM`] bytes.
const PAGES: usize = 16;

/// Size of a page's header: mark, number of the page, state, length of the whole job.
const HEADER: usize = 32;

/// Bytes of a job in one page.
const ROOM: usize = PAGE - HEADER;

/// Polling interval of the agent.
const PERIOD: Duration = Duration::from_millis(2);

const EMPTY: u64 = 0;
const FULL: u64 = 1;

/// Returns the mark: "TANDEMbx" with inverted bits.
fn mark() -> u64 {
    !0x5441_4e44_454d_6278_u64
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

fn word(page: &[u8], place: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[place * 8..place * 8 + 8]);
    u64::from_le_bytes(bytes)
}

fn set_word(page: &mut [u8], place: usize, value: u64) {
    page[place * 8..place * 8 + 8].copy_from_slice(&value.to_le_bytes());
}

/// A mailbox in this process's memory.
pub struct Mailbox(Vec<Page>);

impl Default for Mailbox {
    /// Creates an empty mailbox.
    fn default() -> Mailbox {
        let mut pages = vec![Page([0; PAGE]); PAGES];
        for (number, page) in pages.iter_mut().enumerate() {
            set_word(&mut page.0, 0, mark());
            set_word(&mut page.0, 1, number as u64);
            set_word(&mut page.0, 2, EMPTY);
        }
        Mailbox(pages)
    }
}

impl Mailbox {
    /// Waits for the job.
    pub fn wait(&self) -> Result<String, MailboxError> {
        // SAFETY: the pointer is to an aligned u64 within the first page. The read is volatile because
        // the host changes the value while the machine is not running.
        while unsafe { ptr::read_volatile(self.0[0].0.as_ptr().cast::<u64>().add(2)) } == EMPTY {
            thread::sleep(PERIOD);
        }
        let pages = std::hint::black_box(&self.0);
        let length = word(&pages[0].0, 3) as usize;
        if length > PAGES * ROOM {
            return Err(MailboxError::Length(length));
        }
        let bytes = pages.iter().flat_map(|page| &page.0[HEADER..]);
        let job: Vec<u8> = bytes.take(length).copied().collect();
        Ok(String::from_utf8(job)?)
    }
}

/// Writes `job` into the mailbox within the memory file `file`.
pub fn post(file: &Path, job: &str) -> Result<(), MailboxError> {
    if job.len() > PAGES * ROOM {
        return Err(MailboxError::Full { bytes: job.len(), room: PAGES * ROOM });
    }
    let memory = File::options()
        .read(true)
        .write(true)
        .open(file)
        .map_err(FileError::of("open the saved memory", file))?;
    let places = find(&memory).map_err(FileError::of("read", file))?;
    let mut chunks = job.as_bytes().chunks(ROOM);
    // The order of the pages does not matter, because the machine is not running.
    for (number, place) in places.iter().enumerate() {
        let [place] = place[..] else {
            return Err(MailboxError::Page {
                page: number,
                path: file.to_owned(),
                times: place.len(),
            });
        };
        let mut page = vec![0; PAGE];
        set_word(&mut page, 0, mark());
        set_word(&mut page, 1, number as u64);
        set_word(&mut page, 2, FULL);
        set_word(&mut page, 3, job.len() as u64);
        if let Some(chunk) = chunks.next() {
            page[HEADER..HEADER + chunk.len()].copy_from_slice(chunk);
        }
        memory.write_all_at(&page, place).map_err(FileError::of("write", file))?;
    }
    Ok(())
}

/// Returns the offsets of each page of the mailbox; searches page-aligned offsets.
fn find(memory: &File) -> std::io::Result<Vec<Vec<u64>>> {
    const CHUNK: usize = 256 * PAGE;
    let mut places = vec![Vec::new(); PAGES];
    let mut buffer = vec![0; CHUNK];
    let size = memory.metadata()?.len();
    let mut at = 0;
    while at < size {
        let length = CHUNK.min((size - at) as usize);
        memory.read_exact_at(&mut buffer[..length], at)?;
        for (number, page) in buffer[..length].chunks_exact(PAGE).enumerate() {
            if word(page, 0) == mark()
                && let Some(known) = places.get_mut(word(page, 1) as usize)
            {
                known.push(at + (number * PAGE) as u64);
            }
        }
        at += length as u64;
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory file with the mailbox's pages in reverse order among others.
    fn saved(mailbox: &Mailbox) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let memory = file.as_file();
        memory.set_len(600 * PAGE as u64).unwrap();
        for (number, page) in mailbox.0.iter().enumerate() {
            let place = (599 - number * 37) * PAGE;
            memory.write_all_at(&page.0, place as u64).unwrap();
        }
        file
    }

    #[test]
    fn job_arrives_with_unordered_pages() {
        let mut mailbox = Mailbox::default();
        let file = saved(&mailbox);
        let job: String = (0..9_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
        post(file.path(), &job).unwrap();
        for (number, page) in mailbox.0.iter_mut().enumerate() {
            let place = (599 - number * 37) * PAGE;
            file.as_file().read_exact_at(&mut page.0, place as u64).unwrap();
        }
        assert_eq!(mailbox.wait().unwrap(), job);
    }

    #[test]
    fn missing_mailbox_and_long_job_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 * PAGE as u64).unwrap();
        let error = post(file.path(), "{}").unwrap_err().to_string();
        assert!(error.contains("0 times, not once"), "{error}");
        let error = post(file.path(), &"x".repeat(PAGES * ROOM + 1)).unwrap_err();
        assert!(error.to_string().contains("fewer variants"));
    }
}
