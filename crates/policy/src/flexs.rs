//! FlexS: a vCPU that busy-waits gives its place to a sibling that has work.
//!
//! Source: Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014, section 4.2.
//! Every tick (10 ms) the vCPU that runs on a pCPU is accounted: its branch counters show whether
//! it spins (see [`SpinDetector`]).
//! If it spins, up to two other pCPUs are searched for a sibling that waits and is not marked as spinning.
//! They are chosen at random (the power of two choices: nearly as good as searching everywhere, without the traffic).
//! The two siblings swap places (see [`swap_plan`]).
//! A swap keeps the number of vCPUs of each VM on each pCPU, and their weight.
//!
//! Times are [`Nanos`] on a monotonic clock that starts anywhere.
//! The caller's [`RunQueues`] describe the pCPUs; marks, extremes and failures are kept here.
//!
//! Our reading where the paper is silent:
//! - An accounting that finds no spinning ends a series of failed searches, as a success does.
//! - A vCPU searches only pCPUs where it is allowed.
//! - A sibling is a candidate only if it is allowed on the pCPU of the spinning vCPU.
//! - The search takes the first pCPU with a candidate, and the first candidate in its queue.
//!
//! Non-goals: reading counters, making the swap, dividing time fairly (see FlexW).
//! There are no clocks and threads; randomness is seeded, so that the same calls give the same
//! answers on every machine.

mod config;
mod detector;
mod pcg;
pub mod report;
mod swap;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use config::FlexSConfig;
pub use detector::{Basis, Ratio, SpinDetector, Verdict};
pub use swap::{SwapError, VcpuPlace, may_steal, swap_plan};

use crate::settings::{Ranged, Settings};
use pcg::Pcg32;
use tandem_model::branch_counters::BranchCounts;
use tandem_model::units::{Nanos, PcpuId, VcpuId, VmId};

/// A vCPU of some VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct VcpuKey {
    /// Its VM.
    pub vm: VmId,
    /// Which of the VM's vCPUs.
    pub vcpu: VcpuId,
}

impl fmt::Display for VcpuKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {} of VM {}", self.vcpu, self.vm)
    }
}

/// Run queues of a host, as FlexS needs them.
pub trait RunQueues {
    /// The pCPUs among which vCPUs may be swapped, in a deterministic order.
    fn pcpus(&self) -> &[PcpuId];

    /// The runnable vCPUs that wait on `pcpu`, next to run first; empty for an unknown pCPU.
    fn queued(&self, pcpu: PcpuId) -> &[VcpuKey];

    /// Whether `vcpu` may run on `pcpu`.
    fn allowed(&self, vcpu: VcpuKey, pcpu: PcpuId) -> bool;
}

/// Reason for an action of FlexS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum SwapReason {
    /// The counters do not show spinning, or cannot be judged.
    NotSpinning {
        /// What the verdict rests on.
        basis: Basis,
    },
    /// It spins, but there is no sibling that could take its place.
    NoSibling {
        /// pCPUs looked at.
        looked: u32,
        /// Consecutive failed searches, including this one.
        failures: u32,
    },
    /// It spins, and the sibling has work.
    Spinning {
        /// Its branches ÷ instructions.
        bpi: Ratio,
        /// Its mispredicted ÷ branches.
        bmpr: Ratio,
        /// pCPUs looked at.
        looked: u32,
    },
}

impl fmt::Display for SwapReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapReason::NotSpinning { basis } => write!(f, "not spinning: {basis}"),
            SwapReason::NoSibling { looked, failures } => write!(
                f,
                "spins, and on {looked} pCPUs no sibling waits with work; failed {failures} in a row"
            ),
            SwapReason::Spinning { bpi, bmpr, looked } => write!(
                f,
                "spins: {bpi} branches per instruction, {bmpr} of them mispredicted; \
                 a sibling with work was found on pCPU {looked} of those looked at"
            ),
        }
    }
}

/// Action after an accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum SwapAction {
    /// The vCPU stays where it is.
    GoOn {
        /// Reason.
        because: SwapReason,
    },
    /// Swap the vCPU with a sibling: pCPU, queue position and weight.
    Swap {
        /// The sibling, of the same VM.
        with: VcpuId,
        /// The sibling's pCPU.
        on: PcpuId,
        /// Reason.
        because: SwapReason,
    },
}

/// Result of an accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Whether the vCPU spins.
    pub verdict: Verdict,
    /// Action to take.
    pub action: SwapAction,
    /// Time of the vCPU's next accounting, on the caller's clock.
    pub next_tick: Nanos,
}

/// State of a vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct VcpuState {
    /// Marked as busy-waiting.
    marked: bool,
    /// Consecutive failed searches.
    failures: u32,
}

/// Controller of a host, or of a group of pCPUs that share VMs.
#[derive(Clone, Debug)]
pub struct FlexS {
    config: FlexSConfig,
    detectors: BTreeMap<VmId, SpinDetector>,
    vcpus: BTreeMap<VcpuKey, VcpuState>,
    /// Start of the fair window; `None` before the first accounting.
    window: Option<Nanos>,
    random: Pcg32,
    /// The other pCPUs of a search; kept so that a tick does not allocate.
    others: Vec<PcpuId>,
}

impl FlexS {
    /// Creates a controller without samples. Equal seeds give equal choices.
    ///
    /// Returns an error if a value of `config` is out of its range.
    pub fn new(config: FlexSConfig, seed: u64) -> Result<FlexS, Ranged> {
        config.check()?;
        Ok(FlexS {
            config,
            detectors: BTreeMap::new(),
            vcpus: BTreeMap::new(),
            window: None,
            random: Pcg32::new(seed),
            others: Vec::new(),
        })
    }

    /// Whether the vCPU is marked as busy-waiting.
    pub fn is_marked(&self, vcpu: VcpuKey) -> bool {
        self.vcpus.get(&vcpu).is_some_and(|state| state.marked)
    }

    /// The VM's detector with its extremes in this fair window, if the VM was accounted.
    pub fn detector(&self, vm: VmId) -> Option<&SpinDetector> {
        self.detectors.get(&vm)
    }

    /// Forgets a VM that is gone.
    pub fn forget(&mut self, vm: VmId) {
        self.detectors.remove(&vm);
        self.vcpus.retain(|vcpu, _| vcpu.vm != vm);
    }

    /// Accounts `vcpu`, which runs on `on`: `counts` are its branch counters since its last accounting.
    ///
    /// A returned swap counts as made.
    /// If it cannot be made, the vCPU is accounted again at the normal time.
    pub fn tick(
        &mut self,
        now: Nanos,
        vcpu: VcpuKey,
        on: PcpuId,
        counts: &BranchCounts,
        view: &impl RunQueues,
    ) -> Outcome {
        let verdict = self.account(now, vcpu, counts);
        self.act(now, vcpu, on, verdict, view)
    }

    /// The first half of [`FlexS::tick`]: judges the counts of the vCPU and marks it.
    /// A caller with many vCPUs accounts all of them first, so that each is compared with siblings of the same time.
    pub fn account(&mut self, now: Nanos, vcpu: VcpuKey, counts: &BranchCounts) -> Verdict {
        self.roll_window(now);
        let config = &self.config;
        let new = || {
            let detector = SpinDetector::new(config.similarity, config.warm_up);
            detector.with_contrast(config.contrast).with_least_branches(config.least_branches)
        };
        let detector = self.detectors.entry(vcpu.vm).or_insert_with(new);
        let verdict = detector.observe(counts);
        if verdict.says_something() {
            self.vcpus.entry(vcpu).or_default().marked = verdict.busy_waiting;
        } else if verdict.basis == Basis::TooFew {
            self.unmark(vcpu);
        }
        verdict
    }

    /// Removes the mark of a vCPU that hardly ran: its last verdict does not describe the present.
    /// Its sibling may have released it meanwhile, and a marked vCPU is no candidate for a swap.
    pub fn unmark(&mut self, vcpu: VcpuKey) {
        if let Some(state) = self.vcpus.get_mut(&vcpu) {
            state.marked = false;
        }
    }

    /// The second half of [`FlexS::tick`]: searches for a sibling if the vCPU, which runs on `on`, spins.
    pub fn act(
        &mut self,
        now: Nanos,
        vcpu: VcpuKey,
        on: PcpuId,
        verdict: Verdict,
        view: &impl RunQueues,
    ) -> Outcome {
        let found =
            if verdict.busy_waiting { self.search(vcpu, on, view) } else { Search::default() };
        let state = self.vcpus.entry(vcpu).or_default();
        let action = match (verdict.ratios(), found.sibling) {
            (Some((bpi, bmpr)), Some((with, on))) if verdict.busy_waiting => {
                state.failures = 0;
                let looked = found.looked;
                let because = SwapReason::Spinning { bpi, bmpr, looked };
                SwapAction::Swap { with, on, because }
            }
            _ if verdict.busy_waiting => {
                state.failures = state.failures.saturating_add(1);
                let because =
                    SwapReason::NoSibling { looked: found.looked, failures: state.failures };
                SwapAction::GoOn { because }
            }
            _ => {
                state.failures = 0;
                let because = SwapReason::NotSpinning { basis: verdict.basis };
                SwapAction::GoOn { because }
            }
        };
        let wait = self.config.wait(state.failures);
        Outcome { verdict, action, next_tick: Nanos(now.0.saturating_add(wait.0)) }
    }

    /// Clears extremes and marks at the end of a fair window.
    /// Failures stay: they show how crowded the other queues are, which does not depend on the window.
    fn roll_window(&mut self, now: Nanos) {
        let start = *self.window.get_or_insert(now);
        let past = now.saturating_sub(start);
        let length = self.config.fair_window;
        if past < length {
            return;
        }
        // Windows stay on their grid, however late the first accounting of one comes.
        self.window = Some(Nanos(now.0 - past.0 % length.0));
        for detector in self.detectors.values_mut() {
            detector.clear();
        }
        for state in self.vcpus.values_mut() {
            state.marked = false;
        }
    }

    /// Searches up to `choices` other pCPUs for a sibling to swap with.
    fn search(&mut self, vcpu: VcpuKey, on: PcpuId, view: &impl RunQueues) -> Search {
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        let possible = view.pcpus().iter().copied();
        others.extend(possible.filter(|&pcpu| pcpu != on && view.allowed(vcpu, pcpu)));
        let mut found = Search::default();
        let choices = others.len().min(self.config.choices as usize);
        for i in 0..choices {
            // The first steps of a Fisher–Yates shuffle: no pCPU is chosen twice.
            let left = others.len() - i;
            let j = i + self.random.below(left as u32) as usize;
            others.swap(i, j);
            found.looked += 1;
            let candidate = view.queued(others[i]).iter().find(|&&sibling| {
                sibling.vm == vcpu.vm
                    && sibling.vcpu != vcpu.vcpu
                    && !self.is_marked(sibling)
                    && view.allowed(sibling, on)
            });
            if let Some(sibling) = candidate {
                found.sibling = Some((sibling.vcpu, others[i]));
                break;
            }
        }
        self.others = others;
        found
    }
}

/// Result of a search.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// pCPUs looked at.
    looked: u32,
    /// The sibling, and its pCPU.
    sibling: Option<(VcpuId, PcpuId)>,
}
