//! Findings of the policy `flexs` for operators: lines for the log and a dry run, and figures for the status.
//!
//! A vCPU's counters change in every period.
//! A dry run logs them when their consequence changes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tandem_model::VmId;
use tandem_model::branch_counters::{CounterSource, Truth};
use tandem_model::decision::Swap;
use tandem_policy::flexs::{Basis, SwapAction, Verdict};
use tandem_policy::host::Placement;
use tandem_policy::host::flexs::{Left, Refusal, SpinOutcome, SpinReport};

/// Account of FlexS for a VM, since the daemon manages it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpinAccount {
    /// Source of the counters.
    pub counters: CounterSource,
    /// vCPUs that spun throughout the last period.
    pub spinning: Vec<u32>,
    /// Number of judged periods, summed over all vCPUs.
    pub judged: u64,
    /// Number of these in which the vCPU spun.
    pub spun: u64,
    /// Number of accountings of its vCPUs, by the basis of their verdicts.
    #[serde(default)]
    pub bases: BTreeMap<Basis, u64>,
    /// Number of swaps that were decided.
    #[serde(default)]
    pub decided: u64,
    /// Number of complete swaps; 0 in a dry run.
    pub swaps: u64,
    /// Number of periods in which a vCPU spun without a search for a sibling, by the reason.
    #[serde(default)]
    pub left: BTreeMap<Left, u64>,
    /// Number of searches that found no sibling.
    pub failed: u64,
    /// Number of rejected siblings in these searches, by the reason.
    #[serde(default)]
    pub refused: BTreeMap<Refusal, u64>,
    /// Verdicts compared with the VM's own programs; `None` if its counters do not provide that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_truth: Option<AgainstTruth>,
}

/// Verdicts compared with the truth, in periods of a vCPU.
/// The first periods of a fair window, which judge no vCPU, do not count.
/// A period too short to be judged counts if the vCPU spun, as missed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgainstTruth {
    /// It only waited in a loop.
    pub spun: u64,
    /// Number of these that were found.
    pub found: u64,
    /// The others, by the basis of their verdicts.
    #[serde(default)]
    pub missed: BTreeMap<Basis, u64>,
    /// It computed for at least a part of the period.
    pub worked: u64,
    /// Number of these that were judged as spinning.
    pub false_alarms: u64,
}

impl AgainstTruth {
    fn add(&mut self, truth: Truth, verdict: &Verdict) {
        let spins = verdict.busy_waiting;
        match truth {
            Truth::Spun if spins => (self.spun, self.found) = (self.spun + 1, self.found + 1),
            Truth::Spun => {
                self.spun += 1;
                *self.missed.entry(verdict.basis).or_default() += 1;
            }
            Truth::Worked if verdict.basis == Basis::TooFew => {}
            Truth::Worked => {
                self.worked += 1;
                self.false_alarms += u64::from(spins);
            }
        }
    }
}

/// The account, without the VM's name.
impl fmt::Display for SpinAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = match &self.spinning[..] {
            [] => "none spins now".to_owned(),
            [one] => format!("vCPU {one} spins now"),
            several => {
                let several: Vec<String> = several.iter().map(u32::to_string).collect();
                format!("vCPUs {} spin now", several.join(", "))
            }
        };
        write!(
            f,
            "by {} a vCPU spun in {} of {} periods that were judged; swaps: {}; {now}",
            self.counters, self.spun, self.judged, self.swaps
        )
    }
}

/// The accounts of all VMs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spins {
    /// Why branches are not counted although a policy needs them.
    pub(crate) off: Option<String>,
    accounts: BTreeMap<VmId, SpinAccount>,
}

/// Returns the outcome without its figures: whether the vCPU spins, whether it swaps, and the reason to leave it in place.
pub(crate) fn consequence(report: &SpinReport) -> (bool, bool, Option<Left>) {
    let spins = report.verdict.busy_waiting;
    match report.outcome {
        SpinOutcome::Left(left) => (spins, false, spins.then_some(left)),
        SpinOutcome::Decided(action) => {
            (spins, spins && matches!(action, SwapAction::Swap { .. }), None)
        }
    }
}

impl Spins {
    /// Adds a period's reports, and the swaps that were made.
    pub(crate) fn count(&mut self, reports: &[SpinReport], made: &[Swap]) {
        for account in self.accounts.values_mut() {
            account.spinning.clear();
        }
        for report in reports {
            let account = self.accounts.entry(report.vm).or_insert(SpinAccount {
                counters: report.counted.source,
                spinning: Vec::new(),
                judged: 0,
                spun: 0,
                bases: BTreeMap::new(),
                decided: 0,
                swaps: 0,
                left: BTreeMap::new(),
                failed: 0,
                refused: BTreeMap::new(),
                against_truth: None,
            });
            let basis = report.verdict.basis;
            *account.bases.entry(basis).or_default() += 1;
            account.judged += u64::from(report.verdict.says_something());
            let counts = match basis {
                Basis::Compared | Basis::Alike | Basis::NoBranches | Basis::TooFew => true,
                Basis::WarmingUp | Basis::NoInstructions | Basis::Inconsistent => false,
            };
            if let Some(truth) = report.counted.truth.filter(|_| counts) {
                let against = account.against_truth.get_or_insert_default();
                against.add(truth, &report.verdict);
            }
            if !report.verdict.busy_waiting {
                continue;
            }
            account.spun += 1;
            account.spinning.push(report.vcpu.0);
            match report.outcome {
                SpinOutcome::Decided(SwapAction::Swap { .. }) => account.decided += 1,
                SpinOutcome::Decided(SwapAction::GoOn { .. }) => account.failed += 1,
                SpinOutcome::Left(left) => *account.left.entry(left).or_default() += 1,
            }
            for (_, refusal) in &report.refused {
                *account.refused.entry(*refusal).or_default() += 1;
            }
        }
        for swap in made {
            if let Some(account) = self.accounts.get_mut(&swap.vm) {
                account.swaps += 1;
            }
        }
    }

    /// Removes VMs that have ended.
    pub(crate) fn retain(&mut self, is_there: impl Fn(VmId) -> bool) {
        self.accounts.retain(|vm, _| is_there(*vm));
    }

    /// Returns the account of a VM; `None` if nothing was counted.
    pub(crate) fn of(&self, vm: VmId) -> Option<&SpinAccount> {
        self.accounts.get(&vm)
    }
}

/// Returns the log line for an opened source of counters.
pub(crate) fn opened(source: CounterSource, placement: Placement) -> String {
    let of = match source {
        CounterSource::Hardware => "hardware counters (how well it does with them is not measured)",
        CounterSource::Synthetic => {
            "synthetic counters, of Tandem's own microVMs alone: an experiment, no measurement of hardware"
        }
    };
    let acts = match placement {
        Placement::Rebalance => "",
        Placement::Keep | Placement::Turns => {
            "; it reports spinning vCPUs and swaps none, which needs --placement rebalance"
        }
    };
    format!("flexs finds vCPUs that spin by {of}{acts}")
}

#[cfg(test)]
mod tests {
    use tandem_model::branch_counters::{BranchCounts, Counted};
    use tandem_model::{PcpuId, VcpuId};
    use tandem_policy::flexs::{SpinDetector, SwapReason};

    use super::*;

    fn report(vcpu: u32, counts: (u64, u64, u64)) -> SpinReport {
        let counts =
            BranchCounts { instructions: counts.0, branches: counts.1, mispredicted: counts.2 };
        let mut detector = SpinDetector::new(10, 1);
        detector.observe(&BranchCounts { instructions: 3000, branches: 1000, mispredicted: 1 });
        SpinReport {
            vm: VmId(1),
            vcpu: VcpuId(vcpu),
            counted: Counted { counts, source: CounterSource::Synthetic, truth: Some(Truth::Spun) },
            verdict: detector.observe(&counts),
            extremes: detector.max_bpi().zip(detector.min_bmpr()),
            outcome: SpinOutcome::Left(Left::Placement),
            refused: Vec::new(),
        }
    }

    #[test]
    fn counters_are_logged_with_reason() {
        assert_eq!(
            report(0, (6000, 2000, 2)).to_string(),
            "vCPU 0 by synthetic counters: 6000 instructions, 2000 branches, 2 mispredicted: 0.3333 per instruction (most 0.3333), \
             0.0010 mispredicted (least 0.0010): spins, but vCPUs are not to be moved: that needs --placement rebalance"
        );
    }

    #[test]
    fn working_vcpu_judged_spinning_is_false_alarm() {
        let mut truth = AgainstTruth::default();
        let verdict = |busy_waiting, basis| Verdict {
            busy_waiting,
            basis,
            ..report(0, (6000, 2000, 2)).verdict
        };
        truth.add(Truth::Worked, &verdict(true, Basis::Compared));
        truth.add(Truth::Worked, &verdict(false, Basis::Compared));
        truth.add(Truth::Spun, &verdict(true, Basis::Compared));
        truth.add(Truth::Spun, &verdict(true, Basis::Compared));
        assert_eq!((truth.worked, truth.false_alarms), (2, 1));
        assert_eq!((truth.spun, truth.found), (2, 2));
    }

    #[test]
    fn missed_spinning_is_counted_by_reason() {
        let mut spins = Spins::default();
        let mut reports = [report(0, (9000, 1000, 30)), report(1, (4500, 1500, 1))];
        reports[1].verdict = SpinDetector::new(10, 1)
            .with_least_branches(100_000)
            .observe(&reports[1].counted.counts);
        spins.count(&reports, &[]);
        reports[1].counted.truth = Some(Truth::Worked);
        spins.count(&reports[1..], &[]);
        let account = spins.of(VmId(1)).unwrap();
        let truth = account.against_truth.as_ref().unwrap();
        assert_eq!((truth.spun, truth.found, truth.worked), (2, 0, 0));
        let missed: Vec<_> = truth.missed.iter().collect();
        assert_eq!(missed, [(&Basis::Compared, &1), (&Basis::TooFew, &1)]);
        assert_eq!((account.judged, account.bases[&Basis::TooFew]), (1, 2));
        let json = serde_json::to_string(&account).unwrap();
        assert!(json.contains(r#""missed":{"compared":1,"too-few":1}"#), "{json}");
        assert_eq!(&serde_json::from_str::<SpinAccount>(&json).unwrap(), account);
    }

    #[test]
    fn a_swap_counts_once_it_was_made() {
        let mut spins = Spins::default();
        let mut spinning = report(0, (6000, 2000, 2));
        let (bpi, bmpr) = spinning.verdict.ratios().unwrap();
        spinning.outcome = SpinOutcome::Decided(SwapAction::Swap {
            with: VcpuId(1),
            on: PcpuId(1),
            because: SwapReason::Spinning { bpi, bmpr, looked: 1 },
        });
        spins.count(&[spinning.clone()], &[]);
        let account = spins.of(VmId(1)).unwrap();
        assert_eq!((account.decided, account.swaps), (1, 0));
        let made = Swap { vm: VmId(1), vcpus: [VcpuId(0), VcpuId(1)] };
        spins.count(&[spinning], &[made]);
        let account = spins.of(VmId(1)).unwrap();
        assert_eq!((account.decided, account.swaps), (2, 1));
    }

    #[test]
    fn accounts_add_up() {
        let mut spins = Spins::default();
        let mut second = report(1, (6000, 2000, 2));
        second.refused = vec![(VcpuId(0), Refusal::Cpuset)];
        spins.count(&[report(0, (6000, 2000, 2)), report(1, (9000, 1000, 30))], &[]);
        spins.count(&[second], &[]);
        let account = spins.of(VmId(1)).unwrap();
        assert_eq!((account.judged, account.spun, account.swaps), (3, 2, 0));
        assert_eq!(account.spinning, [1]);
        assert_eq!(
            account.to_string(),
            "by synthetic counters a vCPU spun in 2 of 3 periods that were judged; swaps: 0; vCPU 1 spins now"
        );
        // The programs report that all of them spun; one was not found.
        let truth = account.against_truth.as_ref().unwrap();
        assert_eq!((truth.spun, truth.found, truth.worked), (3, 2, 0));
        assert_eq!(account.left[&Left::Placement], 2);
        assert_eq!(account.refused[&Refusal::Cpuset], 1);
        spins.retain(|_| false);
        assert!(spins.of(VmId(1)).is_none());
    }
}
