//! Survey of policies with turns at both host sizes, for single programs because the whole survey takes hours.

use std::path::Path;

use tandem_experiment::progress::Silent;
use tandem_papers::survey::Plan;
use tandem_papers::survey::entry::Entry;

/// Returns the entries of a program at 2× overcommit under these policies and stock.
fn entries(policies: &[&str], workload: &str, pcpus: u32, workers: usize) -> Vec<Entry> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/scenarios/papers");
    let policies: Vec<String> = policies.iter().map(|&name| name.to_owned()).collect();
    let plan = Plan::new(&policies, &[workload.to_owned()], &[2], pcpus).unwrap();
    let survey = plan.run(Some(&folder), 1, workers, &Silent).unwrap();
    assert_eq!(survey.pcpus, pcpus);
    survey.entries
}

#[test]
fn turns_gain_for_spinning_threads_and_keep_shares() {
    for pcpus in [16, 64] {
        let entries = entries(&["eevdf+fair", "eevdf+fair+turns"], "npb-cg", pcpus, 2);
        let [stock, without, with] = entries.as_slice() else {
            panic!("{entries:?}");
        };
        assert_eq!(stock.worst_by_due, Some(1.0));
        let throughput = |entry: &Entry| entry.throughput.unwrap();
        assert!(throughput(with) > 1.5 * throughput(without), "{entries:?}");
        // Ticks are spread, so on 64 pCPUs the last of 64 vCPUs starts a tick after the first.
        assert!(with.worst_by_due.unwrap() > 0.75, "{entries:?}");
        assert!(entries.iter().all(|entry| entry.pcpus == pcpus));
    }
}

#[test]
fn loss_above_fair_share_is_no_hurt() {
    // Threads sleep at passive barriers, so stock gives the VM that computes more than half of the host.
    let entries = entries(&["eevdf+fair+turns"], "npb-ft-passive", 16, 2);
    let with = entries.last().unwrap();
    assert_eq!(with.victim.as_deref(), Some("matmul"));
    assert!(with.worst.unwrap() < 0.8, "{with:?}");
    assert!(with.worst_by_due.unwrap() > 0.95, "{with:?}");
}

#[test]
fn figures_are_independent_of_workers() {
    let by = |workers: usize| entries(&["fair+turns"], "splash-radiosity", 16, workers);
    assert_eq!(by(1), by(3));
}

#[test]
fn vcpus_with_own_pcpus_are_not_separated() {
    let entries = entries(&["fair+turns", "fair+turns+apart"], "npb-cg", 16, 2);
    let [_, without, with] = entries.as_slice() else {
        panic!("{entries:?}");
    };
    assert_eq!(with.policy, "fair+turns+apart");
    let figures = |entry: &Entry| (entry.throughput, entry.worst, entry.unfairness);
    assert_eq!(figures(with), figures(without));
}

#[test]
fn other_host_sizes_are_rejected() {
    let error = Plan::new(&[], &[], &[], 32).unwrap_err().to_string();
    assert_eq!(error, "--pcpus 32 is not possible: 16 or 64");
}
