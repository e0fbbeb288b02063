//! The policy `flexs` on this machine's own kernel: a real daemon and microVMs whose synthetic counters it reads.
//!
//! A VM of two vCPUs waits for itself at a spin barrier.
//! Its first vCPU has a pCPU to itself, finishes first and spins; the second shares its pCPU with a VM that computes.
//! The daemon detects that and swaps the two.
//! After its exit, and after kill -9 at random moments, every thread is where it was.
//! The VMs run on plain threads, so this needs no KVM.

use tandem_testing::{harness, kills};

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Read, stdin, stdout};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::Skip;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use rustix::process::Signal;
use tandem_host::config::{HostConfig, Policies};
use tandem_host::daemon::Daemon;
use tandem_linux::actuator::restore_all;
use tandem_linux::affinity::affinity;
use tandem_linux::branch_counters::CounterChoice;
use tandem_linux::log::{Console, LevelFilter};
use tandem_linux::thread::Tid;
use tandem_linux::{ProcFs, branch_counters, cgroup};
use tandem_microvm::{Microvm, MicrovmConfig, Workload};
use tandem_model::PcpuSet;
use tandem_policy::host::{Placement, registry};

/// The variable that makes this program a VM or a daemon.
const ROLE: &str = "TANDEM_LIVE_ROLE";
/// Number of kills, unless TANDEM_KILLS is set, and their latest time after the daemon's start, in ms.
/// The first swaps come after some tenths of a second.
const KILLS: u32 = 50;
const WITHIN_MS: u32 = 900;

fn main() -> ExitCode {
    match env::var(ROLE).ok().as_deref() {
        Some("microvm") => be_a_microvm(),
        Some("daemon") => be_a_daemon(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(&[
            ("spinning_vcpu_is_swapped_and_reverted", spinning_vcpu_is_swapped_and_reverted),
            ("everything_is_reverted_after_kill_9", everything_is_reverted_after_kill_9),
            ("missing_pmu_is_reported_without_swaps", missing_pmu_is_reported_without_swaps),
        ]),
    }
}

/// Runs a VM: arguments NAME WORKLOAD PINS. Ends with its input.
fn be_a_microvm() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, workload, pins] = arguments.as_slice() else {
        panic!("microvm NAME WORKLOAD PINS");
    };
    let workload: Workload = workload.parse().expect("a workload");
    let mut config = MicrovmConfig::new(name.parse().expect("a name"), workload);
    config.backend = tandem_microvm::Backend::Threads;
    config.pins = pins.split(',').map(|pin| pin.parse().expect("a pCPU")).collect();
    config.vcpus = config.pins.len() as u32;
    if workload == Workload::Barrier {
        // Some tenths of a second, so that waits last for whole periods.
        config.parameters.set("work", "600M").expect("a parameter");
        config.parameters.set("wait", "spin").expect("a parameter");
    }
    let vm = Microvm::start(config).expect("a microVM");
    println!("ready");
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest).expect("the test writes nothing");
    drop(vm);
    ExitCode::SUCCESS
}

/// Runs a daemon: arguments STATE_DIR COUNTERS PID….
fn be_a_daemon() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let state_dir = arguments.next().expect("daemon STATE_DIR COUNTERS PID…");
    let counters = arguments.next().expect("daemon STATE_DIR COUNTERS PID…");
    let pids: Vec<String> = arguments.collect();
    let mut config = HostConfig {
        period_ms: 50,
        policies: Policies(registry::parse("fair,flexs").expect("they exist")),
        counters: counters.parse().expect("a source of counters"),
        placement: Placement::Rebalance,
        state_dir: state_dir.into(),
        without_kvm: pids.clone(),
        ..HostConfig::default()
    };
    let pids = pids.iter().map(|pid| pid.parse().expect("a process"));
    config.select.pids = pids.collect();
    let console = Console { name: None, print_ready: true, level: LevelFilter::INFO };
    tracing::subscriber::set_global_default(console.subscriber(stdout)).expect("the first one");
    let daemon = Daemon::open(config, None).expect("it opens");
    daemon.run(None).expect("it runs");
    ExitCode::SUCCESS
}

/// A child that is killed with the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, arguments: &[String]) -> Guard {
    let child = Command::new("/proc/self/exe")
        .env(ROLE, role)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Guard(child.expect("this program starts again"))
}

/// The VMs: one whose second vCPU waits, and one that computes on its pCPU.
fn vms() -> Result<Vec<Guard>, Skip> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("needs root to change cgroups".to_owned()));
    }
    cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))?;
    let may = affinity(Tid(0)).map_err(|error| Skip(error.to_string()))?;
    let pcpus: Vec<u32> = may.iter().map(|pcpu| pcpu.0).collect();
    let [one, other, ..] = pcpus.as_slice() else {
        return Err(Skip("needs two pCPUs".to_owned()));
    };
    let mine = std::process::id() & 0xffff;
    let spins = [format!("fs{mine:04x}"), "barrier".to_owned(), format!("{one},{other}")];
    let burns = [format!("fb{mine:04x}"), "burn".to_owned(), format!("{other},{other}")];
    let mut vms = Vec::new();
    for arguments in [spins, burns] {
        let mut vm = start("microvm", &arguments);
        let mut ready = String::new();
        let out = vm.0.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut ready).expect("text");
        assert_eq!(ready, "ready\n");
        vms.push(vm);
    }
    Ok(vms)
}

fn daemon(state_dir: &Path, vms: &[Guard]) -> Guard {
    daemon_with(CounterChoice::Synthetic, state_dir, vms)
}

fn daemon_with(counters: CounterChoice, state_dir: &Path, vms: &[Guard]) -> Guard {
    let state_dir = state_dir.to_str().expect("a plain path").to_owned();
    let pids = vms.iter().map(|vm| vm.0.id().to_string());
    let first = vec![state_dir, counters.to_string()];
    start("daemon", &[first, pids.collect()].concat())
}

/// Returns the affinity and the cgroups of each thread of the VMs.
fn snapshot(vms: &[Guard]) -> BTreeMap<u32, (PcpuSet, String)> {
    let mut seen = BTreeMap::new();
    for vm in vms {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", vm.0.id())).expect("it lives");
        for task in tasks {
            let task = task.expect("a thread").path();
            let tid = task.file_name().and_then(|n| n.to_str()).expect("a number");
            let tid: u32 = tid.parse().expect("a number");
            let groups = std::fs::read_to_string(task.join("cgroup")).expect("it lives");
            let allowed = affinity(Tid(tid)).expect("it lives");
            seen.insert(tid, (allowed, groups));
        }
    }
    seen
}

fn spinning_vcpu_is_swapped_and_reverted() -> Result<(), Skip> {
    let vms = vms()?;
    let before = snapshot(&vms);
    let dir = tempfile::tempdir().expect("a folder");
    let mut daemon = daemon(dir.path(), &vms);
    let out = daemon.0.stdout.take().expect("it is piped");
    let mut swaps = 0;
    let mut said = String::new();
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        said += &format!("{line}\n");
        if line.contains("moved to pCPU") && line.contains("busy-waits on pCPU") {
            assert!(line.contains("by synthetic counters"), "{line}");
            swaps += 1;
        }
        if swaps == 3 {
            break;
        }
    }
    // Read the daemon's further output, since a full pipe would end it.
    let rest = std::thread::spawn(move || lines.into_iter().count());
    assert_eq!(swaps, 3, "{said}");
    assert!(said.contains("synthetic counters, of Tandem's own microVMs alone"), "{said}");
    assert!(!said.contains("error:"), "{said}");
    let vcpus = |vm: &Guard| snapshot(std::slice::from_ref(vm)).into_values();
    let mut on: Vec<String> = vcpus(&vms[0]).map(|(on, _)| on.to_string()).collect();
    on.retain(|on| !on.contains(['-', ',']));
    on.sort();
    on.dedup();
    assert_eq!(on.len(), 2, "stacked: {on:?}");
    stop(daemon);
    reader.join().expect("it ends with the daemon's output");
    rest.join().expect("it ends with the reader");
    assert_eq!(snapshot(&vms), before);
    Ok(())
}

fn missing_pmu_is_reported_without_swaps() -> Result<(), Skip> {
    if branch_counters::open(CounterChoice::Hardware, ProcFs::host()).is_ok() {
        return Err(Skip("this host has a PMU".to_owned()));
    }
    let vms = vms()?;
    let before = snapshot(&vms);
    let dir = tempfile::tempdir().expect("a folder");
    let mut daemon = daemon_with(CounterChoice::Hardware, dir.path(), &vms);
    let out = daemon.0.stdout.as_mut().expect("it is piped");
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let off = said.iter().find(|line| line.starts_with("error: the policy flexs is off: "));
    let off = off.unwrap_or_else(|| panic!("{said:?}"));
    assert!(off.contains("needs a PMU") || off.contains("CAP_PERFMON"), "{off}");
    // Long enough for swaps, if there were counters.
    sleep(Duration::from_millis(u64::from(2 * WITHIN_MS)));
    let pins = |seen: BTreeMap<u32, (PcpuSet, String)>| {
        let pins = seen.into_values().map(|(on, _)| on);
        pins.collect::<Vec<_>>()
    };
    assert_eq!(pins(snapshot(&vms)), pins(before));
    stop(daemon);
    Ok(())
}

/// Ends a daemon as its service does, so that it reverts everything.
fn stop(mut daemon: Guard) {
    let pid = rustix::process::Pid::from_raw(daemon.0.id() as i32).expect("a process");
    rustix::process::kill_process(pid, Signal::TERM).expect("it lives");
    assert!(daemon.0.wait().expect("it ends").success());
}

fn everything_is_reverted_after_kill_9() -> Result<(), Skip> {
    let vms = vms()?;
    let before = snapshot(&vms);
    let dir = tempfile::tempdir().expect("a folder");
    let mut random = Pcg32::seed_from_u64(21);
    let (kills, changed) = kills::kill_often(KILLS, |kill| {
        let daemon = daemon(dir.path(), &vms);
        sleep(Duration::from_millis(u64::from(random.next_u32() % WITHIN_MS)));
        drop(daemon);
        let pins = |seen: &BTreeMap<u32, (PcpuSet, String)>| {
            let pins = seen.values().map(|(on, _)| on.clone());
            pins.collect::<Vec<_>>()
        };
        let is_changed = pins(&snapshot(&vms)) != pins(&before);
        let controller = cgroup::open(&ProcFs::host()).expect("it was there before");
        let report = restore_all(controller, dir.path()).expect("a journal");
        assert!(report.is_complete(), "kill {kill}: {report}");
        assert_eq!(snapshot(&vms), before, "kill {kill}");
        is_changed
    });
    println!("{changed} of {kills} kills found vCPUs in each other's places");
    Ok(())
}
