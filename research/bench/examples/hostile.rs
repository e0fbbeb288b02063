//! Measures the daemon's longest decision gap and its memory on a host with hostile tenants.
//!
//! ```text
//! cargo build --release -p tandem-cli
//! sudo cargo run --release -p tandem-bench --example hostile -- [SECONDS [FILE.json [LOAD …]]]
//! ```
//!
//! Next to each load run two VMs of weights 1 and 2; the daemon selects all VMs and acts on these two.
//! Loads are as large as this machine allows, and the figures contain their sizes.
//! For a `named` load the operator named its user, so its threads count as vCPUs without KVM: the worst case of selection.
//! The gap is the daemon's metric `tandem_period_gap_longest_seconds`, or the age of its metrics page if that is larger.
//! The program watches each load for SECONDS (20).
//! It judges no figure; `docs/threat-model.md` states the limits.
//!
//! VMs and daemon are `tandem vm run` and `tandem host run` of the binary one folder above this program, or of the binary in TANDEM.

use std::io::{Read, Write, stdin, stdout};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{Builder, park, sleep};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use tandem_bench::usage::Usage;
use tandem_demo::child::Running;
use tandem_demo::daemon_process::{DaemonProcess, Selected};
use tandem_demo::plan::{DaemonPlan, VmPlan};
use tandem_demo::state_dir::StateDir;
use tandem_demo::vm_process::{VmProcess, stop_all};
use tandem_demo::{host_facts, state_dir};
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Backend;
use tandem_report::experiment::Host;
use tandem_report::{explain, json};

type AnyError = Box<dyn std::error::Error>;

/// Maximum start-up time of a hostile process.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The page of metrics in the state directory.
const PAGE: &str = "page";

/// The daemon's figures with one load.
#[derive(Debug, Serialize)]
struct Figures {
    /// Name of the load.
    load: &'static str,
    /// Its processes, and their total of descriptors, threads or KiB of arguments.
    processes: usize,
    held: u64,
    /// Whether the operator named its user.
    named: bool,
    /// Length of the measurement in seconds.
    seconds: u64,
    /// Accounting periods, and late ones among them.
    periods: f64,
    periods_late: f64,
    /// The longest time without a decision, in seconds.
    longest_gap_s: f64,
    /// Resources of the daemon.
    daemon: Usage,
    /// Managed VMs and their vCPUs.
    vms: f64,
    vcpus: f64,
    /// Number of error lines that it logged, and the first one.
    errors: usize,
    first_error: Option<String>,
    /// Time to revert all changes and exit, in seconds; `None` if it had to be killed, after which the remaining changes were reverted.
    ended_in_s: Option<f64>,
}

#[derive(Serialize)]
struct Document {
    command: String,
    host: Host,
    pcpus: usize,
    backend: Backend,
    loads: Vec<Figures>,
}

/// A hostile load.
struct Load {
    name: &'static str,
    named: bool,
    /// Returns the number of processes and the arguments of each.
    make: fn(&Machine) -> Processes,
    /// Arguments of the daemon.
    extra: &'static [&'static str],
}

type Processes = (usize, Vec<String>);

const LOADS: [Load; 9] = [
    Load { name: "nobody", named: false, make: |_| (0, Vec::new()), extra: &[] },
    Load { name: "descriptors", named: false, make: descriptors, extra: &[] },
    Load { name: "threads", named: false, make: threads, extra: &[] },
    Load { name: "threads-named", named: true, make: threads, extra: &[] },
    Load { name: "arguments", named: false, make: arguments, extra: &[] },
    Load { name: "arguments-named", named: true, make: arguments, extra: &[] },
    Load { name: "thread-churn", named: true, make: |_| (1, be(&["churn", "500"])), extra: &[] },
    Load { name: "qmp", named: true, make: |_| (4, be(&["talker"])), extra: &["--qmp-socket"] },
    Load { name: "vms", named: true, make: vms, extra: &[] },
];

fn be(what: &[&str]) -> Vec<String> {
    [&["be"][..], what].concat().into_iter().map(str::to_owned).collect()
}

/// Limits of this machine.
struct Machine {
    free_bytes: u64,
    threads: u64,
}

impl Machine {
    fn read() -> Machine {
        let number = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().parse::<u64>().ok()
        };
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = free.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let most = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"];
        Machine {
            free_bytes: kib.unwrap_or(1 << 20) << 10,
            threads: most.into_iter().filter_map(number).min().unwrap_or(32_768),
        }
    }
}

/// 100 processes with 500,000 descriptors each; a descriptor takes 8 bytes in the process's table.
fn descriptors(machine: &Machine) -> Processes {
    let each = (machine.free_bytes / 4 / 100 / 16).min(500_000);
    (100, be(&["hoard", &each.to_string()]))
}

/// 32,768 threads with names of vCPUs, as many per process as the daemon reads; each takes about 32 KiB with its kernel stack.
fn threads(machine: &Machine) -> Processes {
    let all = (machine.free_bytes / 4 / (32 << 10)).min(machine.threads / 2).min(32_768);
    (8, be(&["crowd", &(all / 8).to_string()]))
}

/// 1,000 processes with nearly 2 MB of arguments each, the maximum with a stack of 8 MiB.
fn arguments(machine: &Machine) -> Processes {
    let long = "x".repeat(120 << 10);
    let count = (machine.free_bytes / 4 / (3 << 20)).min(1_000) as usize;
    let words = std::iter::repeat_n(long, 15);
    (count, be(&["fat"]).into_iter().chain(words).collect())
}

/// 1,000 VMs at once.
fn vms(machine: &Machine) -> Processes {
    let count = (machine.free_bytes / 4 / (2 << 20)).min(1_000) as usize;
    (count, be(&["fat"]))
}

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("be") => return role(&arguments[1..]),
        Some("vm" | "host") => {
            let tandem = tandem()?;
            let error = Command::new(&tandem).args(&arguments).exec();
            return Err(format!("cannot start {}: {error}", tandem.display()).into());
        }
        _ => {}
    }
    tandem()?;
    let seconds = arguments.first().map_or(Ok(20), |text| text.parse())?;
    let wanted = arguments.get(2..).unwrap_or_default();
    let known = |name: &String| LOADS.iter().any(|load| load.name == name);
    if let Some(other) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<&str> = LOADS.iter().map(|load| load.name).collect();
        return Err(format!("no load is called {other}; there are {}", names.join(", ")).into());
    }
    let interrupt = Interrupt::watch()?;
    let dir = StateDir::open(&state_dir::default_for(rustix::process::geteuid().as_raw()))?;
    let backend = if Path::new("/dev/kvm").exists() { Backend::Kvm } else { Backend::Threads };
    let mut document = Document {
        command: format!("cargo run --release -p tandem-bench --example hostile -- {seconds}"),
        host: host_facts::read(),
        pcpus: host_facts::usable_pcpus()?.len(),
        backend,
        loads: Vec::new(),
    };
    println!(
        "load             processes      held  gap (s)  late  peak RSS (KiB)   VMs  vCPUs  errors  ended in (s)"
    );
    for load in
        LOADS.iter().filter(|load| wanted.is_empty() || wanted.iter().any(|w| w == load.name))
    {
        let row = watch(load, seconds, backend, &dir, &interrupt)?;
        let ended = row.ended_in_s.map_or("killed".to_owned(), |s| format!("{s:.1}"));
        println!(
            "{:<16} {:>9} {:>9} {:>8.3} {:>5} {:>15} {:>5} {:>6} {:>7} {ended:>13}",
            row.load,
            row.processes,
            row.held,
            row.longest_gap_s,
            row.periods_late,
            row.daemon.peak_rss_kib,
            row.vms,
            row.vcpus,
            row.errors
        );
        document.loads.push(row);
    }
    dir.finish();
    if let Some(file) = arguments.get(1) {
        json::write(Path::new(file), &document)?;
    }
    Ok(())
}

/// Measures the daemon with one load.
fn watch(
    load: &Load,
    seconds: u64,
    backend: Backend,
    dir: &StateDir,
    interrupt: &Interrupt,
) -> Result<Figures, AnyError> {
    let (count, what) = (load.make)(&Machine::read());
    let (mut processes, mut held) = (Vec::new(), 0);
    for number in 0..count {
        interrupt.check()?;
        let log = fs::File::create(dir.logs().join("hostile.log"))?;
        let mut arguments = what.clone();
        if load.name == "qmp" {
            arguments.push(dir.logs().join(format!("{number}.qmp")).display().to_string());
        }
        let mut process = Running::start(load.name, &arguments, log)?;
        held += process.line(START_TIMEOUT)?.trim().parse::<u64>()?;
        processes.push(process);
    }
    let mut vms = Vec::new();
    for (number, weight) in [1.0, 2.0].into_iter().enumerate() {
        let plan = VmPlan {
            name: format!("own{number}"),
            vcpus: 2,
            weight,
            workload: "burn".to_owned(),
            settings: Vec::new(),
            pins: Vec::new(),
        };
        let mut vm = VmProcess::start(&plan, backend, number as u64, dir.logs())?;
        vm.ready()?;
        vms.push((vm, weight));
    }
    let page = dir.logs().join(PAGE);
    let page_text = page.display().to_string();
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let sockets = dir.logs().join("*.qmp").display().to_string();
    let mut extra = vec!["--select-all", "--metrics-file", &page_text];
    if load.named {
        extra.extend(["--without-kvm", &user]);
    }
    extra.extend(load.extra);
    if load.name == "qmp" {
        extra.push(&sockets);
    }
    let selected = Selected::Pids(vms.iter().map(|(vm, weight)| (vm.pid(), *weight)).collect());
    let plan = DaemonPlan {
        period_ms: None,
        scan_ms: None,
        placement: Placement::Turns,
        policies: None,
        asymmetric: None,
        counters: None,
    };
    let mut daemon = DaemonProcess::start(&selected, &plan, &extra, &dir.daemon())?;
    interrupt.sleep(Duration::from_secs(seconds))?;
    daemon.check_alive()?;
    let usage = Usage::read(daemon.pid())?;
    let since = SystemTime::now().duration_since(fs::metadata(&page)?.modified()?)?;
    let text = fs::read_to_string(&page)?;
    let metric = |name: &str| -> Result<f64, AnyError> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.ok_or_else(|| format!("the daemon's page has no {name}"))?.parse()?)
    };
    let errors = daemon.errors()?;
    let stopping = Instant::now();
    let ended_in_s = match daemon.stop() {
        Ok(()) => Some(stopping.elapsed().as_secs_f64()),
        Err(error) => {
            println!("{}: {}", load.name, explain(&error));
            None
        }
    };
    let row = Figures {
        load: load.name,
        processes: count,
        held,
        named: load.named,
        seconds,
        periods: metric("tandem_periods_total")?,
        periods_late: metric("tandem_periods_late_total")?,
        longest_gap_s: metric("tandem_period_gap_longest_seconds")?.max(since.as_secs_f64()),
        daemon: usage,
        vms: metric("tandem_vms")?,
        vcpus: metric("tandem_vcpus")?,
        errors: errors.len(),
        first_error: errors.into_iter().next(),
        ended_in_s,
    };
    stop_all(vms.into_iter().map(|(vm, _)| vm).collect())?;
    for process in &mut processes {
        process.close_stdin();
    }
    for process in &mut processes {
        process.reap()?;
    }
    Ok(row)
}

/// Plays a hostile process until stdin closes. It first prints how much it holds.
fn role(arguments: &[String]) -> Result<(), AnyError> {
    let argument = arguments.get(1).map_or("", String::as_str);
    match arguments.first().map(String::as_str) {
        Some("hoard") => stay(hoard(argument.parse()?)?),
        Some("crowd") => stay(crowd(argument.parse()?)),
        Some("churn") => {
            let between = Duration::from_secs(1) / argument.parse()?;
            Builder::new().spawn(move || come_and_go(between))?;
            stay(0)
        }
        Some("fat") => {
            start_thread("fat/vcpu0")?;
            stay(arguments.iter().map(|word| word.len() as u64).sum::<u64>() >> 10)
        }
        Some("talker") => {
            start_thread("CPU 0/TCG")?;
            let listener = UnixListener::bind(argument)?;
            Builder::new().spawn(move || talk(&listener))?;
            stay(0)
        }
        other => Err(format!("unknown role {other:?}").into()),
    }
}

fn stay(held: u64) -> Result<(), AnyError> {
    println!("{held}");
    stdout().flush()?;
    stdin().read_to_end(&mut Vec::new())?;
    // Do not wait for the threads.
    std::process::exit(0)
}

/// Opens up to `most` descriptors of one file.
fn hoard(most: u64) -> Result<u64, AnyError> {
    let most_here = fs::read_to_string("/proc/sys/fs/nr_open")?.trim().parse()?;
    let limit = Some((most + 16).min(most_here));
    let wanted = Rlimit { current: limit, maximum: limit };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        // Without privileges: up to the hard limit.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    let file = fs::File::open("/dev/null")?;
    let mut held = 0;
    while held < most && file.try_clone().map(std::mem::forget).is_ok() {
        held += 1;
    }
    Ok(held)
}

/// Starts up to `most` threads with names of vCPUs, four per VM.
fn crowd(most: u64) -> u64 {
    let started =
        (0..most).map_while(|n| start_thread(&format!("db-{}/vcpu{}", n / 4, n % 4)).ok());
    started.count() as u64
}

fn start_thread(name: &str) -> std::io::Result<()> {
    let thread = Builder::new().name(name.to_owned()).stack_size(16 << 10);
    thread.spawn(stand_still)?;
    Ok(())
}

fn stand_still() {
    loop {
        park();
    }
}

/// Starts and ends threads with names of vCPUs, one after the other.
fn come_and_go(between: Duration) {
    for n in 0u64.. {
        let thread = Builder::new().name(format!("churn/vcpu{}", n % 64));
        if let Ok(thread) = thread.stack_size(16 << 10).spawn(move || sleep(between)) {
            let _ = thread.join();
        }
    }
}

/// Answers each QMP client with four megabytes of numbers.
fn talk(listener: &UnixListener) {
    let numbers = "0,".repeat((4 << 20) / 2 - 200);
    let reply =
        format!("{{\"QMP\": {{}}}}\r\n{{\"return\": {{}}}}\r\n{{\"return\": [{numbers}0]}}\r\n");
    for client in listener.incoming() {
        // A client may close the connection early.
        let _ = client.and_then(|mut client| client.write_all(reply.as_bytes()));
    }
}

/// Path of the measured `tandem` binary.
fn tandem() -> Result<PathBuf, AnyError> {
    let named = env::var_os("TANDEM").map(PathBuf::from);
    let program = env::current_exe()?;
    let beside = program.parent().and_then(Path::parent).map(|folder| folder.join("tandem"));
    let tandem = named.or(beside).filter(|path| path.is_file());
    tandem.ok_or_else(|| "there is no tandem: build it (cargo build --release -p tandem-cli), or name it in TANDEM".into())
}
