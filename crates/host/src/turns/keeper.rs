//! The thread that keeps the rhythm.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::procfs::ProcFs;
use tandem_linux::real_time::make_real_time;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::ThreadRef;
use tandem_policy::Nanos;
use tandem_policy::VmId;
use tandem_policy::turns::Rotation;
use tandem_policy::turns::Rotor;

use super::player::Player;
use super::stats::TurnStats;
use super::watchdog::Watchdog;

/// After so long a pause the watchdog has taken all VMs out of the idle class: what was written before is not in force.
const WRITE_ALL_AFTER: Duration = Duration::from_millis(300);

/// What the thread is told, and what it tells.
#[derive(Debug, Default)]
struct Board {
    rotation: Rotation,
    players: Vec<Player>,
    /// Counts what it was told.
    version: u64,
    stop: bool,
    left: Vec<VmId>,
    errors: Vec<String>,
    stats: TurnStats,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Whoever held it did not panic between two writes that belong together.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the rhythm. Dropped, it takes every VM out of the idle class first.
#[derive(Debug)]
pub struct TurnKeeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    is_real_time: bool,
    watchdog: Option<u32>,
    said: (Rotation, Vec<Player>),
}

impl TurnKeeper {
    /// Starts the thread; it sleeps until there is a rotation.
    pub fn start(
        controller: Box<dyn CpuController>,
        watchdog: Option<Watchdog>,
    ) -> io::Result<TurnKeeper> {
        let shared = Arc::new(Shared::default());
        let pid = watchdog.as_ref().map(Watchdog::pid);
        let (said, hears) = std::sync::mpsc::channel();
        let board = shared.clone();
        let thread = thread::Builder::new()
            .name("tandem-turns".to_owned())
            .spawn(move || {
                // Whoever started it waits for this.
                let _ = said.send(make_real_time().is_ok());
                Rhythm::new(controller, watchdog).keep(&board);
            })?;
        Ok(TurnKeeper {
            shared,
            thread: Some(thread),
            watchdog: pid,
            is_real_time: hears.recv().unwrap_or(false),
            said: (Rotation::default(), Vec::new()),
        })
    }

    /// Whether the thread is real-time; else a busy host makes turns late.
    pub fn is_real_time(&self) -> bool {
        self.is_real_time
    }

    /// The process that watches over it.
    pub fn watchdog(&self) -> Option<u32> {
        self.watchdog
    }

    /// These VMs take turns from now on, and no others.
    pub fn follow(&mut self, rotation: &Rotation, players: Vec<Player>) {
        if self.said.0 == *rotation && self.said.1 == players {
            return;
        }
        self.said = (rotation.clone(), players.clone());
        let mut board = self.shared.board();
        board.rotation = rotation.clone();
        board.players = players;
        board.version += 1;
        drop(board);
        self.shared.changed.notify_one();
    }

    /// The VMs that take turns now.
    pub fn rotating(&self) -> BTreeSet<VmId> {
        let members = self.said.0.members.iter();
        members.map(|member| member.vm).collect()
    }

    /// The VMs that began to sleep since the last call and take no turns any more, and what went wrong.
    pub fn news(&mut self) -> (Vec<VmId>, Vec<String>) {
        let mut board = self.shared.board();
        let left = std::mem::take(&mut board.left);
        let errors = std::mem::take(&mut board.errors);
        drop(board);
        if !left.is_empty() {
            self.said
                .0
                .members
                .retain(|member| !left.contains(&member.vm));
        }
        (left, errors)
    }

    /// How well the rhythm was kept so far.
    pub fn stats(&self) -> TurnStats {
        self.shared.board().stats.clone()
    }
}

impl Drop for TurnKeeper {
    fn drop(&mut self) {
        self.shared.board().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the journal puts back what it left.
            let _ = thread.join();
        }
    }
}

/// A vCPU that seems to have slept at so many looks in a row did, even if it was runnable at each of them.
const MOST_SUSPICIONS: u32 = 4;

/// A vCPU's account at the end of its VM's last turn.
#[derive(Clone, Copy, Debug)]
struct Account {
    runnable: Nanos,
    at: Instant,
    /// So often in a row it seemed to have slept, and was runnable when looked at.
    suspicions: u32,
}

/// The thread's own.
struct Rhythm {
    controller: Box<dyn CpuController>,
    watchdog: Option<Watchdog>,
    sampler: Sampler,
    rotor: Rotor,
    rotation: Rotation,
    players: BTreeMap<VmId, Player>,
    /// VMs in the idle class.
    off: BTreeSet<VmId>,
    accounts: HashMap<ThreadRef, Account>,
    /// What it was told last.
    version: u64,
    /// What is to be told.
    left: Vec<VmId>,
    errors: Vec<String>,
    writes: u64,
}

impl Rhythm {
    fn new(controller: Box<dyn CpuController>, watchdog: Option<Watchdog>) -> Rhythm {
        Rhythm {
            controller,
            watchdog,
            sampler: Sampler::new(ProcFs::host()),
            rotor: Rotor::default(),
            rotation: Rotation::default(),
            players: BTreeMap::new(),
            off: BTreeSet::new(),
            accounts: HashMap::new(),
            version: 0,
            left: Vec::new(),
            errors: Vec::new(),
            writes: 0,
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
            if board.version != self.version {
                let (rotation, players) = (board.rotation.clone(), board.players.clone());
                self.version = board.version;
                drop(board);
                let was_still = self.rotor.is_empty();
                self.follow(rotation, players);
                if was_still {
                    next = Instant::now();
                }
                board = shared.board();
                continue;
            }
            let now = Instant::now();
            if self.rotor.is_empty() || now < next {
                let wait = match self.rotor.is_empty() {
                    true => Duration::from_secs(3600),
                    false => next - now,
                };
                let waited = shared.changed.wait_timeout(board, wait);
                board = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(board);
            let lateness = now - next;
            self.turn(now, lateness >= WRITE_ALL_AFTER);
            let turn = Duration::from_nanos(self.rotation.turn.0);
            next += turn;
            let end = Instant::now();
            if next < end {
                next = end + turn;
            }
            board = shared.board();
            board.stats.count(nanos(lateness), nanos(end - now));
            board.stats.writes = self.writes;
            board.left.append(&mut self.left);
            board.errors.append(&mut self.errors);
        }
    }

    /// These are the VMs from now on. Those that take no turns any more leave the idle class at once.
    fn follow(&mut self, rotation: Rotation, players: Vec<Player>) {
        let mut before = std::mem::take(&mut self.players);
        for player in players {
            let known = before.remove(&player.vm);
            let weighs_anew = known.is_some_and(|known| known.weight != player.weight);
            if weighs_anew && !self.off.contains(&player.vm) {
                self.weigh(&player);
            }
            self.players.insert(player.vm, player);
        }
        for gone in before.values() {
            if self.off.remove(&gone.vm) {
                self.on(gone);
            }
            self.accounts
                .retain(|thread, _| !gone.threads.contains(thread));
            gone.threads
                .iter()
                .for_each(|thread| self.sampler.forget(thread));
        }
        self.rotor.follow(&rotation.members);
        self.rotation = rotation;
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.guard(self.players.values());
        }
    }

    /// A turn begins.
    fn turn(&mut self, now: Instant, write_all: bool) {
        for vm in self.rotor.row().to_vec() {
            if self.sleeps(vm, now) {
                self.rotor.leave(vm);
                self.left.push(vm);
                self.rotation.members.retain(|member| member.vm != vm);
            }
        }
        let row: BTreeSet<VmId> = self.rotor.next_row().iter().copied().collect();
        let members = self.rotation.members.iter().map(|member| member.vm);
        let (on, off): (Vec<VmId>, Vec<VmId>) = members.partition(|vm| row.contains(vm));
        // In this order: for a moment two VMs are on, never none.
        for vm in on {
            if (self.off.remove(&vm) || write_all)
                && let Some(player) = self.players.get(&vm).cloned()
            {
                self.on(&player);
            }
        }
        for vm in off {
            if (self.off.insert(vm) || write_all)
                && let Some(player) = self.players.get(&vm).cloned()
            {
                self.write(&player.cgroup, |controller, cgroup| {
                    controller.set_idle(cgroup, true)
                });
            }
        }
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.beat();
        }
    }

    /// Whether a VM slept since the end of its last turn: then it takes no turns any more.
    fn sleeps(&mut self, vm: VmId, now: Instant) -> bool {
        let Some(player) = self.players.get(&vm) else {
            return false;
        };
        let mut sleeps = false;
        for thread in &player.threads {
            // One that ended is dropped with the next rotation.
            let Ok(sample) = self.sampler.sample(thread) else {
                continue;
            };
            let runnable = sample.ran + sample.waited;
            let before = self.accounts.get(thread).copied();
            let slept = before.is_some_and(|before| {
                let elapsed = nanos(now - before.at);
                let runnable = runnable.saturating_sub(before.runnable);
                Rotor::is_sleep(self.rotation.turn, elapsed, runnable)
            });
            // A wait counts when it is over: of one that waits right now the next turns tell more.
            let is_runnable = slept
                && self
                    .sampler
                    .read_state(thread)
                    .is_ok_and(|state| state.is_runnable());
            let suspicions = before.map_or(0, |before| before.suspicions);
            sleeps |= slept && (!is_runnable || suspicions + 1 >= MOST_SUSPICIONS);
            let kept = match before {
                Some(before) if is_runnable => Account {
                    suspicions: suspicions + 1,
                    ..before
                },
                _ => Account {
                    runnable,
                    at: now,
                    suspicions: 0,
                },
            };
            self.accounts.insert(*thread, kept);
        }
        sleeps
    }

    /// Takes a VM out of the idle class, where it gets the kernel's default weight, and gives it its own.
    fn on(&mut self, player: &Player) {
        self.write(&player.cgroup, |controller, cgroup| {
            controller.set_idle(cgroup, false)
        });
        if player.weight != self.controller.default_weight() {
            self.weigh(player);
        }
    }

    fn weigh(&mut self, player: &Player) {
        let weight = player.weight;
        self.write(&player.cgroup, |controller, cgroup| {
            controller.set_weight(cgroup, weight).map(drop)
        });
    }

    /// Writes; a cgroup that is gone is dropped with the next rotation, anything else is told.
    fn write(
        &mut self,
        cgroup: &CgroupPath,
        write: impl FnOnce(&dyn CpuController, &CgroupPath) -> Result<(), CgroupError>,
    ) {
        self.writes += 1;
        match write(&*self.controller, cgroup) {
            Err(error) if !error.is_gone() => self.errors.push(error.to_string()),
            _ => {}
        }
    }

    /// Takes every VM out of the idle class.
    fn all_on(&mut self) {
        for vm in std::mem::take(&mut self.off) {
            if let Some(player) = self.players.get(&vm).cloned() {
                self.on(&player);
            }
        }
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
