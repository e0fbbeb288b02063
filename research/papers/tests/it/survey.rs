//! The survey with policies that take turns, at both sizes of host: one program of it, for the whole takes hours.

use std::path::Path;

use tandem_experiment::progress::Silent;
use tandem_papers::survey::Plan;
use tandem_papers::survey::entry::Entry;

/// The entries of a program twice overcommitted, under these policies and stock.
fn entries(policies: &[&str], workload: &str, pcpus: u32, workers: usize) -> Vec<Entry> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/scenarios/papers");
    let policies: Vec<String> = policies.iter().map(|&name| name.to_owned()).collect();
    let plan = Plan::new(&policies, &[workload.to_owned()], &[2], pcpus).unwrap();
    let survey = plan.run(Some(&folder), 1, workers, &Silent).unwrap();
    assert_eq!(survey.pcpus, pcpus);
    survey.entries
}

#[test]
fn turns_gain_where_threads_spin_at_16_and_64_pcpus_and_take_from_nobody_what_is_his() {
    for pcpus in [16, 64] {
        let entries = entries(&["eevdf+fair", "eevdf+fair+turns"], "npb-cg", pcpus, 2);
        let [stock, without, with] = entries.as_slice() else {
            panic!("{entries:?}");
        };
        assert_eq!(stock.worst_by_due, Some(1.0));
        let throughput = |entry: &Entry| entry.throughput.unwrap();
        assert!(throughput(with) > 1.5 * throughput(without), "{entries:?}");
        assert!(with.worst_by_due.unwrap() > 0.9, "{entries:?}");
        assert!(entries.iter().all(|entry| entry.pcpus == pcpus));
    }
}

#[test]
fn a_loss_of_what_was_beyond_the_due_is_no_hurt_by_due() {
    // Threads that meet at passive barriers sleep, so stock gives the VM that computes more than half of the host.
    let entries = entries(&["eevdf+fair+turns"], "npb-ft-passive", 16, 2);
    let with = entries.last().unwrap();
    assert_eq!(with.victim.as_deref(), Some("matmul"));
    assert!(with.worst.unwrap() < 0.8, "{with:?}");
    assert!(with.worst_by_due.unwrap() > 0.95, "{with:?}");
}

#[test]
fn figures_do_not_depend_on_the_number_of_workers() {
    let by = |workers: usize| entries(&["fair+turns"], "splash-radiosity", 16, workers);
    assert_eq!(by(1), by(3));
}

#[test]
fn nobody_is_put_apart_where_each_vcpu_has_a_pcpu() {
    let entries = entries(&["fair+turns", "fair+turns+apart"], "npb-cg", 16, 2);
    let [_, without, with] = entries.as_slice() else {
        panic!("{entries:?}");
    };
    assert_eq!(with.policy, "fair+turns+apart");
    let figures = |entry: &Entry| (entry.throughput, entry.worst, entry.unfairness);
    assert_eq!(figures(with), figures(without));
}

#[test]
fn other_sizes_are_refused() {
    let error = Plan::new(&[], &[], &[], 32).unwrap_err().to_string();
    assert_eq!(error, "--pcpus 32 is not possible: 16 or 64");
}
