//! Bochs as a process: its debugger gets the command to continue, and its display a hidden terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io, thread};

use super::folder::{ANSWERS, CONSOLE, LOG};
use crate::boot::BootError;
use crate::emulator::Emulator;
use crate::file::FileError;

/// Program name of Bochs.
pub const PROGRAM: &str = "bochs-bin";

/// Starts Bochs in `folder`.
pub fn start(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &Path)],
) -> Result<Emulator, BootError> {
    // Let the debugger continue at its first prompt.
    let commands = folder.join("commands");
    fs::write(&commands, "c\n").map_err(FileError::of("write", &commands))?;
    let terminal = terminal().map_err(BootError::Terminal)?;
    let copy = || terminal.try_clone().map_err(BootError::Duplicate);
    let mut command = Command::new(PROGRAM);
    command
        .arg("-q")
        .args(arguments)
        .args(["-rc", "commands"])
        .current_dir(folder)
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::from(copy()?))
        .stdout(Stdio::from(copy()?))
        .stderr(Stdio::from(copy()?));
    drop(terminal);
    let file = |name: &str| folder.join(name);
    let logs = vec![file(LOG), file(CONSOLE)];
    Ok(Emulator::start("Bochs", command, file(ANSWERS), logs)?)
}

/// Opens a terminal for the display. A thread discards its output, so that it never fills up.
fn terminal() -> io::Result<OwnedFd> {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: 50, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers to both descriptors and the size are valid; null name and settings are allowed.
    let made = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size)
    };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openpty has just opened both descriptors, and they have no other owner.
    let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::CLOEXEC)?;
    thread::Builder::new().name("terminal".into()).spawn(move || drain(ours))?;
    Ok(theirs)
}

/// Reads until the other side is closed, which yields a read error.
fn drain(mut from: File) {
    let mut buffer = [0; 4096];
    while matches!(from.read(&mut buffer), Ok(read) if read > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_accepts_unlimited_output() {
        let terminal = File::from(terminal().unwrap());
        let mut writer = &terminal;
        for _ in 0..100 {
            io::Write::write_all(&mut writer, &[b'x'; 4096]).unwrap();
        }
    }
}
