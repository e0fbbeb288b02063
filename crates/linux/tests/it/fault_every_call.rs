//! Each system call of the actuator and its journal fails once, with each of six errors.
//!
//! Whatever the effect on the change, the same run or, after kill -9, the next one restores everything.

use tandem_linux::actuator::{Actuator, ActuatorError, Held};
use tandem_linux::cgroup::{Knob, Quota, Version};
use tandem_linux::journal::is_pending;
use tandem_linux::restore::RestoreReport;
use tandem_model::{Nanos, Nice, PcpuId, Weight};
use tandem_testing::fake_host::{Fake, path, state_dir};
use tandem_testing::faulty::{Faults, FaultyDisk, FaultyHost};

const ERRORS: [i32; 6] =
    [libc::ENOSPC, libc::EIO, libc::EMFILE, libc::EROFS, libc::ESRCH, libc::EBUSY];

fn open(
    host: &Fake,
    faults: &Faults,
    dir: &std::path::Path,
) -> Result<(Actuator, RestoreReport), ActuatorError> {
    let faulty = FaultyHost { host: host.clone(), faults: faults.clone() };
    let disk = Box::new(FaultyDisk(faults.clone()));
    Actuator::open_on(disk, Box::new(faulty.clone()), Box::new(faulty), dir, "boot")
}

/// Makes a few changes of every kind, ignoring errors.
fn change_everything(actuator: &mut Actuator, host: &Fake) {
    let (shared, own) = (path("/vms/shared"), path("/vms/own.scope"));
    let deep = path("/other");
    let group = shared.child("tandem-x");
    let threads: Vec<_> = (0..5).filter_map(|n| host.thread(n)).collect();
    let pcpus = [PcpuId(0)].into_iter().collect();
    let _ = actuator.create_group(&shared, "tandem-x");
    // Only the journal knows the origin of the threads from other cgroups.
    for thread in &threads[2..5] {
        let _ = actuator.move_thread(thread, &group);
        let _ = actuator.set_affinity(thread, &pcpus);
        let _ = actuator.set_nice(thread, Nice(5));
        let _ = actuator.set_slice(thread, Some(Nanos::from_millis(3)));
    }
    let _ = actuator.set_weight(&group, Weight::constant(50.0));
    for weight in [700.0, 701.0, 702.0] {
        let _ = actuator.set_weight(&own, Weight::constant(weight));
    }
    // Two foreign writes: the first becomes the original, the second is forgotten.
    host.operator_sets_weight(&own, "777");
    let _ = actuator.set_weight(&own, Weight::constant(703.0));
    host.operator_sets_weight(&own, "778");
    if actuator.forget_knob(&own, Knob::Weight).is_ok() {
        host.operator_sets_weight(&own, "779");
        let _ = actuator.set_weight(&own, Weight::constant(704.0));
    }
    let _ = actuator.set_quota(&own, Some(Quota { quota_us: 40_000, period_us: 50_000 }));
    let _ = actuator.create_group(&deep, "tandem-y");
    let _ = actuator.release_thread(&threads[2]);
    let _ = actuator.release_group(&deep.child("tandem-y"));
    let _ = actuator.create_group(&shared, "tandem-z");
    let _ = actuator.move_thread(&threads[2], &shared.child("tandem-z"));
    let _ = actuator.set_nice(&threads[2], Nice(6));
    let leaving = Held {
        threads: vec![threads[2]],
        cgroups: vec![shared.child("tandem-z")],
        ..Held::default()
    };
    let unplugged = Held { threads: vec![threads[3]], ..Held::default() };
    let _ = actuator.release(&[&leaving, &unplugged], || true);
    let _ = actuator.set_idle(&own, true);
    let _ = actuator.set_idle(&own, false);
    let _ = actuator.set_weight(&own, Weight::constant(650.0));
    let _ = actuator.prepare_idle(&own, Weight::constant(640.0));
    let _ = actuator.set_idle(&own, true);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Killed,
    Restored,
}

/// Asserts that another run, from start to end, leaves no change.
fn assert_restored(host: &Fake, dir: &std::path::Path, what: &str) {
    let (actuator, report) = open(host, &Faults::default(), dir).unwrap();
    assert!(report.is_complete(), "{what}: {report}");
    drop(actuator);
    assert_eq!(host.now(), host.wanted(), "{what}");
    assert!(!is_pending(dir), "{what}");
}

#[test]
fn fault_every_call() {
    let mut tried = 0;
    for version in [Version::V1, Version::V2] {
        for error in ERRORS {
            for end in [End::Killed, End::Restored] {
                for call in 0.. {
                    let what = format!("{version}, error {error} in call {call}, {end:?}");
                    let dir = state_dir();
                    let host = Fake::new(version);
                    let faults = Faults::default();
                    faults.fail_after(call, error);
                    if let Ok((mut actuator, _)) = open(&host, &faults, dir.path()) {
                        change_everything(&mut actuator, &host);
                        match end {
                            End::Killed => actuator.abandon(),
                            End::Restored => drop(actuator),
                        }
                    }
                    let has_fired = faults.has_fired();
                    assert_restored(&host, dir.path(), &what);
                    if !has_fired {
                        break;
                    }
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1000, "only {tried} calls failed");
    println!("{tried} calls failed");
}

#[test]
fn fault_every_call_of_a_restore() {
    for version in [Version::V1, Version::V2] {
        for error in ERRORS {
            for end in [End::Killed, End::Restored] {
                for call in 0.. {
                    let what = format!("{version}, error {error} in call {call}, {end:?}");
                    let dir = state_dir();
                    let host = Fake::new(version);
                    let faults = Faults::default();
                    let (mut actuator, _) = open(&host, &faults, dir.path()).unwrap();
                    change_everything(&mut actuator, &host);
                    if end == End::Killed {
                        actuator.abandon();
                        faults.fail_after(call, error);
                        drop(open(&host, &faults, dir.path()));
                    } else {
                        faults.fail_after(call, error);
                        actuator.restore();
                        actuator.abandon();
                    }
                    let has_fired = faults.has_fired();
                    assert_restored(&host, dir.path(), &what);
                    if !has_fired {
                        break;
                    }
                }
            }
        }
    }
}

/// After any call the disk becomes read-only: all changes are journaled, and the restore only needs to read.
#[test]
fn read_only_disk_suffices_to_restore() {
    for version in [Version::V1, Version::V2] {
        for call in 0.. {
            let what = format!("{version}, read-only after call {call}");
            let dir = state_dir();
            let host = Fake::new(version);
            let faults = Faults::default();
            let (mut actuator, _) = open(&host, &faults, dir.path()).unwrap();
            faults.fail_after(call, libc::EIO);
            change_everything(&mut actuator, &host);
            let has_fired = faults.has_fired();
            faults.be_read_only();
            change_everything(&mut actuator, &host);
            actuator.abandon();
            let (actuator, report) = open(&host, &faults, dir.path()).unwrap();
            assert!(report.is_complete(), "{what}: {report}");
            assert_eq!(host.now(), host.wanted(), "{what}");
            // Once more, because the journal could not be emptied.
            actuator.abandon();
            let (actuator, _) = open(&host, &faults, dir.path()).unwrap();
            assert_eq!(host.now(), host.wanted(), "{what}, again");
            actuator.abandon();
            faults.stop();
            assert_restored(&host, dir.path(), &what);
            if !has_fired {
                break;
            }
        }
    }
}

/// Whatever call of a change fails, a later foreign write stays.
#[test]
fn foreign_write_after_failed_change_stays() {
    for end in [End::Killed, End::Restored] {
        for call in 0.. {
            let what = format!("call {call}, {end:?}");
            let dir = state_dir();
            let host = Fake::new(Version::V1);
            let faults = Faults::default();
            let (mut actuator, _) = open(&host, &faults, dir.path()).unwrap();
            let thread = host.thread(0).unwrap();
            faults.fail_after(call, libc::EIO);
            let _ = actuator.set_nice(&thread, Nice(5));
            let has_fired = faults.has_fired();
            faults.stop();
            host.operator_sets_nice(&thread, Nice(7));
            match end {
                End::Killed => actuator.abandon(),
                End::Restored => drop(actuator),
            }
            assert_restored(&host, dir.path(), &what);
            if !has_fired {
                assert!(call > 3, "{what}");
                break;
            }
        }
    }
}
