//! Results of a simulation, measured after its warm-up.
//!
//! Times are ns; all values are integers, so that results can be compared byte by byte.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_model::states::interval::Interval;

/// A vCPU's time on pCPUs, by purpose.
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
    /// VM exits and entries, with the hypervisor's work between them.
    pub exits: Nanos,
    /// Refilling caches after switches and migrations.
    pub cache: Nanos,
    /// The guest's idle loop polling.
    pub idle_poll: Nanos,
}

impl VcpuTime {
    /// Total time on pCPUs.
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

/// A distribution of times: count, sum, maximum, and counts by power of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Number of times.
    pub count: u64,
    /// Their sum.
    pub sum: Nanos,
    /// Their maximum.
    pub max: Nanos,
    /// `buckets[i]`: number of times in 2^(i−1) … 2^i − 1 ns (the first: 0 ns).
    pub buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { count: 0, sum: Nanos::ZERO, max: Nanos::ZERO, buckets: vec![0; 65] }
    }
}

impl Histogram {
    /// Adds a time in ns.
    #[inline]
    pub fn add(&mut self, time: u64) {
        self.count += 1;
        self.sum += Nanos(time);
        self.max = self.max.max(Nanos(time));
        self.buckets[(u64::BITS - time.leading_zeros()) as usize] += 1;
    }

    /// Whether it has no times.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mean; `None` if it is empty.
    pub fn mean(&self) -> Option<Nanos> {
        (self.count > 0).then(|| Nanos(self.sum.0 / self.count))
    }

    /// The upper bound of the bucket that holds the given quantile (0 … 1), limited to the maximum.
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

    /// The given quantile (0 … 1) in ns, interpolated within its power of two; `None` if it is empty.
    pub fn interpolated(&self, quantile: f64) -> Option<f64> {
        let wanted = self.count as f64 * quantile;
        let mut seen = 0.0;
        for (bits, &count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            if seen + count as f64 >= wanted {
                let end = libm::ldexp(1.0, bits as i32).min(self.max.0 as f64 + 1.0);
                let begin = if bits == 0 { 0.0 } else { libm::ldexp(1.0, bits as i32 - 1) };
                let part = ((wanted - seen) / count as f64).clamp(0.0, 1.0);
                return Some(begin + part * (end - begin).max(0.0));
            }
            seen += count as f64;
        }
        None
    }
}

/// Event counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Pause-loop exits.
    pub ple_exits: u64,
    /// Cycles spun before those exits: the sum of the windows at each exit.
    pub ple_window_cycles: u64,
    /// Cost of those exits in ns, from exit to entry, the switch included.
    pub ple_handling_ns: u64,
    /// Directed yields that switched to another vCPU.
    pub yields: u64,
    /// Pause-loop exits without a candidate to yield to.
    pub useless_searches: u64,
    /// HLT exits.
    pub halts: u64,
    /// Halts that ended while the host was polling.
    pub halt_polls_hit: u64,
    /// Rescheduling IPIs sent.
    pub reschedule_ipis: u64,
    /// TLB-flush IPIs sent.
    pub shootdown_ipis: u64,
    /// TLB flushes requested.
    pub shootdowns: u64,
    /// Switches between threads in the guest.
    pub thread_switches: u64,
    /// Voluntary context switches of threads.
    pub voluntary_switches: u64,
    /// Threads moved between vCPUs.
    pub thread_migrations: u64,
    /// Switches of vCPUs on pCPUs.
    pub vcpu_switches: u64,
    /// Swaps of two vCPUs by FlexS.
    pub swaps: u64,
    /// vCPUs moved between pCPUs.
    pub vcpu_migrations: u64,
    /// vCPUs preempted while a thread on them held a spin lock.
    pub holder_preemptions: u64,
    /// vCPUs preempted while a thread on them spun.
    pub waiter_preemptions: u64,
    /// Spin-lock acquisitions.
    pub locks: u64,
    /// Contended spin-lock acquisitions.
    pub contended: u64,
}

/// Wait times between vCPUs.
///
/// `running[w][h]` is the time that vCPU w waited for vCPU h while h was on a pCPU, `off[w][h]` while h was off its pCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitMatrix {
    /// Wait times while the other vCPU was on a pCPU.
    pub running: Vec<Vec<Nanos>>,
    /// Wait times while the other vCPU was off its pCPU.
    pub off: Vec<Vec<Nanos>>,
}

impl WaitMatrix {
    /// Sums of both matrices: the other vCPU on a pCPU, and off it.
    pub fn total(&self) -> (Nanos, Nanos) {
        let sum = |rows: &[Vec<Nanos>]| rows.iter().flatten().copied().sum();
        (sum(&self.running), sum(&self.off))
    }
}

/// Waits of a VM's vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// For spin locks, by the holder's vCPU.
    pub locks: WaitMatrix,
    /// For spin locks that are free while their waiters are off their pCPUs, by waiter.
    pub free: Vec<Nanos>,
    /// For acknowledgements of TLB flushes, by the acknowledging vCPU.
    pub flushes: WaitMatrix,
}

/// Results of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VcpuResults {
    /// Time on pCPUs, by purpose.
    pub ran: VcpuTime,
    /// Time runnable without a pCPU.
    pub steal: Nanos,
    /// Time halted, the host's polling for it included.
    pub halted: Nanos,
}

/// Results of a role of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoleResults {
    /// Its name.
    pub name: String,
    /// Number of threads.
    pub threads: u32,
    /// Units of work done.
    pub work: u64,
    /// Compute time of all threads together.
    pub computed: Nanos,
    /// Time from the VM's start to the end of its last thread; `None`: a thread still runs.
    pub finished: Option<Nanos>,
}

/// A decision of Gleaner in a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AgentChoice {
    /// Time of the decision since the start of the simulation.
    pub at: Nanos,
    /// vCPUs that the workload uses from then on.
    pub vcpus: u32,
    /// Time for which an idle one of them is kept awake.
    pub retention: Nanos,
}

/// Results of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmResults {
    /// Its name.
    pub name: String,
    /// Units of work done.
    pub work: u64,
    /// Time from its start to the end of its last thread; `None`: it still runs.
    pub finished: Option<Nanos>,
    /// CPU time received by all vCPUs.
    pub received: Nanos,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuResults>,
    /// Its roles.
    pub roles: Vec<RoleResults>,
    /// Event counts.
    pub counts: Counts,
    /// Changes of the VM's pause-loop window by APLE: time since the start of the simulation, and window in cycles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<(Nanos, u32)>,
    /// Changes by Gleaner, if it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gleaner: Vec<AgentChoice>,
    /// Time from a request (`"request"` in a program) to the end of its unit of work.
    /// It starts at the due time of the device, timer or period for which the thread waited.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub request_time: Histogram,
    /// Time from the wake-up of a thread, or the due time of its timer or device, until it runs.
    /// It includes the delay of an interrupt to a preempted vCPU.
    pub wake_latency: Histogram,
    /// Time from sending a rescheduling or TLB-flush IPI until the receiver handles it.
    pub ipi_latency: Histogram,
    /// Time from the request of a TLB flush to the last acknowledgement.
    pub shootdown_latency: Histogram,
    /// Wait times for contended spin locks.
    pub lock_wait: Histogram,
    /// Waits between vCPUs, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
}

/// Results of a pCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PcpuResults {
    /// Time running vCPUs.
    pub busy: Nanos,
    /// Time polling for a halted vCPU.
    pub polling: Nanos,
    /// Idle time.
    pub idle: Nanos,
    /// Idle time in which core scheduling kept waiting vCPUs off the pCPU (`core_sched.force_idle_usec` of cpu.stat).
    #[serde(skip_serializing_if = "is_zero")]
    pub forced_idle: Nanos,
}

fn is_zero(time: &Nanos) -> bool {
    *time == Nanos::ZERO
}

/// The vCPUs' time by state and their waits for each other, in the form of a source on a live host.
/// VMs are numbered as in the scenario, from 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Observed {
    /// [`Observed::SCHEMA`].
    pub schema: u32,
    /// The measured interval.
    #[serde(flatten)]
    pub interval: Interval,
}

impl Observed {
    /// Version of the JSON form: raised if a field is removed or changes its meaning; fields may be added.
    pub const SCHEMA: u32 = 1;
}

/// Results of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Results {
    /// The scenario's name.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Measured time: the duration less the warm-up, or until the last thread ended.
    pub measured: Nanos,
    /// Events handled, warm-up included.
    pub events: u64,
    /// The VMs.
    pub vms: Vec<VmResults>,
    /// The pCPUs.
    pub pcpus: Vec<PcpuResults>,
    /// The vCPUs' time by state and their waits for each other, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// Energy of all pCPUs in mJ, from the active, polling and idle power in the costs.
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
