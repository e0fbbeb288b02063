//! FlexS in the simulator: modelled branch counters, and swaps of siblings.

use crate::common::run;
use tandem_sim::Results;

/// Four vCPUs with uneven work between spinning barriers, next to two vCPUs that compute.
const TEXT: &str = "duration = \"4s\"\n[machine]\npcpus = 4
    [host]\nscheduler = \"credit\"\nplacement = \"no-stacking\"
    [[workload]]\nname = \"meet\"
    [workload.objects]\nmeet = { kind = \"barrier\", wait = \"spin\" }
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"exp(20ms)\" }, { barrier = \"meet\" }, \"work\" ] } ]
    [[workload]]\nname = \"hog\"
    [[workload.role]]\nthreads = \"1 per vcpu\"
    program = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
    [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"meet\"
    [[vm]]\nname = \"b\"\nvcpus = 2\nworkload = \"hog\"\n";

/// Returns the work and the swaps of the first VM, summed over five seeds.
fn work(settings: &[&str]) -> (u64, u64) {
    (1..=5)
        .map(|seed| {
            let seed = format!("seed={seed}");
            let all: Vec<&str> = settings.iter().copied().chain([seed.as_str()]).collect();
            let results = run(TEXT, &all);
            (results.vms[0].work, results.vms[0].counts.swaps)
        })
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[test]
fn spinning_vcpus_swap_with_working_siblings() {
    let (without, none) = work(&[]);
    let (with, swaps) = work(&["policies.flexs=true"]);
    assert_eq!(none, 0);
    assert!(swaps > 100, "{swaps}");
    assert!(with as f64 > 1.05 * without as f64, "{with} against {without}");
}

#[test]
fn swaps_are_made_under_every_host_scheduler() {
    for scheduler in ["cfs", "eevdf", "credit"] {
        let host = format!("host.scheduler={scheduler}");
        let (without, _) = work(&[&host]);
        let (with, swaps) = work(&["policies.flexs=true", &host]);
        assert!(swaps > 100, "{scheduler}: {swaps}");
        assert!(with as f64 > 0.98 * without as f64, "{scheduler}: {with} against {without}");
    }
}

#[test]
fn swaps_keep_share_of_other_vm() {
    let (with, without) = (run(TEXT, &["policies.flexs=true"]), run(TEXT, &[]));
    assert!(with.vms[0].counts.swaps > 20);
    let of_b = |results: &Results| results.vms[1].received.0 as f64;
    let ratio = of_b(&with) / of_b(&without);
    assert!((0.98..1.02).contains(&ratio), "{ratio}");
}

#[test]
fn false_alarms_cost_no_work() {
    // VM a only computes; half of its time is in loops that look like spinning.
    let tight = ["vm.a.workload=hog", "vm.a.vcpus=4", "workload.hog.branches={ tight = 0.5 }"];
    let received = |more: &[&str]| {
        let settings: Vec<&str> = tight.iter().chain(more).copied().collect();
        let results = run(TEXT, &settings);
        (results.vms[0].work as f64, results.vms[0].counts.swaps)
    };
    let ((without, _), (with, swaps)) = (received(&[]), received(&["policies.flexs=true"]));
    assert!(swaps > 0, "false alarms are part of the model");
    assert!(with > 0.98 * without, "{with} against {without}");
}
