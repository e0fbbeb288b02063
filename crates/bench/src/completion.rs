//! How long the bursts and requests of VMs took: between two looks at their counters, and over several runs.
//!
//! The guests count ([`tandem_microvm::completion`]); their counters only grow, so the difference of two looks is what was done in
//! between, those included that were due before. A VM whose workload has no bursts has no such figures. One that finished none has a
//! count of 0, and its times are not measured. What was given up is counted beside the times: it was late by more than they show.

use serde::Serialize;
use tandem_microvm::Completion as Counted;
use tandem_report::service::Completion;

use crate::control::Snapshot;
use crate::plan::VmPlan;
use crate::spread::Spread;

/// What `vm` finished between two looks; none if its workload has no bursts.
pub fn between(vm: &VmPlan, first: &Snapshot, last: &Snapshot) -> Option<Completion> {
    let dropped = |at: &Snapshot| at.sum(|vcpu| vcpu.dropped);
    let times = Counted::of(&last.completions_since(first), last.tsc_khz);
    let nanoseconds = |ns: Option<u64>| ns.map(|ns| ns as f64);
    vm.is_timed().then(|| Completion {
        count: times.count,
        dropped: dropped(last).saturating_sub(dropped(first)),
        mean_ns: nanoseconds(times.mean_ns),
        p50_ns: nanoseconds(times.p50_ns),
        p99_ns: nanoseconds(times.p99_ns),
    })
}

/// Completion times of a VM in one mode, over all its runs; a run in which nothing was done has no part in the times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionOfRuns {
    /// Bursts or requests that were done, in all runs.
    pub count: u64,
    /// How many were given up because too many were late, in all runs.
    pub dropped: u64,
    /// The medians of the runs, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<Spread>,
    /// What 99 of 100 took at most in each run, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<Spread>,
    /// The median of `p99_ns` against that in stock: 1 is as long, 2 twice as long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_vs_stock: Option<f64>,
}

impl CompletionOfRuns {
    /// Of these runs; none of VMs that have no bursts.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Completion>) -> Option<CompletionOfRuns> {
        let runs: Vec<&Completion> = runs.into_iter().collect();
        (!runs.is_empty()).then(|| CompletionOfRuns {
            count: runs.iter().map(|run| run.count).sum(),
            dropped: runs.iter().map(|run| run.dropped).sum(),
            p50_ns: Spread::of(runs.iter().filter_map(|run| run.p50_ns)),
            p99_ns: Spread::of(runs.iter().filter_map(|run| run.p99_ns)),
            p99_vs_stock: None,
        })
    }

    /// How long its p99 is against that of `stock`, by the medians of the runs.
    pub fn against(&self, stock: &CompletionOfRuns) -> Option<f64> {
        let (ours, stock) = (self.p99_ns?.median, stock.p99_ns?.median);
        (stock > 0.0).then_some(ours / stock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plan::plan;

    /// A look at a VM of one vCPU at 1 GHz that has done so many bursts of 4096 … 4607 cycles.
    fn look(bursts: u64, dropped: u64) -> Snapshot {
        let counts = match bursts {
            0 => serde_json::json!({}),
            bursts => serde_json::json!({"17": bursts}),
        };
        serde_json::from_value(serde_json::json!({
            "t_ns": 0, "tsc_khz": 1_000_000, "guarded": 0,
            "vcpus": [{
                "index": 0, "tid": 1, "work": bursts, "cpu_ns": 0, "wait_ns": null, "halts": 0, "ipis": 0, "acks": 0,
                "dropped": dropped, "violations": 0, "draws": 0, "fingerprint": 0,
                "completions": {"cycles": bursts * 4_500, "counts": counts},
            }],
        }))
        .unwrap()
    }

    #[test]
    fn what_was_done_between_two_looks_is_counted() {
        let plan = plan("1,1", "1,1", "bursty,burn", "0");
        let times = between(&plan.vms[0], &look(5, 1), &look(6, 4)).unwrap();
        assert_eq!((times.count, times.dropped), (1, 3));
        assert_eq!(times.mean_ns, Some(4_500.0));
        assert_eq!((times.p50_ns, times.p99_ns), (Some(4_352.0), Some(4_352.0)));
        let none = between(&plan.vms[0], &look(5, 0), &look(5, 0)).unwrap();
        assert_eq!((none.count, none.p99_ns), (0, None));
        assert_eq!(between(&plan.vms[1], &look(5, 0), &look(6, 0)), None);
    }

    #[test]
    fn runs_have_a_middle_and_those_without_bursts_do_not_count() {
        let run = |p99_ns: Option<f64>| Completion {
            count: u64::from(p99_ns.is_some()),
            dropped: 1,
            mean_ns: p99_ns,
            p50_ns: p99_ns.map(|ns| ns / 2.0),
            p99_ns,
        };
        let ours = CompletionOfRuns::of(&[run(Some(2e6)), run(None), run(Some(6e6))]).unwrap();
        assert_eq!((ours.count, ours.dropped), (2, 3));
        let p99 = ours.p99_ns.unwrap();
        assert_eq!((p99.median, p99.least, p99.greatest), (4e6, 2e6, 6e6));
        assert_eq!(ours.p50_ns.unwrap().median, 2e6);
        let stock = CompletionOfRuns::of(&[run(Some(5e6))]).unwrap();
        assert_eq!(ours.against(&stock), Some(0.8));
        let none = CompletionOfRuns::of(&[run(None)]).unwrap();
        assert_eq!((none.p99_ns, ours.against(&none)), (None, None));
        assert_eq!(CompletionOfRuns::of(&[]), None);
    }
}
