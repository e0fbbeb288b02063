//! A panic of the thread that keeps turns: the watchdog, or without it the fleet, takes the VMs out of the idle class, and turns continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CpuController, Knob};
use tandem_model::Weight;
use tandem_policy::host::Host;
use tandem_policy::turns::Rotation;

use crate::harness::{Skip, Test};
use crate::helper::wait_until;
use crate::hooked::{Change, Hooked};
use crate::host::{LiveHost, controller};
use crate::slots;
use crate::subject::{OWNER, SHARED, Subject, set_weight, whole};
use crate::turns_daemon::both;

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("nobody_stays_in_the_idle_class_of_a_thread_that_panics", vms),
    ("panic_in_slot_restores_affinity", in_slot),
];

const SAID: &str = "a test has no use for turns";

/// When set, the thread that keeps turns panics after it has put a VM into the idle class; that resets it.
type Fuse = Arc<AtomicBool>;

fn subject(live_host: LiveHost) -> Result<(Subject, Fuse), Skip> {
    let fuse = Fuse::default();
    let burns = fuse.clone();
    let after = move |change: Change<'_>| {
        let keeps_turns = thread::current().name() == Some("tandem-turns");
        if let Change::Knob(cgroup, Knob::Idle, "1") = change
            && keeps_turns
            && burns.swap(false, Ordering::SeqCst)
        {
            panic!("{SAID}: {cgroup}");
        }
    };
    let controller: Arc<dyn CpuController> =
        Arc::new(Hooked { inner: controller()?, after: Box::new(after) });
    Ok((Subject::acting_through(live_host, controller), fuse))
}

fn turns(subject: &Subject) -> u64 {
    let stats = subject.fleet.turn_stats();
    stats.map_or(0, |stats| stats.turns)
}

/// Waits until the VMs have had some more turns.
fn wait_for_turns(subject: &mut Subject, rotation: &Rotation) {
    let before = turns(subject);
    wait_until("turns go on", || {
        // As the daemon does: a thread that has not begun to spin yet has left.
        subject.observe(SHARED);
        subject.fleet.apply(&[], Some(rotation));
        turns(subject) > before + 5
    });
}

/// Makes the thread panic.
fn burn(fuse: &Fuse) {
    fuse.store(true, Ordering::SeqCst);
    wait_until("it panics", || !fuse.load(Ordering::SeqCst));
}

/// Returns the fleet's report that the thread has ended.
fn told(subject: &mut Subject) -> Vec<String> {
    let mut told = Vec::new();
    wait_until("it is told", || {
        subject.observe(SHARED);
        let mut news = subject.fleet.turn_errors();
        news.retain(|line| line.contains("the thread that keeps turns has ended"));
        told.extend(news);
        !told.is_empty()
    });
    told
}

fn vms() -> Result<(), Skip> {
    Subject::acting()?.need_idle_class()?;
    let mut live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    for vm in [&mut live_host.shared, &mut live_host.owner] {
        (0..2).for_each(|vcpu| vm.tell(&format!("spin {vcpu}")));
    }
    let (mut subject, fuse) = subject(live_host)?;
    subject.apply(set_weight(whole(SHARED), 700.0));
    wait_for_turns(&mut subject, &both());
    let groups = [SHARED, OWNER].map(|vm| subject.cgroup(vm));
    let is_idle = |subject: &Subject| groups.iter().any(|group| subject.is_idle(group));
    // The fleet does not look, so the watchdog is alone.
    burn(&fuse);
    // After leaving the class, a cgroup has the kernel's default weight for a moment.
    wait_until("the watchdog has reverted them", || {
        !is_idle(&subject) && subject.weight(&groups[0]) == Weight::constant(700.0)
    });
    let said = told(&mut subject);
    assert!(said.len() == 1 && said[0].contains(SAID), "{said:?}");
    let observed = subject.observe(SHARED).in_force;
    assert_eq!(
        (observed.rotating, observed.idle, observed.weight),
        (false, false, Weight::constant(700.0))
    );
    wait_for_turns(&mut subject, &both());
    // Now only the fleet.
    let watchdog = subject.fleet.turn_watchdog().expect("there is another");
    let watchdog = Pid::from_raw(watchdog as i32).expect("a process");
    kill_process(watchdog, Signal::KILL).expect("it lives");
    burn(&fuse);
    thread::sleep(Duration::from_millis(100));
    assert!(is_idle(&subject), "no watchdog reverts them");
    assert_eq!(told(&mut subject).len(), 1);
    assert!(!is_idle(&subject));
    assert_eq!(subject.weight(&groups[0]), Weight::constant(700.0));
    // A thread that always panics is not restarted continuously.
    let before_pause = turns(&subject);
    subject.fleet.apply(&[], Some(&both()));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(turns(&subject), before_pause);
    assert!(!subject.observe(SHARED).in_force.rotating && !is_idle(&subject));
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn in_slot() -> Result<(), Skip> {
    let (live_host, pcpus) = slots::live_host()?;
    let (mut subject, fuse) = subject(live_host)?;
    let thread = subject.thread(SHARED, 0);
    let rotations = slots::rotations(&pcpus);
    // The last rotation, in which the two take turns.
    let rotation = rotations.last().expect("there are some");
    let now = || affinity(thread.tid).expect("it lives");
    wait_for_turns(&mut subject, rotation);
    wait_until("it sits", || {
        subject.observe(SHARED);
        subject.fleet.apply(&[], Some(rotation));
        now().len() == 1
    });
    burn(&fuse);
    assert_eq!(told(&mut subject).len(), 1);
    assert_eq!(now(), pcpus);
    assert_eq!(subject.observe_vcpu(SHARED, 0).allowed, pcpus);
    assert_eq!(subject.recheck(), Vec::<String>::new());
    subject.restore();
    Ok(())
}
