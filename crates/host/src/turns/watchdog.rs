//! The watchdog: a process that takes VMs out of the idle class if the daemon cannot.
//!
//! A daemon that is killed or hangs in the middle of a turn would leave VMs in the idle class, where they starve. The
//! journal puts them back at the next start, but nobody knows when that is. So the daemon starts a process of its own that does one thing: on
//! its stdin it hears which cgroups take turns, and a beat every turn. If the beats end for [`PATIENCE`], or stdin does, it
//! takes those cgroups out of the idle class and gives them their weights. It holds nothing else and changes nothing
//! else; if it is killed, the daemon goes on and its journal remains.
//!
//! When beats come again (the daemon was stopped and goes on), the daemon itself writes everything anew.

use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::process::ChildStdin;
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use serde::Deserialize;
use serde::Serialize;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_policy::Weight;
use tandem_policy::turns::TurnsConfig;

use super::player::Player;

/// So long the beats may be away.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Beats are at least so far apart.
const BEAT_EVERY: Duration = Duration::from_millis(50);

/// Where a turn begins so late, the watchdog may have taken all VMs out of the idle class: what was written before may not be in force. When
/// a turn is due, the last beat is at most [`BEAT_EVERY`] and a turn old, and the next comes after the turn's writes, for
/// which [`BEAT_EVERY`] is allowed.
pub(super) const MAY_HAVE_ACTED: Duration = PATIENCE
    .saturating_sub(BEAT_EVERY.saturating_mul(2))
    .saturating_sub(Duration::from_nanos(TurnsConfig::TURNS.1.0));

/// What the daemon says, a line each.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// These take turns from now on.
    Guard(Vec<Guarded>),
    /// All is well.
    Beat,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Guarded {
    cgroup: CgroupPath,
    weight: Weight,
}

/// The daemon's end.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Vec<Guarded>,
    beaten: Instant,
}

impl Watchdog {
    /// Starts one: `command` runs [`watch`] on its stdin. It is in a session of its own, so that what ends the daemon
    /// from a terminal does not end it first.
    pub fn start(mut command: Command) -> io::Result<Watchdog> {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: setsid is async-signal-safe, and nothing else is done between fork and exec.
        unsafe {
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        if let Some(stdin) = &stdin {
            // A watchdog that does not listen must not stop the daemon.
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        Ok(Watchdog {
            child,
            stdin,
            said: Vec::new(),
            beaten: Instant::now(),
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// These VMs take turns from now on.
    pub(super) fn guard<'a>(&mut self, players: impl Iterator<Item = &'a Player>) {
        let guarded: Vec<Guarded> = players
            .map(|player| Guarded {
                cgroup: player.cgroup.clone(),
                weight: player.weight,
            })
            .collect();
        if guarded != self.said {
            self.said.clone_from(&guarded);
            self.say(&Line::Guard(guarded));
        }
    }

    /// All is well.
    pub(super) fn beat(&mut self) {
        if self.beaten.elapsed() >= BEAT_EVERY {
            self.beaten = Instant::now();
            self.say(&Line::Beat);
        }
    }

    /// One that does not hear any more is left: the journal remains.
    fn say(&mut self, line: &Line) {
        let Some(stdin) = &mut self.stdin else {
            return;
        };
        let said = serde_json::to_vec(line).map_err(io::Error::from);
        let said = said.and_then(|mut line| {
            line.push(b'\n');
            stdin.write_all(&line)
        });
        if said.is_err() {
            self.stdin = None;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.guard(std::iter::empty());
        self.stdin = None;
        // It ends with its stdin; one that somebody has stopped is not waited for. Errors: somebody else has waited for it.
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The watchdog itself: until stdin ends.
pub fn watch(
    stdin: impl Read + std::os::fd::AsFd,
    controller: &dyn CpuController,
) -> io::Result<()> {
    let mut guarded: Vec<Guarded> = Vec::new();
    let mut heard = Vec::new();
    let mut stdin = stdin;
    let mut has_acted = false;
    loop {
        let is_quiet = {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
            let wait = (!guarded.is_empty() && !has_acted).then_some(&patience);
            match poll(&mut fds, wait) {
                Ok(ready) => ready == 0,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        };
        if is_quiet {
            put_back(&guarded, controller);
            has_acted = true;
            continue;
        }
        let mut buffer = [0; 4096];
        let read = stdin.read(&mut buffer)?;
        if read == 0 {
            put_back(&guarded, controller);
            return Ok(());
        }
        has_acted = false;
        heard.extend_from_slice(&buffer[..read]);
        while let Some(end) = heard.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = heard.drain(..=end).collect();
            match serde_json::from_slice(&line)? {
                Line::Guard(now) => guarded = now,
                Line::Beat => {}
            }
        }
    }
}

/// Takes them out of the idle class. What is gone needs nothing; what fails is left to the journal.
fn put_back(guarded: &[Guarded], controller: &dyn CpuController) {
    for Guarded { cgroup, weight } in guarded {
        if let Ok(Some(true)) = controller.is_idle(cgroup)
            && controller.set_idle(cgroup, false).is_ok()
        {
            let _ = controller.set_weight(cgroup, *weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_is_late_by_300_ms_may_find_that_the_watchdog_has_acted() {
        assert_eq!(MAY_HAVE_ACTED, Duration::from_millis(300));
    }

    #[test]
    fn what_is_said_is_heard() {
        let line = Line::Guard(vec![Guarded {
            cgroup: CgroupPath("/a b".to_owned()),
            weight: Weight(512.0),
        }]);
        let text = serde_json::to_vec(&line).unwrap();
        assert_eq!(serde_json::from_slice::<Line>(&text).unwrap(), line);
    }
}
