//! The simulator's thread programs as threads of the running kernel.
//!
//! Each thread interprets the same list of operations as a simulated one.
//! Computing is a loop with a fixed number of turns, so a thread that loses its CPU takes longer.
//! The number of turns per ns is measured just before, on the same CPUs ([`Speed::measure`]).
//! Threads run on CPUs 0 and 1, or on the CPUs to which their role pins them.
//! Weights become nice values.
//! All threads wait at a gate before the clock starts.
//!
//! Programs that never end, and operations that need a kernel (kernel spin locks, kernel work, TLB flushes, devices),
//! are rejected before any program runs.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier as Gate, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::{gettid, set_current_timer_slack};
use tandem_linux::actuator::ActuatorError;
use tandem_linux::thread::{ThreadError, Tid};
use tandem_model::Nanos;
use tandem_sim::random::{Dist, Stream};
use tandem_sim::workload;
use tandem_sim::workload::{
    MOST_LOOPS, ObjectRef, Op, Pick, Repeat, Role, Space, Spin, Wake, Workload,
};
use thiserror::Error;

use super::cpus::{CPUS, CpuError, Speed, bind};
use super::groups::RoleRun;
use super::objects;
use super::objects::{Barrier, Object, Queue, Semaphore};
use crate::rest::Waits;

/// Weights of the nice values −20 … 19, as sched(7) and the kernel's scheduler define them.
const NICE_WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

/// Error of a real run.
#[derive(Debug, Error)]
pub enum RealError {
    /// An operation has no counterpart in user space.
    #[error(
        "workload {workload}: role {role} {what}, which has no counterpart here: use compute, locks, \
         queues, sleep, yield and loops that end"
    )]
    Operation {
        /// The workload.
        workload: String,
        /// The role.
        role: String,
        /// The operation.
        what: &'static str,
    },
    /// A role is pinned to a CPU outside the comparison.
    #[error(
        "workload {workload}: role {role} is pinned to CPU {pin}: the comparison has CPUs 0 … {last}",
        last = CPUS - 1
    )]
    Pin {
        /// The workload.
        workload: String,
        /// The role.
        role: String,
        /// The CPU.
        pin: u32,
    },
    /// A weight has no nice value.
    #[error(
        "role {role}: weight {weight} is not that of a nice value: use 1024 (nice 0), 820 (1), 335 (5), \
         110 (10) …"
    )]
    Weight {
        /// The role.
        role: String,
        /// The weight.
        weight: u32,
    },
    /// A barrier's kind is not supported.
    #[error(
        "workload {0}: barriers whose waiters spin for a while, or wake each other, have no \
         counterpart here: use wait = \"block\" or \"spin\", and no wake"
    )]
    Barrier(String),
    /// A semaphore's kind is not supported.
    #[error("workload {0}: a semaphore whose waiters spin has no counterpart here: omit wait")]
    Semaphore(String),
    /// A queue's capacity is not a power of two.
    #[error(
        "workload {workload}: a queue of {capacity} is a pipe here, whose capacity is a power of two"
    )]
    Queue {
        /// The workload.
        workload: String,
        /// The queue's capacity.
        capacity: u32,
    },
    /// A lock is a kernel spin lock.
    #[error("workload {0}: kernel spin locks are not available to threads: use space = \"user\"")]
    KernelLock(String),
    /// A pipe cannot be created.
    #[error("cannot create a pipe: {0}")]
    Pipe(#[source] io::Error),
    /// A thread could not be bound, or panicked.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The kernel rejected a nice value.
    #[error("cannot set a thread's nice value {nice}: {source}")]
    Nice {
        /// The nice value.
        nice: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// A pipe failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread could not be moved into its cgroup.
    #[error(transparent)]
    Place(#[from] ActuatorError),
    /// A thread cannot be read.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

/// End time of the last thread of each role.
pub type Finished = Vec<Duration>;

/// Hook that runs before the clock starts.
pub trait Settled {
    /// All threads, by workload, are bound and wait at the gate.
    fn settled(&mut self, threads: &[Vec<Tid>]) -> Result<(), RealError>;
}

/// An empty hook.
pub struct Nothing;

impl Settled for Nothing {
    fn settled(&mut self, _: &[Vec<Tid>]) -> Result<(), RealError> {
        Ok(())
    }
}

/// Rejects workloads that cannot run here.
pub fn check(workload: &Workload) -> Result<(), RealError> {
    for role in &workload.roles {
        nice(role)?;
        for op in &role.program {
            let what = match op {
                Op::ComputeKernel(_) => "computes in the kernel",
                Op::Unmap(_) | Op::Discard(_) => "flushes TLBs",
                Op::Fault(_) | Op::Protect(_) => "takes the lock of its address space",
                Op::Io(_) => "waits for a device",
                Op::Every(_) => "waits for periods",
                Op::Loop { repeat: Repeat::Forever, .. } => "never ends",
                Op::Loop { repeat: Repeat::Shared(_), .. } => "shares turns with other threads",
                _ => continue,
            };
            return Err(RealError::Operation {
                workload: workload.name.clone(),
                role: role.name.clone(),
                what,
            });
        }
        if let Some(&pin) = role.pins.iter().find(|&&pin| pin >= CPUS) {
            return Err(RealError::Pin {
                workload: workload.name.clone(),
                role: role.name.clone(),
                pin,
            });
        }
    }
    objects(workload).map(drop)
}

fn nice(role: &Role) -> Result<i32, RealError> {
    let found = NICE_WEIGHTS.iter().position(|&w| w == role.weight);
    found
        .map(|at| at as i32 - 20)
        .ok_or_else(|| RealError::Weight { role: role.name.clone(), weight: role.weight })
}

fn objects(workload: &Workload) -> Result<Vec<Object>, RealError> {
    let users = |index: u32| -> u32 {
        let uses = |role: &&Role| {
            role.program.iter().any(|op| match op {
                Op::Barrier(r) => (r.first..r.first + r.count).contains(&index),
                _ => false,
            })
        };
        let roles = workload.roles.iter().filter(uses);
        roles.map(|role| role.threads.count(CPUS)).sum()
    };
    let made = (0..).zip(&workload.objects).map(|(index, object)| {
        Ok(match *object {
            workload::Object::Mutex => Object::Mutex(objects::Mutex::default()),
            workload::Object::Condition => Object::Condition(0.into(), 0.into()),
            workload::Object::Barrier {
                parties,
                spin: spin @ (Spin::Never | Spin::Forever),
                wake: Wake::All,
            } => {
                let parties = parties.unwrap_or_else(|| users(index));
                Object::Barrier(Barrier::new(parties, spin == Spin::Forever))
            }
            workload::Object::Barrier { .. } => {
                return Err(RealError::Barrier(workload.name.clone()));
            }
            workload::Object::Semaphore { units, spin: false } => {
                Object::Semaphore(Semaphore::new(units))
            }
            workload::Object::Semaphore { .. } => {
                return Err(RealError::Semaphore(workload.name.clone()));
            }
            workload::Object::Queue { capacity } if capacity.is_power_of_two() => {
                Object::Queue(Queue::new(capacity).map_err(RealError::Pipe)?)
            }
            workload::Object::Queue { capacity } => {
                return Err(RealError::Queue { workload: workload.name.clone(), capacity });
            }
            workload::Object::Spin { space: Space::User, .. } => Object::Spin(false.into()),
            workload::Object::Spin { .. } => {
                return Err(RealError::KernelLock(workload.name.clone()));
            }
        })
    });
    made.collect()
}

/// Runs a workload to its end.
pub fn run(workload: &Workload, speed: Speed) -> Result<Finished, RealError> {
    let ran = run_together(&[workload], speed, &mut Nothing, false)?;
    let roles = ran.into_iter().flatten();
    Ok(roles.map(|role| Duration::from_nanos(role.finished.0)).collect())
}

/// Runs workloads at the same time until all have ended, and returns the results of each one's roles.
///
/// With `on_time` the timer slack is 1 ns instead of the kernel's default of 50 µs, which coalesces timers.
pub fn run_together(
    workloads: &[&Workload],
    speed: Speed,
    settled: &mut dyn Settled,
    on_time: bool,
) -> Result<Vec<Vec<RoleRun>>, RealError> {
    let objects: Vec<Vec<Object>> =
        workloads.iter().map(|workload| objects(workload)).collect::<Result<_, _>>()?;
    let roles = workloads.iter().flat_map(|workload| &workload.roles);
    let all: u32 = roles.map(|role| role.threads.count(CPUS)).sum();
    let gate = Gate::new(all as usize + 1);
    let tids = Mutex::new(vec![Vec::new(); workloads.len()]);
    let is_off = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut number = 0;
        for (w, (workload, objects)) in workloads.iter().zip(&objects).enumerate() {
            for (r, role) in workload.roles.iter().enumerate() {
                for own in 0..role.threads.count(CPUS) {
                    let thread = Thread {
                        role,
                        own,
                        objects,
                        speed,
                        stream: Stream::new(1, "kernel comparison", number),
                        held: Vec::new(),
                        wakes: Vec::new(),
                    };
                    number += 1;
                    let (gate, tids, is_off) = (&gate, &tids, &is_off);
                    let main = move || {
                        let ready = thread.settle(on_time);
                        let tid = Tid(gettid().as_raw_nonzero().get().unsigned_abs());
                        let known = tids.lock();
                        known.unwrap_or_else(PoisonError::into_inner)[w].push(tid);
                        gate.wait();
                        gate.wait();
                        ready?;
                        if is_off.load(Ordering::SeqCst) {
                            Ok(Ended::default())
                        } else {
                            thread.main()
                        }
                    };
                    threads.push((w, r, scope.spawn(main)));
                }
            }
        }
        gate.wait();
        let known = tids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = settled.settled(&known);
        is_off.store(outcome.is_err(), Ordering::SeqCst);
        // Gives all threads time to reach the second gate.
        std::thread::sleep(Duration::from_millis(5));
        let begin = Instant::now();
        gate.wait();
        let mut ran: Vec<Vec<RoleRun>> = workloads
            .iter()
            .map(|workload| vec![RoleRun::default(); workload.roles.len()])
            .collect();
        for (w, r, thread) in threads {
            let ended = thread.join().map_err(|_| CpuError::Panicked)??;
            let role = &mut ran[w][r];
            if let Some(at) = ended.at {
                let took = nanos(at.saturating_duration_since(begin));
                role.finished = role.finished.max(Nanos(took));
            }
            role.wakes.extend(ended.wakes);
            role.waits = role.waits.and(ended.waits);
        }
        outcome.map(|()| ran)
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Result of a thread.
#[derive(Default)]
struct Ended {
    /// End time. `None`: the program did not run.
    at: Option<Instant>,
    /// Wake-up latency after each sleep, ns.
    wakes: Vec<u64>,
    /// Waits for its CPUs.
    waits: Waits,
}

/// One thread.
struct Thread<'a> {
    role: &'a Role,
    /// Index within its role.
    own: u32,
    objects: &'a [Object],
    speed: Speed,
    stream: Stream,
    /// Locks held, newest last.
    held: Vec<usize>,
    /// Wake-up latency after each sleep, ns.
    wakes: Vec<u64>,
}

impl Thread<'_> {
    fn main(mut self) -> Result<Ended, RealError> {
        const OWN: &str = "/proc/thread-self";
        // A read error is ignored, because other threads would wait forever for a thread that ended here.
        let (begin, before) = (Instant::now(), Waits::of_task(OWN).ok());
        self.interpret()?;
        let end = Instant::now();
        let took = nanos(end.saturating_duration_since(begin));
        let after = Waits::of_task(OWN).ok();
        let waits = before.zip(after).map(|(before, after)| after.since(before, took));
        Ok(Ended { at: Some(end), wakes: self.wakes, waits: waits.unwrap_or_default() })
    }

    /// Applies the role's pins and weight to the calling thread.
    fn settle(&self, on_time: bool) -> Result<(), RealError> {
        if on_time {
            set_current_timer_slack(NonZeroU64::new(1)).map_err(io::Error::from)?;
        }
        match self.role.pins.as_slice() {
            [] => bind(0..CPUS)?,
            pins => bind([pins[self.own as usize % pins.len()]])?,
        }
        let nice = nice(self.role)?;
        if nice != 0 {
            // On Linux this changes the calling thread only.
            setpriority_process(None, nice)
                .map_err(|error| RealError::Nice { nice, source: error.into() })?;
        }
        Ok(())
    }

    fn interpret(&mut self) -> io::Result<()> {
        let mut turns = [0u32; MOST_LOOPS];
        let mut at = 0;
        while let Some(op) = self.role.program.get(at) {
            at += 1;
            match *op {
                Op::Loop { repeat, end, depth } => {
                    let done = &mut turns[usize::from(depth)];
                    if repeat == Repeat::Times(*done) {
                        *done = 0;
                        at = end as usize;
                    } else {
                        *done += 1;
                    }
                }
                Op::Again { begin } => at = begin as usize,
                Op::Exit => break,
                op => self.carry_out(op)?,
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, op: Op) -> io::Result<()> {
        match op {
            Op::Compute(dist) => {
                let time = self.draw(dist);
                self.speed.compute(time);
            }
            Op::Sleep(dist) => {
                let time = Duration::from_nanos(self.draw(dist));
                let begin = Instant::now();
                std::thread::sleep(time);
                let late = begin.elapsed().saturating_sub(time);
                self.wakes.push(nanos(late));
            }
            Op::Yield => std::thread::yield_now(),
            Op::Lock(family) => {
                let object = self.pick(family);
                match &self.objects[object] {
                    Object::Mutex(mutex) => mutex.lock(),
                    Object::Spin(lock) => {
                        while lock.swap(true, std::sync::atomic::Ordering::SeqCst) {
                            std::hint::spin_loop();
                        }
                    }
                    _ => {}
                }
                self.held.push(object);
            }
            Op::Unlock(family) => self.unlock(family),
            Op::Wait { condition, mutex } => {
                let condition = self.pick(condition);
                let held = self.newest(mutex).map(|at| self.held[at]);
                if let Object::Condition(signals, waiting) = &self.objects[condition]
                    && let Some(Object::Mutex(mutex)) = held.map(|at| &self.objects[at])
                {
                    objects::wait_condition(signals, waiting, mutex);
                }
            }
            Op::Signal(family) | Op::Broadcast(family) => {
                let object = self.pick(family);
                if let Object::Condition(signals, waiting) = &self.objects[object] {
                    let all = matches!(op, Op::Broadcast(_));
                    objects::signal(signals, waiting, if all { u32::MAX >> 1 } else { 1 });
                }
            }
            Op::Barrier(family) => {
                let object = self.pick(family);
                if let Object::Barrier(barrier) = &self.objects[object] {
                    barrier.pass();
                }
            }
            Op::Acquire(family) | Op::Release(family) => {
                let object = self.pick(family);
                if let Object::Semaphore(semaphore) = &self.objects[object] {
                    match op {
                        Op::Acquire(_) => semaphore.acquire(),
                        _ => semaphore.release(),
                    }
                }
            }
            Op::Put(family) | Op::Get(family) => {
                let object = self.pick(family);
                if let Object::Queue(queue) = &self.objects[object] {
                    match op {
                        Op::Put(_) => queue.put()?,
                        _ => queue.get()?,
                    }
                }
            }
            // `Request` and `Work` have no effect here; `interpret` handles control flow; `check` rejected the others.
            Op::Request
            | Op::Work
            | Op::ComputeKernel(_)
            | Op::Unmap(_)
            | Op::Discard(_)
            | Op::Fault(_)
            | Op::Protect(_)
            | Op::Io(_)
            | Op::Every(_)
            | Op::Loop { .. }
            | Op::Again { .. }
            | Op::Exit => {}
        }
        Ok(())
    }

    fn draw(&mut self, dist: Dist) -> u64 {
        dist.draw(&mut self.stream)
    }

    fn pick(&mut self, family: ObjectRef) -> usize {
        let count = family.count.max(1);
        let offset = match family.pick {
            Pick::Fixed(offset) => offset,
            Pick::Random => self.stream.below(count),
            Pick::Own => self.own % count,
            Pick::Next => (self.own + 1) % count,
            Pick::Peer => self.stream.below(count.min(self.role.threads.count(CPUS))),
        };
        (family.first + offset) as usize
    }

    /// Returns the index in `held` of the newest lock of a family.
    fn newest(&self, family: ObjectRef) -> Option<usize> {
        let range = family.first as usize..(family.first + family.count) as usize;
        self.held.iter().rposition(|object| range.contains(object))
    }

    fn unlock(&mut self, family: ObjectRef) {
        let Some(at) = self.newest(family) else {
            return;
        };
        match &self.objects[self.held.remove(at)] {
            Object::Mutex(mutex) => mutex.unlock(),
            Object::Spin(lock) => lock.store(false, std::sync::atomic::Ordering::SeqCst),
            _ => {}
        }
    }
}
