//! A vCPU that moves to its slots: it changes pCPUs with them, and however that ends, it has its original affinity again.

use std::collections::BTreeMap;
use std::env;
use std::io::{Write, stdout};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_host::config::VmRule;
use tandem_host::discovery::Vm;
use tandem_host::fleet::{Backend, Fleet};
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::real_time::go_before_others;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nanos, PcpuId, PcpuSet, PolicySet, VcpuId, VmId};
use tandem_policy::host::{Controller, ControllerConfig, Host, registry};
use tandem_policy::turns::{Member, Rotation, Slot};

use crate::harness::{Skip, Test};
use crate::helper::{Helper, StateDir, number, vcpu_threads, wait_until};
use crate::host::{LiveHost, controller};
use crate::subject;
use crate::subject::{OWNER, SHARED, Subject, describe, describe_process};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("vcpu_moves_with_its_slots", changes),
    ("sleeping_vcpu_regains_affinity", sleeps),
    ("foreign_affinity_in_slot_stays", moved),
    ("kills_in_slots_leave_original_affinity", kills),
    ("dropped_fleet_restores_affinity", dropped),
    ("daemon_splits_one_of_four_vms", decided),
];

/// Role of the daemon of these tests.
pub const DAEMON: &str = "slots-daemon";

/// A VM with one slot from a quarter of the rotation to another.
fn member(vm: VmId, (from, to): (u64, u64), pcpus: &[PcpuId]) -> Member {
    let slot = Slot {
        from: Nanos::from_millis(10 * from),
        to: Nanos::from_millis(10 * to),
        pcpus: (0..).map(VcpuId).zip(pcpus.iter().copied()).collect(),
    };
    Member { vm, slots: vec![slot], moves: vm == SHARED }
}

/// Rotations in which the first vCPU of one VM is on the second pCPU, on the first one, or there in turns with the other VM.
pub fn rotations(pcpus: &PcpuSet) -> Vec<Rotation> {
    let both: Vec<PcpuId> = pcpus.iter().take(2).collect();
    let (first, second) = (&both[..1], &both[1..]);
    [
        [member(SHARED, (0, 4), second), member(OWNER, (0, 4), first)],
        [member(SHARED, (0, 4), first), member(OWNER, (0, 4), second)],
        [member(SHARED, (0, 2), first), member(OWNER, (2, 4), &both)],
    ]
    .map(|members| Rotation {
        length: Nanos::from_millis(40),
        members: members.into(),
        next_to_residents: true,
    })
    .into()
}

/// VMs that never sleep, and the pCPUs of the vCPU that moves.
pub fn live_host() -> Result<(LiveHost, PcpuSet), Skip> {
    Subject::acting()?.need_idle_class()?;
    let mut live_host = LiveHost::new()?;
    for (vm, vcpus) in [(&mut live_host.shared, 1), (&mut live_host.owner, 2)] {
        (0..vcpus).for_each(|vcpu| vm.tell(&format!("spin {vcpu}")));
    }
    let pcpus = affinity(live_host.threads()[0].tid).expect("it lives");
    match pcpus.len() {
        0 | 1 => Err(Skip("needs two pCPUs".to_owned())),
        _ => Ok((live_host, pcpus)),
    }
}

fn only(pcpu: PcpuId) -> PcpuSet {
    [pcpu].into_iter().collect()
}

fn now(thread: ThreadRef) -> PcpuSet {
    affinity(thread.tid).expect("it lives")
}

/// A fleet whose first VM has a vCPU that moves.
/// Also returns its thread, its affinity, and its pCPUs in the first two of [`rotations`].
fn subject() -> Result<(Subject, ThreadRef, PcpuSet, [PcpuId; 2]), Skip> {
    let (live_host, pcpus) = live_host()?;
    let subject = Subject::acting_on(live_host)?;
    let thread = subject.thread(SHARED, 0);
    let numbers: Vec<PcpuId> = pcpus.iter().take(2).collect();
    let [first, second] = numbers[..] else {
        return Err(Skip("needs two pCPUs".to_owned()));
    };
    Ok((subject, thread, pcpus, [second, first]))
}

/// Waits until it has this slot. A thread that has not begun to spin yet leaves and comes back.
fn wait_until_it_sits(subject: &mut Subject, rotation: &Rotation, thread: ThreadRef, at: PcpuId) {
    wait_until("it sits where there is room", || {
        let observed = subject.observe_vcpu(SHARED, 0);
        assert_eq!(observed.granted, None);
        subject.fleet.apply(&[], Some(rotation));
        now(thread) == only(at)
    });
}

fn changes() -> Result<(), Skip> {
    let (mut subject, thread, pcpus, seats) = subject()?;
    for _ in 0..3 {
        for (rotation, at) in rotations(&pcpus).iter().zip(seats) {
            wait_until_it_sits(&mut subject, rotation, thread, at);
            // Its affinity is known, and is not taken for a foreign change.
            assert_eq!(subject.observe_vcpu(SHARED, 0).allowed, pcpus);
            assert_eq!(subject.recheck(), Vec::<String>::new());
            // No policy moves it meanwhile.
            subject.apply(subject::set_affinity(SHARED, 0, &only(seats[0])));
            assert_eq!(now(thread), only(at));
        }
    }
    let moves = subject.fleet.turn_stats().map(|stats| stats.moves);
    assert!(moves >= Some(6), "{moves:?}");
    assert_eq!(subject.fleet.turn_errors(), Vec::<String>::new());
    subject.fleet.apply(&[], Some(&Rotation::default()));
    wait_until("it may run everywhere", || now(thread) == pcpus);
    subject.observe(SHARED);
    assert_eq!(subject.recheck(), Vec::<String>::new());
    // From now on a policy may move it.
    subject.apply(subject::set_affinity(SHARED, 0, &only(seats[0])));
    assert_eq!(now(thread), only(seats[0]));
    let live_host = subject.restore();
    assert_eq!(now(live_host.threads()[0]), pcpus);
    Ok(())
}

fn sleeps() -> Result<(), Skip> {
    let (mut subject, thread, pcpus, seats) = subject()?;
    let rotation = &rotations(&pcpus)[0];
    wait_until_it_sits(&mut subject, rotation, thread, seats[0]);
    subject.live_host.shared.tell("rest 0");
    wait_until("it has left", || subject.observe(SHARED).in_force.left_turns);
    assert_eq!(now(thread), pcpus, "at once");
    assert_eq!(subject.recheck(), Vec::<String>::new());
    assert_eq!(subject.observe_vcpu(SHARED, 0).allowed, pcpus);
    subject.restore();
    Ok(())
}

fn moved() -> Result<(), Skip> {
    let (mut subject, thread, pcpus, seats) = subject()?;
    let rotations = rotations(&pcpus);
    wait_until_it_sits(&mut subject, &rotations[0], thread, seats[0]);
    // Its next slot, which the fleet cannot know.
    let theirs = only(seats[1]);
    set_affinity(thread.tid, &theirs).expect("the operator may");
    let mut told = Vec::new();
    wait_until("it is told", || {
        subject.fleet.apply(&[], Some(&rotations[1]));
        std::thread::sleep(Duration::from_millis(45));
        subject.fleet.apply(&[], Some(&rotations[0]));
        std::thread::sleep(Duration::from_millis(45));
        subject.observe(SHARED);
        told.extend(subject.fleet.turn_errors());
        !told.is_empty()
    });
    assert_eq!(told.len(), 1, "{told:?}");
    let text = format!("someone else set its affinity to {theirs}; it stays there");
    assert!(told[0].contains(&text), "{told:?}");
    assert_eq!(subject.observe_vcpu(SHARED, 0).allowed, theirs);
    subject.fleet.apply(&[], Some(&Rotation::default()));
    subject.observe(SHARED);
    let live_host = subject.restore();
    assert_eq!(now(live_host.threads()[0]), theirs);
    Ok(())
}

/// Runs a daemon with a vCPU that moves. Prints `ready`.
pub fn be_a_daemon() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [state_dir, shared, owner] = arguments.as_slice() else {
        panic!("{DAEMON} STATE_DIR PID PID");
    };
    let controller = cgroup::open(&ProcFs::host()).expect("a controller");
    let (actuator, _) = Actuator::open(controller, Path::new(state_dir)).expect("the lock");
    let mut fleet = Fleet::new(
        Backend::Live(Box::new(actuator)),
        Sampler::new(ProcFs::host()),
        Vec::new(),
        PolicySet::ALL,
    );
    let vms = [(SHARED, shared), (OWNER, owner)];
    let vms = vms.map(|(id, pid)| describe_process(id, Pid(number(pid) as u32)));
    let pcpus = affinity(vms[0].vcpus[0].thread.tid).expect("it lives");
    let (_, refused) = fleet.update(&vms, &vms);
    assert!(refused.is_empty(), "{refused:?}");
    let period = Nanos::from_millis(100);
    fleet.observe(period, period, false);
    println!("ready");
    stdout().flush().expect("the test reads");
    for rotation in rotations(&pcpus).iter().cycle() {
        fleet.observe(period, period, false);
        fleet.apply(&[], Some(rotation));
        std::thread::sleep(Duration::from_millis(20));
    }
    ExitCode::SUCCESS
}

fn kills() -> Result<(), Skip> {
    let (live_host, pcpus) = live_host()?;
    let (before, thread) = (live_host.snapshot(), live_host.threads()[0]);
    let state_dir = StateDir::new();
    let mut random = Pcg32::seed_from_u64(5);
    // Twice the time until the first slot, which on an emulated pCPU is longer than all turns together.
    let mut window = Duration::ZERO;
    let (kills, narrowed) = crate::helper::kill_often(30, |kill| {
        let pids = [&live_host.shared, &live_host.owner].map(|vm| vm.pid().to_string());
        let state = state_dir.0.to_str().expect("a path in UTF-8");
        let daemon = Helper::start(DAEMON, &[state, &pids[0], &pids[1]]);
        if kill == 0 {
            let begin = Instant::now();
            wait_until("it has a slot", || now(thread) != pcpus);
            window = (begin.elapsed() * 2).max(Duration::from_millis(100));
        } else {
            std::thread::sleep(window.mul_f64(f64::from(random.next_u32()) / f64::from(u32::MAX)));
        }
        daemon.kill();
        let is_narrowed = now(thread) != pcpus;
        let controller = controller().expect("as before");
        let (actuator, report) = Actuator::open(controller, &state_dir.0).expect("it opens");
        assert!(report.is_complete(), "{report}");
        drop(actuator);
        assert_eq!(live_host.snapshot(), before, "kill {kill}");
        is_narrowed
    });
    println!("killed {kills} times: {narrowed} left a vCPU in a slot");
    Ok(())
}

/// In a thread of its own with the daemon's priority, so that later tests do not inherit it.
fn decided() -> Result<(), Skip> {
    let thread = std::thread::spawn(decide);
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// One VM of two vCPUs and three of one, none of which sleeps, under the daemon's default policies.
fn decide() -> Result<(), Skip> {
    Subject::acting()?.need_idle_class()?;
    let mut vms: Vec<Helper> = [("wide", 2), ("a", 1), ("b", 1), ("c", 1)]
        .iter()
        .map(|(name, vcpus)| Helper::start("vm", &[name, &vcpus.to_string()]))
        .collect();
    let threads: Vec<ThreadRef> = vms.iter().flat_map(|vm| vcpu_threads(vm.pid())).collect();
    let pcpus = now(threads[0]);
    if pcpus.len() != 2 {
        return Err(Skip("needs two pCPUs, and no more".to_owned()));
    }
    for (vm, vcpus) in vms.iter_mut().zip([2, 1, 1, 1]) {
        (0..vcpus).for_each(|vcpu| vm.tell(&format!("spin {vcpu}")));
    }
    let described = (1..).zip(&vms).map(|(id, vm)| describe(VmId(id), vm));
    let described: Vec<Vm> = described.collect();
    let state_dir = StateDir::new();
    let (actuator, _) = Actuator::open(controller()?, &state_dir.0).expect("it opens");
    go_before_others().expect("a user that may act may do that");
    // Other load on this machine gets little.
    let rule = VmRule { name: Some("*".to_owned()), weight: Some(50.0), ..VmRule::default() };
    let mut fleet = Fleet::new(
        Backend::Live(Box::new(actuator)),
        Sampler::new(ProcFs::host()),
        vec![rule],
        PolicySet::ALL,
    );
    let (_, refused) = fleet.update(&described, &described);
    assert!(refused.is_empty(), "{refused:?}");
    let policies = registry::set(["fair", "turns"]).expect("both exist");
    let mut controller = Controller::new(ControllerConfig::new(policies));
    controller.begin(&mut fleet);
    let (mut periods, mut received) = (0u32, BTreeMap::new());
    let mut seats: BTreeMap<String, u32> = BTreeMap::new();
    wait_until("one has had two slots for two seconds", || {
        std::thread::sleep(Duration::from_millis(100));
        let period = controller.period(&mut fleet);
        let rotation = period.as_ref().and_then(|p| p.round.rotation.clone());
        let members = rotation.unwrap_or_default().members;
        let split = members.iter().filter(|member| member.slots.len() == 2);
        if (members.len(), split.count()) == (4, 1) {
            periods += 1;
            for vm in period.iter().flat_map(|period| &period.observation.vms) {
                *received.entry(vm.vm).or_insert(Nanos::ZERO) += vm.received();
            }
            let sits = threads[2..].iter().map(|thread| now(*thread).to_string());
            *seats.entry(sits.collect::<Vec<_>>().join(" ")).or_default() += 1;
        }
        periods >= 20
    });
    let stats = fleet.turn_stats().expect("they take turns");
    println!(
        "{} moves in {} turns, of {} on average; received {received:?}; pCPUs seen {seats:?}",
        stats.moves,
        stats.turns,
        Nanos(stats.took.0 / stats.turns.max(1)),
    );
    assert!(stats.moves > 6, "{stats:?}");
    assert!(seats.len() > 1, "{seats:?}");
    assert_eq!(fleet.turn_errors(), Vec::<String>::new());
    drop(fleet);
    assert!(threads.iter().all(|thread| now(*thread) == pcpus));
    Ok(())
}

fn dropped() -> Result<(), Skip> {
    let (mut subject, thread, pcpus, seats) = subject()?;
    wait_until_it_sits(&mut subject, &rotations(&pcpus)[0], thread, seats[0]);
    let Subject { fleet, live_host, .. } = subject;
    drop(fleet);
    assert_eq!(now(live_host.threads()[0]), pcpus);
    Ok(())
}
