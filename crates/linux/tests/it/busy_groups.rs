//! Groups that are not empty when they are given up, because a tenant started threads in them, or has some that are about to end and take their
//! time: that keeps nobody waiting, and what is left is tried again.

use crate::fake_host::Fake;
use crate::faulty::{Faults, FaultyDisk, FaultyHost};
use tandem_linux::actuator::{Actuator, Held};
use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::journal::is_pending;
use tandem_linux::restore::RestoreReport;
use tandem_linux::thread::ThreadRef;
use tandem_model::Weight;

fn open(host: &Fake, faults: &Faults, dir: &std::path::Path) -> (Actuator, RestoreReport) {
    let counted = FaultyHost { host: host.clone(), faults: faults.clone() };
    let disk = Box::new(FaultyDisk(faults.clone()));
    let threads = Box::new(counted.clone());
    Actuator::open_on(disk, Box::new(counted), threads, dir, "boot").unwrap()
}

/// A VM in a group of its own, with a vCPU; a thread of it is about to end.
fn busy_vm(actuator: &mut Actuator, host: &Fake, n: usize) -> (Held, ThreadRef) {
    let home = CgroupPath("/vms/shared".to_owned());
    let group = actuator.create_group(&home, &format!("tandem-{n}"));
    let group = group.unwrap();
    let vcpu = host.start_in(&home);
    actuator.move_thread(&vcpu, &group).unwrap();
    let ending = host.start_in(&group);
    host.begin_end(&ending);
    let held = Held { threads: vec![vcpu], cgroups: vec![group], ..Held::default() };
    (held, ending)
}

#[test]
fn a_group_full_of_threads_is_emptied_over_several_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (host, faults) = (Fake::new(Version::V2), Faults::default());
    let (mut actuator, _) = open(&host, &faults, dir.path());
    let (held, ending) = busy_vm(&mut actuator, &host, 0);
    let group = &held.cgroups[0];
    for _ in 0..3_000 {
        host.start_belonging_above(group);
    }
    for goes in 1.. {
        let before = faults.calls().0;
        let report = actuator.release(&[&held], || true).pop().unwrap();
        let calls = faults.calls().0 - before;
        assert!(calls < 1_100, "{calls} calls in one go");
        assert!(!report.is_complete() && report.failures.is_empty());
        assert_eq!(report.busy.len(), 1, "{report}");
        let here = actuator.controller().threads(group).unwrap();
        if here == [ending.tid] {
            assert_eq!(goes, 3);
            break;
        }
    }
    // One that does not end costs a look in each.
    let before = faults.calls().0;
    actuator.release(&[&held], || true);
    assert!(faults.calls().0 - before < 20);
    assert!(is_pending(dir.path()));
    host.end(&ending);
    let report = actuator.release(&[&held], || true).pop().unwrap();
    assert!(report.is_complete(), "{report}");
    assert!(!is_pending(dir.path()));
    assert_eq!(host.now(), host.wanted());
}

#[test]
fn hostile_groups_full_of_threads_are_emptied_together_in_bounded_goes() {
    const GROUPS: usize = 4;
    const THREADS: usize = 600;
    let dir = tempfile::tempdir().unwrap();
    let (host, faults) = (Fake::new(Version::V2), Faults::default());
    let (mut actuator, _) = open(&host, &faults, dir.path());
    let vms: Vec<(Held, ThreadRef)> =
        (0..GROUPS).map(|n| busy_vm(&mut actuator, &host, n)).collect();
    for (held, _) in &vms {
        for _ in 1..THREADS {
            host.start_belonging_above(&held.cgroups[0]);
        }
    }
    let all: Vec<&Held> = vms.iter().map(|(held, _)| held).collect();
    let left = |actuator: &Actuator| {
        let groups = all.iter().map(|held| &held.cgroups[0]);
        let here = groups.map(|group| actuator.controller().threads(group).unwrap().len());
        here.sum::<usize>()
    };
    // What is not emptied at all has its vCPUs back where they were, and no more.
    let reports = actuator.release_empty(&all);
    assert!(reports.iter().all(|report| report.busy.len() == 1));
    assert_eq!(left(&actuator), GROUPS * THREADS);
    actuator.release(&all, || true);
    let moved = GROUPS * THREADS - left(&actuator);
    assert!((900..=1_024).contains(&moved), "{moved} in one go");
    for (_, ending) in &vms {
        host.end(ending);
    }
    let goes = (1..10).find(|_| {
        let reports = actuator.release(&all, || true);
        reports.iter().all(RestoreReport::is_complete)
    });
    assert_eq!(goes, Some(2));
    assert_eq!(host.now(), host.wanted());
}

#[test]
fn hostile_groups_full_of_threads_leave_others_their_share_of_a_go() {
    let dir = tempfile::tempdir().unwrap();
    let (host, faults) = (Fake::new(Version::V2), Faults::default());
    let (mut actuator, _) = open(&host, &faults, dir.path());
    let his = busy_vm(&mut actuator, &host, 0).0;
    let (others, ending) = busy_vm(&mut actuator, &host, 1);
    for (held, threads) in [(&his, 3_000), (&others, 10)] {
        for _ in 0..threads {
            host.start_belonging_above(&held.cgroups[0]);
        }
    }
    host.end(&ending);
    let reports = actuator.release(&[&his, &others], || true);
    assert_eq!(reports[0].busy.len(), 1, "{}", reports[0]);
    assert!(reports[1].is_complete(), "{}", reports[1]);
}

#[test]
fn a_group_with_another_vms_in_it_is_tried_again_and_not_left_behind() {
    for is_tried_again in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(Version::V2), Faults::default());
        let (mut actuator, _) = open(&host, &faults, dir.path());
        let home = CgroupPath("/vms/shared".to_owned());
        let outer = actuator.create_group(&home, "tandem-0").unwrap();
        let vcpu = host.start_in(&home);
        actuator.move_thread(&vcpu, &outer).unwrap();
        // A thread of the one started the other, whose group is in its.
        let inner = actuator.create_group(&outer, "tandem-1").unwrap();
        let held = |cgroup: &CgroupPath, threads: &[ThreadRef]| Held {
            threads: threads.to_vec(),
            cgroups: vec![cgroup.clone()],
            ..Held::default()
        };
        let (outer, inner) = (held(&outer, &[vcpu]), held(&inner, &[]));
        // Both leave, the outer one first.
        let reports = actuator.release(&[&outer, &inner], || true);
        assert!(reports[0].failures.is_empty(), "{}", reports[0]);
        assert_eq!(reports[0].busy.len(), 1, "{}", reports[0]);
        assert!(reports[1].is_complete(), "{}", reports[1]);
        if is_tried_again {
            let report = actuator.release(&[&outer], || true).pop().unwrap();
            assert!(report.is_complete(), "{report}");
            assert!(!is_pending(dir.path()));
        }
        drop(actuator);
        assert_eq!(host.now(), host.wanted());
    }
}

#[test]
fn a_vm_that_stays_keeps_its_group_in_that_of_one_that_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let (host, faults) = (Fake::new(Version::V2), Faults::default());
    let (mut actuator, _) = open(&host, &faults, dir.path());
    let home = CgroupPath("/vms/shared".to_owned());
    let outer = actuator.create_group(&home, "tandem-0").unwrap();
    let leaves = host.start_in(&home);
    actuator.move_thread(&leaves, &outer).unwrap();
    let inner = actuator.create_group(&outer, "tandem-1").unwrap();
    let stays = host.start_in(&outer);
    actuator.move_thread(&stays, &inner).unwrap();
    let held = Held { threads: vec![leaves], cgroups: vec![outer.clone()], ..Held::default() };
    let kept = [inner.clone()].into_iter().collect();
    let reports = actuator.release_beside(&[&held], &kept, || true);
    assert_eq!(reports[0].busy.len(), 1, "{}", reports[0]);
    let place = |thread: &ThreadRef| host.controller().cgroup_of(thread).unwrap();
    assert_eq!((place(&leaves), place(&stays)), (home.clone(), inner));
    drop(actuator);
    assert_eq!(place(&stays), home);
    assert!(!is_pending(dir.path()));
}

#[test]
fn a_restore_of_many_busy_groups_puts_all_else_back_first_and_ends() {
    const BUSY: usize = 80;
    for is_killed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(Version::V2), Faults::default());
        let (mut actuator, _) = open(&host, &faults, dir.path());
        // The oldest record, so the last to be undone.
        let own = CgroupPath("/vms/own.scope".to_owned());
        actuator.set_weight(&own, Weight::constant(7.0)).unwrap();
        let busy: Vec<(Held, ThreadRef)> =
            (0..BUSY).map(|n| busy_vm(&mut actuator, &host, n)).collect();
        let before = faults.calls().0;
        let report = if is_killed {
            actuator.abandon();
            let (again, report) = open(&host, &faults, dir.path());
            actuator = again;
            report
        } else {
            actuator.restore()
        };
        let calls = faults.calls().0 - before;
        assert!(calls < BUSY * 80, "{calls} calls for {BUSY} groups");
        assert_eq!(host.weight_of(&own), "250");
        assert_eq!(report.failures.len(), BUSY, "{report}");
        assert!(report.to_string().contains("1 threads"), "{report}");
        for (held, ending) in &busy {
            let place = actuator.controller().cgroup_of(&held.threads[0]);
            assert_eq!(place.unwrap().0, "/vms/shared");
            host.end(ending);
        }
        // Not by the end of the run that left them: what is left is the next one's.
        actuator.abandon();
        let (actuator, report) = open(&host, &faults, dir.path());
        assert!(report.is_complete(), "{report}");
        drop(actuator);
        assert_eq!(host.now(), host.wanted());
        assert!(!is_pending(dir.path()));
    }
}
