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

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob, Version};
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, StartTime, ThreadError, ThreadRef, Tid};
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

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    start: u64,
    place: CgroupPath,
    pcpus: PcpuSet,
    nice: Nice,
    slice: Option<Nanos>,
}

/// The whole host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    cgroups: BTreeMap<CgroupPath, Cgroup>,
    threads: BTreeMap<u32, Thread>,
}

struct Inner {
    now: State,
    wanted: State,
    next_id: u64,
    /// Threads that are about to end and can no longer be moved.
    stuck: BTreeSet<u32>,
    /// Remaining changes until the kill, and whether the last one takes effect.
    fuse: Option<(usize, bool)>,
}

/// A handle to the host; clones are the same host.
#[derive(Clone)]
pub struct Fake {
    version: Version,
    inner: Arc<Mutex<Inner>>,
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
            let cgroup = Cgroup {
                id,
                weight: if place == "/vms/own.scope" { "250" } else { "100" }.to_owned(),
                quota: "max 100000".to_owned(),
                idle: false,
                enables: version == Version::V1 || ["/", "/vms"].contains(&place),
            };
            cgroups.insert(path(place), cgroup);
        }
        let mut threads = BTreeMap::new();
        let homes = ["/", "/vms/own.scope", "/vms/shared", "/vms/shared", "/other/deep"];
        for (tid, home) in (100..).zip(homes) {
            let pcpus = match tid % 2 {
                0 => all_pcpus(),
                _ => [PcpuId(tid % 8)].into_iter().collect(),
            };
            let thread = Thread {
                start: u64::from(tid),
                place: path(home),
                pcpus,
                nice: Nice((tid % 3) as i8),
                slice: (tid % 2 == 0).then_some(Nanos::from_millis(7)),
            };
            threads.insert(tid, thread);
        }
        let now = State { cgroups, threads };
        let inner =
            Inner { wanted: now.clone(), now, next_id: 1000, stuck: BTreeSet::new(), fuse: None };
        Fake { version, inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A kill poisons the lock but leaves the state consistent.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A copy of this host, without a kill.
    pub fn fork(&self) -> Fake {
        let inner = self.lock();
        let copy = Inner {
            now: inner.now.clone(),
            wanted: inner.wanted.clone(),
            next_id: inner.next_id,
            stuck: inner.stuck.clone(),
            fuse: None,
        };
        Fake { version: self.version, inner: Arc::new(Mutex::new(copy)) }
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
        Some(reference(tid, thread.start))
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
        let thread = Thread {
            start: 0,
            place: place.clone(),
            pcpus: all_pcpus(),
            nice: Nice(0),
            slice: None,
        };
        self.lock().start(thread.clone(), thread)
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
        inner.make(self.version, cgroup);
    }

    /// Creates a cgroup as another process.
    pub fn make_cgroup(&self, cgroup: &CgroupPath) {
        self.lock().make(self.version, cgroup);
    }

    /// Sets a thread's affinity as the operator.
    pub fn operator_sets_affinity(&self, thread: &ThreadRef, pcpus: &PcpuSet) {
        let mut inner = self.lock();
        let Inner { now, wanted, .. } = &mut *inner;
        for state in [now, wanted] {
            state.threads.get_mut(&thread.tid.0).unwrap().pcpus = pcpus.clone();
        }
    }

    /// Sets a thread's nice value as the operator.
    pub fn operator_sets_nice(&self, thread: &ThreadRef, nice: Nice) {
        let mut inner = self.lock();
        let Inner { now, wanted, .. } = &mut *inner;
        for state in [now, wanted] {
            state.threads.get_mut(&thread.tid.0).unwrap().nice = nice;
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
            state.cgroups.get_mut(cgroup).unwrap().weight = weight.to_owned();
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
            Err(refused(cgroup, "no knobs without the controller"))
        }
    }
}

impl Inner {
    fn make(&mut self, version: Version, cgroup: &CgroupPath) {
        self.next_id += 1;
        let made = Cgroup {
            id: self.next_id,
            weight: "100".to_owned(),
            quota: "max 100000".to_owned(),
            idle: false,
            enables: version == Version::V1,
        };
        for state in [&mut self.now, &mut self.wanted] {
            state.cgroups.insert(cgroup.clone(), made.clone());
        }
    }

    fn start(&mut self, mut thread: Thread, mut wanted: Thread) -> ThreadRef {
        let used: BTreeSet<u32> = self.now.threads.keys().copied().collect();
        let tid = (100..).find(|tid| !used.contains(tid)).unwrap();
        self.next_id += 1;
        (thread.start, wanted.start) = (self.next_id, self.next_id);
        let start = thread.start;
        self.now.threads.insert(tid, thread);
        self.wanted.threads.insert(tid, wanted);
        reference(tid, start)
    }
}

fn reference(tid: u32, start: u64) -> ThreadRef {
    ThreadRef { pid: Pid(1), tid: Tid(tid), start: StartTime(start) }
}

fn above_ours(cgroup: &CgroupPath) -> CgroupPath {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .find(|c| !c.0.contains("tandem-"))
        .unwrap_or_else(CgroupPath::root)
}

fn refused(cgroup: &CgroupPath, why: &str) -> CgroupError {
    CgroupError::Write {
        action: why.to_owned(),
        path: PathBuf::from(&cgroup.0),
        source: io::ErrorKind::Unsupported.into(),
        hint: "",
    }
}

impl CpuController for Fake {
    fn version(&self) -> Version {
        self.version
    }

    fn mount(&self) -> &Path {
        Path::new("/fake")
    }

    fn default_weight(&self) -> Weight {
        Weight::constant(100.0)
    }

    fn weight_range(&self) -> (Weight, Weight) {
        (Weight::constant(1.0), Weight::constant(10_000.0))
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        let inner = self.lock();
        let place = inner.now.threads.get(&thread.tid.0).map(|t| t.place.clone());
        place.ok_or_else(|| ThreadError::Gone(thread.to_string()).into())
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.with(cgroup, |cgroup| CgroupId(cgroup.id))
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        self.has_knobs(cgroup)?;
        self.with(cgroup, |cgroup| match knob {
            Knob::Weight => cgroup.weight.clone(),
            Knob::Quota => cgroup.quota.clone(),
            Knob::Idle => u8::from(cgroup.idle).to_string(),
        })
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        self.has_knobs(cgroup)?;
        if knob == Knob::Weight && self.with(cgroup, |cgroup| cgroup.idle)? {
            return Err(refused(cgroup, "no weight in the idle class"));
        }
        self.change(|state, _| {
            let cgroup = state.cgroups.get_mut(cgroup).unwrap();
            match knob {
                Knob::Weight => cgroup.weight = text.to_owned(),
                Knob::Quota => cgroup.quota = text.to_owned(),
                // sched_group_set_idle of the kernel: the class resets the weight.
                Knob::Idle if cgroup.idle != (text == "1") => {
                    cgroup.idle = text == "1";
                    cgroup.weight = if cgroup.idle { "3" } else { "100" }.to_owned();
                }
                Knob::Idle => {}
            }
        });
        Ok(())
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.with(cgroup, |_| String::new())
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.lock();
        let threads = inner.now.threads.iter().filter(|(_, t)| t.place == *cgroup);
        Ok(threads.map(|(&tid, _)| Tid(tid)).collect())
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        let empty = CpuController::threads(self, cgroup)?.is_empty();
        Ok(if empty { vec![] } else { vec![Pid(1)] })
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.lock();
        let all = inner.now.cgroups.keys();
        Ok(all.filter(|c| c.parent().as_ref() == Some(cgroup)).cloned().collect())
    }

    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.lock();
        if inner.stuck.contains(&tid.0) || !inner.now.threads.contains_key(&tid.0) {
            return Err(CgroupError::ThreadGone(tid));
        }
        drop(inner);
        self.change(|state, _| {
            state.threads.get_mut(&tid.0).unwrap().place = cgroup.clone();
        });
        Ok(())
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        match parent.name() {
            "deep" => Err(CgroupError::NotThreadable {
                parent: parent.clone(),
                reason: "as some cgroups".to_owned(),
            }),
            _ => self.with(parent, |_| ()),
        }
    }

    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        self.with(parent, |_| ())?;
        let child = parent.child(name);
        if self.exists(&child) {
            return Err(CgroupError::Exists(child));
        }
        // Some creations fail at the last moment.
        if parent.name() == "own.scope" && name.ends_with('3') {
            return Err(refused(&child, "make"));
        }
        self.change(|state, next_id| {
            *next_id += 1;
            let cgroup = Cgroup {
                id: *next_id,
                weight: "100".to_owned(),
                quota: "max 100000".to_owned(),
                idle: false,
                enables: self.version == Version::V1,
            };
            state.cgroups.insert(child.clone(), cgroup);
        });
        Ok(child)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        if !self.exists(cgroup) {
            return Ok(());
        }
        let threads = CpuController::threads(self, cgroup)?.len();
        let children = self.children(cgroup)?.len();
        if threads + children > 0 {
            return Err(CgroupError::Busy {
                cgroup: cgroup.clone(),
                held: format!("{threads} threads, {children} cgroups"),
            });
        }
        self.change(|state, _| state.cgroups.remove(cgroup));
        Ok(())
    }

    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        let mut missing = Vec::new();
        for above in cgroup.ancestors() {
            if !self.with(&above, |cgroup| cgroup.enables)? {
                missing.push(above);
            }
        }
        Ok(missing)
    }

    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.with(cgroup, |_| ())?;
        self.change(|state, _| state.cgroups.get_mut(cgroup).unwrap().enables = true);
        Ok(())
    }

    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        if !self.with(cgroup, |cgroup| cgroup.enables)? {
            return Ok(());
        }
        for child in self.children(cgroup)? {
            let is_set = |c: &Cgroup| {
                let default = c.weight == "100" && c.quota == "max 100000" && !c.idle;
                !default || (self.version == Version::V2 && c.enables)
            };
            if self.with(&child, is_set)? {
                return Err(CgroupError::InUse { cgroup: cgroup.clone(), user: child.to_string() });
            }
        }
        self.change(|state, _| state.cgroups.get_mut(cgroup).unwrap().enables = false);
        Ok(())
    }
}

impl Threads for Fake {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        let inner = self.lock();
        let found = inner.now.threads.get(&thread.tid.0);
        found.is_some_and(|found| found.start == thread.start.0)
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        let inner = self.lock();
        let pcpus = inner.now.threads.get(&tid.0).map(|t| t.pcpus.clone());
        pcpus.ok_or(AffinityError::Gone(tid))
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        if pcpus.is_empty() {
            return Err(AffinityError::Empty(tid));
        }
        if !self.lock().now.threads.contains_key(&tid.0) {
            return Err(AffinityError::Gone(tid));
        }
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().pcpus = pcpus.clone());
        Ok(())
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        let inner = self.lock();
        let thread = inner.now.threads.get(&tid.0);
        thread.map(|t| t.nice).ok_or(SchedAttrError::Gone(tid))
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        self.nice(tid)?;
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().nice = nice);
        Ok(())
    }

    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        let inner = self.lock();
        let thread = inner.now.threads.get(&tid.0);
        thread.map(|t| t.slice).ok_or(SchedAttrError::Gone(tid))
    }

    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
        self.slice(tid)?;
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().slice = slice);
        Ok(())
    }
}
