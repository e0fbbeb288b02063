//! What a policy sees of a VM in one accounting period: what its vCPUs ran, how long they waited,
//! and where they may run.
//!
//! The same numbers exist on a live host (`/proc/PID/task/TID/schedstat`, affinity masks) and in a
//! simulator. Nothing here is a rate: all times are within one period of a length that is given
//! beside them.
//!
//! With what happened comes what is **in force** when the period ends: weights, idle class, nice
//! values, slices, affinities, a quota. They are read back from the host, whoever set them. So a policy needs no memory of
//! what it asked for, and a refused write, a dry run or somebody else's change cannot mislead it.
//!
//! **Hard caps.** What a quota keeps a VM off it could not have had, whatever the others do and whatever the weights. So throttled time is
//! not waiting ([`VcpuObservation::limited`]), a VM cannot use more than its quota leaves ([`VmObservation::peak`]), and a vCPU that a quota of
//! its VM throttled wants no more than it got: had it run sooner, it would have been throttled sooner. A quota above several VMs bounds
//! them together ([`Level::quota`]); within it weights divide as ever.

use serde::{Deserialize, Serialize};

use crate::accounting_group::components;
use crate::branch_counters::Counted;
use crate::pcpu_set::PcpuSet;
use crate::policy_set::PolicySet;
use crate::units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};

/// What is set for a vCPU, besides its affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VcpuSettings {
    /// The weight of a group that holds this vCPU alone; `None`: it has none.
    pub weight: Option<Weight>,
    /// Whether that group is in the idle class (`cpu.idle`).
    pub idle: bool,
    /// Its thread's nice value.
    pub nice: Nice,
    /// Its thread's own EEVDF slice; `None`: the scheduler's.
    pub slice: Option<Nanos>,
    /// Where the VM's vCPUs are apart, each in a group beside the other VMs': its part of the VM's weight, 0…1. `None`: they
    /// are in the VM's group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portion: Option<f64>,
}

/// What is set for a VM as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSettings {
    /// Its real-time weight r_i.
    pub weight: Weight,
    /// Whether its group is in the idle class (`cpu.idle`).
    #[serde(default)]
    pub idle: bool,
    /// The most that quotas of its own leave it, in pCPUs: that of its cgroup and those of cgroups below, as of single vCPUs. `None`: it has none. Those
    /// above are in [`VmObservation::levels`].
    #[serde(default)]
    pub quota: Option<f64>,
    /// Whether it takes turns. Then it is in and out of the idle class all the time, and `idle` is false.
    #[serde(default)]
    pub rotating: bool,
    /// Whether it began to sleep since the last observation and takes no turns any more for that.
    #[serde(default)]
    pub left_turns: bool,
}

impl VmSettings {
    /// Nothing but a weight.
    pub fn new(weight: Weight) -> VmSettings {
        VmSettings { weight, idle: false, quota: None, rotating: false, left_turns: false }
    }
}

/// A cgroup above a VM's that divides time among what is in it: the hierarchy's root and cgroups without the cpu controller divide none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Which: another number for each cgroup.
    pub group: u32,
    /// Its weight among its siblings.
    pub weight: Weight,
    /// Its hard cap, in pCPUs; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<f64>,
}

/// A vCPU that was throttled for more than this part of a period used up its quota.
const HELD: f64 = 0.05;
/// Who received this part of what a quota leaves has all of it: a kernel hands quotas out in slices, and a part of those stays unused.
const NEARLY_ALL: f64 = 0.9;

/// What a hard cap, in pCPUs, leaves of what somebody could use who received so much. One that received more than that is not what the cap is
/// taken for: it was changed since it was read, or lets bursts through.
pub fn under_quota(most: Nanos, quota: Option<f64>, period: Nanos, received: Nanos) -> Nanos {
    let Some(quota) = quota else {
        return most;
    };
    let left = quota * period.0 as f64;
    match received.0 as f64 >= NEARLY_ALL * left {
        true => most.min(received),
        false => most.min(Nanos(left as u64)),
    }
}

fn is_nothing(time: &Nanos) -> bool {
    *time == Nanos::ZERO
}

/// One vCPU in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuObservation {
    /// Which vCPU of its VM.
    pub vcpu: VcpuId,
    /// The pCPUs it may run on: the affinity in force.
    pub allowed: PcpuSet,
    /// Where the operator lets it run, if a policy has narrowed that; `None`: that is what is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<PcpuSet>,
    /// Where its cpuset lets it run, whatever its affinity; `None`: nothing is known that keeps it from anywhere. Only read for policies that swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<PcpuSet>,
    /// What else is in force.
    #[serde(default)]
    pub in_force: VcpuSettings,
    /// CPU time received.
    pub ran: Nanos,
    /// Time runnable without running (steal time, as the guest sees it), but for what a quota kept it off.
    pub waited: Nanos,
    /// Time runnable in which a quota kept it off, its VM's or one above. Of one that neither ran nor waited and is runnable: so much of the
    /// wait that goes on.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub limited: Nanos,
    /// How often it was put on a pCPU, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u64>,
    /// The pCPU where it ran last, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcpu: Option<PcpuId>,
    /// Its siblings that woke it in the period, where that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub woken_by: Vec<VcpuId>,
    /// What its branch counters counted, where they are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<Counted>,
    /// Whether it was runnable when the period ended. Kernels count a wait only once it is over, so
    /// a vCPU that never ran in the period shows no wait at all; this tells it from a sleeper.
    pub runnable: bool,
}

impl VcpuObservation {
    /// A vCPU that did nothing in the period, with nothing set but its affinity.
    pub fn new(vcpu: VcpuId, allowed: PcpuSet) -> VcpuObservation {
        VcpuObservation {
            vcpu,
            allowed,
            granted: None,
            cpuset: None,
            in_force: VcpuSettings::default(),
            ran: Nanos::ZERO,
            waited: Nanos::ZERO,
            limited: Nanos::ZERO,
            runs: None,
            pcpu: None,
            woken_by: Vec::new(),
            branches: None,
            runnable: false,
        }
    }

    /// Where it runs, if that is known: the only pCPU where it may, or the one where it ran last.
    pub fn position(&self) -> Option<PcpuId> {
        let mut allowed = self.allowed.iter();
        match (allowed.next(), allowed.next()) {
            (Some(only), None) => Some(only),
            _ => self.pcpu,
        }
    }

    /// Where the operator lets it run.
    pub fn granted(&self) -> &PcpuSet {
        self.granted.as_ref().unwrap_or(&self.allowed)
    }

    /// Whether its cpuset lets it run there, as far as is known.
    pub fn reaches(&self, pcpu: PcpuId) -> bool {
        let cpuset = self.cpuset.as_ref();
        cpuset.is_none_or(|cpuset| cpuset.contains(pcpu))
    }

    /// Where it runs outside of turns: where the operator lets it, or, if that is one pCPU, the one where it is now. A seat in turns does not
    /// move a pinned vCPU; a policy that the operator allows to move pins may have.
    pub fn home(&self) -> &PcpuSet {
        match self.granted().len() {
            1 => &self.allowed,
            _ => self.granted(),
        }
    }

    /// Whether it waits all along: a kernel counts no wait that is not over.
    pub fn is_starved(&self) -> bool {
        self.ran + self.waited == Nanos::ZERO && self.runnable
    }

    /// For how long it wanted a pCPU and could have had one, whatever of that was in periods before.
    pub fn wanted(&self, period: Nanos) -> Nanos {
        if self.is_starved() { period.saturating_sub(self.limited) } else { self.ran + self.waited }
    }

    /// For how long of that it waited.
    pub fn wanted_in_vain(&self, period: Nanos) -> Nanos {
        if self.is_starved() { period.saturating_sub(self.limited) } else { self.waited }
    }

    /// Time in the period during which the vCPU could have used a pCPU, at most the period.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        self.wanted(period).min(period)
    }

    /// Whether a quota throttled it.
    pub fn is_held(&self, period: Nanos) -> bool {
        self.limited.0 as f64 > HELD * period.0 as f64
    }
}

/// One VM in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmObservation {
    /// Which VM.
    pub vm: VmId,
    /// Its configured weight w_i.
    pub weight: Weight,
    /// What is in force.
    pub in_force: VmSettings,
    /// The policies that may act on it.
    #[serde(default)]
    pub policies: PolicySet,
    /// VMs of one number are siblings in the hierarchy of cgroups. Only among siblings do weights and the idle class divide
    /// time.
    #[serde(default)]
    pub siblings: u32,
    /// The cgroups above its own, from the top; none: all VMs are in the same. What a VM's weight means is its part of the lowest
    /// of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// Whether its vCPUs can be put apart (its group was made for it, and nobody else relies on it), on a kernel where that gains.
    #[serde(default)]
    pub divisible: bool,
    /// What it is charged for beside what it received: the switches that urgent vCPUs of its cost.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub charged: Nanos,
    /// Its vCPUs that could be read, in the order of their numbers.
    pub vcpus: Vec<VcpuObservation>,
}

impl VmObservation {
    /// A VM whose configured weight is in force, on which every policy may act.
    pub fn new(vm: VmId, weight: Weight, vcpus: Vec<VcpuObservation>) -> VmObservation {
        VmObservation {
            vm,
            weight,
            in_force: VmSettings::new(weight),
            policies: PolicySet::ALL,
            siblings: 0,
            levels: Vec::new(),
            divisible: false,
            charged: Nanos::ZERO,
            vcpus,
        }
    }

    /// A vCPU by its number.
    pub fn vcpu(&self, vcpu: VcpuId) -> Option<&VcpuObservation> {
        self.vcpus.iter().find(|observed| observed.vcpu == vcpu)
    }

    /// Whether any of its vCPUs is apart.
    pub fn is_apart(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.in_force.portion.is_some())
    }

    /// CPU time received by all vCPUs, S_i.
    pub fn received(&self) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.ran).sum()
    }

    /// Sum over the vCPUs of the time in which each could have run. Those of a VM that takes turns never sleep: they wait for whole
    /// rotations, and a wait counts only in the period in which it ends. One that a quota of its VM throttled got what that leaves it.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        let could_run = |vcpu: &VcpuObservation| match vcpu.could_run(period) {
            _ if self.in_force.quota.is_some() && vcpu.is_held(period) => vcpu.ran.min(period),
            Nanos::ZERO => Nanos::ZERO,
            _ if self.in_force.rotating => period.saturating_sub(vcpu.limited),
            part => part,
        };
        self.vcpus.iter().map(could_run).sum()
    }

    /// Time in which a quota kept its vCPUs off pCPUs.
    pub fn limited(&self) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.limited).sum()
    }

    /// An upper bound of the time in which at least one vCPU could have run: the sum of theirs, at most the period.
    ///
    /// The truth lies between the longest of them (all at the same times) and this (one after the other). Which of the two a VM is
    /// near cannot be told from sums; a VM whose vCPUs take turns (a token that is passed, serial and parallel phases) is at
    /// this end. Taken at the other end such a VM counts as satisfied whatever it lacks.
    pub fn backlogged(&self, period: Nanos) -> Nanos {
        self.could_run(period).min(period)
    }

    /// Where a vCPU may run. Seats that a VM has while it takes turns do not narrow what it competes for.
    fn reach<'a>(&self, vcpu: &'a VcpuObservation) -> &'a PcpuSet {
        if self.in_force.rotating { vcpu.home() } else { &vcpu.allowed }
    }

    /// The union of the pCPUs that its vCPUs may use.
    pub fn allowed(&self) -> PcpuSet {
        let mut union = PcpuSet::default();
        for vcpu in &self.vcpus {
            union.extend(self.reach(vcpu));
        }
        union
    }

    /// The most CPU time the VM can use in `period`, n_i × T: one pCPU for each vCPU, and no more
    /// pCPUs than the vCPUs may use. vCPUs that share pCPUs are counted together, so four vCPUs
    /// pinned two by two on two pCPUs peak at two. No more either than its quota leaves it.
    pub fn peak(&self, period: Nanos) -> Nanos {
        self.peak_of(period, self.received())
    }

    /// The same, if it received so much in a period as this.
    pub fn peak_of(&self, period: Nanos, received: Nanos) -> Nanos {
        let sets: Vec<&PcpuSet> = self.vcpus.iter().map(|vcpu| self.reach(vcpu)).collect();
        let usable: usize = components(&sets)
            .iter()
            .map(|component| component.members.len().min(component.pcpus.len()))
            .sum();
        let usable = Nanos(period.0 * usable as u64);
        under_quota(usable, self.in_force.quota, period, received)
    }
}
