//! What a policy wants changed, and why.
//!
//! A decision is plain data: a host adapter applies it, a dry run prints it, a test compares it. It names VMs and
//! vCPUs by their identities, never by a position. Values are what the host's knob can take: the
//! controller rounds them (`tandem_policy::host::controller`) before anybody sees them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::branch_counters::CounterSource;
use crate::pcpu_set::PcpuSet;
use crate::units::{Nanos, Nice, PcpuId, VcpuId, VmId, Weight};

/// Whose group a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The group of a whole VM.
    Vm(VmId),
    /// The group that holds one vCPU of a VM.
    Vcpu(VmId, VcpuId),
}

impl Target {
    /// Whose.
    pub fn vm(self) -> VmId {
        match self {
            Target::Vm(vm) | Target::Vcpu(vm, _) => vm,
        }
    }
}

/// Two vCPUs of a VM that change places: all decisions of one swap are made, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Swap {
    /// Whose.
    pub vm: VmId,
    /// The vCPUs, that of the smaller number first.
    pub vcpus: [VcpuId; 2],
}

/// One change to the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Decision {
    /// Give a group this weight.
    SetWeight {
        /// Whose group.
        target: Target,
        /// Its weight from now on; of a VM, its real-time weight r_i.
        weight: Weight,
        /// Why.
        because: Because,
    },
    /// Put a group into the idle class, where it runs only what nobody else wants, or take it out (`cpu.idle`).
    SetIdle {
        /// Whose group.
        target: Target,
        /// Into it, or out of it.
        idle: bool,
        /// Why.
        because: Because,
    },
    /// Give a vCPU's thread this nice value.
    SetNice {
        /// Which VM.
        vm: VmId,
        /// Which of its vCPUs.
        vcpu: VcpuId,
        /// The value.
        nice: Nice,
        /// Why.
        because: Because,
    },
    /// Give a vCPU's thread a slice of its own, which EEVDF turns into an earlier or later deadline.
    SetSlice {
        /// Which VM.
        vm: VmId,
        /// Which of its vCPUs.
        vcpu: VcpuId,
        /// The slice; `None`: the scheduler's own again.
        slice: Option<Nanos>,
        /// Why.
        because: Because,
    },
    /// Put a VM's vCPUs apart, each into a group beside the other VMs', or together into the VM's group again.
    Divide {
        /// Which VM.
        vm: VmId,
        /// Each vCPU's part of the VM's weight, together 1; none: together.
        portions: Vec<(VcpuId, f64)>,
        /// Why.
        because: Because,
    },
    /// Let a vCPU run on these pCPUs only.
    SetAffinity {
        /// Which VM.
        vm: VmId,
        /// Which of its vCPUs.
        vcpu: VcpuId,
        /// Where it may run from now on.
        pcpus: PcpuSet,
        /// Why.
        because: Because,
    },
}

impl Decision {
    /// Which VM it is about.
    pub fn vm(&self) -> VmId {
        match self {
            Decision::SetWeight { target, .. } | Decision::SetIdle { target, .. } => target.vm(),
            Decision::SetNice { vm, .. }
            | Decision::SetSlice { vm, .. }
            | Decision::Divide { vm, .. }
            | Decision::SetAffinity { vm, .. } => *vm,
        }
    }

    /// Which vCPU it is about; `None`: the VM as a whole.
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

    /// The swap that it is a part of; `None`: it stands for itself.
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

    /// The knob it turns.
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

    /// Why.
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
    /// Whether a VM's vCPUs share its group or have groups beside the other VMs'.
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

/// The reason of a decision.
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
    /// pCPU time is left over: there is nothing to divide.
    WorkConserving {
        /// Idle pCPUs of the accounting group, smoothed.
        idle: f64,
    },
    /// The VM slept: it starts anew at its configured weight.
    Asleep,
    /// The VM came: it begins with what those that share its pCPUs have of their configured weights.
    Came,
    /// The fair window ended, the VM had not used its share throughout, and its weight was above the configured one.
    FairWindow,
    /// A hard cap holds the VM, and its weight was above the configured one: no weight gives it more.
    Held,
    /// The VM is to have its configured weight and nothing else.
    Configured,
    /// The VM takes turns: what it receives follows from them.
    TakesTurns {
        /// Its weight over the configured one: above 1 where others compete that no policy holds.
        #[serde(default)]
        raise: f64,
    },
    /// The vCPU's VM takes turns, and this pCPU is its own in them.
    Seat,
    /// The VM takes no turns any more, or the vCPU sleeps in them.
    LeftTurns,
    /// The VM sleeps at times and wants more than it gets.
    WantsMore {
        /// The part of the time in which it could run, an upper bound.
        backlogged: f64,
        /// Parts of the period that its vCPUs waited, on average.
        waited: f64,
    },
    /// The VM does not want more any more, never sleeps, or cannot be divided any more.
    Together,
    /// vCPUs came or went, or want other parts of the VM's weight than before.
    Portions,
    /// The vCPU used this of what it was allocated, and its siblings that of theirs.
    Demand {
        /// What it used, in pCPUs.
        used: f64,
        /// Of what it was allocated, in pCPUs.
        of: f64,
        /// Whether it is still ready to run.
        ready: bool,
        /// The part that its siblings used of what they were allocated.
        siblings: f64,
        /// What it is allocated from now on, in pCPUs.
        gets: f64,
    },
    /// The vCPU gets its time too late (above 0), or soon enough (0).
    Urgency {
        /// How urgent.
        level: u8,
    },
    /// It changes places with another vCPU, as too much is wanted on its pCPU.
    Swap {
        /// Where it was.
        from: PcpuId,
        /// Where it goes.
        to: PcpuId,
    },
    /// It busy-waits, and gives its place to a sibling that waits with work.
    BusyWaits {
        /// The sibling.
        with: VcpuId,
        /// Where it was.
        from: PcpuId,
        /// Where it goes: the sibling's pCPU.
        to: PcpuId,
        /// Its branches ÷ instructions.
        bpi: f64,
        /// The largest of its VM's vCPUs in this fair window.
        max_bpi: f64,
        /// Its mispredicted ÷ branches.
        bmpr: f64,
        /// The smallest of its VM's vCPUs in this fair window.
        min_bmpr: f64,
        /// Whose counters these are.
        by: CounterSource,
    },
    /// It waits with work, and gets the place of a sibling that busy-waits.
    TakesPlace {
        /// The sibling.
        of: VcpuId,
        /// Where it was.
        from: PcpuId,
        /// Where it goes: the sibling's pCPU.
        to: PcpuId,
        /// The part of the period that it waited.
        waited: f64,
    },
    /// It has been moved, and may go anywhere again.
    MayRoam,
    /// A policy from outside the registry, such as a prototype, has its own reasons.
    Outside,
    /// Its pins leave VMs no way to their fair shares, whatever the weights.
    PinsInfeasible {
        /// The pCPU that too many are pinned to.
        from: PcpuId,
        /// CPU time per period that becomes possible to divide fairly, in pCPUs.
        gain: f64,
    },
}

/// A part of a whole in percent; of nothing, 0.
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
                "raised to {raise:.2} of its configured weight while it takes turns: others compete for these pCPUs that no policy holds \
                 (processes, VMs that are not selected), and the VMs whose turn it is weigh for those that wait for theirs, too"
            ),
            Because::TakesTurns { .. } => f.write_str("its configured weight while it takes turns"),
            Because::Seat => f.write_str("its pCPU while its VM takes turns"),
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
