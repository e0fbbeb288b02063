//! The means of retention, which keeps idle vCPUs awake: the kernel's polling if available, else yielding threads.
//!
//! **Kernel.** With the haltpoll governor an idle vCPU polls for up to `guest_halt_poll_ns` before it halts; the parameter is writable at any time.
//! Polling ends at the wake-up of a thread, without a context switch, and costs nothing while the vCPU has work.
//! The agent uses it if haltpoll is the current governor.
//!
//! **Yielding threads**, as in the paper: on each vCPU a SCHED_IDLE thread calls sched_yield in a loop.
//! A call that returns at once shows that no other thread wants the vCPU.
//! When such calls add up to the retention time, the thread sleeps and lets the vCPU halt.
//! A call that took long shows that another thread ran, and starts a new idle period.
//! A sleeping thread does not notice a new idle period; it looks again a millisecond later.
//! Each wake-up on such a vCPU costs a switch from that thread.
//!
//! Sources: drivers/cpuidle/governors/haltpoll.c; Ding et al., USENIX ATC 2014, section 4.1.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use serde::{Deserialize, Serialize};
use tandem_linux::ProcFs;
use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Tid;
use tandem_model::units::PcpuId;
use tandem_model::{Nanos, PcpuSet};

use crate::actuator::{Actuator, ActuatorError};
use crate::journal::haltpoll_parameter;

/// Sleep of a yielding thread that lets its vCPU halt.
const SLEEP: Duration = Duration::from_millis(1);

/// Minimum duration of a yield during which another thread ran.
const GAVE_WAY: Duration = Duration::from_micros(20);

/// Poll interval of yielding threads while retention is off.
const RECHECK: Duration = Duration::from_millis(20);

/// The means of retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// The kernel's polling if haltpoll is the current governor, else yielding threads.
    #[default]
    Best,
    /// The kernel's polling.
    Haltpoll,
    /// SCHED_IDLE threads that yield in a loop.
    Yield,
}

/// The kernel's polling.
#[derive(Clone, Debug)]
pub struct Haltpoll {
    parameter: PathBuf,
}

impl Haltpoll {
    /// Checks for haltpoll; the error is the reason why the kernel does not poll.
    pub fn find(procfs: &ProcFs) -> Result<Haltpoll, String> {
        let parameter = haltpoll_parameter(procfs);
        let governor = procfs.resolve("/sys/devices/system/cpu/cpuidle/current_governor");
        let Ok(governor) = fs::read_to_string(governor) else {
            return Err("this kernel has no cpuidle governor".to_owned());
        };
        let governor = governor.trim();
        if governor != "haltpoll" {
            return Err(format!(
                "the cpuidle governor is '{governor}'; 'echo haltpoll > \
                 /sys/devices/system/cpu/cpuidle/current_governor' would let the kernel poll"
            ));
        }
        match fs::OpenOptions::new().write(true).open(&parameter) {
            Ok(_) => Ok(Haltpoll { parameter }),
            Err(error) => Err(format!("cannot write {}: {error}", parameter.display())),
        }
    }
}

/// State shared with a yielding thread.
#[derive(Debug, Default)]
struct Shared {
    /// Retention time, ns; zero: do not yield.
    retention: AtomicU64,
    stop: AtomicBool,
    /// Time of yields that returned at once, ns.
    burnt: AtomicU64,
}

#[derive(Debug)]
struct Yielder {
    vcpu: PcpuId,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Retention with one of its means.
#[derive(Debug)]
pub enum Retention {
    /// The kernel's polling.
    Kernel(Haltpoll),
    /// Yielding threads, one per vCPU.
    Threads(Yielders),
}

/// Yielding threads.
#[derive(Debug)]
pub struct Yielders(Vec<Yielder>);

impl Retention {
    /// Chooses the means for these vCPUs; the error is the reason why none is available.
    pub fn open(procfs: &ProcFs, means: Means, vcpus: &PcpuSet) -> Result<Retention, String> {
        let threads = || Yielders::start(vcpus).map(Retention::Threads);
        let failed = |error| format!("cannot start a yielding thread: {error}");
        match (means, Haltpoll::find(procfs)) {
            (Means::Best | Means::Haltpoll, Ok(haltpoll)) => Ok(Retention::Kernel(haltpoll)),
            (Means::Haltpoll, Err(why)) => Err(why),
            (Means::Best | Means::Yield, _) => threads().map_err(failed),
        }
    }

    /// Returns the kernel's polling, if available.
    pub fn kernel(procfs: &ProcFs) -> Result<Retention, String> {
        Haltpoll::find(procfs).map(Retention::Kernel)
    }

    /// Returns the name of the means.
    pub fn name(&self) -> &'static str {
        match self {
            Retention::Kernel(_) => "the kernel's haltpoll",
            Retention::Threads(_) => "yielding threads",
        }
    }

    /// Sets how long idle vCPUs of `active` stay awake; zero: they halt at once.
    pub fn set(
        &mut self,
        actuator: &mut Actuator,
        time: Nanos,
        active: &PcpuSet,
    ) -> Result<(), ActuatorError> {
        match self {
            Retention::Kernel(haltpoll) => {
                actuator.set_parameter(&haltpoll.parameter, &time.0.to_string())
            }
            Retention::Threads(Yielders(yielders)) => {
                for yielder in yielders {
                    let time = if active.contains(yielder.vcpu) { time.0 } else { 0 };
                    yielder.shared.retention.store(time, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// Returns the idle time that yielding threads burnt; `None` if the kernel polls, which cpuidle counts.
    pub fn burnt(&self) -> Option<Nanos> {
        match self {
            Retention::Kernel(_) => None,
            Retention::Threads(Yielders(yielders)) => {
                let burnt = yielders.iter().map(|y| y.shared.burnt.load(Ordering::Relaxed));
                Some(Nanos(burnt.sum()))
            }
        }
    }
}

impl Yielders {
    fn start(vcpus: &PcpuSet) -> io::Result<Yielders> {
        let mut yielders = Yielders(Vec::new());
        for vcpu in vcpus.iter() {
            let shared = Arc::new(Shared::default());
            let theirs = Arc::clone(&shared);
            let thread = thread::Builder::new()
                .name(format!("yield/{}", vcpu.0))
                .spawn(move || yield_while_idle(vcpu, &theirs))?;
            yielders.0.push(Yielder { vcpu, shared, thread: Some(thread) });
        }
        Ok(yielders)
    }
}

impl Drop for Yielder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Main function of a yielding thread.
fn yield_while_idle(vcpu: PcpuId, shared: &Shared) {
    let mut one = PcpuSet::default();
    one.insert(vcpu);
    // Fails if the vCPU is offline or not in the cpuset; then there is nothing to retain.
    if set_affinity(Tid(0), &one).is_err() || become_idle_class().is_err() {
        return;
    }
    let mut quiet = Duration::ZERO;
    let mut last = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let retention = Duration::from_nanos(shared.retention.load(Ordering::Relaxed));
        if retention.is_zero() {
            thread::sleep(RECHECK);
            (quiet, last) = (Duration::ZERO, Instant::now());
            continue;
        }
        thread::yield_now();
        let now = Instant::now();
        let took = now - last;
        last = now;
        if took > GAVE_WAY {
            quiet = Duration::ZERO;
            continue;
        }
        quiet += took;
        let burnt = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        shared.burnt.fetch_add(burnt, Ordering::Relaxed);
        if quiet >= retention {
            thread::sleep(SLEEP);
            (quiet, last) = (Duration::ZERO, Instant::now());
        }
    }
}

/// Sets SCHED_IDLE for the calling thread.
fn become_idle_class() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is to a sched_param that outlives the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
