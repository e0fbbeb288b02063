//! The daemon next to processes that hold as much as they can: it continues to control, and stays small.
//!
//! It runs dry, except in one test, and in a process of its own, which isolates its memory.
//! The control loop writes its metrics at every scan, so the longest time between two pages bounds the longest gap in control.
//! This is a program of its own like the live tests of `tandem-linux`: it starts itself again as each hostile process and as the daemon.

use tandem_testing::{harness, helper, quiet};

use std::fs::File;
use std::io::{Write, stderr, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use rustix::process::{Resource, getrlimit, getuid};
use tandem_host::config::HostConfig;
use tandem_host::daemon::Daemon;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::journal::is_pending;
use tandem_linux::log::{Console, LevelFilter, READY, RESULT};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tracing_subscriber::fmt::writer::MakeWriterExt;

use harness::{Skip, Test};
use helper::{Helper, StateDir, number, unique, vcpu_threads};

/// All tests, in the order in which they run.
const ALL: &[(&str, Test)] = &[
    ("hostile_descriptors", descriptors),
    ("hostile_threads", threads),
    ("hostile_arguments", arguments),
    ("hostile_vms_of_a_daemon_that_acts", acting),
];

/// Maximum time between two pages (1 s apart): a gap in control of half a second, and a period's delay.
const GAP: Duration = Duration::from_millis(1000 + 500 + 100);

/// Maximum memory of the daemon, in KiB.
const MEMORY_KIB: u64 = 64 << 10;

/// File in the state directory for the daemon's metrics.
const PAGE: &str = "page";

/// Number of vCPUs that start at once while the daemon acts.
const CROWD: u32 = 400;

/// Time that the daemon is watched.
const WATCHED: Duration = Duration::from_secs(6);

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some("hoard") => be_a_hoard(),
        Some("crowd") => be_a_crowd(),
        Some("daemon") => be_a_daemon(false),
        Some("acting daemon") => be_a_daemon(true),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(ALL),
    }
}

/// Reports its start, and stays until its input ends.
fn stay() -> ExitCode {
    println!("ready");
    stdout().flush().expect("the test reads");
    let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
    ExitCode::SUCCESS
}

/// Opens as many descriptors as allowed: at most the argument COUNT.
fn be_a_hoard() -> ExitCode {
    let most = number(&env::args().nth(1).expect("COUNT"));
    let held: Vec<File> = (0..most).map_while(|_| File::open("/dev/null").ok()).collect();
    let code = stay();
    drop(held);
    code
}

/// Starts as many threads as allowed, with names of vCPUs: at most the argument COUNT.
fn be_a_crowd() -> ExitCode {
    let most = number(&env::args().nth(1).expect("COUNT"));
    for n in 0..most {
        let thread = std::thread::Builder::new()
            .name(format!("db-{}/vcpu{}", n / 4, n % 4))
            .stack_size(16 << 10);
        if thread.spawn(|| sleep(Duration::from_secs(3600))).is_err() {
            break;
        }
    }
    stay()
}

/// Runs the daemon: arguments STATE_DIR, and the processes whose names count without KVM. If it acts, it acts on these alone.
fn be_a_daemon(acts: bool) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let state_dir = PathBuf::from(&arguments[0]);
    let mut config = HostConfig {
        dry_run: !acts,
        metrics_file: Some(state_dir.join(PAGE)),
        state_dir,
        without_kvm: arguments[1..].to_vec(),
        ..HostConfig::default()
    };
    if acts {
        let pids = arguments[1..].iter();
        config.select.pids = pids.map(|pid| number(pid) as u32).collect();
    } else {
        config.select.all = true;
    }
    let console =
        Console { name: Some("the daemon"), print_ready: true, level: LevelFilter::ERROR };
    // The test reads no decisions, and a full pipe would block the daemon.
    let errors = stderr.with_filter(|metadata| metadata.target() != RESULT);
    let writer = stdout.with_filter(|metadata| metadata.target() == READY).or_else(errors);
    tracing::subscriber::set_global_default(console.subscriber(writer)).expect("the first one");
    let daemon = Daemon::open(config, None).expect("it opens");
    match daemon.run(None) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the longest time between two pages while the daemon was watched.
fn longest_gap(page: &Path) -> Duration {
    let written = || fs::metadata(page).and_then(|page| page.modified()).ok();
    let end = Instant::now() + WATCHED;
    // The first scan, which has its own time limit, precedes any managed VM, so the page written by `open` does not count.
    let mut last = Some(SystemTime::now());
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        sleep(Duration::from_millis(10));
        let since = |last: SystemTime| SystemTime::now().duration_since(last).ok();
        longest = longest.max(last.and_then(since).unwrap_or_default());
        last = last.max(written());
    }
    longest
}

/// Watches a daemon next to the running helpers.
fn watch(named: &[&str]) -> Result<(), Skip> {
    cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))?;
    let dir = StateDir::new();
    let dir_text = dir.0.display().to_string();
    let arguments = [&[dir_text.as_str()], named].concat();
    let daemon = Helper::start("daemon", &arguments);
    watch_daemon(&daemon, &dir, |_| ())?;
    daemon.kill();
    Ok(())
}

/// Watches a daemon during an action in each try. Gaps between pages count only if other load leaves the pCPUs alone.
fn watch_daemon(
    daemon: &Helper,
    dir: &StateDir,
    mut during: impl FnMut(usize) + Send,
) -> Result<(), Skip> {
    let page = dir.0.join(PAGE);
    let pcpus = affinity(Tid(std::process::id())).expect("an affinity");
    let mut nth = 0;
    let watch = || {
        let gap = std::thread::scope(|scope| {
            scope.spawn(|| during(nth));
            longest_gap(&page)
        });
        nth += 1;
        gap
    };
    let gap = quiet::measure_until(&pcpus, watch, |gap| *gap <= GAP)?;
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid().0)).expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix(" kB"));
    let peak_kib: u64 = peak.and_then(|kib| kib.trim().parse().ok()).expect("a peak");
    println!("gap {gap:?}, peak {peak_kib} KiB");
    assert!(gap <= GAP, "{gap:?}");
    assert!(peak_kib <= MEMORY_KIB, "{peak_kib} KiB");
    let page = fs::read_to_string(&page).expect("it is written");
    assert!(page.contains("tandem_vms "), "{page}");
    Ok(())
}

/// Skips the test if this user may not make cgroups here.
fn can_act() -> Result<(), Skip> {
    let skip = |error: CgroupError| Skip(error.to_string());
    if !getuid().is_root() {
        return Err(Skip("needs root".to_owned()));
    }
    let controller = cgroup::open(&ProcFs::host()).map_err(skip)?;
    let me = Pid(std::process::id());
    let me = ThreadRef::read(&ProcFs::host(), me, Tid(me.0)).expect("this one lives");
    let own = controller.cgroup_of(&me).map_err(skip)?;
    controller.check_parent(&own).map_err(skip)?;
    let made = controller.create_child(&own, &unique("probe"));
    controller.remove(&made.map_err(skip)?).map_err(skip)
}

/// Returns the cgroups of a VM's vCPU threads.
fn cgroups(vm: &Helper) -> Vec<String> {
    let threads = vcpu_threads(vm.pid()).into_iter();
    let cgroups = threads.map(|thread| {
        let task = ProcFs::host().task(thread.pid, thread.tid);
        fs::read_to_string(task.join("cgroup")).unwrap_or_default()
    });
    cgroups.collect()
}

/// Hundreds of VMs start and end at once while a daemon acts on them: it continues, and another VM is unchanged in the end.
fn acting() -> Result<(), Skip> {
    can_act()?;
    let dir = StateDir::new();
    let vm = Helper::start("vm", &["kept", "2"]);
    let before = cgroups(&vm);
    assert_eq!(before.len(), 2);
    let mut crowds: Vec<Helper> =
        (0..quiet::TRIES).map(|_| Helper::start("vm", &["crowd", "1"])).collect();
    let all = crowds.iter().chain([&vm]);
    let pids: Vec<String> = all.map(|vm| vm.pid().to_string()).collect();
    let dir_text = dir.0.display().to_string();
    let arguments: Vec<&str> = [&dir_text].into_iter().chain(&pids).map(String::as_str).collect();
    let daemon = Helper::start("acting daemon", &arguments);
    let is_ours = |cgroup: &String| cgroup.contains("/tandem-");
    assert!(cgroups(&vm).iter().all(is_ours), "{:?}", cgroups(&vm));
    let mut most = 0;
    watch_daemon(&daemon, &dir, |nth| {
        let crowd = &mut crowds[nth];
        for n in 0..CROWD {
            crowd.tell(&format!("start late-{}/vcpu{}", n / 4, n % 4));
        }
        // They start in the first half of the time and end in the second.
        let end = Instant::now() + WATCHED / 2;
        while Instant::now() < end {
            sleep(Duration::from_millis(100));
            most = most.max(cgroups(crowd).into_iter().filter(is_ours).count());
        }
        crowd.end();
    })?;
    println!("of {CROWD} vCPUs {most} were moved");
    assert!(most > 1, "some of them were moved");
    assert!(is_pending(&dir.0), "the changes are journaled");
    let status = daemon.finish();
    assert!(status.success(), "{status}");
    assert_eq!(cgroups(&vm), before);
    assert!(!is_pending(&dir.0), "everything is reverted");
    Ok(())
}

/// Processes with as many descriptors as allowed.
fn descriptors() -> Result<(), Skip> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(19_000);
    let count = limit.min(19_000).to_string();
    let hoards: Vec<Helper> = (0..20).map(|_| Helper::start("hoard", &[&count])).collect();
    let outcome = watch(&[]);
    drop(hoards);
    outcome
}

/// Thousands of threads with names of vCPUs, without KVM; and as many that the operator named.
fn threads() -> Result<(), Skip> {
    let crowds: Vec<Helper> = (0..4).map(|_| Helper::start("crowd", &["2000"])).collect();
    watch(&[])?;
    let named = crowds[0].pid().to_string();
    let outcome = watch(&[&named]);
    drop(crowds);
    outcome
}

/// VMs with command lines of megabytes.
fn arguments() -> Result<(), Skip> {
    let long = "x".repeat(120 << 10);
    let mut arguments = vec!["fat", "1"];
    arguments.extend(std::iter::repeat_n(long.as_str(), 12));
    let vms: Vec<Helper> = (0..20).map(|_| Helper::start("vm", &arguments)).collect();
    let pids: Vec<String> = vms.iter().map(|vm| vm.pid().to_string()).collect();
    let pids: Vec<&str> = pids.iter().map(String::as_str).collect();
    let outcome = watch(&pids);
    drop(vms);
    outcome
}
