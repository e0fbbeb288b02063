//! `tandem host top` in a pseudo terminal: it draws, keys and signals end it, and it restores the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tandem_linux::{ProcFs, cgroup};

/// Escape sequences that enter and leave the alternate screen.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Timeout of expected events, even on a heavily loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A terminal of 80 × 24 with the output of `top`.
struct Terminal {
    master: File,
    slave: OwnedFd,
    child: Child,
    written: String,
    before: LocalModes,
}

impl Terminal {
    fn start() -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave: OwnedFd =
            File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap().into();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let before = tcgetattr(&slave).unwrap().local_modes;
        let stdio = || slave.try_clone().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(["host", "top", "--interval", "0.05"])
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        Terminal { master: File::from(master), slave, child, written: String::new(), before }
    }

    /// Reads the available output, waiting briefly.
    fn read(&mut self) {
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if poll(&mut fds, Some(&moment)).unwrap() > 0 {
            let mut buffer = [0u8; 8192];
            let count = self.master.read(&mut buffer).unwrap();
            self.written += &String::from_utf8_lossy(&buffer[..count]);
        }
    }

    fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.written.contains(text) {
            let is_late = begin.elapsed() >= TIMEOUT;
            assert!(!is_late, "no {text:?} in output that ends with {:?}", self.end());
            self.read();
        }
    }

    /// Returns the end of the output, for messages.
    fn end(&self) -> String {
        let count = self.written.chars().count();
        self.written.chars().skip(count.saturating_sub(400)).collect()
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read();
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "it does not end: {:?}", self.end());
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that `top` draws, shows the help, and restores the terminal after `leave`.
fn leaves(how: &str, leave: impl Fn(&mut Terminal)) {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        println!("skipped: {how}: {error}");
        return;
    }
    let mut terminal = Terminal::start();
    terminal.wait_for(ENTER);
    terminal.wait_for("pCPUs");
    let raw = tcgetattr(&terminal.slave).unwrap().local_modes;
    assert!(!raw.contains(LocalModes::ECHO), "keys are not echoed");
    terminal.press("?");
    // Only changed cells are drawn, so wait for a single word in a row that was blank.
    terminal.wait_for("Columns");
    terminal.press(" ");
    assert!(!terminal.written.contains(LEAVE), "the key closes only the help");
    leave(&mut terminal);
    let status = terminal.ended();
    assert!(status.success(), "{how}: {status}: {:?}", terminal.end());
    assert!(terminal.written.contains(LEAVE), "{how}");
    let shows_cursor = terminal.written.rfind("\x1b[?25h");
    let hides_cursor = terminal.written.rfind("\x1b[?25l");
    assert!(shows_cursor > hides_cursor, "{how}: the cursor is hidden");
    let after = tcgetattr(&terminal.slave).unwrap().local_modes;
    assert_eq!(after, terminal.before, "{how}");
}

#[test]
#[ignore = "needs root and KVM"]
fn keys_restore_the_terminal() {
    for (how, keys) in [("q", "q"), ("Esc", "\x1b"), ("Ctrl-C", "\x03")] {
        leaves(how, |terminal| {
            // Wait until the help is closed: an Esc directly after another key is not a separate key.
            std::thread::sleep(Duration::from_millis(300));
            terminal.press(keys);
        });
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn signal_restores_the_terminal() {
    leaves("SIGTERM", |terminal| {
        let pid = Pid::from_raw(terminal.child.id() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    });
}

#[test]
#[ignore = "needs root and KVM"]
fn closed_terminal_ends_top() {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        println!("skipped: the terminal is gone: {error}");
        return;
    }
    let mut terminal = Terminal::start();
    terminal.wait_for("pCPUs");
    drop(std::mem::replace(&mut terminal.master, File::open("/dev/null").unwrap()));
    let begin = Instant::now();
    while terminal.child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < TIMEOUT, "it continues without a terminal");
        std::thread::sleep(Duration::from_millis(20));
    }
}
