//! The turn thread: begins each turn on time and writes `cpu.idle`, weights and slots.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, iter, thread};

use tandem_linux::affinity::HostThreads;
use tandem_linux::cgroup::{CgroupError, CpuController};
use tandem_linux::procfs::ProcFs;
use tandem_linux::real_time::make_real_time;
use tandem_linux::sampler::{Sampler, VcpuSample};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, VmId};
use tandem_policy::turns::sleep::{Account, VmSleep};
use tandem_policy::turns::{Member, Rotation, Sequence, SleepWatch, Step};

use super::movers::Movers;
use super::player::Player;
use super::stats::TurnStats;
use super::watchdog::{MAY_HAVE_ACTED, Watchdog};

/// Maximum time for a VM to leave the rotation.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time after which a turn that was left out is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The state shared by the fleet and the turn thread: requests to the thread, and its news.
#[derive(Debug, Default)]
struct Board {
    rotation: Rotation,
    players: Vec<Player>,
    /// Incremented with each rotation.
    version: u64,
    /// The version that the thread follows.
    followed: u64,
    stop: bool,
    left: Vec<VmId>,
    /// vCPUs in turns that were moved by others.
    taken: Vec<ThreadRef>,
    errors: Vec<String>,
    stats: TurnStats,
    /// A new watchdog.
    watchdog: Option<Watchdog>,
    lost: Option<LostWatchdog>,
}

impl Board {
    /// Removes VMs that left from the rotation, which the fleet may have made before it knew that.
    fn remove_departed(&mut self) {
        let left = &self.left;
        let members = &mut self.rotation.members;
        members.retain(|member| !left.contains(&member.vm));
    }
}

/// A watchdog that does not read its pipe any more, and the error of writing to it.
type LostWatchdog = (Watchdog, io::Error);

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
    /// Signals that the thread follows another version.
    followed: Condvar,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // No holder panics between two writes that belong together.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of the turn thread.
/// On drop, the thread takes every VM out of the idle class, restores the affinities of vCPUs, and ends.
#[derive(Debug)]
pub struct TurnKeeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    not_real_time: Option<io::Error>,
    watchdog: Option<u32>,
    said: (Rotation, Vec<Player>),
}

impl TurnKeeper {
    /// Starts the thread; it sleeps until there is a rotation.
    pub fn start(
        controller: Arc<dyn CpuController>,
        watchdog: Option<Watchdog>,
    ) -> io::Result<TurnKeeper> {
        let shared = Arc::new(Shared::default());
        let pid = watchdog.as_ref().map(Watchdog::pid);
        let (said, hears) = std::sync::mpsc::channel();
        let board = shared.clone();
        let thread = thread::Builder::new().name("tandem-turns".to_owned()).spawn(move || {
            // `start` waits for this.
            let _ = said.send(make_real_time().err());
            Rhythm::new(controller, watchdog).keep(&board);
        })?;
        Ok(TurnKeeper {
            shared,
            thread: Some(thread),
            watchdog: pid,
            not_real_time: hears
                .recv()
                .unwrap_or_else(|_| Some(io::Error::other("its thread has ended"))),
            said: (Rotation::default(), Vec::new()),
        })
    }

    /// Returns the reason if the thread is not real-time; then turns begin late on a busy host.
    pub fn not_real_time(&self) -> Option<&io::Error> {
        self.not_real_time.as_ref()
    }

    /// Returns the watchdog's process; `None` without one, and after [`TurnKeeper::news`] reported that it was lost.
    pub fn watchdog(&self) -> Option<u32> {
        self.watchdog
    }

    /// Returns once the reason why the thread has ended unexpectedly; a panic has also been printed.
    ///
    /// VMs may be left in the idle class, from which the watchdog takes them, and vCPUs on the pCPUs of their slots.
    pub fn ended(&mut self) -> Option<String> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        let panic = thread.join().err();
        Some(panic.map_or_else(|| "no stop request".to_owned(), |panic| panic_text(&*panic)))
    }

    /// Replaces a watchdog that was lost.
    pub fn watch(&mut self, watchdog: Watchdog) {
        self.watchdog = Some(watchdog.pid());
        self.shared.board().watchdog = Some(watchdog);
        self.shared.changed.notify_one();
    }

    /// Sets the VMs that take turns; `players` may also hold VMs that leave now, with their new weights.
    pub fn follow(&mut self, rotation: &Rotation, players: Vec<Player>) {
        if self.said.0 == *rotation && self.said.1 == players {
            return;
        }
        self.said = (rotation.clone(), players.clone());
        let mut board = self.shared.board();
        board.rotation = rotation.clone();
        board.players = players;
        board.version += 1;
        board.remove_departed();
        drop(board);
        self.shared.changed.notify_one();
    }

    /// Takes a VM out of the rotation, and waits until its cgroup is out of the idle class and its vCPUs have left their slots.
    /// Returns false if the thread takes longer than `LEAVE_TIMEOUT`.
    pub fn remove(&mut self, vm: VmId) -> bool {
        let (mut rotation, mut players) = self.said.clone();
        rotation.members.retain(|member| member.vm != vm);
        players.retain(|player| player.vm != vm);
        self.follow(&rotation, players);
        let board = self.shared.board();
        let wanted = board.version;
        let waits = |board: &mut Board| board.followed < wanted;
        let waited = self.shared.followed.wait_timeout_while(board, LEAVE_TIMEOUT, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Returns the VMs that take turns.
    pub fn rotating(&self) -> BTreeSet<VmId> {
        let members = self.said.0.members.iter();
        members.map(|member| member.vm).collect()
    }

    /// Returns the VMs that left the rotation since the last call because they slept, and the errors.
    pub fn news(&mut self) -> (Vec<VmId>, Vec<String>) {
        let mut board = self.shared.board();
        let left = std::mem::take(&mut board.left);
        let mut errors = std::mem::take(&mut board.errors);
        let lost = board.lost.take();
        drop(board);
        if let Some((watchdog, error)) = lost {
            self.watchdog = None;
            errors.push(watchdog.end(&error));
        }
        if !left.is_empty() {
            self.said.0.members.retain(|member| !left.contains(&member.vm));
        }
        (left, errors)
    }

    /// Returns the vCPUs that move to their slots, whose affinities only the turn thread writes.
    pub fn moving(&self) -> BTreeSet<ThreadRef> {
        let players = self.said.1.iter().filter(|player| self.said.0.member(player.vm).is_some());
        let vcpus = players.flat_map(|player| &player.vcpus).filter(|vcpu| vcpu.home.is_some());
        vcpus.map(|vcpu| vcpu.thread).collect()
    }

    /// Returns the vCPUs in turns that were moved by others since the last call.
    pub fn taken(&mut self) -> Vec<ThreadRef> {
        std::mem::take(&mut self.shared.board().taken)
    }

    /// Returns the statistics of all turns.
    pub fn stats(&self) -> TurnStats {
        self.shared.board().stats.clone()
    }
}

impl Drop for TurnKeeper {
    fn drop(&mut self) {
        self.shared.board().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and the journal covers the changes it left.
            let _ = thread.join();
        }
    }
}

/// Returns the message of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked".to_owned())
}

/// Writes `cpu.idle` and weights of VMs that take turns.
struct Writer {
    controller: Arc<dyn CpuController>,
    errors: Vec<String>,
    writes: u64,
}

impl Writer {
    /// Takes a VM out of the idle class, which sets the kernel's default weight, and writes its own weight.
    fn on(&mut self, player: &Player) {
        self.write(|controller| player.switch.leave(controller));
        if player.switch.weight() != self.controller.default_weight() {
            self.weigh(player);
        }
    }

    /// Puts a VM into the idle class.
    fn off(&mut self, player: &Player) {
        self.write(|controller| player.switch.enter(controller));
    }

    fn weigh(&mut self, player: &Player) {
        self.write(|controller| player.switch.reweigh(controller));
    }

    /// Runs `write` and keeps its error, except for a cgroup that is gone, which the next rotation drops.
    fn write(&mut self, write: impl FnOnce(&dyn CpuController) -> Result<(), CgroupError>) {
        self.writes += 1;
        match write(&*self.controller) {
            Err(error) if !error.is_gone() => self.errors.push(error.to_string()),
            _ => {}
        }
    }
}

/// Sends lines to the watchdog.
/// A lost watchdog goes back to the fleet, since ending it and starting another may take longer than a turn.
struct Speaker {
    watchdog: Option<Watchdog>,
    lost: Option<LostWatchdog>,
}

impl Speaker {
    fn tell(&mut self, tell: impl FnOnce(&mut Watchdog) -> io::Result<()>) {
        if let Some(watchdog) = &mut self.watchdog
            && let Err(error) = tell(watchdog)
        {
            self.lost = self.watchdog.take().map(|watchdog| (watchdog, error));
        }
    }

    /// Whether some lines to the watchdog are not sent yet.
    fn is_behind(&self) -> bool {
        self.watchdog.as_ref().is_some_and(Watchdog::is_behind)
    }
}

/// The state of the turn thread.
struct Rhythm {
    writer: Writer,
    speaker: Speaker,
    sampler: Sampler,
    sequence: Sequence,
    movers: Movers,
    players: BTreeMap<VmId, Player>,
    watches: HashMap<ThreadRef, SleepWatch>,
    /// The origin of sample times.
    began: Instant,
    /// The version of the board that it follows.
    version: u64,
    /// Whether a turn was left out, so that current values may differ from the last writes.
    left_out: bool,
    /// VMs that left, for the board.
    left: Vec<VmId>,
}

impl Rhythm {
    fn new(controller: Arc<dyn CpuController>, watchdog: Option<Watchdog>) -> Rhythm {
        Rhythm {
            writer: Writer { controller, errors: Vec::new(), writes: 0 },
            speaker: Speaker { watchdog, lost: None },
            sampler: Sampler::new(ProcFs::host()),
            sequence: Sequence::default(),
            movers: Movers::new(Box::new(HostThreads::new(ProcFs::host()))),
            players: BTreeMap::new(),
            watches: HashMap::new(),
            began: Instant::now(),
            version: 0,
            left_out: false,
            left: Vec::new(),
        }
    }

    fn keep(&mut self, shared: &Shared) {
        let mut next = Instant::now();
        let mut board = shared.board();
        loop {
            if board.stop {
                drop(board);
                self.all_on();
                return;
            }
            if self.speaker.lost.is_some() {
                board.lost = self.speaker.lost.take();
            }
            if let Some(watchdog) = board.watchdog.take() {
                drop(board);
                self.speaker.watchdog = Some(watchdog);
                self.guard();
                board = shared.board();
                continue;
            }
            if board.version != self.version {
                let (rotation, players) = (board.rotation.clone(), board.players.clone());
                self.version = board.version;
                drop(board);
                let was_still = self.sequence.rotation().is_empty();
                self.follow(rotation, players);
                if was_still {
                    next = Instant::now();
                }
                board = shared.board();
                board.followed = self.version;
                shared.followed.notify_all();
                continue;
            }
            let now = Instant::now();
            let is_still = self.sequence.rotation().is_empty();
            if is_still || now < next {
                let wait = if is_still { Duration::from_secs(3600) } else { next - now };
                let waited = shared.changed.wait_timeout(board, wait);
                board = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(board);
            let lateness = now - next;
            let begins = self.may_begin();
            let mut turn = RETRY;
            if begins {
                let write_all = std::mem::take(&mut self.left_out) || lateness >= MAY_HAVE_ACTED;
                turn = self.turn(now, write_all);
            }
            next += turn;
            let end = Instant::now();
            if next < end {
                next = end + turn;
            }
            board = shared.board();
            if begins {
                board.stats.count(nanos(lateness), nanos(end - now));
            }
            board.stats.writes = self.writer.writes;
            board.stats.moves = self.movers.moves;
            board.taken.append(&mut self.movers.taken);
            board.errors.append(&mut self.movers.errors);
            board.left.append(&mut self.left);
            board.remove_departed();
            board.errors.append(&mut self.writer.errors);
        }
    }

    /// Sets the rotation.
    /// VMs that are no longer in it leave the idle class at once, at their new weight if `players` has one.
    fn follow(&mut self, rotation: Rotation, players: Vec<Player>) {
        let mut before = std::mem::take(&mut self.players);
        for player in players {
            let known = before.remove(&player.vm);
            let is_reweighted =
                known.is_some_and(|known| known.switch.weight() != player.switch.weight());
            if is_reweighted && !self.sequence.is_off(player.vm) {
                self.writer.weigh(&player);
            }
            self.players.insert(player.vm, player);
        }
        for vm in self.sequence.follow(rotation) {
            if let Some(gone) = self.players.get(&vm).or_else(|| before.get(&vm)) {
                self.writer.on(gone);
            }
        }
        let members = self.sequence.rotation().members.iter();
        let members: BTreeSet<VmId> = members.map(|member| member.vm).collect();
        self.players.retain(|vm, _| members.contains(vm));
        self.movers.follow(self.players.values());
        // Threads of VMs that stay may have ended too: a VM ends one vCPU after the other.
        let threads = self.players.values().flat_map(Player::threads);
        let threads: BTreeSet<ThreadRef> = threads.copied().collect();
        self.watches.retain(|thread, _| threads.contains(thread));
        self.sampler.retain(|thread| threads.contains(thread));
        self.guard();
    }

    /// Sends the VMs that take turns to the watchdog.
    fn guard(&mut self) {
        self.speaker.tell(|watchdog| watchdog.guard(self.players.values()));
    }

    /// Whether a turn may begin: all VMs that take turns have been sent to the watchdog.
    fn may_begin(&mut self) -> bool {
        if self.speaker.is_behind() {
            self.speaker.tell(Watchdog::beat);
        }
        let is_behind = self.speaker.is_behind();
        self.left_out |= is_behind;
        !is_behind
    }

    /// Begins a turn and returns its length.
    fn turn(&mut self, now: Instant, write_all: bool) -> Duration {
        let ending = self.sequence.ending();
        let slept = ending.into_iter().filter(|vm| self.sleeps(*vm, now)).collect();
        let (step, length) = self.sequence.begin_turn(slept);
        for player in step.left.iter().filter_map(|vm| self.players.get(vm)) {
            player.threads().for_each(|thread| self.movers.end(thread));
        }
        self.left.extend(&step.left);
        self.write(if write_all { self.sequence.standing() } else { step });
        self.speaker.tell(Watchdog::beat);
        self.look_again(now);
        Duration::from_nanos(length.0)
    }

    /// Samples the VMs whose turn begins and that seemed to have slept before.
    fn look_again(&mut self, now: Instant) {
        let row = self.sequence.row().iter();
        for player in row.filter_map(|vm| self.players.get(vm)) {
            for thread in player.threads() {
                if let Some(watch) = self.watches.get_mut(thread)
                    && watch.is_suspicious()
                    && let Ok(sample) = self.sampler.sample(thread)
                {
                    watch.turn_begins(nanos(now - self.began), account(sample));
                }
            }
        }
    }

    fn write(&mut self, step: Step) {
        let on = step.on.iter();
        let on: Vec<_> = on.filter_map(|(vm, slot)| Some((self.players.get(vm)?, slot))).collect();
        // First, so that no turn begins on another VM's pCPU.
        for (player, slot) in &on {
            for (vcpu, pcpu) in player.vcpus.iter().filter_map(|v| Some((v, slot.get(&v.id)?))) {
                self.movers.sit(&vcpu.thread, *pcpu);
            }
        }
        on.iter().for_each(|(player, _)| self.writer.on(player));
        for player in step.off.iter().filter_map(|vm| self.players.get(vm)) {
            self.writer.off(player);
            if step.frees {
                player.threads().for_each(|thread| self.movers.leave(thread));
            }
        }
    }

    /// Whether a VM slept since the end of its last slot, and so leaves the rotation.
    fn sleeps(&mut self, vm: VmId, now: Instant) -> bool {
        let Some(player) = self.players.get(&vm) else {
            return false;
        };
        let Some(turn) = self.sequence.rotation().member(vm).map(Member::length) else {
            return false;
        };
        let mut sleep = VmSleep::default();
        for thread in player.threads() {
            // The next rotation drops a thread that ended.
            let Ok(sample) = self.sampler.sample(thread) else {
                continue;
            };
            let watch = self.watches.entry(*thread).or_default();
            let seen = watch.look(turn, nanos(now - self.began), account(sample), || {
                let state = self.sampler.read_state(thread);
                state.is_ok_and(|state| state.is_runnable())
            });
            seen.into_iter().for_each(|seen| sleep.add(seen));
        }
        sleep.ends_turns(turn)
    }

    /// Takes every VM out of the idle class and, on success, clears the watchdog's list.
    fn all_on(&mut self) {
        let errors = self.writer.errors.len();
        for vm in self.sequence.end() {
            if let Some(player) = self.players.get(&vm) {
                self.writer.on(player);
            }
        }
        if self.writer.errors.len() == errors {
            self.speaker.tell(|watchdog| watchdog.guard(iter::empty()));
        }
        self.movers.follow(iter::empty());
    }
}

fn account(sample: VcpuSample) -> Account {
    Account { ran: sample.ran, waited: sample.waited }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use tandem_linux::actuator::IdleSwitch;
    use tandem_linux::cgroup::{CgroupPath, Knob, open};
    use tandem_linux::thread::Pid;
    use tandem_model::{PcpuId, VcpuId, Weight};
    use tandem_policy::turns::Slot;

    use super::*;
    use crate::turns::{PlayerVcpu, WatchdogStarter};
    use tandem_testing::hooked::{Change, Hooked};

    fn path(vm: u64) -> CgroupPath {
        CgroupPath(format!("/{vm}"))
    }

    /// Makes a hierarchy of cgroup v2 in `root` with a cgroup for each of two VMs; `after` runs after each write of a knob.
    fn controller(
        root: &Path,
        after: impl Fn(&CgroupPath, Knob, &str) + Send + Sync + 'static,
    ) -> Arc<dyn CpuController> {
        let (cg, proc) = (root.join("cg"), root.join("proc"));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
        fs::create_dir_all(&cg).unwrap();
        fs::write(cg.join("cgroup.controllers"), "cpu\n").unwrap();
        for vm in [1, 2] {
            let folder = cg.join(vm.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu.idle"), "0\n").unwrap();
            fs::write(folder.join("cpu.weight"), "100\n").unwrap();
        }
        Arc::new(Hooked {
            inner: open(&ProcFs::at(root)).unwrap(),
            after: Box::new(move |change| match change {
                Change::Knob(cgroup, knob, text) => after(cgroup, knob, text),
                Change::Enabled | Change::Disabled => {}
            }),
        })
    }

    /// Two VMs without threads that take turns on one pCPU.
    fn two() -> (Rotation, Vec<Player>) {
        let member = |vm: u64| Member {
            vm: VmId(vm),
            slots: vec![Slot {
                from: Nanos::from_millis(5 * (vm - 1)),
                to: Nanos::from_millis(5 * vm),
                pcpus: [(VcpuId(0), PcpuId(0))].into(),
            }],
            moves: false,
        };
        let player = |vm: u64| Player {
            vm: VmId(vm),
            switch: IdleSwitch::journaled(path(vm), Weight::constant(100.0)),
            vcpus: Vec::new(),
        };
        let rotation = Rotation {
            length: Nanos::from_millis(10),
            members: [1, 2].map(member).into(),
            next_to_residents: false,
        };
        (rotation, [1, 2].map(player).into())
    }

    /// A watchdog that only writes its input to a file.
    fn listener(to: &Path) -> Watchdog {
        let mut command = Command::new("sh");
        command.args(["-c", "exec cat > \"$0\""]).arg(to);
        let mut starter = WatchdogStarter::new(command);
        starter.start(Instant::now()).unwrap().unwrap()
    }

    /// Returns the last list of VMs sent to the watchdog.
    fn guarded(heard: &Path) -> String {
        let heard = fs::read_to_string(heard).unwrap();
        let mut lines = heard.lines().filter(|line| line.contains("guard"));
        lines.next_back().unwrap_or_default().to_owned()
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn panic_leaves_watchdog_armed() {
        let root = tempfile::tempdir().unwrap();
        let heard = root.path().join("heard");
        let controller = controller(root.path(), |cgroup, knob, text| {
            assert!((knob, text) != (Knob::Idle, "1"), "no cgroup is like {cgroup}");
        });
        let (rotation, players) = two();
        let mut keeper = TurnKeeper::start(controller, Some(listener(&heard))).unwrap();
        assert_eq!(keeper.ended(), None);
        keeper.follow(&rotation, players);
        let mut why = None;
        wait_until("it has ended", || {
            why = keeper.ended();
            why.is_some()
        });
        assert_eq!(why.as_deref(), Some("no cgroup is like /2"));
        assert_eq!(keeper.ended(), None, "it is reported once");
        let last = guarded(&heard);
        assert!(last.contains("\"/1\"") && last.contains("\"/2\""), "{last}");
        drop(keeper);
        assert_eq!(guarded(&heard), last);
    }

    #[test]
    fn stop_clears_watchdog_list() {
        let root = tempfile::tempdir().unwrap();
        let heard = root.path().join("heard");
        let controller = controller(root.path(), |_, _, _| {});
        let (rotation, players) = two();
        let mut keeper = TurnKeeper::start(controller.clone(), Some(listener(&heard))).unwrap();
        keeper.follow(&rotation, players);
        let is_idle = |vm| controller.is_idle(&path(vm)).unwrap() == Some(true);
        wait_until("a VM waits for its turn", || is_idle(1) || is_idle(2));
        drop(keeper);
        assert!(!is_idle(1) && !is_idle(2));
        assert_eq!(guarded(&heard), "{\"guard\":[]}");
    }

    #[test]
    fn vm_leaves_at_its_new_weight() {
        let root = tempfile::tempdir().unwrap();
        let controller = controller(root.path(), |_, _, _| {});
        let (rotation, mut players) = two();
        let mut keeper = TurnKeeper::start(controller.clone(), None).unwrap();
        keeper.follow(&rotation, players.clone());
        let is_idle = |vm| controller.is_idle(&path(vm)).ok() == Some(Some(true));
        wait_until("a VM waits for its turn", || is_idle(1) || is_idle(2));
        for player in &mut players {
            player.switch =
                IdleSwitch::journaled(player.switch.cgroup().clone(), Weight::constant(300.0));
        }
        keeper.follow(&Rotation::default(), players);
        // The files may be read in the middle of a write.
        let has_left = |vm| {
            let weight = controller.weight(&path(vm)).ok();
            controller.is_idle(&path(vm)).ok() == Some(Some(false))
                && weight == Some(Weight::constant(300.0))
        };
        wait_until("both have left", || has_left(1) && has_left(2));
    }

    #[test]
    fn ended_threads_files_are_closed() {
        let root = tempfile::tempdir().unwrap();
        let (rotation, mut players) = two();
        let mut rhythm = Rhythm::new(controller(root.path(), |_, _, _| {}), None);
        let own = std::process::id();
        let thread = ThreadRef::of_process(&ProcFs::host(), Pid(own)).unwrap();
        players[0].vcpus = vec![PlayerVcpu { id: VcpuId(0), thread, home: None }];
        rhythm.follow(rotation.clone(), players.clone());
        rhythm.sleeps(VmId(1), Instant::now());
        assert_eq!((rhythm.watches.len(), rhythm.sampler.open()), (1, 1));
        players[0].vcpus.clear();
        rhythm.follow(rotation, players);
        assert_eq!((rhythm.watches.len(), rhythm.sampler.open()), (0, 0));
    }
}
