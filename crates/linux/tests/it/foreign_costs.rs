//! Cost of foreign writes, however frequent: some lines of the journal, but no new file, whatever else the journal has.
//!
//! The last foreign value survives the restore, also after kill -9.

use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, Knob, Version};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Knob as Setting, Nice, Weight};
use tandem_testing::fake_host::Fake;
use tandem_testing::faulty::{Faults, open};

/// Number of foreign writes.
const TIMES: u32 = 200;

fn own() -> CgroupPath {
    CgroupPath("/vms/own.scope".to_owned())
}

/// One foreign write, and the reaction of the actuator's caller.
type Contest = fn(&mut Actuator, &Fake, &ThreadRef, u32);

/// Overwrites the foreign value, which becomes the original.
fn taken_over(actuator: &mut Actuator, host: &Fake, _: &ThreadRef, n: u32) {
    host.operator_sets_weight(&own(), &(5000 + n).to_string());
    let ours = Weight::constant(f64::from(300 + n % 7));
    actuator.set_weight(&own(), ours).unwrap();
}

/// Leaves the foreign value, and later sets ours again.
fn left_alone(actuator: &mut Actuator, host: &Fake, thread: &ThreadRef, n: u32) {
    host.operator_sets_weight(&own(), &(5000 + n).to_string());
    actuator.forget_knob(&own(), Knob::Weight).unwrap();
    host.operator_sets_nice(thread, Nice((n % 10) as i8));
    actuator.forget_thread(thread, Setting::Nice).unwrap();
    let ours = Weight::constant(f64::from(300 + n % 7));
    actuator.set_weight(&own(), ours).unwrap();
    actuator.set_nice(thread, Nice(15)).unwrap();
}

#[test]
fn foreign_writes_cost_lines_not_files() {
    for contest in [taken_over as Contest, left_alone] {
        let cost = |others: usize| {
            let dir = tempfile::tempdir().unwrap();
            let (host, faults) = (Fake::new(Version::V2), Faults::default());
            let mut actuator = open(&host, &faults, dir.path());
            for _ in 0..others {
                let other = host.start_in(&own());
                actuator.set_nice(&other, Nice(3)).unwrap();
            }
            let thread = host.thread(0).unwrap();
            actuator.set_nice(&thread, Nice(15)).unwrap();
            actuator.set_weight(&own(), Weight::constant(300.0)).unwrap();
            let (bytes, (_, renames)) = (faults.bytes(), faults.calls());
            let length = std::fs::metadata(dir.path().join("journal")).unwrap().len();
            for n in 0..TIMES {
                contest(&mut actuator, &host, &thread, n);
            }
            let renames = faults.calls().1 - renames;
            let cost = (faults.bytes() - bytes, renames, length as usize);
            drop(actuator);
            assert_eq!(host.now(), host.wanted());
            cost
        };
        let (few, many) = (cost(1), cost(2_000));
        // The journal is compacted occasionally.
        let ((few, ..), (many, renames, length)) = (few, many);
        assert!(renames <= 1, "{renames} new files for {TIMES} times");
        assert!(
            many <= few + 2 * length,
            "{many} bytes with many other records, {few} with few; the journal has {length}"
        );
    }
}

#[test]
fn last_foreign_write_survives_kill_9() {
    for contest in [taken_over as Contest, left_alone] {
        for version in [Version::V1, Version::V2] {
            let dir = tempfile::tempdir().unwrap();
            let (host, faults) = (Fake::new(version), Faults::default());
            let mut actuator = open(&host, &faults, dir.path());
            let thread = host.thread(0).unwrap();
            for n in 0..TIMES {
                contest(&mut actuator, &host, &thread, n);
                // Another foreign write to a forgotten knob: no restore may revert it.
                if n % 3 == 0 {
                    host.operator_sets_weight(&own(), "4321");
                    actuator.forget_knob(&own(), Knob::Weight).unwrap();
                    host.operator_sets_weight(&own(), "4322");
                }
                actuator.abandon();
                actuator = open(&host, &faults, dir.path());
                assert_eq!(host.now(), host.wanted(), "{version}, {n}");
            }
        }
    }
}
