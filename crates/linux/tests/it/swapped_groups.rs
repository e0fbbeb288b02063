//! A tenant removes a group that Tandem created in their cgroup, and creates another of the same name.
//!
//! Tandem does not remove, empty or search that one, and does not set its weight.

use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::journal::is_pending;
use tandem_model::Weight;
use tandem_testing::fake_host::Fake;
use tandem_testing::faulty::{Faults, open};

fn home() -> CgroupPath {
    CgroupPath("/vms/shared".to_owned())
}

/// Release of a group.
#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    Restored,
    Killed,
}

#[test]
fn replaced_group_stays() {
    for version in [Version::V1, Version::V2] {
        for end in [End::Released, End::Restored, End::Killed] {
            let what = format!("{version}, {end:?}");
            let dir = tempfile::tempdir().unwrap();
            let (host, faults) = (Fake::new(version), Faults::default());
            let mut actuator = open(&host, &faults, dir.path());
            let group = actuator.create_group(&home(), "tandem-x").unwrap();
            assert_eq!(actuator.create_group(&home(), "tandem-x").unwrap(), group);
            let thread = host.thread(2).unwrap();
            actuator.move_thread(&thread, &group).unwrap();
            host.swap_cgroup(&group);
            for n in 0..10 {
                host.make_cgroup(&group.child(&format!("his-{n}")));
            }
            host.start_in(&group);
            // The actuator does not take it for ours.
            let weight = actuator.set_weight(&group, Weight::constant(50.0));
            assert!(weight.unwrap_err().is_gone(), "{what}");
            let error = actuator.create_group(&home(), "tandem-x").unwrap_err();
            assert!(error.to_string().contains("exists already"), "{error}");
            let before = faults.children_looks();
            match end {
                End::Released => {
                    let report = actuator.release_group(&group).unwrap();
                    assert!(report.is_complete(), "{what}: {report}");
                    drop(actuator);
                }
                End::Restored => drop(actuator),
                End::Killed => {
                    actuator.abandon();
                    drop(open(&host, &faults, dir.path()));
                }
            }
            let looks = faults.children_looks() - before;
            assert_eq!(looks, 0, "{what}: listed its children");
            assert_eq!(host.now(), host.wanted(), "{what}");
            assert!(!is_pending(dir.path()), "{what}");
        }
    }
}

#[test]
fn replaced_group_is_not_used() {
    for version in [Version::V1, Version::V2] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(version), Faults::default());
        let mut actuator = open(&host, &faults, dir.path());
        let group = actuator.create_group(&home(), "tandem-x").unwrap();
        let thread = host.thread(2).unwrap();
        actuator.move_thread(&thread, &group).unwrap();
        host.swap_cgroup(&group);
        host.controller().move_thread(thread.tid, &group).unwrap();
        let error = actuator.create_group(&group, "vcpu0").unwrap_err();
        assert!(error.is_gone(), "{version}: {error}");
        drop(actuator);
        let place = host.controller().cgroup_of(&thread).unwrap();
        assert_eq!(place, group, "{version}: the tenant moved it there");
        assert!(!is_pending(dir.path()), "{version}");
    }
}

#[test]
fn removed_group_can_be_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let (host, faults) = (Fake::new(Version::V2), Faults::default());
    let mut actuator = open(&host, &faults, dir.path());
    let group = actuator.create_group(&home(), "tandem-x").unwrap();
    actuator.controller().remove(&group).unwrap();
    assert_eq!(actuator.create_group(&home(), "tandem-x").unwrap(), group);
    actuator.set_weight(&group, Weight::constant(50.0)).unwrap();
    actuator.abandon();
    drop(open(&host, &faults, dir.path()));
    assert_eq!(host.now(), host.wanted());
    assert!(!is_pending(dir.path()));
}

/// The journal of an earlier version, or of a run killed before it journaled the ID.
#[test]
fn group_without_id_is_removed_by_path() {
    for version in [Version::V1, Version::V2] {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(version), Faults::default());
        let mut actuator = open(&host, &faults, dir.path());
        let group = actuator.create_group(&home(), "tandem-x").unwrap();
        actuator.abandon();
        let journal = dir.path().join("journal");
        let text = std::fs::read_to_string(&journal).unwrap();
        let is_identity = |line: &&str| line.contains("enabled") && line.contains(&group.0);
        assert_eq!(text.lines().filter(is_identity).count(), 1, "{text}");
        let mut without = String::new();
        for line in text.lines().filter(|line| !is_identity(line)) {
            without += &format!("{line}\n");
        }
        std::fs::write(&journal, without).unwrap();
        drop(open(&host, &faults, dir.path()));
        assert_eq!(host.now(), host.wanted());
    }
}
