//! Property: a restore reverts all changes, wherever the actuator was killed.
//!
//! The host of cgroups and threads is in memory, with v2's rules for enabling the controller.
//! Random sequences of actuator operations mix with changes of the environment (threads end, threads start inside groups, cgroups vanish).
//! At a random change the actuator dies, before or after the change took effect, and the next one opens the same journal.
//! The host must then show only the changes of the environment.

#[allow(dead_code, reason = "not every test uses all of it")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use tandem_linux::actuator::{Actuator, ActuatorError, Held};
use tandem_linux::cgroup::{CgroupPath, Knob, Quota, Version};
use tandem_model::{Nanos, Nice, PcpuId, Weight};
use tandem_testing::fake_host::{Crash, Fake, open_on, state_dir};

/// An operation or a change of the environment.
/// Indices select among the existing objects, modulo their number.
#[derive(Clone, Debug)]
enum Step {
    CreateGroup { parent: usize, name: u8 },
    Move { thread: usize, to: usize },
    Weight { cgroup: usize, weight: u16 },
    Quota { cgroup: usize, quota: Option<u32> },
    Idle { cgroup: usize, idle: bool },
    Affinity { thread: usize, pcpus: u8 },
    Nice { thread: usize, nice: i8 },
    Slice { thread: usize, ms: u64 },
    Release { cgroup: usize },
    ReleaseThread { thread: usize },
    ReleaseSome { first: usize, second: usize, most: usize },
    ReleaseKnob { cgroup: usize, knob: usize },
    Restore,
    ThreadEnds { thread: usize },
    ThreadStarts { from: usize },
    CgroupVanishes { cgroup: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64usize;
    prop_oneof![
        4 => (n.clone(), 0..4u8).prop_map(|(parent, name)| Step::CreateGroup { parent, name }),
        6 => (n.clone(), n.clone()).prop_map(|(thread, to)| Step::Move { thread, to }),
        4 => (n.clone(), any::<u16>())
            .prop_map(|(cgroup, weight)| Step::Weight { cgroup, weight }),
        2 => (n.clone(), proptest::option::of(1000..90_000u32))
            .prop_map(|(cgroup, quota)| Step::Quota { cgroup, quota }),
        4 => (n.clone(), any::<bool>()).prop_map(|(cgroup, idle)| Step::Idle { cgroup, idle }),
        4 => (n.clone(), any::<u8>()).prop_map(|(thread, pcpus)| Step::Affinity { thread, pcpus }),
        2 => (n.clone(), -20..20i8).prop_map(|(thread, nice)| Step::Nice { thread, nice }),
        2 => (n.clone(), 0..4u64).prop_map(|(thread, ms)| Step::Slice { thread, ms }),
        2 => n.clone().prop_map(|cgroup| Step::Release { cgroup }),
        1 => n.clone().prop_map(|thread| Step::ReleaseThread { thread }),
        2 => (n.clone(), n.clone(), 0..3usize)
            .prop_map(|(first, second, most)| Step::ReleaseSome { first, second, most }),
        1 => (n.clone(), 0..3usize)
            .prop_map(|(cgroup, knob)| Step::ReleaseKnob { cgroup, knob }),
        1 => Just(Step::Restore),
        1 => n.clone().prop_map(|thread| Step::ThreadEnds { thread }),
        1 => n.clone().prop_map(|from| Step::ThreadStarts { from }),
        1 => n.prop_map(|cgroup| Step::CgroupVanishes { cgroup }),
    ]
}

/// Takes one step; returns refusals, which the fake host makes like a kernel, and does not catch a kill.
fn take(actuator: &mut Actuator, host: &Fake, step: &Step) -> Result<(), ActuatorError> {
    match *step {
        Step::CreateGroup { parent, name } => {
            let parent = host.cgroup(parent);
            actuator.create_group(&parent, &format!("tandem-{name}"))?;
        }
        Step::Move { thread, to } => {
            if let Some(thread) = host.thread(thread) {
                actuator.move_thread(&thread, &host.cgroup(to))?;
            }
        }
        Step::Weight { cgroup, weight } => {
            actuator.set_weight(&host.cgroup(cgroup), Weight::saturating(f64::from(weight)))?;
        }
        Step::Quota { cgroup, quota } => {
            let quota =
                quota.map(|quota_us| Quota { quota_us: u64::from(quota_us), period_us: 50_000 });
            actuator.set_quota(&host.cgroup(cgroup), quota)?;
        }
        Step::Idle { cgroup, idle } => {
            actuator.set_idle(&host.cgroup(cgroup), idle)?;
        }
        Step::Nice { thread, nice } => {
            if let Some(thread) = host.thread(thread) {
                actuator.set_nice(&thread, Nice(nice))?;
            }
        }
        Step::Slice { thread, ms } => {
            if let Some(thread) = host.thread(thread) {
                let slice = (ms > 0).then(|| Nanos::from_millis(ms));
                actuator.set_slice(&thread, slice)?;
            }
        }
        Step::Affinity { thread, pcpus } => {
            if let Some(thread) = host.thread(thread) {
                let set = (0..8).filter(|bit| pcpus >> bit & 1 == 1).map(PcpuId).collect();
                actuator.set_affinity(&thread, &set)?;
            }
        }
        Step::Release { cgroup } => {
            actuator.release_group(&host.cgroup(cgroup))?;
        }
        Step::ReleaseThread { thread } => {
            if let Some(thread) = host.thread(thread) {
                actuator.release_thread(&thread)?;
            }
        }
        Step::ReleaseSome { first, second, most } => {
            let all = [first, second].map(|n| Held {
                threads: host.thread(n).into_iter().collect(),
                cgroups: vec![host.cgroup(n)],
                ..Held::default()
            });
            let mut left = most;
            let reports = actuator.release(&all.each_ref(), || {
                let goes_on = left > 0;
                left = left.saturating_sub(1);
                goes_on
            });
            assert_eq!(reports.len(), most.min(2));
        }
        Step::ReleaseKnob { cgroup, knob } => {
            let knob = [Knob::Weight, Knob::Quota, Knob::Idle][knob];
            actuator.release_knob(&host.cgroup(cgroup), knob)?;
        }
        Step::Restore => {
            actuator.restore();
        }
        Step::ThreadEnds { thread } => host.end_thread(thread),
        Step::ThreadStarts { from } => host.start_thread(from),
        Step::CgroupVanishes { cgroup } => host.remove_cgroup(cgroup),
    }
    Ok(())
}

/// End of the actuator.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A kill at this change.
    Killed { at: usize, applied: bool },
    /// A kill at this change of a restore.
    KilledInRestore { at: usize, applied: bool },
    /// A restore.
    Restores,
    /// A drop.
    Dropped,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => (0..60usize, any::<bool>()).prop_map(|(at, applied)| End::Killed { at, applied }),
        3 => (0..30usize, any::<bool>())
            .prop_map(|(at, applied)| End::KilledInRestore { at, applied }),
        1 => Just(End::Restores),
        1 => Just(End::Dropped),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn restore_is_identity(
        version in prop_oneof![Just(Version::V1), Just(Version::V2)],
        steps in proptest::collection::vec(step(), 0..40),
        end in end(),
    ) {
        let dir = state_dir();
        let host = Fake::new(version);
        let mut actuator = open_on(&host, dir.path());
        if let End::Killed { at, applied } = end {
            host.die_at(at, applied);
        }
        let alive = catch_unwind(AssertUnwindSafe(|| {
            for step in &steps {
                // A refusal of the fake host does not violate the property.
                let _ = take(&mut actuator, &host, step);
            }
            if let End::KilledInRestore { at, applied } = end {
                host.die_at(at, applied);
            }
            if matches!(end, End::KilledInRestore { .. } | End::Restores) {
                let report = actuator.restore();
                assert!(report.is_complete(), "{report}");
            }
        }));
        if let Err(panic) = alive {
            prop_assert!(panic.is::<Crash>(), "a panic of its own");
        }
        host.live();
        match end {
            End::Dropped => drop(actuator),
            _ => actuator.abandon(),
        }
        // After an orderly end, nothing is left for the next start.
        if matches!(end, End::Restores | End::Dropped) {
            prop_assert!(!tandem_linux::journal::is_pending(dir.path()));
        }
        drop(open_on(&host, dir.path()));
        prop_assert!(!tandem_linux::journal::is_pending(dir.path()));
        prop_assert_eq!(host.now(), host.wanted());
    }
}

#[test]
fn journal_of_long_life_stays_empty() {
    let dir = state_dir();
    let host = Fake::new(Version::V2);
    let mut actuator = open_on(&host, dir.path());
    let home = CgroupPath("/vms/shared".into());
    let mut longest = 0;
    for round in 0..200usize {
        let thread = host.start_in(&home);
        let group = actuator.create_group(&home, &format!("tandem-{round}")).unwrap();
        actuator.move_thread(&thread, &group).unwrap();
        actuator.set_affinity(&thread, &[PcpuId(0)].into_iter().collect()).unwrap();
        actuator.set_weight(&group, Weight::constant(50.0)).unwrap();
        host.end(&thread);
        let report = actuator.release_group(&group).unwrap();
        assert!(report.is_complete(), "{report}");
        let size = std::fs::metadata(dir.path().join("journal")).unwrap().len();
        longest = longest.max(size);
    }
    assert_eq!(longest, 0, "all is released, so the journal is empty");
    assert_eq!(host.now(), host.wanted());
}

#[test]
fn forgotten_operator_changes_stay() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    let thread = host.thread(0).unwrap();
    let own = CgroupPath("/vms/own.scope".into());
    let pcpus = |list: &str| list.parse().unwrap();
    actuator.set_affinity(&thread, &pcpus("0")).unwrap();
    actuator.set_weight(&own, Weight::constant(7.0)).unwrap();
    host.operator_sets_affinity(&thread, &pcpus("2-3"));
    host.operator_sets_weight(&own, "300");
    actuator.forget_thread(&thread, tandem_model::Knob::Affinity).unwrap();
    actuator.forget_knob(&own, Knob::Weight).unwrap();
    assert!(actuator.restore().is_complete());
    assert_eq!(host.now(), host.wanted());
}

#[test]
fn release_knob_keeps_other_knobs() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    let own = CgroupPath("/vms/own.scope".into());
    let read = |actuator: &Actuator, knob| actuator.controller().read_knob(&own, knob).unwrap();
    let weight = read(&actuator, Knob::Weight);
    let quota = Quota { quota_us: 20_000, period_us: 50_000 };
    actuator.set_weight(&own, Weight::constant(7.0)).unwrap();
    actuator.set_quota(&own, Some(quota)).unwrap();
    let report = actuator.release_knob(&own, Knob::Weight).unwrap();
    assert_eq!((report.put_back, report.is_complete()), (1, true));
    assert_eq!(read(&actuator, Knob::Weight), weight);
    assert_eq!(read(&actuator, Knob::Quota), "20000 50000");
    assert!(actuator.restore().is_complete());
    assert_eq!(host.now(), host.wanted());
}
