//! Snapshots of booted machines, so that each combination of kernel, payload, clock and command line boots once.
//!
//! Bochs can save its whole state, but only by a button of its graphical displays.
//! A small preloaded library (`research/lab/machines/bochs-save.c`, compiled here) triggers the same function on a signal.
//! The saved machine waits for its job; a copy of it gets a job in its memory ([`mailbox`]) and continues.
//!
//! Snapshots are in the user's cache folder, each under a hash of its inputs.
//! Without a compiler there are no snapshots, and every run boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::{folder, process};
use crate::boot::{Boot, BootError};
use crate::emulator::in_path;
use crate::event::Event;
use crate::file::FileError;
use crate::machine::Machine;
use crate::mailbox;

/// Maximum time for Bochs to write its state.
const SAVING: Duration = Duration::from_secs(120);

/// Number of snapshots to keep: each takes about 90 MB, and a new payload makes older ones useless.
const KEPT: usize = 6;

/// Prefix of a snapshot's folder name.
const PREFIX: &str = "bochs-";

/// The saved state, within a snapshot's folder.
const STATE: &str = "state";

/// Memory of the machine, within the state.
const MEMORY: &str = "memory.ram";

/// A snapshot of a booted machine.
pub struct Snapshot {
    folder: PathBuf,
}

/// Returns the snapshot for this boot, and creates it if necessary; `None` without a compiler.
pub fn find_or_make(machine: &Machine, boot: &Boot) -> Result<Option<Snapshot>, BootError> {
    let folder = cache()?.join(key(machine, boot)?);
    if folder.join(STATE).is_dir() {
        return Ok(Some(Snapshot { folder }));
    }
    if !in_path("cc") {
        (boot.tell)(Event::NoCompiler);
        return Ok(None);
    }
    make(machine, boot, &folder)?;
    remove_all_but(KEPT, &cache()?);
    Ok(Some(Snapshot { folder }))
}

impl Snapshot {
    /// Copies the snapshot into `work` and posts the job to it; returns the name of the state there.
    pub fn copy_with_job(&self, work: &Path, job: &str) -> Result<String, BootError> {
        let state = work.join(STATE);
        copy_folder(&self.folder.join(STATE), &state)?;
        mailbox::post(&state.join(MEMORY), job)?;
        let cd = work.join(folder::CD);
        // Remove the link of an earlier run in the same folder, whose snapshot may be gone.
        let _ = fs::remove_file(&cd);
        std::os::unix::fs::symlink(self.folder.join(folder::CD), &cd)
            .map_err(FileError::of("make", &cd))?;
        Ok(STATE.to_owned())
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), BootError> {
    let failed = |source| BootError::Copy { from: from.to_owned(), to: to.to_owned(), source };
    if to.exists() {
        fs::remove_dir_all(to).map_err(failed)?;
    }
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        fs::copy(entry.path(), to.join(entry.file_name())).map_err(failed)?;
    }
    Ok(())
}

/// Removes all snapshots except the newest `kept`. Ignores errors.
fn remove_all_but(kept: usize, cache: &Path) {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(PREFIX) && entry.path().join(STATE).is_dir()
    });
    let dated =
        ours.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    let mut dated: Vec<_> = dated.collect();
    dated.sort();
    for (_, folder) in dated.iter().rev().skip(kept) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn make(machine: &Machine, boot: &Boot, folder: &Path) -> Result<(), BootError> {
    // Rename the complete folder into place, so that an interrupted boot leaves no partial snapshot.
    let making = folder.with_extension(std::process::id().to_string());
    fs::create_dir_all(&making).map_err(FileError::of("make", &making))?;
    let made = make_in(machine, boot, &making);
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&making);
        return Err(error);
    }
    Ok(fs::rename(&making, folder).map_err(FileError::of("make", folder))?)
}

fn make_in(machine: &Machine, boot: &Boot, folder: &Path) -> Result<(), BootError> {
    let initramfs = fs::read(boot.payload).map_err(FileError::of("read", boot.payload))?;
    folder::write_cd(machine, boot, folder, &initramfs)?;
    folder::write_settings(machine, boot, folder)?;
    let library = folder.join("save.so");
    compile(&source(boot.lab), &library)?;
    let state = folder.join(STATE);
    fs::create_dir_all(&state).map_err(FileError::of("make", &state))?;
    let environment = [("LD_PRELOAD", library.as_path()), ("TANDEM_LAB_SAVE", state.as_path())];
    (boot.tell)(Event::BootingToSave);
    let mut bochs = process::start(folder, &["-f", folder::SETTINGS], &environment)?;
    let answers = bochs.wait_until(boot.patience, |answers| answers.ready)?;
    bochs.signal(Signal::USR1)?;
    let status = bochs.wait_for_end(SAVING)?;
    if !status.success() || !state.join(MEMORY).is_file() {
        return Err(BootError::NotSaved(status));
    }
    (boot.tell)(Event::Saved { host_seconds: answers.host_seconds });
    Ok(())
}

/// Returns the source of the library that makes Bochs save.
fn source(lab: &Path) -> PathBuf {
    lab.join("machines/bochs-save.c")
}

fn compile(source: &Path, library: &Path) -> Result<(), BootError> {
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o"])
        .arg(library)
        .arg(source)
        .stdin(Stdio::null())
        .output()
        .map_err(FileError::of("run", Path::new("cc")))?;
    if !output.status.success() {
        return Err(BootError::Compile {
            path: source.to_owned(),
            text: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(())
}

/// Returns the folder of snapshots.
fn cache() -> Result<PathBuf, BootError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let root = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    match root {
        Some(root) => Ok(root.join("tandem/lab")),
        None => Err(BootError::NoCache),
    }
}

/// Returns a hash of all inputs of a snapshot.
fn key(machine: &Machine, boot: &Boot) -> Result<String, BootError> {
    let mut hash = Fnv::new();
    for path in [boot.kernel, boot.payload, &folder::template(boot.lab), &source(boot.lab)] {
        let bytes = fs::read(path).map_err(FileError::of("read", path))?;
        hash.add(&bytes);
    }
    let line = machine.command_line(boot.parameters);
    hash.add(
        format!("{line} {} {} {:?}", machine.pcpus, machine.memory_mib, machine.mhz).as_bytes(),
    );
    Ok(format!("{PREFIX}{:016x}", hash.0))
}

/// FNV-1a with 64 bits, sufficient to distinguish boots.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        for byte in bytes.iter().copied().chain(length.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_includes_lengths() {
        let hash = |parts: &[&str]| {
            let mut hash = Fnv::new();
            parts.iter().for_each(|part| hash.add(part.as_bytes()));
            hash.0
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
    }

    #[test]
    fn only_the_oldest_snapshots_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for (name, age) in [("bochs-1", 30), ("bochs-2", 10), ("bochs-3", 20), ("kernel", 99)] {
            let folder = root.path().join(name);
            fs::create_dir_all(folder.join(STATE)).unwrap();
            let then = std::time::SystemTime::now() - Duration::from_secs(age);
            let opened = fs::File::open(&folder).unwrap();
            opened.set_modified(then).unwrap();
        }
        remove_all_but(2, root.path());
        let there = |name: &str| root.path().join(name).exists();
        assert!(!there("bochs-1") && there("bochs-2") && there("bochs-3") && there("kernel"));
    }

    #[test]
    fn copy_replaces_the_target() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        fs::write(from.join("a"), "1").unwrap();
        fs::write(to.join("b"), "2").unwrap();
        copy_folder(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "1");
        assert!(!to.join("b").exists());
    }
}
