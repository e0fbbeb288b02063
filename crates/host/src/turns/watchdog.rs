//! The watchdog: a process that takes VMs out of the idle class if the daemon cannot.
//!
//! A daemon that is killed or hangs in the middle of a turn would leave VMs in the idle class, where they starve. The
//! journal puts them back at the next start, but nobody knows when that is. So the daemon starts a process of its own that does one thing: on
//! its stdin it hears which cgroups take turns, and a beat every turn. If the beats end for [`PATIENCE`], or stdin does, it
//! takes those cgroups out of the idle class and gives them their weights. It holds nothing else and changes nothing
//! else. If it is killed or does not listen, the daemon goes on, says so and starts another.
//!
//! It goes on guarding a cgroup until it is told otherwise, and that it is told when the cgroup has left the idle class; so it also acts when the
//! thread that keeps the rhythm panics. The list of a thousand VMs is longer than a pipe: what there is no room for waits until there is, and no turn
//! begins before all of it is in the pipe.
//!
//! Where the daemon was killed, somebody may be putting back at the same moment what its journal lists. So the watchdog then holds the state directory
//! while it acts, and leaves everything to whoever holds it. A daemon that hangs or ends its watchdog holds the directory itself: then the
//! watchdog acts without.
//!
//! When beats come again (the daemon was stopped and goes on), the daemon itself writes everything anew.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::journal::hold;
use tandem_model::Weight;
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

/// Whoever holds the state directory of a killed daemon for longer than that puts back what its journal lists.
const OTHERS_PATIENCE: Duration = Duration::from_secs(1);

/// A daemon that is killed holds its state directory for a moment more than the pipe.
const DYING: Duration = Duration::from_millis(50);

/// The watchdog reads so much at once: what fits into a pipe (PIPE_DEF_BUFFERS of include/linux/pipe_fs_i.h).
const AT_ONCE: usize = 1 << 16;

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
    /// What the pipe had no room for yet.
    unsent: Vec<u8>,
    /// Since when it has had no room at all.
    stuck: Option<Instant>,
}

impl Watchdog {
    /// Makes a command that runs [`watch`] on its stdin ready to be started, once or more often. It will be in a session of its own, so
    /// that what ends the daemon from a terminal does not end it first.
    pub(super) fn prepare(command: &mut Command) {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: setsid is async-signal-safe, and nothing else is done between fork and exec.
        unsafe {
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
        }
    }

    /// Starts one by a command that is ready.
    pub(super) fn start(command: &mut Command) -> io::Result<Watchdog> {
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
            unsent: Vec::new(),
            stuck: None,
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// These VMs take turns from now on. An error: it does not hear any more, and is of no use.
    pub(super) fn guard<'a>(
        &mut self,
        players: impl Iterator<Item = &'a Player>,
    ) -> io::Result<()> {
        let guarded: Vec<Guarded> = players
            .map(|player| Guarded { cgroup: player.cgroup.clone(), weight: player.weight })
            .collect();
        if guarded == self.said {
            return Ok(());
        }
        self.said.clone_from(&guarded);
        self.say(&Line::Guard(guarded))
    }

    /// All is well. An error: it does not hear any more, and is of no use.
    pub(super) fn beat(&mut self) -> io::Result<()> {
        // What it is told late is as good as a beat.
        if !self.unsent.is_empty() {
            return self.send();
        }
        if self.beaten.elapsed() < BEAT_EVERY {
            return Ok(());
        }
        self.beaten = Instant::now();
        self.say(&Line::Beat)
    }

    /// Whether it has yet to be told all of who takes turns.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn say(&mut self, line: &Line) -> io::Result<()> {
        serde_json::to_writer(&mut self.unsent, line)?;
        self.unsent.push(b'\n');
        self.send()
    }

    /// Writes what there is room for. Where there has been none for [`PATIENCE`], it does not listen.
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
                if since.elapsed() < PATIENCE { Ok(()) } else { Err(error) }
            }
            other => other,
        }
    }

    /// Ends one that does not hear any more, so that it does not act beside another, and says how it went.
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
    /// It ends with its stdin, and first takes out of the idle class what it guards still.
    fn drop(&mut self) {
        self.stdin = None;
        // One that somebody has stopped is not waited for. Errors: somebody else has waited for it.
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        // One that guards something is left to do so.
        if self.said.is_empty() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The watchdog itself: until stdin ends. `state_dir` is that of the daemon which started this process.
pub fn watch(
    stdin: impl Read + std::os::fd::AsFd,
    controller: &dyn CpuController,
    state_dir: &Path,
) -> io::Result<()> {
    let daemon = rustix::process::getppid();
    let mut guarded: Vec<Guarded> = Vec::new();
    let mut heard = Vec::new();
    let mut buffer = vec![0; AT_ONCE];
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
        let read = stdin.read(&mut buffer)?;
        if read == 0 {
            let is_alive = || rustix::process::getppid() == daemon;
            if !guarded.is_empty() {
                put_back_alone(&guarded, controller, state_dir, &is_alive);
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

/// The same while nobody restores, once the daemon has gone or ends this process.
fn put_back_alone(
    guarded: &[Guarded],
    controller: &dyn CpuController,
    state_dir: &Path,
    is_alive: &dyn Fn() -> bool,
) {
    let mut held = hold(state_dir, DYING);
    if held.is_none() && !is_alive() {
        held = hold(state_dir, OTHERS_PATIENCE);
        // Without a directory nobody has a journal to restore from.
        if held.is_none() && state_dir.is_dir() {
            return;
        }
    }
    put_back(guarded, controller);
    drop(held);
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
    use std::fs;

    use tandem_linux::ProcFs;
    use tandem_linux::cgroup::open;
    use tandem_model::VmId;

    use super::*;

    #[test]
    fn a_turn_that_is_late_by_300_ms_may_find_that_the_watchdog_has_acted() {
        assert_eq!(MAY_HAVE_ACTED, Duration::from_millis(300));
    }

    fn start(command: &mut Command) -> Watchdog {
        Watchdog::prepare(command);
        Watchdog::start(command).unwrap()
    }

    fn player(weight: f64) -> Player {
        Player {
            roams: None,
            vm: VmId(1),
            cgroup: CgroupPath("/a".to_owned()),
            weight: Weight::saturating(weight),
            threads: Vec::new(),
        }
    }

    #[test]
    fn one_that_does_not_listen_is_found_out_and_ended() {
        let mut watchdog = start(Command::new("sleep").arg("600"));
        let pid = watchdog.pid();
        // The pipe takes so much and no more.
        let many: Vec<Player> = (0..2_000).map(libvirts).collect();
        watchdog.guard(many.iter()).expect("what is full for a moment may be read yet");
        let (begin, error) = (
            Instant::now(),
            loop {
                match watchdog.beat() {
                    Ok(()) => thread::sleep(Duration::from_millis(5)),
                    Err(error) => break error,
                }
            },
        );
        assert!(watchdog.is_behind() && begin.elapsed() < 10 * PATIENCE);
        let said = watchdog.end(&error);
        let names_it = said.contains(&format!("process {pid}")) && said.contains("does not listen");
        assert!(names_it, "{said}");
        let path = format!("/proc/{pid}");
        assert!(!std::path::Path::new(&path).exists(), "it has ended");
    }

    /// A VM whose cgroup is called as libvirt and systemd would call it.
    fn libvirts(n: u64) -> Player {
        let scope = format!(
            "/machine.slice/machine-qemu\\x2d{n}\\x2dinstance\\x2d0000{n:04}\\x2dproduction\\x2ddatabase\\x2dreplica.scope"
        );
        Player { vm: VmId(n), cgroup: CgroupPath(scope), ..player(333.0) }
    }

    /// A hierarchy of v2 in which all of these are in the idle class.
    fn all_idle(players: &[Player]) -> (tempfile::TempDir, Box<dyn CpuController>) {
        let root = tempfile::tempdir().unwrap();
        let (cg, proc) = (root.path().join("cg"), root.path().join("proc"));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
        fs::create_dir_all(&cg).unwrap();
        fs::write(cg.join("cgroup.controllers"), "cpu\n").unwrap();
        for player in players {
            let folder = cg.join(player.cgroup.0.trim_start_matches('/'));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.idle"), "1\n").unwrap();
            fs::write(folder.join("cpu.weight"), "100\n").unwrap();
        }
        let controller = open(&ProcFs::at(root.path())).unwrap();
        (root, controller)
    }

    #[test]
    fn a_thousand_vms_with_long_names_are_guarded() {
        let players: Vec<Player> = (0..1_000).map(libvirts).collect();
        let (root, controller) = all_idle(&players);
        // Between the two is a process that reads nothing for a while.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.2; exec cat"]);
        Watchdog::prepare(&mut command);
        command.stdout(Stdio::piped());
        let mut watchdog = Watchdog::start(&mut command).unwrap();
        let heard = watchdog.child.stdout.take().unwrap();
        let watching =
            thread::spawn(move || watch(heard, controller.as_ref(), Path::new("/nowhere")));
        watchdog.guard(players.iter()).expect("a full pipe is no end");
        assert!(watchdog.is_behind(), "a pipe has no room for all of it");
        while watchdog.is_behind() {
            thread::sleep(Duration::from_millis(5));
            watchdog.beat().expect("it is read in the end");
        }
        drop(watchdog);
        watching.join().unwrap().unwrap();
        for player in &players {
            let file = |name: &str| {
                let place = player.cgroup.0.trim_start_matches('/');
                let path = root.path().join("cg").join(place).join(name);
                fs::read_to_string(path).unwrap()
            };
            let now = (file("cpu.idle"), file("cpu.weight"));
            assert_eq!(now, ("0".to_owned(), "333".to_owned()), "{}", player.cgroup);
        }
    }

    #[test]
    fn who_holds_the_directory_of_a_killed_daemon_puts_back_what_it_left() {
        let players = [libvirts(1)];
        let (root, controller) = all_idle(&players);
        let guarded = [Guarded { cgroup: players[0].cgroup.clone(), weight: players[0].weight }];
        let idle = || controller.is_idle(&players[0].cgroup).unwrap();
        let put_back = |is_alive: bool| {
            put_back_alone(&guarded, &*controller, root.path(), &|| is_alive);
        };
        let restores = hold(root.path(), Duration::ZERO).expect("nobody has it yet");
        put_back(false);
        assert_eq!(idle(), Some(true), "somebody else does it");
        put_back(true);
        assert_eq!(idle(), Some(false), "a daemon that hangs holds it itself");
        controller.set_idle(&players[0].cgroup, true).unwrap();
        drop(restores);
        put_back(false);
        assert_eq!(idle(), Some(false));
        // A process that another test starts at this moment holds it until it runs its own program.
        let patience = Duration::from_secs(10);
        assert!(hold(root.path(), patience).is_some(), "it is let go");
    }

    #[test]
    fn one_that_has_ended_is_found_out() {
        let mut watchdog = start(&mut Command::new("true"));
        watchdog.child.wait().unwrap();
        // A process that another test starts at this moment holds the other end of the pipe until it runs its own program.
        let error = (0..2_000u32).find_map(|n| {
            let player = player(f64::from(n + 2));
            let error = watchdog.guard([&player].into_iter()).err();
            thread::sleep(Duration::from_millis(u64::from(error.is_none())));
            error
        });
        let error = error.expect("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let said = watchdog.end(&error);
        assert!(said.contains("has ended (exit status: 0)"), "{said}");
    }

    #[test]
    fn what_is_said_is_heard() {
        let line = Line::Guard(vec![Guarded {
            cgroup: CgroupPath("/a b".to_owned()),
            weight: Weight::constant(512.0),
        }]);
        let text = serde_json::to_vec(&line).unwrap();
        assert_eq!(serde_json::from_slice::<Line>(&text).unwrap(), line);
    }
}
