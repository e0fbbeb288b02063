//! Turns: groups enter and leave the idle class, and VMs that sleep leave the rotation.
//! No group stays in the idle class, however the daemon ends.
//! Killed daemons also divide vCPUs into groups, and everything is reverted afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use rustix::process::{Signal, kill_process};
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, Knob};
use tandem_linux::thread::ThreadRef;
use tandem_model::Weight;
use tandem_policy::host::Host;
use tandem_policy::turns::Rotation;

use crate::harness::{Skip, Test};
use crate::helper::{Helper, StateDir, number, vcpu_threads, wait_until};
use crate::host::{LiveHost, controller};
use crate::subject::{OWNER, SHARED, Subject, set_weight, whole};
use crate::turns_daemon::{TOLD, both, both_for};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("vms_go_in_and_out_of_the_idle_class_by_turns", by_turns),
    ("a_vm_that_sleeps_takes_no_turns_any_more", sleeper),
    ("nobody_stays_in_the_idle_class_after_kills", kills),
    ("nobody_stays_in_the_idle_class_of_a_daemon_that_hangs", hangs),
    ("a_watchdog_that_was_killed_is_told_and_replaced", killed_watchdog),
    ("a_fleet_that_is_dropped_in_turns_leaves_the_operators_weight", dropped),
];

fn spin(vm: &mut Helper, vcpus: u32) {
    for vcpu in 0..vcpus {
        vm.tell(&format!("spin {vcpu}"));
    }
}

fn by_turns() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    spin(&mut live_host.shared, 2);
    spin(&mut live_host.owner, 2);
    let mut subject = Subject::acting_on(live_host)?;
    subject.need_idle_class()?;
    subject.apply(set_weight(whole(SHARED), 700.0));
    subject.fleet.apply(&[], Some(&both()));
    let (shared, owner) = (subject.cgroup(SHARED), subject.cgroup(OWNER));
    let (mut seen, mut weighed) = ([0; 2], false);
    wait_until("each has had some turns", || {
        // As the daemon does: a thread that has not begun to spin yet has left.
        subject.observe(SHARED);
        subject.fleet.apply(&[], Some(&both()));
        let turns = |subject: &Subject| subject.fleet.turn_stats().map(|stats| stats.turns);
        let turn = turns(&subject);
        let idle = [&shared, &owner, &shared].map(|group| subject.is_idle(group));
        // At the begin of a turn both are briefly out of the idle class, but never both in it.
        if turn == turns(&subject) && turn > Some(0) {
            assert_ne!(idle, [true; 3], "turn {turn:?}");
            seen[usize::from(idle[0])] += 1;
        }
        weighed |= !subject.is_idle(&shared) && subject.weight(&shared) == Weight::constant(700.0);
        weighed && seen.iter().all(|seen| *seen >= 5)
    });
    wait_until("it is seen to take turns", || {
        subject.fleet.apply(&[], Some(&both()));
        let observed = subject.observe(SHARED).in_force;
        assert_eq!((observed.idle, observed.weight), (false, Weight::constant(700.0)));
        observed.rotating
    });
    // A new weight counts from the next turn.
    subject.apply(set_weight(whole(SHARED), 500.0));
    subject.fleet.apply(&[], Some(&both()));
    wait_until("the new weight is set", || {
        subject.observe(SHARED);
        subject.fleet.apply(&[], Some(&both()));
        !subject.is_idle(&shared) && subject.weight(&shared) == Weight::constant(500.0)
    });
    // Our own changes are not foreign.
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.fleet.turn_errors(), Vec::<String>::new());
    subject.fleet.apply(&[], Some(&Rotation::default()));
    wait_until("both are out of the idle class", || {
        !subject.is_idle(&shared) && !subject.is_idle(&owner)
    });
    let observed = subject.observe(SHARED).in_force;
    assert!(!observed.rotating && !observed.idle);
    assert_eq!(observed.weight, Weight::constant(500.0));
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

fn sleeper() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    spin(&mut live_host.owner, 2);
    let mut subject = Subject::acting_on(live_host)?;
    subject.need_idle_class()?;
    subject.fleet.apply(&[], Some(&both()));
    wait_until("the sleeping VM has left", || subject.observe(SHARED).in_force.left_turns);
    let observed = subject.observe(SHARED).in_force;
    assert!(!observed.rotating && !observed.left_turns, "it is reported once");
    let shared = subject.cgroup(SHARED);
    wait_until("it is out of the idle class", || !subject.is_idle(&shared));
    assert_eq!(subject.restore().snapshot(), before);
    Ok(())
}

/// A daemon whose VMs take turns, and its watchdog.
struct Daemon {
    daemon: Helper,
    watchdog: u32,
}

impl Daemon {
    fn start(state_dir: &StateDir, live_host: &LiveHost) -> Daemon {
        let state_dir = state_dir.0.to_str().expect("a path in UTF-8");
        let vms = [&live_host.shared, &live_host.owner].into_iter();
        let pids = vms.chain(&live_host.third).map(|vm| vm.pid().to_string()).collect::<Vec<_>>();
        let arguments: Vec<&str> = pids.iter().map(String::as_str).collect();
        let arguments = [&[state_dir], arguments.as_slice()].concat();
        let mut daemon = Helper::start("daemon", &arguments);
        let watchdog = number(&daemon.next_line()) as u32;
        Daemon { daemon, watchdog }
    }

    fn signal(&self, pid: u32, signal: Signal) {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        kill_process(pid, signal).expect("it lives");
    }
}

/// Returns the VMs' cgroups in the idle class.
fn idle(live_host: &LiveHost) -> Vec<CgroupPath> {
    let Ok(controller) = controller() else {
        return Vec::new();
    };
    let threads = [live_host.threads(), live_host.own_threads()].concat();
    let homes = threads.iter().filter_map(|thread| controller.cgroup_of(thread).ok());
    let mut places: Vec<_> =
        homes.flat_map(|home| [home.ancestors(), vec![home]].concat()).collect();
    places.sort();
    places.dedup();
    places.retain(|place| matches!(controller.is_idle(place), Ok(Some(true))));
    places
}

fn has_idle_class() -> Result<(), Skip> {
    Subject::acting()?.need_idle_class()
}

/// Starts the next daemon, which reverts all changes; returns their number.
fn next_start(state_dir: &StateDir) -> Result<usize, Skip> {
    let (actuator, report) = Actuator::open(controller()?, &state_dir.0).expect("it opens");
    assert!(report.is_complete(), "{report}");
    drop(actuator);
    Ok(report.put_back)
}

fn kills() -> Result<(), Skip> {
    has_idle_class()?;
    let mut random = Pcg32::seed_from_u64(4);
    let start: [fn() -> Result<LiveHost, Skip>; 2] = [LiveHost::new, LiveHost::like_libvirt];
    for start in start {
        let mut live_host = start()?;
        // The kernel's default replaces it in the idle class.
        live_host.operator_sets(Knob::Weight, "333");
        kill_often(&mut live_host, &mut random)?;
    }
    Ok(())
}

/// Progress of a killed daemon with the third VM's vCPUs.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Division {
    Together,
    /// Some of them have a group, or one has a group and is not in it.
    Between,
    Apart,
}

fn division(live_host: &LiveHost) -> Result<Division, Skip> {
    let (controller, third) = (controller()?, live_host.third.as_ref());
    let third = third.expect("it was started");
    let threads = vcpu_threads(third.pid()).into_iter();
    let places = threads.map(|thread| controller.cgroup_of(&thread).expect("it lives"));
    let name = format!("tandem-third-{}-vcpu", third.pid());
    let inside = places.filter(|place| place.name().starts_with(&name)).count();
    let main = ThreadRef::of_process(&ProcFs::host(), third.pid()).expect("it lives");
    let home = controller.cgroup_of(&main).expect("it lives");
    let children = controller.children(&home).expect("it exists");
    let groups = children.iter().filter(|child| child.name().starts_with(&name)).count();
    Ok(match (inside, groups) {
        (0, 0) => Division::Together,
        (2, 2) => Division::Apart,
        _ => Division::Between,
    })
}

/// Kills 100 daemons that let two VMs take turns and divide the vCPUs of a third.
/// An emulated machine manages fewer, unless TANDEM_KILLS sets the number.
fn kill_often(live_host: &mut LiveHost, random: &mut Pcg32) -> Result<(), Skip> {
    live_host.third = Some(Helper::start("vm", &["third", "2"]));
    let before = live_host.snapshot();
    spin(&mut live_host.shared, 2);
    spin(&mut live_host.owner, 2);
    let state_dir = StateDir::new();
    let (mut in_idle, mut own_in_idle, mut put_back) = (0, 0, 0);
    let mut divisions: BTreeMap<Division, u32> = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(30);
    let mut count = 0;
    let wanted = crate::helper::kills(100);
    let is_told = std::env::var_os("TANDEM_KILLS").is_some();
    let patience = || is_told || Instant::now() < end;
    // A run in which no kill hit a changed host would prove nothing.
    while (count < wanted && (count < 10 || patience()))
        || (in_idle.min(put_back) == 0 && count < 100)
    {
        let kill = count;
        count += 1;
        let daemon = Daemon::start(&state_dir, live_host);
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 60_000)));
        // Every third time the watchdog is killed first.
        let with_watchdog = kill % 3 == 2;
        if with_watchdog {
            daemon.signal(daemon.watchdog, Signal::KILL);
        }
        daemon.daemon.kill();
        let left = idle(live_host);
        in_idle += usize::from(!left.is_empty());
        own_in_idle += usize::from(left.contains(&live_host.own));
        *divisions.entry(division(live_host)?).or_default() += 1;
        if !with_watchdog {
            wait_until("the watchdog has reverted them", || idle(live_host).is_empty());
        }
        put_back += next_start(&state_dir)?;
        assert_eq!(live_host.snapshot(), before, "kill {kill}");
    }
    assert!(in_idle > 0 && put_back > 0, "no kill hit a changed host");
    assert!(own_in_idle > 0 || count < 100, "no kill hit {}", live_host.own);
    assert!(
        [Division::Between, Division::Apart].iter().all(|hit| divisions.contains_key(hit))
            || count < 100,
        "no kill hit some steps of a division: {divisions:?}"
    );
    println!(
        "killed {count} times: {in_idle} left VMs in the idle class, {own_in_idle} of these {}; {put_back} changes were reverted; vCPUs of the third: {divisions:?}",
        live_host.own
    );
    Ok(())
}

fn hangs() -> Result<(), Skip> {
    has_idle_class()?;
    let mut live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    spin(&mut live_host.shared, 2);
    spin(&mut live_host.owner, 2);
    let state_dir = StateDir::new();
    let daemon = Daemon::start(&state_dir, &live_host);
    for _ in 0..3 {
        wait_until("a VM waits for its turn", || !idle(&live_host).is_empty());
        daemon.signal(daemon.daemon.pid().0, Signal::STOP);
        let begin = Instant::now();
        wait_until("the watchdog has reverted them", || idle(&live_host).is_empty());
        println!("out of the idle class after {:?}", begin.elapsed());
        daemon.signal(daemon.daemon.pid().0, Signal::CONT);
    }
    wait_until("turns go on", || !idle(&live_host).is_empty());
    daemon.daemon.kill();
    next_start(&state_dir)?;
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

fn killed_watchdog() -> Result<(), Skip> {
    has_idle_class()?;
    let mut live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    spin(&mut live_host.shared, 2);
    spin(&mut live_host.owner, 2);
    let state_dir = StateDir::new();
    let daemon = Daemon::start(&state_dir, &live_host);
    daemon.signal(daemon.watchdog, Signal::KILL);
    let lost = format!("the watchdog of turns (process {})", daemon.watchdog);
    let told = || fs::read_to_string(state_dir.0.join(TOLD)).unwrap_or_default();
    wait_until("it is reported, and another watchdog runs", || {
        told().contains(&lost) && told().lines().any(|line| line.parse::<u32>().is_ok())
    });
    assert_eq!(told().matches(&lost).count(), 1, "{}", told());
    // The new watchdog learns the VMs in turns before the next turn begins.
    for _ in 0..2 {
        let turn = idle(&live_host);
        wait_until("a turn begins", || idle(&live_host) != turn);
    }
    wait_until("a VM waits for its turn", || !idle(&live_host).is_empty());
    daemon.daemon.kill();
    wait_until("the other has reverted them", || idle(&live_host).is_empty());
    next_start(&state_dir)?;
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

/// A daemon that panics ends like this.
fn dropped() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(Knob::Weight, "333");
    let before = live_host.snapshot();
    spin(&mut live_host.shared, 2);
    spin(&mut live_host.owner, 2);
    let mut subject = Subject::acting_on(live_host)?;
    subject.need_idle_class()?;
    subject.apply(set_weight(whole(OWNER), 700.0));
    // Long enough that no turn ends before the fleet is dropped.
    let rotation = both_for(100);
    let owner = subject.cgroup(OWNER);
    wait_until("the owner waits for its turn", || {
        subject.observe(OWNER);
        subject.fleet.apply(&[], Some(&rotation));
        subject.is_idle(&owner)
    });
    let Subject { fleet, live_host, .. } = subject;
    drop(fleet);
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}
