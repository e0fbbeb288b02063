//! Each system call of the actuator and its journal fails once, with each of six errors: whatever comes of the change that was
//! asked for, all is put back in the end, by the same run or, after kill -9, by the next one.

use crate::fake_host::{Fake, path, state_dir};
use crate::faulty::{Faults, FaultyDisk, FaultyHost};
use tandem_linux::actuator::{Actuator, ActuatorError, Held};
use tandem_linux::cgroup::{Knob, Quota, Version};
use tandem_linux::journal::is_pending;
use tandem_linux::restore::RestoreReport;
use tandem_model::{Nanos, Nice, PcpuId, Weight};

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

/// Everything that can be asked of an actuator, a little of it. What is refused is refused: a later step does without.
fn change_everything(actuator: &mut Actuator, host: &Fake) {
    let (shared, own) = (path("/vms/shared"), path("/vms/own.scope"));
    let deep = path("/other");
    let group = shared.child("tandem-x");
    let threads: Vec<_> = (0..5).filter_map(|n| host.thread(n)).collect();
    let pcpus = [PcpuId(0)].into_iter().collect();
    let _ = actuator.create_group(&shared, "tandem-x");
    // Of threads that begin elsewhere, only the journal knows where.
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
    // Somebody else sets it twice: once it is taken over as what comes back in the end, once it is left alone.
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

/// All is as it was, once another run has started and ended.
fn assert_put_back(host: &Fake, dir: &std::path::Path, what: &str) {
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
                    assert_put_back(&host, dir.path(), &what);
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
                    assert_put_back(&host, dir.path(), &what);
                    if !has_fired {
                        break;
                    }
                }
            }
        }
    }
}

/// From any call on nothing can be written: nothing more is changed than is journaled, and reading is enough to put it back.
#[test]
fn a_disk_that_becomes_read_only_is_enough_to_restore() {
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
            // Once more: the journal is as it was.
            actuator.abandon();
            let (actuator, _) = open(&host, &faults, dir.path()).unwrap();
            assert_eq!(host.now(), host.wanted(), "{what}, again");
            actuator.abandon();
            faults.stop();
            assert_put_back(&host, dir.path(), &what);
            if !has_fired {
                break;
            }
        }
    }
}

/// Whatever fails of a change that was asked for, what somebody else then sets is theirs.
#[test]
fn what_others_set_after_a_change_that_failed_stays() {
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
            assert_put_back(&host, dir.path(), &what);
            if !has_fired {
                assert!(call > 3, "{what}");
                break;
            }
        }
    }
}
