//! Release of groups with threads in them: a tenant started some there, or some take long to end.
//!
//! The release does not wait for them, and the caller retries it.

use tandem_linux::actuator::{Actuator, Held};
use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::journal::is_pending;
use tandem_linux::restore::RestoreReport;
use tandem_linux::thread::ThreadRef;
use tandem_model::Weight;
use tandem_testing::fake_host::Fake;
use tandem_testing::faulty::{Faults, FaultyDisk, FaultyHost};

fn open(host: &Fake, faults: &Faults, dir: &std::path::Path) -> (Actuator, RestoreReport) {
    let counted = FaultyHost { host: host.clone(), faults: faults.clone() };
    let disk = Box::new(FaultyDisk(faults.clone()));
    let threads = Box::new(counted.clone());
    Actuator::open_on(disk, Box::new(counted), threads, dir, "boot").unwrap()
}

/// A VM in its own group, with a vCPU and a thread that is about to end.
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
fn full_group_is_emptied_in_rounds() {
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
    // A thread that does not end costs a few calls per release.
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
fn hostile_full_groups_share_the_move_limit() {
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
    // `release_empty` moves only the vCPUs back.
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
fn hostile_full_group_leaves_others_their_share() {
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
fn group_with_nested_group_is_retried() {
    for is_tried_again in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(Version::V2), Faults::default());
        let (mut actuator, _) = open(&host, &faults, dir.path());
        let home = CgroupPath("/vms/shared".to_owned());
        let outer = actuator.create_group(&home, "tandem-0").unwrap();
        let vcpu = host.start_in(&home);
        actuator.move_thread(&vcpu, &outer).unwrap();
        // A thread of the outer VM started the inner one, whose group is therefore below.
        let inner = actuator.create_group(&outer, "tandem-1").unwrap();
        let held = |cgroup: &CgroupPath, threads: &[ThreadRef]| Held {
            threads: threads.to_vec(),
            cgroups: vec![cgroup.clone()],
            ..Held::default()
        };
        let (outer, inner) = (held(&outer, &[vcpu]), held(&inner, &[]));
        // Releases both, the outer one first.
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
fn nested_group_of_remaining_vm_is_kept() {
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
    let reports = actuator.release_except(&[&held], &kept, || true);
    assert_eq!(reports[0].busy.len(), 1, "{}", reports[0]);
    let place = |thread: &ThreadRef| host.controller().cgroup_of(thread).unwrap();
    assert_eq!((place(&leaves), place(&stays)), (home.clone(), inner));
    drop(actuator);
    assert_eq!(place(&stays), home);
    assert!(!is_pending(dir.path()));
}

#[test]
fn restore_with_busy_groups_reverts_others_first() {
    const BUSY: usize = 80;
    for is_killed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(Version::V2), Faults::default());
        let (mut actuator, _) = open(&host, &faults, dir.path());
        // The oldest record, which is undone last.
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
        // Abandoned, so that the next run restores the rest.
        actuator.abandon();
        let (actuator, report) = open(&host, &faults, dir.path());
        assert!(report.is_complete(), "{report}");
        drop(actuator);
        assert_eq!(host.now(), host.wanted());
        assert!(!is_pending(dir.path()));
    }
}
