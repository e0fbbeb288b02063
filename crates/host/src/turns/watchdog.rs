//! The watchdog: a process that takes VMs out of the idle class if the daemon cannot.
//!
//! A daemon that is killed or hangs in the middle of a turn would leave VMs in the idle class, where they starve.
//! The journal reverts that only at the next start, which may be much later.
//! So the daemon starts the watchdog process, which reads from its stdin the cgroups that take turns, and a beat every turn.
//! If beats stop for [`BEAT_TIMEOUT`], or stdin ends, it takes those cgroups out of the idle class and sets their weights.
//! It does nothing else.
//! If it is killed or stops reading, the daemon goes on, logs this and starts another.
//!
//! The watchdog guards a cgroup until the daemon sends a list without it, which it does after the cgroup has left the idle class.
//! So the watchdog also acts after a panic of the turn thread.
//! The list of a thousand VMs is longer than a pipe: the rest waits for room, and no turn begins before all of it is in the pipe.
//!
//! After the daemon was killed, another process may be reverting the changes in its journal at the same time.
//! So the watchdog then locks the state directory while it acts, and does nothing if another process holds the lock.
//! A daemon that hangs or ends its watchdog holds the lock itself, so the watchdog acts without it.
//!
//! If beats resume (the daemon was stopped and continued), the daemon writes all settings again.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tandem_linux::actuator::IdleSwitch;
use tandem_linux::cgroup::CpuController;
use tandem_linux::journal::hold;
use tandem_policy::turns::TurnsConfig;

use super::player::Player;

/// Time without a beat after which the watchdog acts.
pub const BEAT_TIMEOUT: Duration = Duration::from_millis(500);

/// Minimum interval between two beats.
const BEAT_EVERY: Duration = Duration::from_millis(50);

/// Lateness of a turn from which the watchdog may have acted, so that current values may differ from the last writes.
///
/// When a turn is due, the last beat is at most [`BEAT_EVERY`] and a turn old.
/// The next beat follows the turn's writes, for which [`BEAT_EVERY`] is allowed.
pub(super) const MAY_HAVE_ACTED: Duration = BEAT_TIMEOUT
    .saturating_sub(BEAT_EVERY.saturating_mul(2))
    .saturating_sub(Duration::from_nanos(TurnsConfig::TURNS.1.0));

/// Timeout of locking the state directory of a killed daemon.
/// A process that holds the lock for longer reverts the changes in the journal.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a killed daemon may hold its state directory after its pipe is closed.
const EXIT_DELAY: Duration = Duration::from_millis(50);

/// Size of the watchdog's read buffer: the size of a pipe (PIPE_DEF_BUFFERS of include/linux/pipe_fs_i.h).
const READ_SIZE: usize = 1 << 16;

/// A line from the daemon to the watchdog.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The cgroups that take turns.
    Guard(Vec<IdleSwitch>),
    /// The daemon is alive.
    Beat,
}

/// The daemon's handle of the watchdog process.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Vec<IdleSwitch>,
    beaten: Instant,
    /// Lines that did not fit into the pipe yet.
    unsent: Vec<u8>,
    /// When the pipe became full.
    stuck: Option<Instant>,
}

impl Watchdog {
    /// Prepares a command that runs [`watch`] on its stdin; it may be started more than once.
    ///
    /// The process gets a session of its own, so that a signal from the daemon's terminal does not end it first.
    pub(super) fn prepare(command: &mut Command) {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: setsid is async-signal-safe, and the closure calls nothing else between fork and exec.
        unsafe {
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
        }
    }

    /// Starts a prepared command.
    pub(super) fn start(command: &mut Command) -> io::Result<Watchdog> {
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        if let Some(stdin) = &stdin {
            // A watchdog that does not read must not block the daemon.
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        Ok(Watchdog {
            child,
            stdin,
            said: Vec::new(),
            beaten: Instant::now(),
            unsent: Vec::new(),
            stuck: None,
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the VMs that take turns.
    /// On an error, the watchdog is lost.
    pub(super) fn guard<'a>(
        &mut self,
        players: impl Iterator<Item = &'a Player>,
    ) -> io::Result<()> {
        let guarded: Vec<IdleSwitch> = players.map(|player| player.switch.clone()).collect();
        if guarded == self.said {
            return Ok(());
        }
        self.said.clone_from(&guarded);
        self.say(&Line::Guard(guarded))
    }

    /// Sends unsent lines, or a beat if the last one is older than [`BEAT_EVERY`].
    /// On an error, the watchdog is lost.
    pub(super) fn beat(&mut self) -> io::Result<()> {
        // Any line counts as a beat.
        if !self.unsent.is_empty() {
            return self.send();
        }
        if self.beaten.elapsed() < BEAT_EVERY {
            return Ok(());
        }
        self.beaten = Instant::now();
        self.say(&Line::Beat)
    }

    /// Whether some lines are not sent yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn say(&mut self, line: &Line) -> io::Result<()> {
        serde_json::to_writer(&mut self.unsent, line)?;
        self.unsent.push(b'\n');
        self.send()
    }

    /// Writes as much as fits into the pipe; fails if the pipe was full for [`BEAT_TIMEOUT`].
    fn send(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut sent = 0;
        let outcome = loop {
            if sent == self.unsent.len() {
                break Ok(());
            }
            match stdin.write(&self.unsent[sent..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.unsent.drain(..sent);
        if sent > 0 {
            self.stuck = None;
        }
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let since = *self.stuck.get_or_insert_with(Instant::now);
                if since.elapsed() < BEAT_TIMEOUT { Ok(()) } else { Err(error) }
            }
            other => other,
        }
    }

    /// Ends a lost watchdog, so that it does not act together with the next one, and returns a message about it.
    pub(super) fn end(mut self, error: &io::Error) -> String {
        let pid = self.pid();
        let why = match self.child.try_wait() {
            Ok(Some(status)) => format!("has ended ({status})"),
            _ => format!("does not listen ({error})"),
        };
        let _ = self.child.kill();
        format!(
            "the watchdog of turns (process {pid}) {why}; if the daemon is killed before another is started, VMs may stay \
             in the idle class until its next start or `tandem host restore`"
        )
    }
}

impl Drop for Watchdog {
    /// Closes its stdin, on which it takes its cgroups out of the idle class and ends.
    fn drop(&mut self) {
        self.stdin = None;
        // The process may be stopped, so the wait has a timeout; an error means that it was reaped already.
        let end = Instant::now() + BEAT_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        // A watchdog with cgroups on its list must go on.
        if self.said.is_empty() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs the watchdog until stdin ends; `state_dir` is that of the daemon that started this process.
pub fn watch(
    stdin: impl Read + std::os::fd::AsFd,
    controller: &dyn CpuController,
    state_dir: &Path,
) -> io::Result<()> {
    let daemon = rustix::process::getppid();
    let mut guarded: Vec<IdleSwitch> = Vec::new();
    let mut heard = Vec::new();
    let mut buffer = vec![0; READ_SIZE];
    let mut stdin = stdin;
    let mut has_acted = false;
    loop {
        let is_quiet = {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let timeout = Timespec::try_from(BEAT_TIMEOUT).map_err(io::Error::other)?;
            let wait = (!guarded.is_empty() && !has_acted).then_some(&timeout);
            match poll(&mut fds, wait) {
                Ok(ready) => ready == 0,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        };
        if is_quiet {
            revert(&guarded, controller);
            has_acted = true;
            continue;
        }
        let read = stdin.read(&mut buffer)?;
        if read == 0 {
            let is_alive = || rustix::process::getppid() == daemon;
            if !guarded.is_empty() {
                revert_exclusively(&guarded, controller, state_dir, &is_alive);
            }
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

/// Reverts the idle class unless another process is restoring from the journal of a dead daemon.
fn revert_exclusively(
    guarded: &[IdleSwitch],
    controller: &dyn CpuController,
    state_dir: &Path,
    is_alive: &dyn Fn() -> bool,
) {
    let mut held = hold(state_dir, EXIT_DELAY);
    if held.is_none() && !is_alive() {
        held = hold(state_dir, LOCK_TIMEOUT);
        // Without a directory there is no journal to restore from.
        if held.is_none() && state_dir.is_dir() {
            return;
        }
    }
    revert(guarded, controller);
    drop(held);
}

/// Takes these cgroups out of the idle class and sets their weights; failures are left to the journal.
fn revert(guarded: &[IdleSwitch], controller: &dyn CpuController) {
    for switch in guarded {
        let _ = switch.revert(controller);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_linux::ProcFs;
    use tandem_linux::cgroup::{CgroupPath, open};
    use tandem_model::{VmId, Weight};

    use super::*;

    #[test]
    fn watchdog_may_have_acted_after_300_ms() {
        assert_eq!(MAY_HAVE_ACTED, Duration::from_millis(300));
    }

    fn start(command: &mut Command) -> Watchdog {
        Watchdog::prepare(command);
        Watchdog::start(command).unwrap()
    }

    fn switch(cgroup: &str, weight: f64) -> IdleSwitch {
        IdleSwitch::journaled(CgroupPath(cgroup.to_owned()), Weight::saturating(weight))
    }

    fn player(weight: f64) -> Player {
        Player { vm: VmId(1), switch: switch("/a", weight), vcpus: Vec::new() }
    }

    #[test]
    fn watchdog_that_does_not_read_is_ended() {
        let mut watchdog = start(Command::new("sleep").arg("600"));
        let pid = watchdog.pid();
        // More than the pipe holds.
        let many: Vec<Player> = (0..2_000).map(libvirts).collect();
        watchdog.guard(many.iter()).expect("a full pipe is no error at first");
        let (begin, error) = (
            Instant::now(),
            loop {
                match watchdog.beat() {
                    Ok(()) => thread::sleep(Duration::from_millis(5)),
                    Err(error) => break error,
                }
            },
        );
        assert!(watchdog.is_behind() && begin.elapsed() < 10 * BEAT_TIMEOUT);
        let said = watchdog.end(&error);
        let names_it = said.contains(&format!("process {pid}")) && said.contains("does not listen");
        assert!(names_it, "{said}");
        let path = format!("/proc/{pid}");
        assert!(!std::path::Path::new(&path).exists(), "it has ended");
    }

    /// A VM whose cgroup has a name by libvirt and systemd.
    fn libvirts(n: u64) -> Player {
        let scope = format!(
            "/machine.slice/machine-qemu\\x2d{n}\\x2dinstance\\x2d0000{n:04}\\x2dproduction\\x2ddatabase\\x2dreplica.scope"
        );
        Player { vm: VmId(n), switch: switch(&scope, 333.0), ..player(333.0) }
    }

    /// A hierarchy of cgroup v2 in which all of these are in the idle class.
    fn all_idle(players: &[Player]) -> (tempfile::TempDir, Box<dyn CpuController>) {
        let root = tempfile::tempdir().unwrap();
        let (cg, proc) = (root.path().join("cg"), root.path().join("proc"));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
        fs::create_dir_all(&cg).unwrap();
        fs::write(cg.join("cgroup.controllers"), "cpu\n").unwrap();
        for player in players {
            let folder = cg.join(player.switch.cgroup().0.trim_start_matches('/'));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.idle"), "1\n").unwrap();
            fs::write(folder.join("cpu.weight"), "100\n").unwrap();
        }
        let controller = open(&ProcFs::at(root.path())).unwrap();
        (root, controller)
    }

    #[test]
    fn thousand_vms_with_long_names_are_guarded() {
        let players: Vec<Player> = (0..1_000).map(libvirts).collect();
        let (root, controller) = all_idle(&players);
        // A process between the two does not read for 0.2 s.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.2; exec cat"]);
        Watchdog::prepare(&mut command);
        command.stdout(Stdio::piped());
        let mut watchdog = Watchdog::start(&mut command).unwrap();
        let heard = watchdog.child.stdout.take().unwrap();
        let watching =
            thread::spawn(move || watch(heard, controller.as_ref(), Path::new("/nowhere")));
        watchdog.guard(players.iter()).expect("a full pipe is no error at first");
        assert!(watchdog.is_behind(), "the list does not fit into the pipe");
        while watchdog.is_behind() {
            thread::sleep(Duration::from_millis(5));
            watchdog.beat().expect("the process reads the pipe");
        }
        drop(watchdog);
        watching.join().unwrap().unwrap();
        for player in &players {
            let file = |name: &str| {
                let place = player.switch.cgroup().0.trim_start_matches('/');
                let path = root.path().join("cg").join(place).join(name);
                fs::read_to_string(path).unwrap()
            };
            let now = (file("cpu.idle"), file("cpu.weight"));
            assert_eq!(now, ("0".to_owned(), "333".to_owned()), "{}", player.switch.cgroup());
        }
    }

    #[test]
    fn watchdog_leaves_restore_to_lock_holder() {
        let players = [libvirts(1)];
        let (root, controller) = all_idle(&players);
        let guarded = [players[0].switch.clone()];
        let idle = || controller.is_idle(players[0].switch.cgroup()).unwrap();
        let revert = |is_alive: bool| {
            revert_exclusively(&guarded, &*controller, root.path(), &|| is_alive);
        };
        let restores = hold(root.path(), Duration::ZERO).expect("it is free");
        revert(false);
        assert_eq!(idle(), Some(true), "the lock holder restores");
        revert(true);
        assert_eq!(idle(), Some(false), "a daemon that hangs holds it itself");
        controller.set_idle(players[0].switch.cgroup(), true).unwrap();
        drop(restores);
        revert(false);
        assert_eq!(idle(), Some(false));
        // A process that another test forks holds the lock until its exec.
        let timeout = Duration::from_secs(10);
        assert!(hold(root.path(), timeout).is_some(), "it is released");
    }

    #[test]
    fn ended_watchdog_is_detected() {
        let mut watchdog = start(&mut Command::new("true"));
        watchdog.child.wait().unwrap();
        // A process that another test forks holds the other end of the pipe until its exec.
        let error = (0..2_000u32).find_map(|n| {
            let player = player(f64::from(n + 2));
            let error = watchdog.guard([&player].into_iter()).err();
            thread::sleep(Duration::from_millis(u64::from(error.is_none())));
            error
        });
        let error = error.expect("the pipe has no reader");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let said = watchdog.end(&error);
        assert!(said.contains("has ended (exit status: 0)"), "{said}");
    }

    #[test]
    fn lines_survive_serialization() {
        let line = Line::Guard(vec![switch("/a b", 512.0)]);
        let text = serde_json::to_vec(&line).unwrap();
        assert_eq!(serde_json::from_slice::<Line>(&text).unwrap(), line);
    }
}
