//! Decisions of policies: changes of settings, with reasons.
//!
//! A decision is plain data: a host adapter applies it, a dry run prints it, a test compares it.
//! It identifies VMs and vCPUs by their ids, never by an index.
//! Values are rounded to the resolution of the host's knob (`tandem_policy::host::controller`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::branch_counters::CounterSource;
use crate::pcpu_set::PcpuSet;
use crate::units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};

/// Group that a decision changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The group of a whole VM.
    Vm(VmId),
    /// The group that holds one vCPU of a VM.
    Vcpu(VmId, VcpuId),
}

impl Target {
    /// Returns the VM.
    pub fn vm(self) -> VmId {
        match self {
            Target::Vm(vm) | Target::Vcpu(vm, _) => vm,
        }
    }
}

/// Two vCPUs of a VM that swap their pCPUs: all decisions of a swap are applied, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Swap {
    /// The VM.
    pub vm: VmId,
    /// The vCPUs in ascending order.
    pub vcpus: [VcpuId; 2],
}

/// One change to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Decision {
    /// Set the weight of a group.
    SetWeight {
        /// The group.
        target: Target,
        /// New weight; of a VM, its real-time weight r_i.
        weight: Weight,
        /// Reason.
        because: Because,
    },
    /// Move a group into or out of the idle class, in which it runs only if no other group wants the pCPU (`cpu.idle`).
    SetIdle {
        /// The group.
        target: Target,
        /// Whether it is in the idle class.
        idle: bool,
        /// Reason.
        because: Because,
    },
    /// Set the nice value of a vCPU's thread.
    SetNice {
        /// The VM.
        vm: VmId,
        /// The vCPU.
        vcpu: VcpuId,
        /// The value.
        nice: Nice,
        /// Reason.
        because: Because,
    },
    /// Set the slice of a vCPU's thread, from which EEVDF derives an earlier or later deadline.
    SetSlice {
        /// The VM.
        vm: VmId,
        /// The vCPU.
        vcpu: VcpuId,
        /// The slice; `None`: the scheduler's default.
        slice: Option<Nanos>,
        /// Reason.
        because: Because,
    },
    /// Divide a VM's vCPUs into groups of their own, siblings of the other VMs' groups, or rejoin them in the VM's group.
    Divide {
        /// The VM.
        vm: VmId,
        /// Each vCPU's part of the VM's weight, summing to 1; empty: rejoin.
        portions: Vec<(VcpuId, f64)>,
        /// Reason.
        because: Because,
    },
    /// Restrict a vCPU to these pCPUs.
    SetAffinity {
        /// The VM.
        vm: VmId,
        /// The vCPU.
        vcpu: VcpuId,
        /// New affinity.
        pcpus: PcpuSet,
        /// Reason.
        because: Because,
    },
}

impl Decision {
    /// Returns the VM that it changes.
    pub fn vm(&self) -> VmId {
        match self {
            Decision::SetWeight { target, .. } | Decision::SetIdle { target, .. } => target.vm(),
            Decision::SetNice { vm, .. }
            | Decision::SetSlice { vm, .. }
            | Decision::Divide { vm, .. }
            | Decision::SetAffinity { vm, .. } => *vm,
        }
    }

    /// Returns the vCPU that it changes; `None`: the VM as a whole.
    pub fn vcpu(&self) -> Option<VcpuId> {
        match self {
            Decision::SetWeight { target, .. } | Decision::SetIdle { target, .. } => match target {
                Target::Vm(_) => None,
                Target::Vcpu(_, vcpu) => Some(*vcpu),
            },
            Decision::Divide { .. } => None,
            Decision::SetNice { vcpu, .. }
            | Decision::SetSlice { vcpu, .. }
            | Decision::SetAffinity { vcpu, .. } => Some(*vcpu),
        }
    }

    /// Returns the swap that it belongs to, if any.
    pub fn swap(&self) -> Option<Swap> {
        let (Because::BusyWaits { with: other, .. } | Because::TakesPlace { of: other, .. }) =
            *self.because()
        else {
            return None;
        };
        let mut vcpus = [self.vcpu()?, other];
        vcpus.sort();
        Some(Swap { vm: self.vm(), vcpus })
    }

    /// Returns the setting that it changes.
    pub fn knob(&self) -> Knob {
        match self {
            Decision::SetWeight { .. } => Knob::Weight,
            Decision::SetIdle { .. } => Knob::Idle,
            Decision::SetNice { .. } => Knob::Nice,
            Decision::SetSlice { .. } => Knob::Slice,
            Decision::Divide { .. } => Knob::Division,
            Decision::SetAffinity { .. } => Knob::Affinity,
        }
    }

    /// Reason.
    pub fn because(&self) -> &Because {
        match self {
            Decision::SetWeight { because, .. }
            | Decision::SetIdle { because, .. }
            | Decision::SetNice { because, .. }
            | Decision::SetSlice { because, .. }
            | Decision::Divide { because, .. }
            | Decision::SetAffinity { because, .. } => because,
        }
    }
}

/// A kind of setting that policies may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// The weight of a group (`cpu.shares`, `cpu.weight`).
    Weight,
    /// The idle class of a group (`cpu.idle`).
    Idle,
    /// The nice value of a vCPU's thread.
    Nice,
    /// The EEVDF slice of a vCPU's thread (sched_setattr).
    Slice,
    /// Whether a VM's vCPUs share its group or have groups of their own.
    Division,
    /// The affinity of a vCPU's thread.
    Affinity,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Knob::Weight => "weight",
            Knob::Idle => "idle class",
            Knob::Nice => "nice value",
            Knob::Slice => "slice",
            Knob::Division => "division into groups",
            Knob::Affinity => "affinity",
        })
    }
}

/// Reason for a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Because {
    /// The VM received less (positive) or more (negative) than its fair share.
    Lag {
        /// (fair − received) ÷ fair, smoothed.
        lag: f64,
        /// Fair share, in pCPUs.
        fair: f64,
        /// Received, in pCPUs.
        received: f64,
    },
    /// Others' weights changed, and the sum of the group's weights is kept.
    KeepSum,
    /// pCPUs are idle, so there is no contention to divide.
    WorkConserving {
        /// Idle pCPUs of the accounting group, smoothed.
        idle: f64,
    },
    /// The VM slept and restarts at its configured weight.
    Asleep,
    /// The VM is new and starts with the same fraction of its configured weight as the VMs on its pCPUs.
    Came,
    /// The fair window ended, the VM had not used its share throughout, and its weight was above the configured one.
    FairWindow,
    /// A hard cap holds the VM, and its weight was above the configured one: no weight gives it more.
    Held,
    /// The VM always has its configured weight.
    Configured,
    /// The VM takes turns, which determine its CPU time.
    TakesTurns {
        /// Its weight relative to the configured one; above 1 next to VMs that sleep, VMs without turns or processes.
        #[serde(default)]
        raise: f64,
    },
    /// The VM no longer takes turns, or the vCPU sleeps during them.
    LeftTurns,
    /// The VM sleeps at times and wants more than it gets.
    WantsMore {
        /// Upper bound of the fraction of time in which it was runnable.
        backlogged: f64,
        /// Mean fraction of the period that its vCPUs waited.
        waited: f64,
    },
    /// The VM no longer wants more, never sleeps, or can no longer be divided.
    Together,
    /// vCPUs were added or removed, or want other portions of the VM's weight.
    Portions,
    /// The vCPU and its siblings used parts of their allocations.
    Demand {
        /// CPU time that it used, in pCPUs.
        used: f64,
        /// Its allocation, in pCPUs.
        of: f64,
        /// Whether it is still ready to run.
        ready: bool,
        /// Fraction of their allocations that its siblings used.
        siblings: f64,
        /// Its new allocation, in pCPUs.
        gets: f64,
    },
    /// The vCPU gets its time too late (above 0) or in time (0).
    Urgency {
        /// Urgency level.
        level: u8,
    },
    /// It swaps places with another vCPU, as demand on its pCPU is too high.
    Swap {
        /// Its former pCPU.
        from: PcpuId,
        /// Its new pCPU.
        to: PcpuId,
    },
    /// It busy-waits and yields its place to a waiting sibling with work.
    BusyWaits {
        /// The sibling.
        with: VcpuId,
        /// Its former pCPU.
        from: PcpuId,
        /// Its new pCPU, the sibling's.
        to: PcpuId,
        /// Its branches ÷ instructions.
        bpi: f64,
        /// Maximum over its VM's vCPUs in this fair window.
        max_bpi: f64,
        /// Its mispredicted ÷ branches.
        bmpr: f64,
        /// Minimum over its VM's vCPUs in this fair window.
        min_bmpr: f64,
        /// Source of the counters.
        by: CounterSource,
    },
    /// It waits with work and takes the place of a busy-waiting sibling.
    TakesPlace {
        /// The sibling.
        of: VcpuId,
        /// Its former pCPU.
        from: PcpuId,
        /// Its new pCPU, the sibling's.
        to: PcpuId,
        /// Fraction of the period that it waited.
        waited: f64,
    },
    /// It was moved, and its affinity is lifted.
    MayRoam,
    /// A policy outside the registry, such as a prototype, decided it.
    Outside,
    /// Its pins prevent fair shares, whatever the weights.
    PinsInfeasible {
        /// The pCPU with too many pinned vCPUs.
        from: PcpuId,
        /// CPU time that becomes fairly divisible, in pCPUs.
        gain: f64,
    },
}

/// Returns `part` in percent of `whole`; 0 if `whole` is 0.
fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole * 100.0 } else { 0.0 }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Lag { lag, fair, received } => write!(
                f,
                "lag {:+.1} %: received {received:.3} of its fair share of {fair:.3} pCPUs",
                lag * 100.0
            ),
            Because::KeepSum => f.write_str("keeps the group's sum of weights"),
            Because::WorkConserving { idle } => {
                write!(f, "{idle:.2} pCPUs idle: nothing to divide, back to the configured weight")
            }
            Because::Asleep => f.write_str("asleep: back to the configured weight"),
            Because::Came => f.write_str("it came among VMs of such weights"),
            Because::FairWindow => {
                f.write_str("fair window over, share not used up: back to the configured weight")
            }
            Because::Held => f.write_str("held by its quota: back towards the configured weight"),
            Because::Configured => f.write_str("its configured weight"),
            Because::TakesTurns { raise } if *raise > 1.0 => write!(
                f,
                "raised to {raise:.2} of its configured weight in its slots: VMs without slots or other processes compete for these pCPUs"
            ),
            Because::TakesTurns { .. } => f.write_str("its configured weight while it takes turns"),
            Because::LeftTurns => f.write_str("takes no turns: as it was out of them"),
            Because::WantsMore { backlogged, waited } => write!(
                f,
                "sleeps at times, could run {:.0} % of the time, its vCPUs wait {:.0} %",
                backlogged * 100.0,
                waited * 100.0
            ),
            Because::Portions => f.write_str("its vCPUs are others, or want other parts"),
            Because::Together => f.write_str("its vCPUs need no groups of their own"),
            Because::Demand { used, of, ready, siblings, gets } => write!(
                f,
                "used {:.0} % of its {of:.2} pCPUs and is {}; its siblings used {:.0} % of theirs: it gets {gets:.2}",
                percent(*used, *of),
                if *ready { "still ready" } else { "idle" },
                siblings * 100.0
            ),
            Because::Urgency { level: 0 } => f.write_str("gets its time soon enough"),
            Because::Urgency { level } => write!(f, "gets its time too late: urgency {level}"),
            Because::Swap { from, to } => write!(
                f,
                "too much is wanted on pCPU {from}, less on pCPU {to}, or the other way round: two vCPUs change places"
            ),
            Because::BusyWaits { with, from, to, bpi, max_bpi, bmpr, min_bmpr, by } => write!(
                f,
                "busy-waits on pCPU {from}: {bpi:.4} branches per instruction (most of its VM {max_bpi:.4}), {bmpr:.4} of them mispredicted \
                 (least {min_bmpr:.4}), by {by}; it changes places with vCPU {with}, which waits on pCPU {to}"
            ),
            Because::TakesPlace { of, from, to, waited } => write!(
                f,
                "waits {:.0} % of the time on pCPU {from}, and vCPU {of}, which busy-waits, gives it pCPU {to}",
                waited * 100.0
            ),
            Because::Outside => f.write_str("a policy from outside the registry wants it"),
            Because::MayRoam => f.write_str("has been moved, and may go anywhere again"),
            Because::PinsInfeasible { from, gain } => write!(
                f,
                "the pins on pCPU {from} leave no fair division; moving it frees {gain:.2} pCPUs"
            ),
        }
    }
}
