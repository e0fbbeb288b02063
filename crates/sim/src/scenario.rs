//! A scenario: the machine, the host's settings, and the VMs with their workloads.
//!
//! The settings are checked and in the form that the simulator uses; [`load`] reads them from TOML.

mod agent;
mod governor;
mod host;
pub mod load;
mod machine;
mod policies;
#[cfg(test)]
mod tests;
mod vm;

use serde::{Deserialize, Serialize};
use tandem_model::{Layout, Nanos, PcpuSet, PolicySet, Topology, Weight};
use tandem_policy::FlexSConfig;
use tandem_policy::host::{ControllerConfig, WeightKnob};

use crate::host::HostConfig;
use crate::machine::{Costs, TimerSteals};
use crate::sched::fair::Discipline;
use crate::workload::{SpinKind, Workload};

pub use agent::{Agent, Control, Remedies};
pub use governor::GovernorConfig;

/// A whole experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line on what it shows.
    pub about: String,
    /// The seed of every random stream.
    pub seed: u64,
    /// Maximum simulated time, warm-up included.
    pub duration: Nanos,
    /// Time before the measurement starts.
    pub warmup: Nanos,
    /// The machine.
    pub machine: Machine,
    /// The host's schedulers and hypervisor.
    pub host: HostConfig,
    /// Tandem's policies that act on the host.
    pub policies: Policies,
    /// The VMs.
    pub vms: Vec<Vm>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Physical CPUs.
    pub pcpus: u32,
    /// pCPUs that share a last-level cache.
    pub pcpus_per_llc: u32,
    /// Sockets, nodes, caches, cores and threads; `None`: caches of [`Machine::pcpus_per_llc`] pCPUs, without SMT and NUMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Whether VMs run under a hypervisor, or the one "VM" is the machine itself.
    pub mode: Mode,
    /// Costs of operations.
    pub costs: Costs,
    /// Measured times of the host's work for timers, in place of [`Costs::timer_steal`]; scenario files have no key for it.
    #[serde(skip_serializing_if = "TimerSteals::is_empty")]
    pub timer_steals: TimerSteals,
}

impl Machine {
    /// The place of each pCPU.
    pub fn topology(&self) -> Topology {
        match self.layout {
            Some(layout) => layout.topology(),
            None => Topology::of_caches(self.pcpus, self.pcpus_per_llc),
        }
    }
}

/// With or without a hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// VMs under KVM.
    Virtual,
    /// One operating system on the bare machine: the only VM has a vCPU on each pCPU, never preempted, and exits are free.
    Native,
}

/// Tandem's policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Policies {
    /// Policies of the host's controller, the same code as in the daemon.
    pub host: HostPolicies,
    /// FlexS.
    pub flexs: Option<FlexSConfig>,
}

/// The host's controller and its knob for weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostPolicies {
    /// Settings of the controller; without a policy it is inactive.
    pub controller: ControllerConfig,
    /// Range and steps of the knob for weights.
    pub knob: WeightKnob,
}

impl Default for Policies {
    fn default() -> Policies {
        Policies {
            host: HostPolicies {
                controller: ControllerConfig::new(PolicySet::NONE),
                knob: WeightKnob::CGROUP_V1,
            },
            flexs: None,
        }
    }
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight on the host; the default is 1024.
    pub weight: Weight,
    /// Weight of each vCPU within the VM; empty: 1024 each.
    pub vcpu_weights: Vec<u32>,
    /// Affinity of each vCPU; empty: all pCPUs.
    pub pins: Vec<PcpuSet>,
    /// Policies of the host for this VM; `None`: those for all VMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicySet>,
    /// Initial pCPU of each vCPU; empty: spread over the allowed pCPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub begins_on: Vec<u32>,
    /// Start time.
    pub starts: Nanos,
    /// Changes of the number of online vCPUs, the first ones, in order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hotplug: Vec<(Nanos, u32)>,
    /// The guest's kernel.
    pub guest: Guest,
    /// Its workload.
    pub workload: Workload,
    /// Number of vCPUs for which threads "per vcpu" are counted; `None`: `vcpus`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sized_for: Option<u32>,
}

impl Vm {
    /// Number of vCPUs for which threads "per vcpu" are counted.
    pub fn sized_for(&self) -> u32 {
        self.sized_for.unwrap_or(self.vcpus)
    }
}

/// Settings of a guest kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guest {
    /// The guest scheduler.
    pub scheduler: Discipline,
    /// Idle loop.
    pub idle: IdleLoop,
    /// Period of the clock tick; 4 ms at HZ=250.
    pub tick: Nanos,
    /// Method of flushing other vCPUs' TLBs.
    pub tlb: TlbFlush,
    /// Whether TLB flushes include idle vCPUs.
    pub idle_tlb: IdleTlb,
    /// Interrupt controllers.
    #[serde(skip_serializing_if = "is_cluster")]
    pub apic: Apic,
    /// Implementation of the address-space lock.
    pub mm_lock: MmLock,
    /// Whether page faults and memory discards take that lock for reading, instead of for writing as changes do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mm_readers: bool,
    /// Kind of the kernel's own spin locks: those of futexes, queues and a spinning `mm_lock`.
    #[serde(skip_serializing_if = "is_queued")]
    pub spin_locks: SpinKind,
    /// Whether the guest's scheduler subtracts steal time from a thread's run time.
    pub steal_clock: bool,
    /// Whether the guest balances load between its vCPUs.
    pub balance: bool,
    /// Whether threads are pinned to vCPUs, round robin.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_thread: bool,
    /// Maximum delay of a wake-up that would end an idle period; zero: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub wake_delay: Nanos,
    /// Gleaner, if it runs in the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The kernel's steal governor, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<GovernorConfig>,
}

fn is_zero(time: &Nanos) -> bool {
    *time == Nanos::ZERO
}

fn is_cluster(apic: &Apic) -> bool {
    *apic == Apic::Cluster
}

fn is_queued(kind: &SpinKind) -> bool {
    *kind == SpinKind::Queued
}

/// Idle loop of a vCPU without a runnable thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleLoop {
    /// HLT: an exit to the hypervisor.
    Halt,
    /// Poll without end (`idle=poll`).
    Poll,
    /// Poll for at most this time, then halt: `guest_halt_poll_ns` of the haltpoll cpuidle governor, adapted downwards as the governor does.
    HaltPoll(Nanos),
}

/// Addressing of a VM's interrupt controllers, which decides how many vCPUs one write, and one exit, reaches.
/// Without a hypervisor it is always [`Apic::Cluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Apic {
    /// x2APIC with logical addresses: one write for up to 16 vCPUs, as on a machine with interrupt remapping.
    Cluster,
    /// xAPIC: one write for all vCPUs of a VM with at most eight.
    /// Larger VMs use physical addresses: one write for each vCPU (arch/x86/kernel/apic/ipi.c, `default_send_IPI_mask_sequence_phys`).
    Xapic,
    /// x2APIC with physical addresses, as in KVM guests without interrupt remapping: one write for each vCPU
    /// (arch/x86/kernel/apic/apic.c, `try_to_enable_x2apic`; x2apic_phys.c).
    X2apic,
    /// As [`Apic::X2apic`], with posted interrupts: the receiver does not exit, regardless of the host's `apicv`.
    Posted,
}

impl Apic {
    /// Maximum number of vCPUs that one write reaches in a VM of `vcpus` vCPUs.
    pub fn receivers(self, vcpus: u32) -> u32 {
        match self {
            Apic::Cluster => 16,
            Apic::Xapic if vcpus <= 8 => 8,
            Apic::Xapic | Apic::X2apic | Apic::Posted => 1,
        }
    }
}

/// Handling of idle vCPUs by a TLB flush; their TLB still holds the address space (lazy TLB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleTlb {
    /// Idle vCPUs are skipped and flush when they next run a thread, as since Linux 4.20.
    LeftOut,
    /// The first flush after a vCPU became idle interrupts it; then it has left the address space, as before 4.20.
    Asked,
}

/// Implementation of the address-space lock (the kernel's rw_semaphore, taken for writing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MmLock {
    /// Waiters block; the first thread that arrives takes a free lock, as since Linux 3.9.
    Stealing,
    /// Waiters block; the lock is handed over to the longest waiter, which owns it while it is still being woken, as up to Linux 3.8.
    HandedOver,
    /// Waiters spin in the kernel while the owner runs, as since Linux 3.16.
    Spinning,
}

/// Method of flushing other vCPUs' TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbFlush {
    /// An IPI to every vCPU that uses the address space; the sender waits for all.
    Ipi,
    /// Upstream's KVM_FEATURE_PV_TLB_FLUSH: preempted vCPUs are marked and flush when they run again; running ones get the IPI.
    Paravirtual,
    /// Tandem's: one hypercall.
    /// The hypervisor sends a physical IPI to each pCPU that runs a vCPU of the VM; other vCPUs are flushed before they run again.
    Hypercall,
}
