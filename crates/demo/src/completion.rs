//! Completion times of the bursts and requests of VMs between two snapshots of their counters.
//!
//! Guests maintain cumulative counters ([`tandem_microvm::completion`]), so the difference of two snapshots covers all
//! bursts that completed between them, including those that were released earlier.
//! Only workloads with bursts or requests have these figures.
//! A VM that completed none has a count of 0 and no times.
//! Dropped bursts are counted separately: their delay exceeded the times shown.

use tandem_microvm::Completion as Counted;
use tandem_report::service::Completion;

use crate::control::Snapshot;
use crate::plan::VmPlan;

/// Returns the completions of `vm` between two snapshots; `None` if its workload has no bursts.
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

    /// Returns a snapshot of a VM with one vCPU at 1 GHz that has completed `bursts` of 4096 … 4607 cycles.
    fn snapshot(bursts: u64, dropped: u64) -> Snapshot {
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
    fn completions_are_differences_of_snapshots() {
        let plan = plan("1,1", "1,1", "bursty,burn", "0");
        let times = between(&plan.vms[0], &snapshot(5, 1), &snapshot(6, 4)).unwrap();
        assert_eq!((times.count, times.dropped), (1, 3));
        assert_eq!(times.mean_ns, Some(4_500.0));
        assert_eq!((times.p50_ns, times.p99_ns), (Some(4_352.0), Some(4_352.0)));
        let none = between(&plan.vms[0], &snapshot(5, 0), &snapshot(5, 0)).unwrap();
        assert_eq!((none.count, none.p99_ns), (0, None));
        assert_eq!(between(&plan.vms[1], &snapshot(5, 0), &snapshot(6, 0)), None);
    }
}
