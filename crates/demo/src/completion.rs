//! How long the bursts and requests of VMs took between two looks at their counters.
//!
//! The guests count ([`tandem_microvm::completion`]); their counters only grow, so the difference of two looks is what was done in
//! between, those included that were due before. A VM whose workload has no bursts has no such figures. One that finished none has a
//! count of 0, and its times are not measured. What was given up is counted beside the times: it was late by more than they show.

use tandem_microvm::Completion as Counted;
use tandem_report::service::Completion;

use crate::control::Snapshot;
use crate::plan::VmPlan;

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
}
