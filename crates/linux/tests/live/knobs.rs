//! Idle class, nice value, slice, and the group of a single vCPU on a real kernel.
//!
//! The tests set each, read it from the kernel, and restore it in two ways: by `restore`, and by the next start after kill -9.
//! If the kernel lacks a feature, the error names the version that has it.

use std::fs;

use tandem_linux::actuator::{Actuator, ActuatorError, Outcome};
use tandem_linux::cgroup::{CgroupError, CgroupPath, Knob};
use tandem_linux::journal::is_pending;
use tandem_linux::sched_attr::{schedulers_slice, slice};
use tandem_model::{Nanos, Nice, Weight};

use crate::harness::{Skip, Test};
use crate::helper::StateDir;
use crate::host::{LiveHost, controller, nice};
use crate::tests::open;

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("nice_is_set_and_restored", nice_value),
    ("slice_is_set_and_restored", own_slice),
    ("idle_class_is_set_and_restored", idle_class),
    ("original_weight_survives_the_idle_class", weight_and_idle),
    ("foreign_weight_survives_the_idle_class", foreign_weight_and_idle),
    ("operators_idle_class_stays", operators_idle_class),
    ("unnoticed_idle_class_stays", unnoticed_idle_class),
    ("vcpu_group_below_the_vms_group", group_of_a_vcpu),
    ("vcpu_group_below_an_operators_cgroup", group_below_own),
];

/// On a kernel without custom slices, checks the error and skips the test.
fn need_slices(live_host: &LiveHost) -> Result<(), Skip> {
    if schedulers_slice().is_some() {
        return Ok(());
    }
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    let refused = actuator.set_slice(&live_host.threads()[0], Some(Nanos::from_millis(1)));
    let error = refused.expect_err("it is refused").to_string();
    assert!(error.contains("6.12"), "{error}");
    assert!(!is_pending(&dir.0), "a refusal leaves no record");
    assert_eq!(live_host.snapshot(), before);
    Err(Skip(error))
}

/// On a kernel without the idle class, checks the error and skips the test.
fn need_idle_class(live_host: &mut LiveHost) -> Result<(), Skip> {
    // On v2 the file exists once the controller is enabled for the cgroup.
    live_host.enable_controller_as_operator();
    let is_idle = controller()?.is_idle(&live_host.own);
    if is_idle.expect("it is read").is_some() {
        return Ok(());
    }
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    let refused = actuator.set_idle(&live_host.own, true);
    let error = refused.expect_err("it is refused").to_string();
    assert!(error.contains("5.15"), "{error}");
    drop(actuator);
    assert_eq!(live_host.snapshot(), before);
    Err(Skip(error))
}

/// Makes changes twice, and ends once by `restore` and once like kill -9: both leave no trace.
fn both_ends(
    live_host: &LiveHost,
    change: impl Fn(&mut Actuator) -> Result<(), ActuatorError>,
) -> Result<(), Skip> {
    let before = live_host.snapshot();
    for killed in [false, true] {
        let dir = StateDir::new();
        let mut actuator = open(&dir)?;
        change(&mut actuator).expect("the change is made");
        assert_ne!(live_host.snapshot(), before, "something was changed");
        let report = if killed {
            actuator.abandon();
            let (_, report) = Actuator::open(controller()?, &dir.0).expect("it opens");
            report
        } else {
            actuator.restore()
        };
        assert!(report.is_complete() && report.put_back > 0, "{report}");
        assert_eq!(live_host.snapshot(), before, "killed: {killed}");
        assert!(!is_pending(&dir.0));
    }
    Ok(())
}

fn nice_value() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let thread = live_host.threads()[1];
    both_ends(&live_host, |actuator| {
        for value in [7, -11, 19] {
            let outcome = actuator.set_nice(&thread, Nice(value))?;
            assert_eq!((outcome, nice(&thread)), (Outcome::Done, value));
        }
        assert_eq!(nice(&live_host.threads()[0]), 0, "no other thread");
        Ok(())
    })
}

fn own_slice() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    need_slices(&live_host)?;
    let thread = live_host.threads()[1];
    let read = || slice(thread.tid).expect("it is read");
    both_ends(&live_host, |actuator| {
        let half = Some(Nanos(500_000));
        actuator.set_slice(&thread, half)?;
        assert_eq!(read(), half);
        // Neither resets the other.
        actuator.set_nice(&thread, Nice(5))?;
        assert_eq!((read(), nice(&thread)), (half, 5));
        actuator.set_slice(&thread, None)?;
        assert_eq!((read(), nice(&thread)), (None, 5));
        let long = Some(Nanos::from_millis(20));
        actuator.set_slice(&thread, long)?;
        assert_eq!(read(), long);
        Ok(())
    })
}

/// Text of a file of the owner VM's cgroup.
fn own_file(live_host: &LiveHost, file: &str) -> String {
    let controller = controller().map_err(|Skip(why)| why).expect("as before");
    let folder = controller.mount().join(live_host.own.0.trim_start_matches('/'));
    let text = fs::read_to_string(folder.join(file)).expect("the file is there");
    text.trim_end().to_owned()
}

fn idle_class() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    need_idle_class(&mut live_host)?;
    both_ends(&live_host, |actuator| {
        actuator.set_idle(&live_host.own, true)?;
        assert_eq!(own_file(&live_host, "cpu.idle"), "1");
        let refused = actuator.set_weight(&live_host.own, Weight::constant(50.0));
        assert!(refused.is_err(), "the idle class has no weight");
        actuator.set_idle(&live_host.own, false)?;
        assert_eq!(own_file(&live_host, "cpu.idle"), "0");
        actuator.set_idle(&live_host.own, true)?;
        Ok(())
    })
}

fn weight_and_idle() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    need_idle_class(&mut live_host)?;
    live_host.operator_sets(Knob::Weight, "333");
    let weight = |actuator: &Actuator| actuator.controller().weight(&live_host.own);
    both_ends(&live_host, |actuator| {
        actuator.set_idle(&live_host.own, true)?;
        Ok(())
    })?;
    both_ends(&live_host, |actuator| {
        actuator.set_weight(&live_host.own, Weight::constant(444.0))?;
        actuator.set_idle(&live_host.own, true)?;
        actuator.set_idle(&live_host.own, false)?;
        assert_eq!(
            weight(actuator)?,
            actuator.controller().default_weight(),
            "the kernel's default replaces any weight"
        );
        Ok(())
    })?;
    both_ends(&live_host, |actuator| {
        actuator.set_idle(&live_host.own, true)?;
        actuator.set_idle(&live_host.own, false)?;
        actuator.set_weight(&live_host.own, Weight::constant(555.0))?;
        assert_eq!(weight(actuator)?, Weight::constant(555.0));
        actuator.set_idle(&live_host.own, true)
    })
}

fn foreign_weight_and_idle() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    need_idle_class(&mut live_host)?;
    for killed in [false, true] {
        live_host.operator_sets(Knob::Weight, "333");
        let dir = StateDir::new();
        let mut actuator = open(&dir)?;
        let made = |result: Result<(), ActuatorError>| result.expect("the change is made");
        made(actuator.set_idle(&live_host.own, true));
        made(actuator.set_idle(&live_host.own, false));
        live_host.operator_sets(Knob::Weight, "200");
        made(actuator.forget_knob(&live_host.own, Knob::Weight));
        made(actuator.set_weight(&live_host.own, Weight::constant(700.0)).map(|_| ()));
        // The record of the weight is now the later one, but the undo still reverts the class first.
        made(actuator.set_idle(&live_host.own, true));
        let report = if killed {
            actuator.abandon();
            let (_, report) = Actuator::open(controller()?, &dir.0).expect("it opens");
            report
        } else {
            actuator.restore()
        };
        assert!(report.is_complete(), "{report}");
        let weight = controller()?.weight(&live_host.own).expect("a weight");
        assert_eq!(weight, Weight::constant(200.0), "killed: {killed}");
    }
    Ok(())
}

fn operators_idle_class() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    need_idle_class(&mut live_host)?;
    live_host.operator_sets(Knob::Idle, "1");
    both_ends(&live_host, |actuator| {
        actuator.set_idle(&live_host.own, false)?;
        actuator.set_weight(&live_host.own, Weight::constant(250.0))?;
        assert_eq!(own_file(&live_host, "cpu.idle"), "0");
        Ok(())
    })?;
    assert_eq!(own_file(&live_host, "cpu.idle"), "1");
    // Tandem moves it back into the class, and the operator moves it out.
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    for idle in [false, true] {
        let set = actuator.set_idle(&live_host.own, idle);
        set.expect("the change is made");
    }
    live_host.operator_sets(Knob::Idle, "0");
    let forgotten = actuator.forget_knob(&live_host.own, Knob::Idle);
    forgotten.expect("it is forgotten");
    let report = actuator.restore();
    assert!(report.is_complete(), "{report}");
    let usual = controller()?.default_weight();
    let weight = controller()?.weight(&live_host.own).expect("a weight");
    assert_eq!(weight, usual);
    assert_eq!(own_file(&live_host, "cpu.idle"), "0");
    Ok(())
}

fn unnoticed_idle_class() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    need_idle_class(&mut live_host)?;
    live_host.operator_sets(Knob::Weight, "333");
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    let written = actuator.set_weight(&live_host.own, Weight::constant(444.0));
    written.expect("a weight");
    // The actuator does not know of it, and cannot restore the weight in the class.
    live_host.operator_sets(Knob::Idle, "1");
    let report = actuator.restore();
    assert!(report.is_complete(), "{report}");
    assert_eq!(own_file(&live_host, "cpu.idle"), "1");
    assert!(!is_pending(&dir.0));
    Ok(())
}

/// Moves one thread to a group below `above`, sets its knobs, and checks them in the kernel.
fn make_group_below(
    actuator: &mut Actuator,
    above: &CgroupPath,
    thread: &tandem_linux::thread::ThreadRef,
    name: &str,
) -> Result<CgroupPath, ActuatorError> {
    let group = actuator.create_group(above, name)?;
    assert_eq!(actuator.move_thread(thread, &group)?, Outcome::Done);
    actuator.set_weight(&group, Weight::constant(900.0))?;
    match actuator.set_idle(&group, true) {
        Err(ActuatorError::Cgroup(CgroupError::NoIdleClass)) => {}
        other => other?,
    }
    let controller = actuator.controller();
    assert_eq!(controller.threads(&group)?, [thread.tid]);
    assert_eq!(controller.cgroup_of(thread)?, group);
    assert_ne!(controller.is_idle(&group)?, Some(false));
    Ok(group)
}

fn group_of_a_vcpu() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let threads = live_host.threads();
    both_ends(&live_host, |actuator| {
        let home = actuator.controller().cgroup_of(&threads[0])?;
        let vms = actuator.create_group(&home, &format!("{}vm", live_host.prefix))?;
        for thread in &threads {
            actuator.move_thread(thread, &vms)?;
        }
        make_group_below(actuator, &vms, &threads[1], "vcpu1")?;
        let mut others = actuator.controller().threads(&vms)?;
        others.sort();
        assert_eq!(others, [threads[0].tid, threads[2].tid], "the others stay");
        // The group can be removed and recreated.
        let report = actuator.release_group(&vms.child("vcpu1"))?;
        assert!(report.is_complete(), "{report}");
        assert_eq!(actuator.controller().children(&vms)?, []);
        assert_eq!(actuator.controller().cgroup_of(&threads[1])?, home);
        actuator.move_thread(&threads[1], &vms)?;
        make_group_below(actuator, &vms, &threads[1], "vcpu1")?;
        Ok(())
    })
}

fn group_below_own() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let threads = live_host.own_threads();
    let name = format!("{}vcpu0", live_host.prefix);
    both_ends(&live_host, |actuator| {
        make_group_below(actuator, &live_host.own, &threads[0], &name)?;
        actuator.set_weight(&live_host.own, Weight::constant(123.0))?;
        Ok(())
    })?;
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    make_group_below(&mut actuator, &live_host.own, &threads[0], &name).expect("it is made");
    // Releases the VM while the actuator goes on.
    let report = actuator.release_group(&live_host.own).expect("it is released");
    assert!(report.is_complete() && report.put_back > 0, "{report}");
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}
