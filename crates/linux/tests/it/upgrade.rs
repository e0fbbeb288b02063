//! Upgrades: this version restores from journals of earlier ones.
//!
//! The fixtures are journals of the first version, with a record of every kind.
//! They stay unchanged when the format evolves.

use std::path::Path;

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::Threads;
use tandem_linux::cgroup::{CgroupPath, CpuController, Knob, Quota, Version};
use tandem_linux::journal::is_pending;
use tandem_linux::thread::Tid;
use tandem_model::{Nanos, Nice, PcpuId, Weight};
use tandem_testing::fake_host::Fake;

const V1: &str = include_str!("upgrade/format-1-cgroup-v1.jsonl");
const V2: &str = include_str!("upgrade/format-1-cgroup-v2.jsonl");

fn path(text: &str) -> CgroupPath {
    CgroupPath(text.to_owned())
}

/// A host with the changes of the fixtures, after its Tandem was killed.
fn changed(version: Version) -> Fake {
    let host = Fake::new(version);
    let (shared, own) = (path("/vms/shared"), path("/vms/own.scope"));
    if version == Version::V2 {
        host.enable(&path("/vms/shared")).unwrap();
    }
    let group = host.create_child(&shared, "tandem-web-1").unwrap();
    for tid in [102, 103] {
        CpuController::move_thread(&host, Tid(tid), &group).unwrap();
    }
    host.write_knob(&group, Knob::Weight, "77").unwrap();
    host.write_knob(&own, Knob::Weight, "900").unwrap();
    host.write_knob(&own, Knob::Quota, "40000 50000").unwrap();
    host.write_knob(&own, Knob::Idle, "1").unwrap();
    let first = [PcpuId(0)].into_iter().collect();
    host.set_affinity(Tid(102), &first).unwrap();
    host.set_affinity(Tid(103), &first).unwrap();
    host.set_nice(Tid(103), Nice(9)).unwrap();
    let slice = Some(Nanos::from_millis(2));
    host.set_slice(Tid(102), slice).unwrap();
    host.set_slice(Tid(103), slice).unwrap();
    host
}

#[test]
fn previous_versions_journals_are_restored() {
    for (version, text) in [(Version::V1, V1), (Version::V2, V2)] {
        let dir = tempfile::tempdir().unwrap();
        let host = changed(version);
        assert_ne!(host.now(), host.wanted());
        std::fs::write(dir.path().join("journal"), text).unwrap();
        let (_actuator, report) =
            Actuator::open_with(host.controller(), host.threads(), dir.path(), "boot").unwrap();
        assert!(report.is_complete() && report.left.is_empty(), "{report}");
        assert_eq!(host.now(), host.wanted(), "{version}");
        assert!(!is_pending(dir.path()));
    }
}

/// Makes changes of every kind, some repeatedly, and is killed.
fn change_and_die(host: &Fake, dir: &Path) {
    let (mut actuator, _) =
        Actuator::open_with(host.controller(), host.threads(), dir, "boot").unwrap();
    let (shared, own) = (path("/vms/shared"), path("/vms/own.scope"));
    let group = actuator.create_group(&shared, "tandem-web-1").unwrap();
    let thread = host.thread(3).unwrap();
    actuator.move_thread(&thread, &group).unwrap();
    for n in 1..6u32 {
        let weight = Weight::constant(f64::from(100 * n + 1));
        actuator.set_weight(&own, weight).unwrap();
        let pcpus = [PcpuId(n)].into_iter().collect();
        actuator.set_affinity(&thread, &pcpus).unwrap();
        actuator.set_nice(&thread, Nice(n as i8 + 3)).unwrap();
        let slice = Nanos::from_millis(u64::from(n));
        actuator.set_slice(&thread, Some(slice)).unwrap();
        let quota_us = u64::from(10_000 + n);
        let quota = Quota { quota_us, period_us: 50_000 };
        actuator.set_quota(&own, Some(quota)).unwrap();
    }
    actuator.prepare_idle(&own, Weight::constant(606.0)).unwrap();
    actuator.set_idle(&own, true).unwrap();
    actuator.abandon();
}

#[test]
fn unknown_fields_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let host = Fake::new(Version::V1);
    change_and_die(&host, dir.path());
    let file = dir.path().join("journal");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("{\"change\"", "{\"since\":\"a later version\",\"change\"");
    let text = text.replacen("{\"tandem", "{\"later\":{\"a\":1},\"tandem", 1);
    std::fs::write(&file, text).unwrap();
    let (_actuator, report) =
        Actuator::open_with(host.controller(), host.threads(), dir.path(), "boot").unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(host.now(), host.wanted());
}
