//! Observations of VMs in one accounting period: run and wait times of vCPUs, and the current settings.
//!
//! A live host (`/proc/PID/task/TID/schedstat`, affinity masks) and a simulator provide the same numbers.
//! All times are totals within one period, whose length is given separately.
//!
//! The **current values** at the end of the period are weights, idle class, nice values, slices, affinities and a quota.
//! They are read back from the host, whichever process set them.
//! A policy therefore keeps no memory of its requests, and refused writes, dry runs or foreign changes cannot mislead it.
//!
//! **Hard caps.** CPU time that a quota withholds is not available to the VM under any weights.
//! Throttled time is therefore not waiting ([`VcpuObservation::limited`]), and a VM cannot use more than its quota ([`VmObservation::peak`]).
//! A vCPU that a quota of its VM throttled wants no more than it got: running sooner, it would have been throttled sooner.
//! A quota above several VMs bounds their sum ([`Level::quota`]); weights still divide time within it.

use serde::{Deserialize, Serialize};

use crate::accounting_group::components;
use crate::branch_counters::Counted;
use crate::pcpu_set::PcpuSet;
use crate::policy_set::PolicySet;
use crate::units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};

/// Settings of a vCPU, except its affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VcpuSettings {
    /// Weight of the vCPU's own group; `None` without such a group.
    pub weight: Option<Weight>,
    /// Whether that group is in the idle class (`cpu.idle`).
    pub idle: bool,
    /// Nice value of its thread.
    pub nice: Nice,
    /// EEVDF slice of its thread; `None`: the scheduler's default.
    pub slice: Option<Nanos>,
    /// Its part of the VM's weight, 0…1, if the VM is divided into groups per vCPU.
    /// `None`: it is in the VM's group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portion: Option<f64>,
}

/// Settings of a VM as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSettings {
    /// Its real-time weight r_i.
    pub weight: Weight,
    /// Whether its group is in the idle class (`cpu.idle`).
    #[serde(default)]
    pub idle: bool,
    /// Maximum CPU time under the quotas of its cgroup and of cgroups below, such as of vCPUs, in pCPUs; `None` without a quota.
    /// Quotas above are in [`VmObservation::levels`].
    #[serde(default)]
    pub quota: Option<f64>,
    /// Whether it takes turns; then it alternates between idle class and normal class, and `idle` is false.
    #[serde(default)]
    pub rotating: bool,
    /// Whether it left its turns since the last observation because it began to sleep.
    #[serde(default)]
    pub left_turns: bool,
}

impl VmSettings {
    /// Returns settings with this weight and defaults otherwise.
    pub fn new(weight: Weight) -> VmSettings {
        VmSettings { weight, idle: false, quota: None, rotating: false, left_turns: false }
    }
}

/// An ancestor of a VM's cgroup that divides time among its children.
/// The root and cgroups without the cpu controller do not divide time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Unique number of the cgroup.
    pub group: u32,
    /// Its weight among its siblings.
    pub weight: Weight,
    /// Its hard cap, in pCPUs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<f64>,
}

/// Fraction of a period above which throttled time shows an exhausted quota.
const HELD: f64 = 0.05;
/// Fraction of a quota that counts as all of it: the kernel hands out quotas in slices, which may stay partly unused.
const NEARLY_ALL: f64 = 0.9;

/// Returns the part of `most` that a hard cap of `quota` pCPUs permits in a period.
/// If `received` is nearly the cap, the rest is not usable.
/// If it is above the cap, the quota was changed since it was read, or allows bursts.
/// In both cases the result is limited by `received`.
pub fn under_quota(most: Nanos, quota: Option<f64>, period: Nanos, received: Nanos) -> Nanos {
    let Some(quota) = quota else {
        return most;
    };
    let left = quota * period.0 as f64;
    let is_used_up = received.0 as f64 >= NEARLY_ALL * left;
    most.min(if is_used_up { received } else { Nanos(left as u64) })
}

fn is_zero(time: &Nanos) -> bool {
    *time == Nanos::ZERO
}

/// One vCPU in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuObservation {
    /// The vCPU's number in its VM.
    pub vcpu: VcpuId,
    /// Current affinity.
    pub allowed: PcpuSet,
    /// Affinity of the operator, if a policy has narrowed it; `None`: the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<PcpuSet>,
    /// pCPUs of its cpuset, whatever its affinity; `None`: no known restriction.
    /// Only read for policies that swap vCPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<PcpuSet>,
    /// Other current settings.
    #[serde(default)]
    pub in_force: VcpuSettings,
    /// CPU time received.
    pub ran: Nanos,
    /// Time runnable without running (steal time in the guest), excluding throttled time.
    pub waited: Nanos,
    /// Time runnable but throttled by a quota of its VM or above.
    /// For a runnable vCPU that neither ran nor waited, the throttled part of its current wait.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limited: Nanos,
    /// Number of times that it was scheduled on a pCPU, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u64>,
    /// Last pCPU that it ran on, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcpu: Option<PcpuId>,
    /// Siblings that woke it in the period, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub woken_by: Vec<VcpuId>,
    /// Branch counters, if read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<Counted>,
    /// Whether it was runnable at the end of the period.
    /// Kernels count a wait only at its end, so this distinguishes a starved vCPU from a sleeping one.
    pub runnable: bool,
}

impl VcpuObservation {
    /// Returns an idle vCPU with default settings and this affinity.
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

    /// Returns its pCPU, if known: its only allowed one, or the last one.
    pub fn position(&self) -> Option<PcpuId> {
        let mut allowed = self.allowed.iter();
        match (allowed.next(), allowed.next()) {
            (Some(only), None) => Some(only),
            _ => self.pcpu,
        }
    }

    /// Returns the affinity set by the operator.
    pub fn granted(&self) -> &PcpuSet {
        self.granted.as_ref().unwrap_or(&self.allowed)
    }

    /// Returns true unless its cpuset is known to exclude the pCPU.
    pub fn reaches(&self, pcpu: PcpuId) -> bool {
        let cpuset = self.cpuset.as_ref();
        cpuset.is_none_or(|cpuset| cpuset.contains(pcpu))
    }

    /// Returns its affinity outside of turns: the operator's, or the current one if the operator pinned it to one pCPU.
    /// A slot in turns does not move a pinned vCPU, but a policy that may move pins can.
    pub fn home(&self) -> &PcpuSet {
        match self.granted().len() {
            1 => &self.allowed,
            _ => self.granted(),
        }
    }

    /// Returns true if it waited for the whole period, as kernels count a wait only at its end.
    pub fn is_starved(&self) -> bool {
        self.ran + self.waited == Nanos::ZERO && self.runnable
    }

    /// Returns the time that it wanted a pCPU without being throttled; a wait may have begun in an earlier period.
    pub fn wanted(&self, period: Nanos) -> Nanos {
        if self.is_starved() { period.saturating_sub(self.limited) } else { self.ran + self.waited }
    }

    /// Returns the part of that time that it waited.
    pub fn wanted_in_vain(&self, period: Nanos) -> Nanos {
        if self.is_starved() { period.saturating_sub(self.limited) } else { self.waited }
    }

    /// Returns the time that the vCPU could have used a pCPU, at most the period.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        self.wanted(period).min(period)
    }

    /// Returns true if a quota throttled it.
    pub fn is_held(&self, period: Nanos) -> bool {
        self.limited.0 as f64 > HELD * period.0 as f64
    }
}

/// One VM in one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmObservation {
    /// The VM.
    pub vm: VmId,
    /// Its configured weight w_i.
    pub weight: Weight,
    /// Current settings.
    pub in_force: VmSettings,
    /// The policies that may act on it.
    #[serde(default)]
    pub policies: PolicySet,
    /// VMs with the same number are siblings in the cgroup hierarchy, among which weights and the idle class divide time.
    #[serde(default)]
    pub siblings: u32,
    /// Ancestors of its cgroup, topmost first; empty if all VMs have the same.
    /// A VM's weight is its part of the lowest one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// Whether its vCPUs can be divided into groups of their own: its group exists only for it, and the kernel makes this useful.
    #[serde(default)]
    pub divisible: bool,
    /// CPU time charged in addition to the received one, for context switches of its urgent vCPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub charged: Nanos,
    /// Its readable vCPUs in ascending order.
    pub vcpus: Vec<VcpuObservation>,
}

impl VmObservation {
    /// Returns a VM at its configured weight on which every policy may act.
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

    /// Returns a vCPU by its number.
    pub fn vcpu(&self, vcpu: VcpuId) -> Option<&VcpuObservation> {
        self.vcpus.iter().find(|observed| observed.vcpu == vcpu)
    }

    /// Returns true if its vCPUs are divided into groups of their own.
    pub fn is_apart(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.in_force.portion.is_some())
    }

    /// Returns the CPU time received by all vCPUs, S_i.
    pub fn received(&self) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.ran).sum()
    }

    /// Returns the sum over the vCPUs of the time that each could have run.
    /// vCPUs of a VM that takes turns count for the whole period: they wait for whole rotations, and a wait counts only in the period of its end.
    /// A vCPU that a quota of its VM throttled counts with its run time.
    pub fn could_run(&self, period: Nanos) -> Nanos {
        let could_run = |vcpu: &VcpuObservation| match vcpu.could_run(period) {
            _ if self.in_force.quota.is_some() && vcpu.is_held(period) => vcpu.ran.min(period),
            Nanos::ZERO => Nanos::ZERO,
            _ if self.in_force.rotating => period.saturating_sub(vcpu.limited),
            part => part,
        };
        self.vcpus.iter().map(could_run).sum()
    }

    /// Returns the throttled time of its vCPUs.
    pub fn limited(&self) -> Nanos {
        self.vcpus.iter().map(|vcpu| vcpu.limited).sum()
    }

    /// Returns an upper bound of the time in which at least one vCPU could have run: the sum of theirs, at most the period.
    ///
    /// The true value lies between the longest of them (all simultaneous) and this (one after the other), which sums do not show.
    /// VMs whose vCPUs alternate (a passed token, serial and parallel phases) are near this bound.
    /// The other bound would count such a VM as satisfied whatever it lacks.
    pub fn backlogged(&self, period: Nanos) -> Nanos {
        self.could_run(period).min(period)
    }

    /// Returns the pCPUs that a vCPU competes for, which slots in turns do not narrow.
    fn reach<'a>(&self, vcpu: &'a VcpuObservation) -> &'a PcpuSet {
        if self.in_force.rotating { vcpu.home() } else { &vcpu.allowed }
    }

    /// Returns the union of the pCPUs that its vCPUs may use.
    pub fn allowed(&self) -> PcpuSet {
        let mut union = PcpuSet::default();
        for vcpu in &self.vcpus {
            union.extend(self.reach(vcpu));
        }
        union
    }

    /// Returns the maximum CPU time that the VM can use in `period`, n_i × T.
    /// That is one pCPU per vCPU, but no more pCPUs than its vCPUs may use, and no more than its quota.
    /// vCPUs that share pCPUs count together: four vCPUs pinned two by two on two pCPUs peak at two.
    pub fn peak(&self, period: Nanos) -> Nanos {
        self.peak_of(period, self.received())
    }

    /// Returns the same for a given received time.
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
