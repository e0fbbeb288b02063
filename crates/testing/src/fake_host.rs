//! A host in memory: cgroups with knobs, threads with cgroups and masks, and v2's rules.
//!
//! It has two states.
//! `now` includes all changes, of the actuator and of its environment.
//! `wanted` is the state without the actuator: only changes of the environment apply to it (threads ending and starting,
//! cgroups vanishing, the operator's changes).
//! A restore must make the first equal the second.
//!
//! A fuse counts the changes of the actuator and kills it at one of them, by unwinding with [`Crash`],
//! before or after the change took effect.

mod controller;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::Threads;
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob, Version};
use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
use tandem_model::{Nanos, Nice, PcpuId, PcpuSet, Weight};

/// A state directory, in memory if possible, because tests sync thousands of records there.
pub fn state_dir() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Opens an actuator on this host, which restores the changes of an earlier one.
pub fn open_on(host: &Fake, dir: &Path) -> Actuator {
    let (actuator, report) =
        Actuator::open_with(host.controller(), host.threads(), dir, "boot").unwrap();
    assert!(report.is_complete(), "{report}");
    actuator
}

/// The user of all processes of an empty host.
pub const USER: u32 = 1000;

/// The panic payload of a killed actuator.
pub struct Crash;

/// One cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    id: u64,
    weight: String,
    quota: String,
    idle: bool,
    /// Whether the controller is enabled for the cgroups below.
    enables: bool,
}

impl Cgroup {
    fn new(weight: &str, enables: bool) -> Cgroup {
        let quota = "max 100000".to_owned();
        Cgroup { id: 0, weight: weight.to_owned(), quota, idle: false, enables }
    }

    /// Moves it into the idle class, or out of it, which resets the weight (sched_group_set_idle of the kernel).
    fn set_idle(&mut self, idle: bool, default: &str) {
        if self.idle != idle {
            self.idle = idle;
            self.weight = if idle { "3" } else { default }.to_owned();
        }
    }
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    pid: Pid,
    start: u64,
    place: CgroupPath,
    pcpus: PcpuSet,
    nice: Nice,
    slice: Option<Nanos>,
}

impl Thread {
    fn new(pid: Pid, start: StartTime, place: &CgroupPath) -> Thread {
        let place = place.clone();
        Thread { pid, start: start.0, place, pcpus: all_pcpus(), nice: Nice(0), slice: None }
    }
}

/// The whole host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    cgroups: BTreeMap<CgroupPath, Cgroup>,
    threads: BTreeMap<u32, Thread>,
}

#[derive(Clone)]
struct Inner {
    now: State,
    wanted: State,
    next_id: u64,
    /// Threads that are about to end and can no longer be moved.
    stuck: BTreeSet<u32>,
    /// Remaining changes until the kill, and whether the last one takes effect.
    fuse: Option<(usize, bool)>,
    /// Cgroups that cannot hold single threads.
    unfit: BTreeSet<CgroupPath>,
    /// Cgroups with ending threads.
    busy: BTreeSet<CgroupPath>,
    /// Cgroups whose removal the kernel refuses.
    stuck_groups: BTreeSet<CgroupPath>,
    asked: Asked,
}

/// Number of calls, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// All reads of cgroups.
    pub reads: usize,
    /// Reads of a thread's cgroup.
    pub places: usize,
    /// Checks whether a thread lives.
    pub lives: usize,
    /// Checks whether a cgroup can hold single threads.
    pub parents: usize,
    /// All changes.
    pub changes: usize,
}

/// The weights of a version.
#[derive(Clone, Copy)]
struct Weights {
    default: Weight,
    range: (Weight, Weight),
}

/// A handle to the host; clones are the same host.
#[derive(Clone)]
pub struct Fake {
    version: Version,
    weights: Weights,
    /// Whether the controller is enabled in cgroups that the environment makes.
    enables: bool,
    /// The user of all processes.
    user: Option<u32>,
    inner: Arc<Mutex<Inner>>,
}

impl Default for Fake {
    /// A host of version 2 without threads, whose cgroups all have the controller.
    fn default() -> Fake {
        Fake::empty(Version::V2)
    }
}

impl State {
    fn children(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        let all = self.cgroups.keys();
        all.filter(|c| c.parent().as_ref() == Some(cgroup)).cloned().collect()
    }
}

/// A path.
pub fn path(text: &str) -> CgroupPath {
    CgroupPath(text.to_owned())
}

fn all_pcpus() -> PcpuSet {
    (0..8).map(PcpuId).collect()
}

impl Fake {
    /// A host with a few cgroups and threads; on v2 the controller is enabled in some.
    pub fn new(version: Version) -> Fake {
        let mut cgroups = BTreeMap::new();
        let places = ["/", "/vms", "/vms/own.scope", "/vms/shared", "/other", "/other/deep"];
        for (id, place) in (1..).zip(places) {
            let weight = if place == "/vms/own.scope" { "250" } else { "100" };
            let enables = version == Version::V1 || ["/", "/vms"].contains(&place);
            cgroups.insert(path(place), Cgroup { id, ..Cgroup::new(weight, enables) });
        }
        let mut threads = BTreeMap::new();
        let homes = ["/", "/vms/own.scope", "/vms/shared", "/vms/shared", "/other/deep"];
        for (tid, home) in (100..).zip(homes) {
            let pcpus = match tid % 2 {
                0 => all_pcpus(),
                _ => [PcpuId(tid % 8)].into_iter().collect(),
            };
            let thread = Thread {
                pid: Pid(1),
                start: u64::from(tid),
                place: path(home),
                pcpus,
                nice: Nice((tid % 3) as i8),
                slice: (tid % 2 == 0).then_some(Nanos::from_millis(7)),
            };
            threads.insert(tid, thread);
        }
        let weights = Weights {
            default: Weight::constant(100.0),
            range: (Weight::constant(1.0), Weight::constant(10_000.0)),
        };
        let enables = version == Version::V1;
        let host = Fake::with_state(version, weights, State { cgroups, threads }, enables, None);
        host.lock().unfit.insert(path("/other/deep"));
        host
    }

    /// A host without threads, whose cgroups all have the controller, with the weights of this version.
    pub fn empty(version: Version) -> Fake {
        let [default, least, most] = match version {
            Version::V1 => [1024.0, 2.0, 262_144.0],
            Version::V2 => [100.0, 1.0, 10_000.0],
        };
        let range = (Weight::constant(least), Weight::constant(most));
        let weights = Weights { default: Weight::constant(default), range };
        let root = Cgroup { id: 1, ..Cgroup::new(&weight_text(weights.default), true) };
        let cgroups = BTreeMap::from([(CgroupPath::root(), root)]);
        let state = State { cgroups, threads: BTreeMap::new() };
        Fake::with_state(version, weights, state, true, Some(USER))
    }

    fn with_state(
        version: Version,
        weights: Weights,
        now: State,
        enables: bool,
        user: Option<u32>,
    ) -> Fake {
        let inner = Inner {
            wanted: now.clone(),
            now,
            next_id: 1000,
            stuck: BTreeSet::new(),
            fuse: None,
            unfit: BTreeSet::new(),
            busy: BTreeSet::new(),
            stuck_groups: BTreeSet::new(),
            asked: Asked::default(),
        };
        Fake { version, weights, enables, user, inner: Arc::new(Mutex::new(inner)) }
    }

    fn default_text(&self) -> String {
        weight_text(self.weights.default)
    }

    /// The state, counted as a read of cgroups.
    fn read(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        inner.asked.reads += 1;
        inner
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A kill poisons the lock but leaves the state consistent.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A copy of this host, without a kill.
    pub fn fork(&self) -> Fake {
        let copy = Inner { fuse: None, ..self.lock().clone() };
        Fake { inner: Arc::new(Mutex::new(copy)), ..self.clone() }
    }

    /// The current state.
    pub fn now(&self) -> State {
        self.lock().now.clone()
    }

    /// The state without the actuator's changes.
    pub fn wanted(&self) -> State {
        self.lock().wanted.clone()
    }

    /// The cgroups and threads that the actuator's changes leave different, as they are and as they should be.
    pub fn differences(&self) -> Vec<String> {
        let inner = self.lock();
        let (now, wanted) = (&inner.now, &inner.wanted);
        let cgroups: BTreeSet<_> = now.cgroups.keys().chain(wanted.cgroups.keys()).collect();
        let threads: BTreeSet<_> = now.threads.keys().chain(wanted.threads.keys()).collect();
        let cgroups = cgroups.into_iter().filter_map(|cgroup| {
            let (is, should) = (now.cgroups.get(cgroup), wanted.cgroups.get(cgroup));
            (is != should).then(|| format!("{cgroup}: {is:?}, not {should:?}"))
        });
        let threads = threads.into_iter().filter_map(|tid| {
            let (is, should) = (now.threads.get(tid), wanted.threads.get(tid));
            (is != should).then(|| format!("thread {tid}: {is:?}, not {should:?}"))
        });
        cgroups.chain(threads).collect()
    }

    /// Kills the actuator at the `changes`-th change from here.
    pub fn die_at(&self, changes: usize, applied: bool) {
        self.lock().fuse = Some((changes, applied));
    }

    /// Cancels the kill.
    pub fn live(&self) {
        self.lock().fuse = None;
    }

    /// The n-th cgroup.
    pub fn cgroup(&self, n: usize) -> CgroupPath {
        let inner = self.lock();
        let count = inner.now.cgroups.len();
        inner.now.cgroups.keys().nth(n % count).cloned().unwrap_or_else(CgroupPath::root)
    }

    /// The n-th thread.
    pub fn thread(&self, n: usize) -> Option<ThreadRef> {
        let inner = self.lock();
        let count = inner.now.threads.len().max(1);
        let (&tid, thread) = inner.now.threads.iter().nth(n % count)?;
        Some(reference(tid, thread))
    }

    /// Ends the n-th thread.
    pub fn end_thread(&self, n: usize) {
        if let Some(thread) = self.thread(n) {
            self.end(&thread);
        }
    }

    /// Marks a thread as about to end: it can no longer be moved, and stays until it has ended.
    pub fn begin_end(&self, thread: &ThreadRef) {
        self.lock().stuck.insert(thread.tid.0);
    }

    /// Ends a thread.
    pub fn end(&self, thread: &ThreadRef) {
        let mut inner = self.lock();
        inner.now.threads.remove(&thread.tid.0);
        inner.wanted.threads.remove(&thread.tid.0);
    }

    /// Ends the thread with this ID, if there is one.
    pub fn end_tid(&self, tid: Tid) {
        let mut inner = self.lock();
        inner.now.threads.remove(&tid.0);
        inner.wanted.threads.remove(&tid.0);
    }

    /// Starts a thread from the n-th one, in the same cgroup and with the same mask.
    /// Its ID may be reused.
    pub fn start_thread(&self, n: usize) {
        if let Some(creator) = self.thread(n) {
            let mut inner = self.lock();
            let thread = inner.now.threads[&creator.tid.0].clone();
            let mut wanted = inner.wanted.threads[&creator.tid.0].clone();
            // Without Tandem it would have its creator's original mask. The actuator does not know
            // that a changed one was inherited, so it stays.
            wanted.pcpus = thread.pcpus.clone();
            (wanted.nice, wanted.slice) = (thread.nice, thread.slice);
            // The home of a thread that starts in one of our groups is the cgroup above, whatever
            // the creator's origin.
            wanted.place = above_ours(&thread.place);
            inner.start(thread, wanted);
        }
    }

    /// Starts a thread in `place`.
    pub fn start_in(&self, place: &CgroupPath) -> ThreadRef {
        let thread = Thread::new(Pid(1), StartTime(0), place);
        self.lock().start(thread.clone(), thread)
    }

    /// Puts a thread into a cgroup, which is made if it does not exist.
    pub fn put(&self, thread: ThreadRef, place: &CgroupPath) {
        self.make(&place.0);
        let mut inner = self.lock();
        let put = Thread::new(thread.pid, thread.start, place);
        inner.wanted.threads.insert(thread.tid.0, put.clone());
        inner.now.threads.insert(thread.tid.0, put);
    }

    /// Makes a cgroup and those above it, as far as they do not exist.
    pub fn make(&self, cgroup: &str) {
        let cgroup = path(cgroup);
        let exists = |inner: &Inner, cgroup: &CgroupPath| inner.now.cgroups.contains_key(cgroup);
        let mut inner = self.lock();
        let missing = std::iter::successors(Some(cgroup), CgroupPath::parent);
        let missing: Vec<CgroupPath> =
            missing.take_while(|cgroup| !exists(&inner, cgroup)).collect();
        for cgroup in missing {
            inner.make(&cgroup, Cgroup::new(&self.default_text(), self.enables));
        }
    }

    /// Makes a cgroup that cannot hold single threads.
    pub fn make_unfit(&self, cgroup: &str) {
        self.make(cgroup);
        self.lock().unfit.insert(path(cgroup));
    }

    /// Lets a cgroup hold single threads from now on.
    pub fn make_fit(&self, cgroup: &str) {
        self.lock().unfit.remove(&path(cgroup));
    }

    /// Sets whether the threads of each child of a cgroup are about to end.
    pub fn make_busy(&self, above: &str, is_busy: bool) {
        let mut inner = self.lock();
        let below = inner.now.children(&path(above)).into_iter();
        inner.busy = below.filter(|_| is_busy).collect();
    }

    /// Sets whether the removal of a cgroup's children is refused.
    pub fn make_stuck(&self, above: &str, is_stuck: bool) {
        let mut inner = self.lock();
        let below = inner.now.children(&path(above)).into_iter();
        inner.stuck_groups = below.filter(|_| is_stuck).collect();
    }

    /// The number of a cgroup's children.
    pub fn below(&self, cgroup: &str) -> usize {
        self.lock().now.children(&path(cgroup)).len()
    }

    /// The calls so far.
    pub fn asked(&self) -> Asked {
        self.lock().asked
    }

    /// Starts a thread in one of our groups; without Tandem it would have started in the cgroup above.
    pub fn start_belonging_above(&self, group: &CgroupPath) -> ThreadRef {
        let thread = self.start_in(group);
        let mut inner = self.lock();
        inner.wanted.threads.get_mut(&thread.tid.0).unwrap().place = above_ours(group);
        thread
    }

    /// Removes the n-th cgroup as another process, if it is empty and not ours.
    pub fn remove_cgroup(&self, n: usize) {
        let cgroup = self.cgroup(n);
        let mut inner = self.lock();
        // Keep cgroups that threads return to, in both states.
        let is_used = |state: &State| {
            let below = state.cgroups.keys().any(|c| *c != cgroup && c.is_within(&cgroup));
            below || state.threads.values().any(|thread| thread.place == cgroup)
        };
        if cgroup != above_ours(&cgroup)
            || cgroup.is_root()
            || is_used(&inner.now)
            || is_used(&inner.wanted)
        {
            return;
        }
        inner.now.cgroups.remove(&cgroup);
        inner.wanted.cgroups.remove(&cgroup);
    }

    /// Replaces a cgroup as another process; its threads move to the one above.
    pub fn swap_cgroup(&self, cgroup: &CgroupPath) {
        let mut inner = self.lock();
        let above = cgroup.parent().unwrap();
        let threads = inner.now.threads.values_mut();
        for thread in threads.filter(|thread| thread.place == *cgroup) {
            thread.place = above.clone();
        }
        inner.now.cgroups.remove(cgroup);
        inner.make(cgroup, Cgroup::new(&self.default_text(), self.enables));
    }

    /// Creates a cgroup as another process.
    pub fn make_cgroup(&self, cgroup: &CgroupPath) {
        let made = Cgroup::new(&self.default_text(), self.enables);
        self.lock().make(cgroup, made);
    }

    /// Changes a thread as the operator.
    fn operator_sets(&self, thread: &ThreadRef, set: impl Fn(&mut Thread)) {
        let mut inner = self.lock();
        let Inner { now, wanted, .. } = &mut *inner;
        for state in [now, wanted] {
            set(state.threads.get_mut(&thread.tid.0).unwrap());
        }
    }

    /// Sets a thread's affinity as the operator.
    pub fn operator_sets_affinity(&self, thread: &ThreadRef, pcpus: &PcpuSet) {
        self.operator_sets(thread, |thread| thread.pcpus = pcpus.clone());
    }

    /// Sets a thread's nice value as the operator.
    pub fn operator_sets_nice(&self, thread: &ThreadRef, nice: Nice) {
        self.operator_sets(thread, |thread| thread.nice = nice);
    }

    /// Moves a thread as the operator.
    pub fn operator_moves(&self, thread: &ThreadRef, to: &CgroupPath) {
        self.operator_sets(thread, |thread| thread.place = to.clone());
    }

    /// Moves a cgroup into the idle class, or out of it, as the operator.
    pub fn operator_sets_idle(&self, cgroup: &CgroupPath, idle: bool) {
        let mut inner = self.lock();
        let Inner { now, wanted, .. } = &mut *inner;
        for state in [now, wanted] {
            if let Some(cgroup) = state.cgroups.get_mut(cgroup) {
                cgroup.set_idle(idle, &self.default_text());
            }
        }
    }

    /// A cgroup's current weight.
    pub fn weight_of(&self, cgroup: &CgroupPath) -> String {
        self.lock().now.cgroups[cgroup].weight.clone()
    }

    /// Sets a cgroup's weight as the operator; has no effect in the idle class.
    pub fn operator_sets_weight(&self, cgroup: &CgroupPath, weight: &str) {
        let mut inner = self.lock();
        if inner.now.cgroups[cgroup].idle {
            return;
        }
        let Inner { now, wanted, .. } = &mut *inner;
        for state in [now, wanted] {
            let cgroup = state.cgroups.get_mut(cgroup).unwrap();
            if !cgroup.idle {
                cgroup.weight = weight.to_owned();
            }
        }
    }

    /// Changes the weight that a cgroup shows, as the kernel does in the idle class.
    pub fn has_weight(&self, cgroup: &CgroupPath, weight: &str) {
        let mut inner = self.lock();
        inner.now.cgroups.get_mut(cgroup).unwrap().weight = weight.to_owned();
    }

    /// The host as a controller.
    pub fn controller(&self) -> Box<dyn CpuController> {
        Box::new(self.clone())
    }

    /// The host's threads.
    pub fn threads(&self) -> Box<dyn Threads> {
        Box::new(self.clone())
    }

    /// Makes a change of the actuator, unless the fuse kills it.
    fn change<T>(&self, make: impl FnOnce(&mut State, &mut u64) -> T) -> T {
        let mut inner = self.lock();
        inner.asked.changes += 1;
        let Inner { now, next_id, fuse, .. } = &mut *inner;
        let Some((left, applied)) = fuse else {
            return make(now, next_id);
        };
        if *left > 0 {
            *left -= 1;
            return make(now, next_id);
        }
        if *applied {
            make(now, next_id);
        }
        drop(inner);
        // Unwinds without the message that a panic prints.
        std::panic::resume_unwind(Box::new(Crash));
    }

    fn with<T>(
        &self,
        cgroup: &CgroupPath,
        look: impl FnOnce(&Cgroup) -> T,
    ) -> Result<T, CgroupError> {
        let inner = self.lock();
        let found = inner.now.cgroups.get(cgroup).map(look);
        found.ok_or_else(|| CgroupError::Gone(cgroup.clone()))
    }

    fn has_knobs(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.with(cgroup, |_| ())?;
        let Some(above) = cgroup.parent() else {
            return Err(CgroupError::RootHasNone(Knob::Weight));
        };
        if self.with(&above, |above| above.enables)? {
            Ok(())
        } else {
            Err(controller::refused(cgroup, "no knobs without the controller"))
        }
    }
}

impl Inner {
    fn make(&mut self, cgroup: &CgroupPath, made: Cgroup) {
        self.next_id += 1;
        let made = Cgroup { id: self.next_id, ..made };
        for state in [&mut self.now, &mut self.wanted] {
            state.cgroups.insert(cgroup.clone(), made.clone());
        }
    }

    fn start(&mut self, mut thread: Thread, mut wanted: Thread) -> ThreadRef {
        let used: BTreeSet<u32> = self.now.threads.keys().copied().collect();
        let tid = (100..).find(|tid| !used.contains(tid)).unwrap();
        self.next_id += 1;
        (thread.start, wanted.start) = (self.next_id, self.next_id);
        let started = reference(tid, &thread);
        self.now.threads.insert(tid, thread);
        self.wanted.threads.insert(tid, wanted);
        started
    }
}

fn weight_text(weight: Weight) -> String {
    format!("{:.0}", weight.value())
}

fn reference(tid: u32, thread: &Thread) -> ThreadRef {
    ThreadRef { pid: thread.pid, tid: Tid(tid), start: StartTime(thread.start) }
}

fn above_ours(cgroup: &CgroupPath) -> CgroupPath {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(|c| !c.0.contains("tandem-"))
        .unwrap_or_else(CgroupPath::root)
}
