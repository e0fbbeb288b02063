//! The simulated world as one value: the clock, the event queue, and all state that events change.
//!
//! Everything is held in plain vectors and addressed by number, so handlers need no search, and events allocate no memory.
//! This file holds data only; the sibling files add the behaviour, each with an `impl World` of its own.

use tandem_model::PcpuSet;

use crate::host::{AnyScheduler, HostConfig};
use crate::machine::{Costs, TimerSteals};
use crate::random::Stream;
use crate::sched::fair::FairClass;

use super::agent::SimulatedAgent;
use super::calendar::Calendar;
use super::code::Instr;
use super::core_scheduling::CoreScheduling;
use super::policy_host::Policies;
use super::rotation::Turns;
use super::smt::Smt;
use super::state::{Message, Object, Pcpu, SimulatedVm, Thread, Vcpu, Work};
use super::swapper::Swapper;
use super::trace_recorder::TraceRecorder;
use super::wait_recorder::WaitRecorder;

/// A simulation.
pub struct World {
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) now: u64,
    pub(super) end: u64,
    pub(super) warmup: u64,
    pub(super) measured_from: u64,
    pub(super) events: u64,
    pub(super) finished: bool,
    pub(super) native: bool,
    pub(super) costs: Costs,
    pub(super) timer_steals: TimerSteals,
    pub(super) steal_random: Stream,
    pub(super) config: HostConfig,
    /// Last computed pause-loop window: in cycles, and the time in ns until the exit.
    pub(super) window_cache: (u32, Option<u64>),
    pub(super) calendar: Calendar,
    pub(super) host: AnyScheduler,
    pub(super) idle_pcpus: PcpuSet,
    pub(super) pcpus: Vec<Pcpu>,
    /// On machines with SMT.
    pub(super) smt: Option<Smt>,
    pub(super) core_scheduling: Option<CoreScheduling>,
    pub(super) vms: Vec<SimulatedVm>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) threads: Vec<Thread>,
    /// The fair queues of the guests: tasks are threads, and queues are the vCPUs', by number.
    pub(super) fair: FairClass,
    pub(super) objects: Vec<Object>,
    pub(super) code: Vec<Instr>,
    pub(super) messages: Vec<Message>,
    pub(super) free_messages: Vec<u32>,
    pub(super) work: Vec<Work>,
    pub(super) work_done: usize,
    pub(super) alive: u32,
    pub(super) roles: Vec<Vec<String>>,
    pub(super) names: Vec<String>,
    pub(super) object_names: Vec<Vec<String>>,
    pub(super) weights: Vec<f64>,
    pub(super) allowed: Vec<PcpuSet>,
    pub(super) policies: Policies,
    pub(super) turns: Turns,
    pub(super) flexs: Option<Box<Swapper>>,
    /// By VM.
    pub(super) agents: Vec<Option<Box<SimulatedAgent>>>,
    pub(super) trace: Option<TraceRecorder>,
    pub(super) waits: Option<Box<WaitRecorder>>,
    /// Whether the invariants are checked while the world runs: in debug builds, unless a test disables them.
    pub(super) checks: bool,
}
