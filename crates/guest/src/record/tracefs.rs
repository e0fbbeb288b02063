//! Traces events of some threads and their children in windows of time, in a tracefs instance of our own.
//!
//! An instance has its own buffers and switches, so it does not disturb other tracing; dropping it removes its folder.
//! A recorder removes the instances of killed ones, whose folder names hold their PIDs.
//! Events are disabled between windows, as those of system calls would slow down every call of every program.
//!
//! If tracefs is not mounted, fsopen(2) opens it without a mount point, until this process exits.
//!
//! Sources: Documentation/trace/ftrace.rst of Linux (instances, `set_event_pid`, `event-fork`); [`super::event`] parses the pages.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tandem_linux::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::Nanos;
use thiserror::Error;

use super::event::{EVENTS, Event, Format, Formats, NEEDED};

/// Usual mount points.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Prefix of our instances' names.
const PREFIX: &str = "tandem-record-";
/// Buffer size per CPU, KiB: about 60,000 events.
const BUFFER_KIB: &str = "4096";
/// Number of TIDs per write.
const TIDS: usize = 100;

/// Reason why tracing is unavailable.
#[derive(Debug, Error)]
pub enum TraceError {
    /// Tracefs cannot be opened.
    #[error(
        "tracefs is not mounted at /sys/kernel/tracing and cannot be opened ({0}); run as root, or mount it: mount -t tracefs nodev /sys/kernel/tracing"
    )]
    NoTracefs(io::Error),
    /// TIDs in this PID namespace differ from those in trace events.
    #[error(
        "this process runs in a PID namespace (a container), and tracing uses the TIDs of the initial one: it would trace unrelated threads"
    )]
    Namespace,
    /// The kernel lacks an event.
    #[error("the kernel has no event {0} in tracefs; it needs CONFIG_EVENT_TRACING")]
    NoEvent(&'static str),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// A tracing instance.
#[derive(Debug)]
pub struct Tracefs {
    folder: PathBuf,
    formats: Formats,
    cpus: Vec<(u32, PathBuf)>,
    /// Size of a page, bytes.
    page: usize,
    /// Mount of tracefs that we opened, if it is not mounted.
    _own: Option<OwnedFd>,
}

impl Tracefs {
    /// Creates an instance with tracing off.
    pub fn open(procfs: &ProcFs) -> Result<Tracefs, TraceError> {
        if is_in_namespace(procfs) {
            return Err(TraceError::Namespace);
        }
        let (root, own) = root(procfs)?;
        let instances = root.join("instances");
        remove_orphans(procfs, &instances);
        let me = ThreadRef::of_process(procfs, Pid(std::process::id()));
        let start = me.map_or(0, |me| me.start.0);
        let folder = instances.join(format!("{PREFIX}{}-{start}", std::process::id()));
        fs::create_dir(&folder)
            .map_err(|source| TraceError::File { path: folder.clone(), source })?;
        let mut tracefs = Tracefs {
            folder,
            formats: Formats::default(),
            cpus: Vec::new(),
            page: 4096,
            _own: own,
        };
        tracefs.set_up()?;
        Ok(tracefs)
    }

    fn set_up(&mut self) -> Result<(), TraceError> {
        self.write("tracing_on", "0")?;
        self.write("buffer_size_kb", BUFFER_KIB)?;
        self.write("trace_clock", "mono")?;
        self.write("options/overwrite", "0")?;
        self.write("options/event-fork", "1")?;
        let page = self.read("events/header_page").ok();
        let data = page.as_deref().and_then(page_bytes);
        self.page = data.map_or(4096, |data| data + 16);
        for (number, (event, fields)) in EVENTS.iter().enumerate() {
            let text = self.read(&format!("events/{event}/format"));
            let format = text.ok().and_then(|text| Format::parse(&text, fields));
            if format.is_none() && number < NEEDED {
                return Err(TraceError::NoEvent(event));
            }
            self.formats.0.push(format);
        }
        let path = self.folder.join("per_cpu");
        let entries = fs::read_dir(&path).map_err(|source| TraceError::File { path, source })?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            self.cpus.extend(number.map(|cpu| (cpu, entry.path())));
        }
        Ok(())
    }

    /// Describes information that is missing because the kernel lacks events.
    pub fn lacks(&self) -> Option<&'static str> {
        let is_there = |number: usize| self.formats.0.get(number).is_some_and(Option::is_some);
        (!is_there(NEEDED) || !is_there(NEEDED + 1)).then_some(
            "yields and futexes: the kernel has no events of system calls (CONFIG_FTRACE_SYSCALLS)",
        )
    }

    /// Starts a window of these threads and their children.
    pub fn begin(&self, threads: &[Tid]) -> Result<(), TraceError> {
        let path = self.folder.join("set_event_pid");
        let failed = |source| TraceError::File { path: path.clone(), source };
        for (number, some) in threads.chunks(TIDS).enumerate() {
            let (mut options, is_first) = (OpenOptions::new(), number == 0);
            let file = options.write(true).truncate(is_first).append(!is_first).open(&path);
            let text: Vec<String> = some.iter().map(Tid::to_string).collect();
            let written = file.and_then(|mut file| file.write_all(text.join(" ").as_bytes()));
            written.map_err(failed)?;
        }
        self.enable("1")?;
        self.write("tracing_on", "1")
    }

    /// Ends the window.
    pub fn stop(&self) -> Result<(), TraceError> {
        self.write("tracing_on", "0")?;
        self.enable("0")
    }

    /// Returns the events in order of time, and the time until which they are complete.
    /// A CPU whose buffer was full has no later events.
    pub fn take(&self, end: Nanos) -> Result<(Vec<Event>, Nanos), TraceError> {
        let (mut events, mut until) = (Vec::new(), end);
        for (cpu, folder) in &self.cpus {
            let before = events.len();
            let path = folder.join("trace_pipe_raw");
            self.pages(&path, *cpu, &mut events)
                .map_err(|source| TraceError::File { path, source })?;
            let stats = fs::read_to_string(folder.join("stats")).unwrap_or_default();
            if is_full(&stats) {
                let last = events[before..].last().map_or(Nanos::ZERO, |event| event.at);
                until = until.min(last);
            }
        }
        // Resets the counts of dropped events.
        self.write("trace", "0")?;
        events.sort_by_key(|event| event.at);
        Ok((events, until))
    }

    fn pages(&self, path: &Path, cpu: u32, events: &mut Vec<Event>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let mut page = vec![0u8; self.page];
        loop {
            match file.read(&mut page) {
                Ok(0) => return Ok(()),
                Ok(bytes) => self.formats.page(&page[..bytes], cpu, events),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn enable(&self, value: &str) -> Result<(), TraceError> {
        for (event, format) in EVENTS.iter().zip(&self.formats.0) {
            if format.is_some() {
                self.write(&format!("events/{}/enable", event.0), value)?;
            }
        }
        Ok(())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), TraceError> {
        let path = self.folder.join(file);
        fs::write(&path, value).map_err(|source| TraceError::File { path, source })
    }

    fn read(&self, file: &str) -> Result<String, TraceError> {
        let path = self.folder.join(file);
        fs::read_to_string(&path).map_err(|source| TraceError::File { path, source })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        // Removing the folder ends all tracing of the instance.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns the folder of tracefs, and its mount if we opened it.
pub(crate) fn root(procfs: &ProcFs) -> Result<(PathBuf, Option<OwnedFd>), TraceError> {
    let mounts = MOUNTS.map(|mount| procfs.resolve(mount));
    if let Some(mount) = mounts.into_iter().find(|mount| mount.join("instances").is_dir()) {
        return Ok((mount, None));
    }
    let own = open_unmounted().map_err(TraceError::NoTracefs)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
    Ok((path, Some(own)))
}

/// Opens tracefs as a detached mount.
fn open_unmounted() -> io::Result<OwnedFd> {
    const NAME: &CStr = c"tracefs";
    /// FSCONFIG_CMD_CREATE of include/uapi/linux/mount.h.
    const CREATE: libc::c_uint = 6;
    let done = |result: libc::c_long| match result {
        ..0 => Err(io::Error::last_os_error()),
        fd => Ok(fd as libc::c_int),
    };
    // SAFETY: the name is a text that ends with a zero byte; the flag is FSOPEN_CLOEXEC.
    let context = done(unsafe { libc::syscall(libc::SYS_fsopen, NAME.as_ptr(), 1) })?;
    // SAFETY: the file descriptor was just opened and has no other owner.
    let context = unsafe { OwnedFd::from_raw_fd(context) };
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: this command takes no key, no value and no number.
    let created =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) };
    done(created)?;
    // SAFETY: the file is a file system's context; the flag is FSMOUNT_CLOEXEC, without attributes.
    let mount = done(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(mount) })
}

/// Returns true if this process has another PID in an outer PID namespace.
fn is_in_namespace(procfs: &ProcFs) -> bool {
    let status = procfs.process(Pid(std::process::id())).join("status");
    let status = read_text(&status).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() > 1)
}

/// Removes instances of recorders that have exited.
fn remove_orphans(procfs: &ProcFs, instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner);
        let is_alive = |(pid, start): (Pid, u64)| {
            ThreadRef::of_process(procfs, pid).is_ok_and(|now| now.start.0 == start)
        };
        if owner.is_some_and(|owner| !is_alive(owner)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns PID and start time of an instance's recorder from its name; `None` if it is not ours.
fn owner(name: &str) -> Option<(Pid, u64)> {
    let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some((Pid(pid.parse().ok()?), start.parse().ok()?))
}

/// Returns the size of a page's data from `header_page`, bytes.
fn page_bytes(text: &str) -> Option<usize> {
    let line = text.lines().find(|line| line.contains("char data;"))?;
    let size = line.split("size:").nth(1)?;
    size.split(';').next()?.trim().parse().ok()
}

/// Returns true if a CPU's `stats` show lost events.
fn is_full(stats: &str) -> bool {
    let mut counts = stats.lines().filter_map(|line| line.split_once(':'));
    counts.any(|(name, count)| {
        matches!(name.trim(), "overrun" | "dropped events") && count.trim() != "0"
    })
}

/// Returns CLOCK_MONOTONIC, the clock of the events.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_file_formats_are_parsed() {
        assert_eq!(owner("tandem-record-12-345"), Some((Pid(12), 345)));
        assert_eq!(owner("tandem-record-12"), None);
        assert_eq!(owner("perf-12-345"), None);
        let header = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
                      \tfield: char data;\toffset:16;\tsize:65520;\tsigned:0;\n";
        assert_eq!(page_bytes(header), Some(65_520));
        assert!(!is_full("entries: 3\noverrun: 0\ndropped events: 0\n"));
        assert!(is_full("entries: 3\noverrun: 0\ndropped events: 17\n"));
    }

    #[test]
    fn only_orphaned_instances_are_removed() {
        let procfs = ProcFs::host();
        let me = ThreadRef::of_process(&procfs, Pid(std::process::id())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mine = format!("{PREFIX}{}-{}", me.pid, me.start.0);
        let orphan = format!("{PREFIX}{}-{}", me.pid, me.start.0 + 1);
        for name in [mine.as_str(), orphan.as_str(), "other"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_orphans(&procfs, dir.path());
        let left = fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other", mine.as_str()]);
    }
}
