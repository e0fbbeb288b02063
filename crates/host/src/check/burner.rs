//! Load threads of the measurements: some burn, some block.
//!
//! A [`Burner`] reads the clock in a loop.
//! Two readings further apart than [`GAP`] show that it was off the pCPU in between, and it notes when it ran again.
//! This resolves waits to some microseconds, which the kernel's accounts do not.
//! A [`Team`] computes and meets at a barrier in a loop, and so blocks in futex often.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use tandem_linux::affinity::set_affinity;
use tandem_linux::ids::{Pid, Tid};
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::ThreadRef;
use tandem_model::PcpuSet;

/// Minimum distance of two clock readings that counts as a preemption. Interrupts are shorter.
const GAP: Duration = Duration::from_micros(500);

/// Number of steps that a team member computes between two meetings: some 100 µs.
const STEPS: u64 = 100_000;

/// Result of placing a thread before it begins.
pub type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Returns the calling thread. Its start time may be unknown, and is not needed.
pub fn this_thread() -> ThreadRef {
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let pid = Pid(std::process::id());
    ThreadRef::read(&ProcFs::host(), pid, tid).unwrap_or(ThreadRef {
        pid,
        tid,
        start: tandem_linux::thread::StartTime(0),
    })
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    pcpu: AtomicU32,
    starts: Mutex<Vec<Instant>>,
}

impl Shared {
    fn starts(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread that waits, sends its TID, is placed, and begins.
fn start_placed(
    pcpus: &PcpuSet,
    place: impl FnOnce(&ThreadRef) -> Outcome,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<(ThreadRef, Sender<()>, JoinHandle<()>)> {
    let (say, told) = channel();
    let (go, may_go) = channel();
    let handle = thread::Builder::new().name("tandem-check".to_owned()).spawn(move || {
        let _ = say.send(this_thread());
        // If the sender is dropped, the thread was not placed, and ends.
        if may_go.recv().is_ok() {
            body();
        }
    })?;
    let thread = told.recv().map_err(io::Error::other)?;
    set_affinity(thread.tid, pcpus).map_err(io::Error::other)?;
    place(&thread).map_err(io::Error::other)?;
    Ok((thread, go, handle))
}

/// A thread that burns until it is dropped.
#[derive(Debug)]
pub struct Burner {
    /// The thread.
    pub thread: ThreadRef,
    shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

impl Burner {
    /// Starts a burner on these pCPUs; `place` moves it into its cgroup before it begins.
    pub fn start(pcpus: &PcpuSet, place: impl FnOnce(&ThreadRef) -> Outcome) -> io::Result<Burner> {
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        let (thread, go, handle) = start_placed(pcpus, place, move || burn(&its))?;
        let _ = go.send(());
        Ok(Burner { thread, shared, handle: Some(handle) })
    }

    /// Returns the times so far at which it ran again.
    pub fn starts(&self) -> Vec<Instant> {
        self.shared.starts().clone()
    }

    /// Clears these times.
    pub fn forget(&self) {
        self.shared.starts().clear();
    }

    /// Returns the pCPU on which it ran last.
    pub fn pcpu(&self) -> u32 {
        self.shared.pcpu.load(Ordering::Relaxed)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

fn burn(shared: &Shared) {
    let mut last = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now - last > GAP {
            shared.starts().push(now);
        }
        last = now;
        let pcpu = rustix::thread::sched_getcpu();
        shared.pcpu.store(pcpu as u32, Ordering::Relaxed);
    }
}

/// Threads that compute and wait for each other until dropped.
#[derive(Debug)]
pub struct Team {
    /// The threads.
    pub threads: Vec<ThreadRef>,
    stop: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts a member on each of these sets of pCPUs; `place` moves it into its cgroup before it begins.
    pub fn start(seats: &[PcpuSet], place: impl Fn(&ThreadRef) -> Outcome) -> io::Result<Team> {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicBool::new(false));
        let barrier = Arc::new(Barrier::new(seats.len()));
        let (mut threads, mut gates, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for seat in seats {
            let (stop, ended, barrier) = (stop.clone(), ended.clone(), barrier.clone());
            let (thread, go, handle) =
                start_placed(seat, &place, move || meet(&stop, &ended, &barrier))?;
            threads.push(thread);
            gates.push(go);
            handles.push(handle);
        }
        for go in gates {
            let _ = go.send(());
        }
        Ok(Team { threads, stop, handles })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// One member decides between the two meetings whether all end, so that no member waits for one that left.
fn meet(stop: &AtomicBool, ended: &AtomicBool, barrier: &Barrier) {
    while !ended.load(Ordering::Relaxed) {
        compute();
        if barrier.wait().is_leader() {
            ended.store(stop.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        compute();
        barrier.wait();
    }
}

fn compute() {
    for step in 0..STEPS {
        black_box(step);
    }
}
