//! Machines saved after their boot, so that a boot is paid once for each kernel, payload, clock and
//! command line.
//!
//! Bochs can save its whole state, but only a button of its graphical displays asks it to. A small
//! library that is loaded before it (`lab/machines/bochs-save.c`, compiled here) does what the button
//! does when a signal asks for it. The saved machine is waiting for its job; a copy of it gets one in
//! its memory ([`super::mailbox`]) and goes on from there.
//!
//! Saved machines lie in the user's cache folder, each under a hash of all that went into it. Without
//! a compiler there are none, and every run boots.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use rustix::process::Signal;

use super::bochs;
use super::emulator::in_path;
use super::machine::Boot;
use super::machine::Machine;
use super::mailbox;

/// How long Bochs may take to write its state.
const SAVING: Duration = Duration::from_secs(120);

/// Saved machines that are kept: each takes some 90 MB on disk, and a new build of the payload
/// makes the older ones useless.
const KEPT: usize = 6;

/// What the name of a saved machine's folder starts with.
const PREFIX: &str = "bochs-";

/// The saved state, within its folder.
const STATE: &str = "state";

/// The memory of the saved machine, within the state.
const MEMORY: &str = "memory.ram";

/// A saved machine.
pub struct Snapshot {
    folder: PathBuf,
}

/// The saved machine for this boot, made first if there is none; nothing where none can be made.
pub fn find_or_make(machine: &Machine, boot: &Boot) -> anyhow::Result<Option<Snapshot>> {
    let folder = cache()?.join(key(machine, boot)?);
    if folder.join(STATE).is_dir() {
        return Ok(Some(Snapshot { folder }));
    }
    if !in_path("cc") {
        eprintln!("lab: no C compiler (Debian: gcc), so the machine is not saved after its boot");
        return Ok(None);
    }
    make(machine, boot, &folder)?;
    forget_all_but(KEPT, &cache()?);
    Ok(Some(Snapshot { folder }))
}

impl Snapshot {
    /// Copies the saved machine into `work` and gives it its job; the state's name there.
    pub fn copy_with_job(&self, work: &Path, job: &str) -> anyhow::Result<String> {
        let state = work.join(STATE);
        copy_folder(&self.folder.join(STATE), &state)?;
        mailbox::post(&state.join(MEMORY), job)?;
        let cd = work.join(bochs::CD);
        // Of an earlier run in the same folder, whose saved machine may be gone.
        let _ = fs::remove_file(&cd);
        std::os::unix::fs::symlink(self.folder.join(bochs::CD), &cd)
            .with_context(|| format!("cannot make {}", cd.display()))?;
        Ok(STATE.to_owned())
    }
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    if to.exists() {
        fs::remove_dir_all(to).with_context(failed)?;
    }
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        fs::copy(entry.path(), to.join(entry.file_name())).with_context(failed)?;
    }
    Ok(())
}

/// Removes the oldest saved machines, so that `kept` stay. What cannot be removed stays too.
fn forget_all_but(kept: usize, cache: &Path) {
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

fn make(machine: &Machine, boot: &Boot, folder: &Path) -> anyhow::Result<()> {
    // Renamed into place when it is whole: an interrupted boot leaves nothing that looks so.
    let making = folder.with_extension(std::process::id().to_string());
    fs::create_dir_all(&making).with_context(|| format!("cannot make {}", making.display()))?;
    let made = make_in(machine, boot, &making);
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&making);
        return Err(error);
    }
    fs::rename(&making, folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn make_in(machine: &Machine, boot: &Boot, folder: &Path) -> anyhow::Result<()> {
    let initramfs = fs::read(boot.payload)
        .with_context(|| format!("cannot read {}", boot.payload.display()))?;
    bochs::write_cd(machine, boot, folder, &initramfs)?;
    bochs::write_settings(machine, boot, folder)?;
    let library = folder.join("save.so");
    compile(&source(boot.lab), &library)?;
    let state = folder.join(STATE);
    fs::create_dir_all(&state).with_context(|| format!("cannot make {}", state.display()))?;
    let environment = [
        ("LD_PRELOAD", library.as_path()),
        ("TANDEM_LAB_SAVE", state.as_path()),
    ];
    eprintln!("lab: booting the machine once, to be saved");
    let mut bochs = bochs::start(folder, &["-f", bochs::SETTINGS], &environment)?;
    let answers = bochs.wait_until(boot.patience, |answers| answers.ready)?;
    bochs.signal(Signal::USR1)?;
    let status = bochs.wait_for_end(SAVING)?;
    if !status.success() || !state.join(MEMORY).is_file() {
        bail!("Bochs could not save the machine ({status}); --no-snapshot boots every time");
    }
    eprintln!("lab: saved after {:.0} s", answers.host_seconds);
    Ok(())
}

/// The library that makes Bochs save.
fn source(lab: &Path) -> PathBuf {
    lab.join("machines/bochs-save.c")
}

fn compile(source: &Path, library: &Path) -> anyhow::Result<()> {
    let output = Command::new("cc")
        .args([
            "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o",
        ])
        .arg(library)
        .arg(source)
        .stdin(Stdio::null())
        .output()
        .context("cannot run cc")?;
    if !output.status.success() {
        bail!(
            "cannot compile {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Where saved machines lie.
fn cache() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let root = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    match root {
        Some(root) => Ok(root.join("tandem/lab")),
        None => bail!("neither XDG_CACHE_HOME nor HOME says where to keep saved machines"),
    }
}

/// A hash of all that a saved machine depends on.
fn key(machine: &Machine, boot: &Boot) -> anyhow::Result<String> {
    let mut hash = Fnv::new();
    for path in [
        boot.kernel,
        boot.payload,
        &bochs::template(boot.lab),
        &source(boot.lab),
    ] {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        hash.add(&bytes);
    }
    let line = machine.command_line(boot.parameters);
    hash.add(
        format!(
            "{line} {} {} {:?}",
            machine.pcpus, machine.memory_mib, machine.mhz
        )
        .as_bytes(),
    );
    Ok(format!("{PREFIX}{:016x}", hash.0))
}

/// FNV-1a, of 64 bits: enough to tell boots apart.
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
    fn the_hash_is_fnv_with_lengths() {
        let hash = |parts: &[&str]| {
            let mut hash = Fnv::new();
            parts.iter().for_each(|part| hash.add(part.as_bytes()));
            hash.0
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
    }

    #[test]
    fn the_oldest_machines_are_forgotten_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        for (name, age) in [
            ("bochs-1", 30),
            ("bochs-2", 10),
            ("bochs-3", 20),
            ("kernel", 99),
        ] {
            let folder = root.path().join(name);
            fs::create_dir_all(folder.join(STATE)).unwrap();
            let then = std::time::SystemTime::now() - Duration::from_secs(age);
            let opened = fs::File::open(&folder).unwrap();
            opened.set_modified(then).unwrap();
        }
        forget_all_but(2, root.path());
        let there = |name: &str| root.path().join(name).exists();
        assert!(!there("bochs-1") && there("bochs-2") && there("bochs-3") && there("kernel"));
    }

    #[test]
    fn a_copy_replaces_what_was_there() {
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
