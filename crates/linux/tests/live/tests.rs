//! The actuator's guarantees on a real host, one test each.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::ProcFs;
use tandem_linux::actuator::{Actuator, Outcome, restore_all};
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::ownership::{Residence, find_own_cgroup, residence};
use tandem_linux::cgroup::{CgroupPath, CpuController, Quota};
use tandem_linux::journal::is_pending;
use tandem_linux::restore::RestoreReport;
use tandem_model::{PcpuSet, Weight};

use crate::harness::{Skip, Test};
use crate::helper::{Helper, StateDir, kill_often, vcpu_threads, wait_until};
use crate::host::{LiveHost, controller};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("changes_are_real_and_restored", changes_are_real),
    ("drop_restores_everything", drop_restores_everything),
    ("next_start_restores_after_a_kill", next_start),
    ("restore_all_needs_no_daemon", restore_without_daemon),
    ("kill_9_at_50_random_moments", kill_9),
    ("threads_that_end_or_start_meanwhile", threads_come_and_go),
    ("own_cgroup_gets_the_weight", own_cgroup),
    ("libvirt_scope_gets_the_weight", own_scope),
    ("two_daemons_refuse_each_other", two_daemons),
    ("two_hundred_groups_leave_nothing_behind", no_leak),
    ("foreign_group_name_is_refused", foreign_name),
    ("busy_error_names_one_child", one_child_in_error),
];

/// Opens an actuator with its journal in this folder.
pub fn open(dir: &StateDir) -> Result<Actuator, Skip> {
    let (actuator, report) = Actuator::open(controller()?, &dir.0).expect("it opens");
    assert!(report.is_complete(), "{report}");
    Ok(actuator)
}

/// A host, its snapshot, an empty state directory, and an actuator with its journal there.
fn ready() -> Result<(LiveHost, BTreeMap<String, String>, StateDir, Actuator), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let actuator = open(&dir)?;
    Ok((live_host, before, dir, actuator))
}

/// The first of these pCPUs.
fn one_of(pcpus: &PcpuSet) -> PcpuSet {
    pcpus.iter().take(1).collect()
}

/// Makes a change of every kind; returns the group.
fn change_everything(live_host: &LiveHost, actuator: &mut Actuator) -> CgroupPath {
    let threads = live_host.threads();
    let home = actuator.controller().cgroup_of(&threads[0]).expect("a home");
    let group = actuator.create_group(&home, &format!("{}x", live_host.prefix)).expect("a group");
    for thread in &threads {
        assert_eq!(actuator.move_thread(thread, &group).expect("a move"), Outcome::Done);
    }
    actuator.set_weight(&group, Weight::constant(222.4)).expect("a weight");
    actuator.set_weight(&live_host.own, Weight::constant(333.0)).expect("a weight");
    let cap = Some(Quota { quota_us: 40_000, period_us: 50_000 });
    actuator.set_quota(&live_host.own, cap).expect("a cap");
    let pcpus = one_of(&affinity(threads[0].tid).expect("a mask"));
    actuator.set_affinity(&threads[0], &pcpus).expect("an affinity");
    group
}

fn changes_are_real() -> Result<(), Skip> {
    let (live_host, before, dir, mut actuator) = ready()?;
    let group = change_everything(&live_host, &mut actuator);
    let controller = actuator.controller();
    let mut tids: Vec<_> = live_host.threads().iter().map(|thread| thread.tid).collect();
    tids.sort();
    let mut inside = controller.threads(&group).expect("the group");
    inside.sort();
    assert_eq!(inside, tids, "the vCPU threads, and no other");
    let main = tandem_linux::thread::ThreadRef::of_process(&ProcFs::host(), live_host.shared.pid());
    let main = controller.cgroup_of(&main.expect("it lives")).expect("a cgroup");
    assert_eq!(Some(main), group.parent(), "the main thread stays");
    assert_eq!(controller.weight(&group).expect("a weight"), Weight::constant(222.0));
    assert_eq!(controller.weight(&live_host.own).expect("a weight"), Weight::constant(333.0));
    let cap = controller.quota(&live_host.own).expect("a cap").expect("it is capped");
    assert_eq!((cap.quota_us, cap.period_us), (40_000, 50_000));
    assert_eq!(affinity(live_host.threads()[0].tid).expect("a mask").len(), 1);
    assert_ne!(live_host.snapshot(), before);
    assert!(is_pending(&dir.0));
    let report = actuator.restore();
    assert!(report.is_complete() && report.put_back > 0, "{report}");
    assert_eq!(live_host.snapshot(), before);
    assert!(!is_pending(&dir.0));
    Ok(())
}

fn drop_restores_everything() -> Result<(), Skip> {
    let (live_host, before, _dir, mut actuator) = ready()?;
    change_everything(&live_host, &mut actuator);
    drop(actuator);
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

fn next_start() -> Result<(), Skip> {
    let (live_host, before, dir, mut actuator) = ready()?;
    change_everything(&live_host, &mut actuator);
    actuator.abandon();
    assert_ne!(live_host.snapshot(), before);
    let (actuator, report) = Actuator::open(controller()?, &dir.0).expect("it opens");
    assert!(report.is_complete() && report.put_back > 0, "{report}");
    assert_eq!(live_host.snapshot(), before);
    drop(actuator);
    Ok(())
}

fn restore_without_daemon() -> Result<(), Skip> {
    let (live_host, before, dir, mut actuator) = ready()?;
    change_everything(&live_host, &mut actuator);
    actuator.abandon();
    let report = restore_all(controller()?, &dir.0).expect("it restores");
    assert!(report.is_complete() && report.put_back > 0, "{report}");
    assert_eq!(live_host.snapshot(), before);
    let again = restore_all(controller()?, &dir.0).expect("it restores");
    assert_eq!(again.put_back + again.nothing_to_do, 0);
    let nowhere = dir.0.join("none");
    restore_all(controller()?, &nowhere).expect("nothing to do");
    assert!(!nowhere.exists(), "and nothing is made for it");
    Ok(())
}

fn kill_9() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let state_dir = dir.0.to_str().expect("a plain path");
    let pid = live_host.shared.pid().to_string();
    let mut random = Pcg32::seed_from_u64(20_261_121);
    let mut put_back = 0;
    let (kills, pending) = kill_often(50, |round| {
        let seed = random.next_u32().to_string();
        let arguments = [state_dir, &seed, &pid, &live_host.own.0, &live_host.prefix];
        let daemon = Helper::start("daemon", &arguments);
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 40_000)));
        daemon.kill();
        let was_pending = is_pending(&dir.0);
        let report = restore_all(controller().expect("as before"), &dir.0).expect("it restores");
        assert!(report.is_complete(), "round {round}: {report}");
        put_back += report.put_back;
        assert_eq!(live_host.snapshot(), before, "round {round}, seed {seed}");
        was_pending
    });
    println!("killed {kills} times: {pending} left changes behind, {put_back} were reverted");
    Ok(())
}

fn threads_come_and_go() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    let group = change_everything(&live_host, &mut actuator);
    let threads = live_host.threads();
    live_host.shared.tell("start shared/vcpu7");
    live_host.shared.next_line();
    let born = vcpu_threads(live_host.shared.pid());
    let born = born.last().expect("the new thread");
    let place = actuator.controller().cgroup_of(born).expect("a cgroup");
    assert_eq!(place, group, "a thread starts in its creator's cgroup");
    live_host.shared.tell("end 1");
    wait_until("the thread has ended", || live_host.threads().len() == threads.len());
    let gone = threads[1];
    let home = group.parent().expect("a parent");
    let outcome = actuator.move_thread(&gone, &home).expect("no error");
    assert_eq!(outcome, Outcome::Gone);
    let pcpus = affinity(threads[0].tid).expect("a mask");
    assert_eq!(actuator.set_affinity(&gone, &pcpus).expect("no error"), Outcome::Gone);
    let report = actuator.release_group(&group).expect("it is released");
    assert!(report.is_complete(), "{report}");
    assert!(!actuator.controller().exists(&group));
    for thread in live_host.threads() {
        let place = actuator.controller().cgroup_of(&thread).expect("a cgroup");
        assert_eq!(place, home, "{thread}");
    }
    let error = actuator.set_weight(&group, Weight::constant(200.0)).expect_err("it is gone");
    assert!(error.is_gone(), "{error}");
    Ok(())
}

/// Asserts that `own` belongs to the one VM, and that the other has no cgroup of its own.
fn assert_one_has_its_own(controller: &dyn CpuController, live_host: &LiveHost) {
    let residence_of = |vm: &Helper| {
        let process = tandem_linux::thread::ThreadRef::of_process(&ProcFs::host(), vm.pid());
        let vcpus = vcpu_threads(vm.pid());
        residence(controller, &process.expect("it lives"), &vcpus).expect("its cgroups")
    };
    let (owner, shared) = (residence_of(&live_host.owner), residence_of(&live_host.shared));
    let procfs = ProcFs::host();
    let find = |vm: &Residence, other: &Residence| {
        let others = std::slice::from_ref(other);
        find_own_cgroup(controller, &procfs, vm, others).expect("it is read")
    };
    assert_eq!(find(&owner, &shared), Some(live_host.own.clone()));
    // This test is in the same cgroup as the other VM.
    assert_eq!(find(&shared, &owner), None);
}

fn own_cgroup() -> Result<(), Skip> {
    let (live_host, before, _dir, mut actuator) = ready()?;
    assert_one_has_its_own(actuator.controller(), &live_host);
    let written = actuator.set_weight(&live_host.own, Weight::constant(1e9)).expect("a weight");
    assert_eq!(written, actuator.controller().weight_range().1);
    let home = actuator.controller().threads(&live_host.own).expect("its threads");
    assert_eq!(home.len(), 3, "nothing was moved");
    let report = actuator.release_group(&live_host.own).expect("it is released");
    assert!(report.is_complete() && report.put_back > 0, "{report}");
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

fn own_scope() -> Result<(), Skip> {
    let live_host = LiveHost::like_libvirt()?;
    let before = live_host.snapshot();
    let dir = StateDir::new();
    let mut actuator = open(&dir)?;
    assert_one_has_its_own(actuator.controller(), &live_host);
    let weight = Weight::constant(333.0);
    let written = actuator.set_weight(&live_host.own, weight);
    assert_eq!(written.expect("a weight"), weight);
    assert_ne!(live_host.snapshot(), before);
    drop(actuator);
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

fn two_daemons() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let dir = StateDir::new();
    let state_dir = dir.0.to_str().expect("a plain path");
    let pid = live_host.shared.pid().to_string();
    let arguments = [state_dir, "1", &pid, &live_host.own.0, &live_host.prefix];
    let daemon = Helper::start("daemon", &arguments);
    let holder = daemon.pid();
    let error = Actuator::open(controller()?, &dir.0).err().expect("it is refused").to_string();
    assert!(error.contains(&format!("process {holder}")), "{error}");
    // The daemon restores everything itself now and then; `restore_all` succeeds while the journal is empty.
    let controller: Arc<dyn CpuController> = Arc::from(controller()?);
    wait_until("a restore of the daemon's changes is refused", || {
        match restore_all(controller.clone(), &dir.0) {
            Ok(report) => {
                assert_eq!(report, RestoreReport::default(), "of a daemon that lives");
                false
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(&format!("process {holder}")), "{error}");
                true
            }
        }
    });
    daemon.kill();
    drop(open(&dir)?);
    Ok(())
}

fn no_leak() -> Result<(), Skip> {
    let (live_host, before, dir, mut actuator) = ready()?;
    let threads = live_host.threads();
    let home = actuator.controller().cgroup_of(&threads[0]).expect("a home");
    let open_files = || fs::read_dir("/proc/self/fd").expect("this process's files").count();
    let files = open_files();
    for n in 0..200 {
        let group = actuator.create_group(&home, &format!("{}{n}", live_host.prefix));
        let group = group.expect("a group");
        actuator.move_thread(&threads[n % threads.len()], &group).expect("a move");
        actuator.set_weight(&group, Weight::constant(50.0)).expect("a weight");
        let report = actuator.release_group(&group).expect("it is released");
        assert!(report.is_complete(), "{report}");
    }
    assert_eq!(open_files(), files);
    assert!(!is_pending(&dir.0), "the journal is empty");
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}

/// The error for a cgroup that cannot be removed names one of those below, however many there are.
fn one_child_in_error() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let dir = StateDir::new();
    let actuator = open(&dir)?;
    let controller = actuator.controller();
    let name = format!("{}full", live_host.prefix);
    let full = controller.create_child(&CgroupPath::root(), &name);
    let full = full.expect("a cgroup");
    let below: Vec<CgroupPath> = (0..50)
        .filter_map(|n| controller.create_child(&full, &format!("below-{n}")).ok())
        .collect();
    let refused = controller.remove(&full).expect_err("it holds others");
    for cgroup in below.iter().chain([&full]) {
        controller.remove(cgroup).expect("it is empty");
    }
    let said = refused.to_string();
    assert_eq!(said.matches("/below-").count(), 1, "{said}");
    assert!(said.contains("cgroups such as"), "{said}");
    Ok(())
}

fn foreign_name() -> Result<(), Skip> {
    let (live_host, _, dir, mut actuator) = ready()?;
    let name = live_host.own.name().to_owned();
    let error = actuator.create_group(&CgroupPath::root(), &name).expect_err("it is refused");
    assert!(error.to_string().contains("exists already"), "{error}");
    let error = actuator.create_group(&CgroupPath::root(), "a/b").expect_err("it is refused");
    assert!(error.to_string().contains("a/b"), "{error}");
    let nowhere = CgroupPath("/tandem-live-nowhere".to_owned());
    let error = actuator.create_group(&nowhere, "x").expect_err("it is refused");
    assert!(error.is_gone(), "{error}");
    let error =
        actuator.set_weight(&CgroupPath::root(), Weight::constant(5.0)).expect_err("refused");
    assert!(error.to_string().contains("root"), "{error}");
    assert!(!is_pending(&dir.0), "a refusal leaves no record");
    Ok(())
}
