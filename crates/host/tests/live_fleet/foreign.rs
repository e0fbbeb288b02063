//! Foreign writes to the fleet's settings between two updates: each is noted, counts from then on, and stays at the end.

use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_linux::thread::ThreadRef;
use tandem_linux::{affinity, sched_attr};
use tandem_model::{Nanos, Nice, PcpuId, PcpuSet, Weight};

use crate::harness::{Skip, Test};
use crate::host::{LiveHost, controller, nice};
use crate::subject::{
    OWNER, SHARED, Subject, operators_vcpu_group, set_affinity, set_idle, set_nice, set_slice,
    set_weight, single, whole,
};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("somebody_elses_weight_counts_and_stays", weight),
    ("somebody_elses_weight_that_we_overwrite_before_we_look_is_not_lost", overwritten_weight),
    ("a_rules_weight_stays_in_force_and_somebody_elses_comes_back", ruled_weight),
    ("somebody_elses_weight_of_a_vcpu_counts_and_stays", weight_of_a_vcpu),
    ("somebody_elses_nice_value_counts_and_stays", nice_value),
    ("somebody_elses_slice_counts_and_stays", slice),
    ("somebody_elses_affinity_counts_and_stays", own_affinity),
    ("a_vm_put_into_the_idle_class_by_somebody_stays_there", into_idle_class),
    ("a_vm_taken_out_of_the_idle_class_by_somebody_stays_out", out_of_idle_class),
    ("what_we_did_not_set_is_followed_without_a_word", not_ours),
];

/// Asserts that there is one note, about this.
fn assert_noted(notes: &[String], about: &str) {
    assert_eq!(notes.len(), 1, "{notes:?}");
    let note = &notes[0];
    assert!(note.contains("someone else") && note.contains(about), "{note}");
}

/// Sets a knob of a cgroup in place of another process.
fn write(cgroup: &CgroupPath, knob: Knob, text: &str) {
    let controller = controller().map_err(|Skip(why)| why).expect("as before");
    let written = controller.write_knob(cgroup, knob, text);
    written.expect("the kernel takes it");
}

/// Returns a knob's text from the kernel.
fn read(cgroup: &CgroupPath, knob: Knob) -> String {
    let controller = controller().map_err(|Skip(why)| why).expect("as before");
    controller.read_knob(cgroup, knob).expect("it exists")
}

fn weight() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(Knob::Weight, "333");
    let mut subject = Subject::acting_on(live_host)?;
    let own = subject.cgroup(OWNER);
    for vm in [SHARED, OWNER] {
        subject.apply(set_weight(whole(vm), 700.0));
    }
    write(&own, Knob::Weight, "500");
    assert_noted(&subject.recheck(), "weight");
    let seen = subject.observe(OWNER);
    let counts = (seen.weight, seen.in_force.weight);
    assert_eq!(counts, (Weight::constant(500.0), Weight::constant(500.0)), "also as configured");
    let shared = subject.observe(SHARED).in_force.weight;
    assert_eq!(shared, Weight::constant(700.0), "the other VM's is as it was");
    assert_eq!(subject.recheck(), Vec::<String>::new(), "said once");
    subject.apply(set_weight(whole(OWNER), 800.0));
    assert_eq!(subject.weight(&own), Weight::constant(800.0));
    let live_host = subject.restore();
    assert_eq!(read(&live_host.own, Knob::Weight), "500", "and not 333");
    Ok(())
}

fn overwritten_weight() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(Knob::Weight, "333");
    let mut subject = Subject::acting_on(live_host)?;
    let own = subject.cgroup(OWNER);
    subject.apply(set_weight(whole(OWNER), 700.0));
    write(&own, Knob::Weight, "500");
    subject.apply(set_weight(whole(OWNER), 710.0));
    assert_noted(&subject.recheck(), "weight");
    assert_eq!(subject.observe(OWNER).weight, Weight::constant(500.0));
    assert_eq!(subject.weight(&own), Weight::constant(710.0));
    let live_host = subject.restore();
    assert_eq!(read(&live_host.own, Knob::Weight), "500", "and not 333");
    Ok(())
}

fn ruled_weight() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(Knob::Weight, "333");
    let mut subject = Subject::ruled_by(live_host, 2.0)?;
    let own = subject.cgroup(OWNER);
    let rules = subject.weight(&own);
    let made = subject.cgroup(SHARED);
    for _ in 0..2 {
        write(&own, Knob::Weight, "500");
        write(&made, Knob::Weight, "600");
        let mut notes = subject.recheck();
        // A finding of the last of these scans is reported at the next one.
        notes.extend(subject.update());
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes.iter().all(|note| note.contains("stays in force")), "{notes:?}");
        assert_eq!(subject.observe(OWNER).weight, rules);
        assert_eq!((subject.weight(&own), subject.weight(&made)), (rules, rules));
    }
    // Also if the daemon writes before it reads.
    write(&own, Knob::Weight, "510");
    subject.apply(set_weight(whole(OWNER), 710.0));
    let notes = subject.update();
    assert!(notes[0].contains("510") && notes[0].contains("comes back"), "{notes:?}");
    assert_eq!(subject.observe(OWNER).weight, rules);
    let live_host = subject.restore();
    assert_eq!(read(&live_host.own, Knob::Weight), "510");
    Ok(())
}

fn weight_of_a_vcpu() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let group = operators_vcpu_group(&mut live_host, 0, Weight::constant(300.0));
    let mut subject = Subject::acting_on(live_host)?;
    subject.apply(set_weight(single(OWNER, 0), 640.0));
    subject.apply(set_weight(single(SHARED, 1), 640.0));
    let made = subject.group_of(SHARED, 1);
    write(&group, Knob::Weight, "222");
    assert_noted(&subject.recheck(), "weight");
    let seen = subject.observe_vcpu(OWNER, 0).in_force.weight;
    assert_eq!(seen, Some(Weight::constant(222.0)));
    write(&made, Knob::Weight, "111");
    assert_noted(&subject.recheck(), "weight");
    let seen = subject.observe_vcpu(SHARED, 1).in_force.weight;
    assert_eq!(seen, Some(Weight::constant(111.0)));
    subject.apply(set_weight(single(OWNER, 0), 650.0));
    let live_host = subject.restore();
    assert_eq!(read(&group, Knob::Weight), "222", "and not 300");
    drop(live_host);
    Ok(())
}

fn nice_value() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    for vm in [SHARED, OWNER] {
        subject.apply(set_nice(vm, 1, 7));
        let thread = subject.thread(vm, 1);
        sched_attr::set_nice(thread.tid, Nice(-3)).expect("it is set");
        assert_noted(&subject.recheck(), "nice");
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.nice, Nice(-3));
    }
    assert_eq!(subject.recheck(), Vec::<String>::new(), "said once");
    // A later change of ours applies on top of theirs.
    subject.apply(set_nice(OWNER, 1, 11));
    let threads: Vec<ThreadRef> = [SHARED, OWNER].map(|vm| subject.thread(vm, 1)).to_vec();
    let live_host = subject.restore();
    assert_eq!(threads.iter().map(nice).collect::<Vec<_>>(), [-3, -3]);
    drop(live_host);
    Ok(())
}

fn slice() -> Result<(), Skip> {
    if sched_attr::schedulers_slice().is_none() {
        return Err(Skip("this kernel has no slices of threads' own (Linux 6.12 has)".to_owned()));
    }
    let mut subject = Subject::acting()?;
    let (ours, theirs) = (Some(Nanos(500_000)), Some(Nanos::from_millis(9)));
    for vm in [SHARED, OWNER] {
        subject.apply(set_slice(vm, 1, ours));
        let thread = subject.thread(vm, 1);
        sched_attr::set_slice(thread.tid, theirs).expect("it is set");
        assert_noted(&subject.recheck(), "slice");
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.slice, theirs);
    }
    subject.apply(set_slice(OWNER, 1, ours));
    let threads: Vec<ThreadRef> = [SHARED, OWNER].map(|vm| subject.thread(vm, 1)).to_vec();
    let live_host = subject.restore();
    for thread in threads {
        assert_eq!(sched_attr::slice(thread.tid).expect("it lives"), theirs);
    }
    drop(live_host);
    Ok(())
}

fn own_affinity() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    let all = affinity::affinity(subject.thread(SHARED, 0).tid).expect("a mask");
    let one = |pcpu: PcpuId| -> PcpuSet { [pcpu].into_iter().collect() };
    let mut pcpus = all.iter().map(one);
    let (Some(ours), Some(theirs)) = (pcpus.next(), pcpus.next()) else {
        return Err(Skip("needs two pCPUs".to_owned()));
    };
    for vm in [SHARED, OWNER] {
        subject.apply(set_affinity(vm, 1, &ours));
        let thread = subject.thread(vm, 1);
        affinity::set_affinity(thread.tid, &theirs).expect("it is set");
        assert_noted(&subject.recheck(), "affinity");
        assert_eq!(subject.observe_vcpu(vm, 1).allowed, theirs);
    }
    subject.apply(set_affinity(OWNER, 1, &ours));
    let threads: Vec<ThreadRef> = [SHARED, OWNER].map(|vm| subject.thread(vm, 1)).to_vec();
    let live_host = subject.restore();
    for thread in threads {
        assert_eq!(affinity::affinity(thread.tid).expect("it lives"), theirs);
    }
    drop(live_host);
    Ok(())
}

fn into_idle_class() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(Knob::Weight, "333");
    let mut subject = Subject::acting_on(live_host)?;
    subject.need_idle_class()?;
    let own = subject.cgroup(OWNER);
    subject.apply(set_weight(whole(OWNER), 700.0));
    write(&own, Knob::Idle, "1");
    assert_noted(&subject.recheck(), "cpu.idle");
    let seen = subject.observe(OWNER);
    assert!(seen.in_force.idle);
    assert_eq!(seen.weight, Weight::constant(333.0), "the configured weight is kept");
    // Weights are still decided, and none is refused.
    subject.apply(set_weight(whole(OWNER), 650.0));
    assert_eq!(subject.recheck(), Vec::<String>::new(), "said once");
    let live_host = subject.restore();
    assert_eq!(read(&live_host.own, Knob::Idle), "1");
    Ok(())
}

fn out_of_idle_class() -> Result<(), Skip> {
    // Without a foreign weight, the cgroup's earlier one is restored at the end.
    for theirs in [None, Some("444")] {
        let mut live_host = LiveHost::new()?;
        live_host.operator_sets(Knob::Weight, "333");
        let mut subject = Subject::acting_on(live_host)?;
        subject.need_idle_class()?;
        let own = subject.cgroup(OWNER);
        subject.apply(set_idle(whole(OWNER), true));
        write(&own, Knob::Idle, "0");
        if let Some(weight) = theirs {
            write(&own, Knob::Weight, weight);
        }
        let notes = subject.recheck();
        let about_weight = notes.iter().filter(|note| note.contains("weight")).count();
        assert!(notes[0].contains("cpu.idle"), "{notes:?}");
        assert_eq!(about_weight, usize::from(theirs.is_some()), "{notes:?}");
        let seen = subject.observe(OWNER);
        assert!(!seen.in_force.idle);
        assert_eq!(seen.in_force.weight, subject.weight(&own));
        let configured = if theirs.is_some() { 444.0 } else { 333.0 };
        assert_eq!(seen.weight, Weight::saturating(configured));
        subject.apply(set_weight(whole(OWNER), 700.0));
        assert_eq!(subject.weight(&own), Weight::constant(700.0));
        let live_host = subject.restore();
        assert_eq!(read(&live_host.own, Knob::Idle), "0");
        assert_eq!(read(&live_host.own, Knob::Weight), theirs.unwrap_or("333"));
    }
    Ok(())
}

fn not_ours() -> Result<(), Skip> {
    let mut subject = Subject::acting()?;
    for vm in [SHARED, OWNER] {
        let thread = subject.thread(vm, 1);
        sched_attr::set_nice(thread.tid, Nice(6)).expect("it is set");
        assert_eq!(subject.recheck(), Vec::<String>::new());
        assert_eq!(subject.observe_vcpu(vm, 1).in_force.nice, Nice(6));
    }
    let thread = subject.thread(OWNER, 1);
    let live_host = subject.restore();
    assert_eq!(nice(&thread), 6);
    drop(live_host);
    Ok(())
}
