//! A scenario: the machine, the host's settings, and the VMs with what runs in them.
//!
//! These are the settings as the simulator uses them, all checked. They are read from TOML by
//! [`load`].

mod agent;
mod host;
pub mod load;
mod machine;
mod place;
mod policies;
pub(crate) mod read;
mod set;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
pub(crate) mod units;
mod vm;

use serde::Serialize;
use tandem_model::{Nanos, PcpuSet, PolicySet, Weight};
use tandem_policy::FlexSConfig;
use tandem_policy::host::{ControllerConfig, WeightKnob};

use crate::host::HostConfig;
use crate::machine::{Costs, TimerSteals};
use crate::sched::fair::Discipline;
use crate::workload::{SpinKind, Workload};

pub use agent::{Agent, Control, Remedies};

/// A whole experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line on what it shows.
    pub about: String,
    /// The seed of every random stream.
    pub seed: u64,
    /// How long is simulated at most, warm-up included.
    pub duration: Nanos,
    /// What happens before this is not counted.
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
    /// Whether VMs run under a hypervisor, or the one "VM" is the machine itself.
    pub mode: Mode,
    /// What things cost.
    pub costs: Costs,
    /// What the host's work for timers takes, as it was measured, in place of [`Costs::timer_steal`]. Files of scenarios have no key for it.
    #[serde(skip_serializing_if = "TimerSteals::is_empty")]
    pub timer_steals: TimerSteals,
}

/// With or without a hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// VMs under KVM.
    Virtual,
    /// One operating system on the machine itself: the scenario's only VM has one vCPU for each
    /// pCPU, which never leaves it, and exits cost nothing.
    Native,
}

/// Tandem's policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Policies {
    /// Those of the host's controller, the same code as in the daemon.
    pub host: HostPolicies,
    /// FlexS.
    pub flexs: Option<FlexSConfig>,
}

/// The controller of the host and the knob for weights that it has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostPolicies {
    /// Its settings; no policy and nothing is controlled.
    pub controller: ControllerConfig,
    /// What the knob for weights takes.
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

/// One VM (or several alike).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// How many vCPUs.
    pub vcpus: u32,
    /// Its weight on the host; 1024 is the usual one.
    pub weight: Weight,
    /// The weight of each vCPU within the VM; empty: 1024 each.
    pub vcpu_weights: Vec<u32>,
    /// Where each vCPU may run; empty: anywhere.
    pub pins: Vec<PcpuSet>,
    /// The host's policies that may act on it, if not those that act on every VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicySet>,
    /// The pCPU of each vCPU when it starts; empty: spread over those where they may run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub begins_on: Vec<u32>,
    /// When it starts.
    pub starts: Nanos,
    /// When it gets or loses vCPUs, and how many it has from then on: the first ones. In order of time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hotplug: Vec<(Nanos, u32)>,
    /// The guest's kernel.
    pub guest: Guest,
    /// What it runs.
    pub workload: Workload,
    /// Its threads "per vcpu" are for so many vCPUs, if not for those it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sized_for: Option<u32>,
}

impl Vm {
    /// As many vCPUs as the workload's threads "per vcpu" are for.
    pub fn sized_for(&self) -> u32 {
        self.sized_for.unwrap_or(self.vcpus)
    }
}

/// Settings of a guest kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guest {
    /// The guest scheduler.
    pub scheduler: Discipline,
    /// What an idle vCPU does.
    pub idle: IdleLoop,
    /// How far the clock tick is apart; 4 ms at HZ=250.
    pub tick: Nanos,
    /// How TLBs of other vCPUs are flushed.
    pub tlb: TlbFlush,
    /// Whether idle vCPUs are asked to flush, too.
    pub idle_tlb: IdleTlb,
    /// How vCPUs interrupt each other.
    #[serde(skip_serializing_if = "is_cluster")]
    pub apic: Apic,
    /// How the lock of an address space is waited for.
    pub mm_lock: MmLock,
    /// Whether page faults and giving memory back take that lock for reading, instead of alone as changes do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mm_readers: bool,
    /// How the kernel's own spin locks are built, those of futexes, queues and a spinning `mm_lock`.
    #[serde(skip_serializing_if = "is_queued")]
    pub spin_locks: SpinKind,
    /// Whether the guest's scheduler leaves stolen time out of what a thread ran.
    pub steal_clock: bool,
    /// Whether the guest balances load between its vCPUs.
    pub balance: bool,
    /// Whether each thread is pinned to a vCPU of its own, in turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_thread: bool,
    /// For how long at most a thread is held back whose wake-up would end an idle period; zero: not at all.
    #[serde(skip_serializing_if = "is_zero")]
    pub wake_delay: Nanos,
    /// Gleaner, if it runs there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
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

/// What a vCPU does that has no thread to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleLoop {
    /// HLT: an exit to the hypervisor.
    Halt,
    /// Poll for ever (`idle=poll`).
    Poll,
    /// Poll up to this long, then halt (the haltpoll cpuidle governor: this is
    /// `guest_halt_poll_ns`, adapted downwards as the governor does).
    HaltPoll(Nanos),
}

/// How a VM's interrupt controllers are addressed, which decides how many vCPUs one write, and one exit, reaches. Without a
/// hypervisor it is always [`Apic::Cluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Apic {
    /// x2APIC with logical addresses: one write for up to 16 vCPUs, as on a machine that remaps interrupts.
    Cluster,
    /// xAPIC: one write for all vCPUs of a VM that has up to eight; in larger ones, whose addresses are physical, one for each vCPU
    /// (arch/x86/kernel/apic/ipi.c, `default_send_IPI_mask_sequence_phys`).
    Xapic,
    /// x2APIC with physical addresses, as in KVM guests without remapping of interrupts: one write for each vCPU
    /// (arch/x86/kernel/apic/apic.c, `try_to_enable_x2apic`; x2apic_phys.c).
    X2apic,
    /// As [`Apic::X2apic`], and interrupts are posted: who receives them does not exit, whatever the host's `apicv` is.
    Posted,
}

impl Apic {
    /// How many vCPUs of a VM that has so many are reached by one write.
    pub fn receivers(self, vcpus: u32) -> u32 {
        match self {
            Apic::Cluster => 16,
            Apic::Xapic if vcpus <= 8 => 8,
            Apic::Xapic | Apic::X2apic | Apic::Posted => 1,
        }
    }
}

/// Whether a TLB flush concerns idle vCPUs, whose TLB still holds the address space (lazy TLB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleTlb {
    /// They are left out and flush when they have a thread again, as from Linux 4.20 on.
    LeftOut,
    /// The first flush after a vCPU became idle asks it, and wakes it for that; then it has left the
    /// address space, as before.
    Asked,
}

/// How the lock of an address space is waited for (the kernel's rw_semaphore, taken for writing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MmLock {
    /// Waiters block; a free lock goes to whoever comes first, as from Linux 3.9 on.
    Stealing,
    /// Waiters block; who lets go hands the lock over to the longest waiter, which owns it while it
    /// is still being woken, as up to Linux 3.8.
    HandedOver,
    /// Waiters spin in the kernel as long as the owner runs, as from Linux 3.16 on.
    Spinning,
}

/// How TLBs of other vCPUs are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbFlush {
    /// An IPI to every vCPU that uses the address space, and a wait for all.
    Ipi,
    /// Upstream's KVM_FEATURE_PV_TLB_FLUSH: preempted vCPUs are only marked and flush when they run
    /// again; running ones get the IPI.
    Paravirtual,
    /// Tandem's: one hypercall; the hypervisor sends a physical IPI to each pCPU that runs a vCPU of the VM,
    /// the other vCPUs are flushed before they run again.
    Hypercall,
}
