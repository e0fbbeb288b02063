//! What a simulation measured, after its warm-up. Times are ns; everything is an integer, so that
//! results can be compared byte by byte.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_model::states::interval::Interval;

/// Where a vCPU's time on a pCPU went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VcpuTime {
    /// Threads computing, in user space or in the kernel.
    pub useful: Nanos,
    /// Threads spinning for a lock or barrier in user space.
    pub spin_user: Nanos,
    /// Threads spinning for a lock in the guest kernel.
    pub spin_kernel: Nanos,
    /// Waiting for other vCPUs to flush their TLBs.
    pub shootdown_wait: Nanos,
    /// The guest kernel's own work: switches, wake-ups, system calls, interrupts.
    pub guest_kernel: Nanos,
    /// VM exits and entries, with what the hypervisor does between them.
    pub exits: Nanos,
    /// Refilling caches after switches and migrations.
    pub cache: Nanos,
    /// The guest's idle loop polling.
    pub idle_poll: Nanos,
}

impl VcpuTime {
    /// All of it.
    pub fn total(&self) -> Nanos {
        [
            self.useful,
            self.spin_user,
            self.spin_kernel,
            self.shootdown_wait,
            self.guest_kernel,
            self.exits,
            self.cache,
            self.idle_poll,
        ]
        .into_iter()
        .sum()
    }
}

/// A distribution of times: count, sum, largest, and counts by power of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: Nanos,
    /// The largest.
    pub max: Nanos,
    /// `buckets[i]`: how many were in 2^(i−1) … 2^i − 1 ns (the first: 0 ns).
    pub buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { count: 0, sum: Nanos::ZERO, max: Nanos::ZERO, buckets: vec![0; 65] }
    }
}

impl Histogram {
    /// Counts one time in ns.
    #[inline]
    pub fn add(&mut self, time: u64) {
        self.count += 1;
        self.sum += Nanos(time);
        self.max = self.max.max(Nanos(time));
        self.buckets[(u64::BITS - time.leading_zeros()) as usize] += 1;
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mean; `None` if there are none.
    pub fn mean(&self) -> Option<Nanos> {
        (self.count > 0).then(|| Nanos(self.sum.0 / self.count))
    }

    /// The upper bound of the bucket that holds the given quantile (0 … 1), at most the largest.
    pub fn quantile(&self, quantile: f64) -> Option<Nanos> {
        let wanted = ((self.count as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (bits, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let bound = (1u64.checked_shl(bits as u32).unwrap_or(0)).wrapping_sub(1);
                return Some(Nanos(bound).min(self.max));
            }
        }
        None
    }
}

/// What happened how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Pause-loop exits.
    pub ple_exits: u64,
    /// Cycles spun before those exits: the sum of the windows in force.
    pub ple_window_cycles: u64,
    /// What those exits cost, exit to entry, the switch included, ns.
    pub ple_handling_ns: u64,
    /// Directed yields that switched to another vCPU.
    pub yields: u64,
    /// Pause-loop exits that found nobody to yield to.
    pub useless_searches: u64,
    /// HLT exits.
    pub halts: u64,
    /// Halts that ended while the host still polled.
    pub halt_polls_hit: u64,
    /// Rescheduling IPIs sent.
    pub reschedule_ipis: u64,
    /// TLB-flush IPIs sent.
    pub shootdown_ipis: u64,
    /// TLB flushes asked for.
    pub shootdowns: u64,
    /// Switches between threads in the guest.
    pub thread_switches: u64,
    /// Threads that gave up their vCPU of their own accord.
    pub voluntary_switches: u64,
    /// Threads moved between vCPUs.
    pub thread_migrations: u64,
    /// Switches of vCPUs on pCPUs.
    pub vcpu_switches: u64,
    /// Swaps of two vCPUs that FlexS made.
    pub swaps: u64,
    /// vCPUs moved between pCPUs.
    pub vcpu_migrations: u64,
    /// vCPUs preempted while a thread on them held a spin lock.
    pub holder_preemptions: u64,
    /// vCPUs preempted while a thread on them spun.
    pub waiter_preemptions: u64,
    /// Spin locks taken.
    pub locks: u64,
    /// Those that were not free.
    pub contended: u64,
}

/// Who waited for whom: `running[w][h]` is how long vCPU w waited for vCPU h while h was on a pCPU,
/// `off[w][h]` while h waited for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitMatrix {
    /// The other was on a pCPU.
    pub running: Vec<Vec<Nanos>>,
    /// The other was off its pCPU.
    pub off: Vec<Vec<Nanos>>,
}

impl WaitMatrix {
    /// All time in it: with the other on a pCPU, and off it.
    pub fn total(&self) -> (Nanos, Nanos) {
        let sum = |rows: &[Vec<Nanos>]| rows.iter().flatten().copied().sum();
        (sum(&self.running), sum(&self.off))
    }
}

/// What the vCPUs of a VM waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// For spin locks, by the holder's vCPU.
    pub locks: WaitMatrix,
    /// For spin locks that nobody held, by waiter: those who waited were off their pCPUs.
    pub free: Vec<Nanos>,
    /// For answers to TLB flushes, by who had to answer.
    pub flushes: WaitMatrix,
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VcpuResults {
    /// Time on pCPUs, by what for.
    pub ran: VcpuTime,
    /// Runnable without a pCPU.
    pub steal: Nanos,
    /// Halted (the host's polling for it included).
    pub halted: Nanos,
}

/// One role of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoleResults {
    /// Its name.
    pub name: String,
    /// How many threads.
    pub threads: u32,
    /// Units of work they did.
    pub work: u64,
    /// Time computing, all threads together.
    pub computed: Nanos,
    /// When its last thread ended, since the VM's start; `None`: one still runs.
    pub finished: Option<Nanos>,
}

/// What Gleaner chose in a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AgentChoice {
    /// When, since the simulation began.
    pub at: Nanos,
    /// vCPUs that the workload uses from then on.
    pub vcpus: u32,
    /// For how long an idle one of them is kept awake.
    pub retention: Nanos,
}

/// One VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmResults {
    /// Its name.
    pub name: String,
    /// Units of work done.
    pub work: u64,
    /// When its last thread ended, since its start; `None`: it still runs.
    pub finished: Option<Nanos>,
    /// CPU time received by all vCPUs.
    pub received: Nanos,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuResults>,
    /// Its roles.
    pub roles: Vec<RoleResults>,
    /// What happened how often.
    pub counts: Counts,
    /// When the VM's pause-loop window, set by APLE, became how many cycles, since the simulation began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<(Nanos, u32)>,
    /// What Gleaner changed, where it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gleaner: Vec<AgentChoice>,
    /// A request comes (`"request"` in a program) → its unit of work is done, from when the device, timer or period that its thread waited for was due.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub request_time: Histogram,
    /// A thread is woken by another, or the timer or device that it sleeps for is due → it runs. With an interrupt that waits for a preempted vCPU.
    pub wake_latency: Histogram,
    /// Sending a rescheduling or TLB-flush IPI → the receiver handles it.
    pub ipi_latency: Histogram,
    /// Asking for a TLB flush → all have answered.
    pub shootdown_latency: Histogram,
    /// Waiting for spin locks that were not free.
    pub lock_wait: Histogram,
    /// Who waited for whom, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// One pCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PcpuResults {
    /// Running vCPUs.
    pub busy: Nanos,
    /// Polling for a halted vCPU.
    pub polling: Nanos,
    /// Idle.
    pub idle: Nanos,
}

/// Where the time of vCPUs went and who waited for whom, as a source on a live host would answer. VMs have their numbers in the scenario,
/// from 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observed {
    /// [`Observed::SCHEMA`].
    pub schema: u32,
    /// The time that was measured.
    #[serde(flatten)]
    pub interval: Interval,
}

impl Observed {
    /// The version of its form in JSON: raised when a field changes its meaning or goes; fields may be added.
    pub const SCHEMA: u32 = 1;
}

/// Everything measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Results {
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// How long was measured: the duration less the warm-up, or until the last thread ended.
    pub measured: Nanos,
    /// Events handled, warm-up included.
    pub events: u64,
    /// The VMs.
    pub vms: Vec<VmResults>,
    /// The pCPUs.
    pub pcpus: Vec<PcpuResults>,
    /// Where the time of vCPUs went and who waited for whom, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// Energy of all pCPUs in millijoules, by the costs' active, polling and idle power.
    pub energy_mj: u64,
}

impl Results {
    /// The useful run time of a VM per second of simulated time. `None` if there is no such VM.
    pub fn throughput(&self, vm: &str) -> Option<f64> {
        let vm = self.vms.iter().find(|one| one.name == vm)?;
        let useful: Nanos = vm.vcpus.iter().map(|vcpu| vcpu.ran.useful).sum();
        Some(useful.as_secs_f64() / self.measured.as_secs_f64().max(f64::MIN_POSITIVE))
    }
}
