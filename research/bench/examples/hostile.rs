//! The daemon beside tenants that hold as much as they can: how long it decided nothing, and how much memory it took.
//!
//! ```text
//! cargo build --release -p tandem-cli
//! sudo cargo run --release -p tandem-bench --example hostile -- [SECONDS [FILE.json [LOAD …]]]
//! ```
//!
//! Beside each load stand two VMs, of weights 1 and 2, on which the daemon acts; it selects every VM. Loads are as large as this machine allows, and the
//! figures say how large that was. Where a load is `named`, the operator named its user, so that its threads count as vCPUs without KVM: the worst that
//! can be selected. The gap is the daemon's own metric `tandem_period_gap_longest_seconds`, from its first period on; if its page stands still for longer,
//! that. Each load is watched for SECONDS (20). Nothing is judged: `docs/threat-model.md` says what is promised.
//!
//! VMs and daemon are `tandem vm run` and `tandem host run` of the binary beside the folder of this program, or that TANDEM names.

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

/// How long a hostile process may take to become what it is to be.
const PATIENCE: Duration = Duration::from_secs(120);

/// The page of metrics in the state directory.
const PAGE: &str = "page";

/// The daemon beside one load.
#[derive(Debug, Serialize)]
struct Figures {
    /// Which.
    load: &'static str,
    /// Its processes, and what they hold together: descriptors, threads, KiB of arguments.
    processes: usize,
    held: u64,
    /// Whether the operator named its user.
    named: bool,
    /// How long it was watched, in seconds.
    seconds: u64,
    /// Accounting periods, and those that began late.
    periods: f64,
    periods_late: f64,
    /// The longest time without a decision, in seconds.
    longest_gap_s: f64,
    /// What the daemon used.
    daemon: Usage,
    /// How many VMs and vCPUs it had under care.
    vms: f64,
    vcpus: f64,
    /// What it said was wrong: how many lines, and the first.
    errors: usize,
    first_error: Option<String>,
    /// How long it took to put everything back and end, in seconds; `None` if it had to be killed, after which the rest was put back.
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
    /// How many processes, and what each is told to be.
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

/// What this machine has.
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

/// A hundred processes of 500,000 descriptors each: eight bytes apiece in the table of a process.
fn descriptors(machine: &Machine) -> Processes {
    let each = (machine.free_bytes / 4 / 100 / 16).min(500_000);
    (100, be(&["hoard", &each.to_string()]))
}

/// 32,768 threads that are called as vCPUs are, as many in a process as are looked at: with stacks of the kernel some 32 KiB each.
fn threads(machine: &Machine) -> Processes {
    let all = (machine.free_bytes / 4 / (32 << 10)).min(machine.threads / 2).min(32_768);
    (8, be(&["crowd", &(all / 8).to_string()]))
}

/// A thousand processes of nearly 2 MB of arguments each, which is the most with a stack of 8 MiB.
fn arguments(machine: &Machine) -> Processes {
    let long = "x".repeat(120 << 10);
    let count = (machine.free_bytes / 4 / (3 << 20)).min(1_000) as usize;
    let words = std::iter::repeat_n(long, 15);
    (count, be(&["fat"]).into_iter().chain(words).collect())
}

/// A thousand VMs at once.
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

/// Watches the daemon beside a load.
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
        held += process.line(PATIENCE)?.trim().parse::<u64>()?;
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

/// Is a hostile process until its input ends. It first says how much it holds.
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
        other => Err(format!("nobody is called {other:?}").into()),
    }
}

fn stay(held: u64) -> Result<(), AnyError> {
    println!("{held}");
    stdout().flush()?;
    stdin().read_to_end(&mut Vec::new())?;
    // Without waiting for threads.
    std::process::exit(0)
}

/// As many descriptors of one file.
fn hoard(most: u64) -> Result<u64, AnyError> {
    let most_here = fs::read_to_string("/proc/sys/fs/nr_open")?.trim().parse()?;
    let limit = Some((most + 16).min(most_here));
    let wanted = Rlimit { current: limit, maximum: limit };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        // As an ordinary user: as many as there may be.
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

/// As many threads that are called as vCPUs are, four to a VM.
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

/// Threads that are called as vCPUs are start and end, one after the other.
fn come_and_go(between: Duration) {
    for n in 0u64.. {
        let thread = Builder::new().name(format!("churn/vcpu{}", n % 64));
        if let Ok(thread) = thread.stack_size(16 << 10).spawn(move || sleep(between)) {
            let _ = thread.join();
        }
    }
}

/// Answers whoever asks for vCPUs with four megabytes of numbers.
fn talk(listener: &UnixListener) {
    let numbers = "0,".repeat((4 << 20) / 2 - 200);
    let reply =
        format!("{{\"QMP\": {{}}}}\r\n{{\"return\": {{}}}}\r\n{{\"return\": [{numbers}0]}}\r\n");
    for client in listener.incoming() {
        // Who has heard enough hangs up.
        let _ = client.and_then(|mut client| client.write_all(reply.as_bytes()));
    }
}

/// The binary whose VMs and daemon are measured.
fn tandem() -> Result<PathBuf, AnyError> {
    let named = env::var_os("TANDEM").map(PathBuf::from);
    let program = env::current_exe()?;
    let beside = program.parent().and_then(Path::parent).map(|folder| folder.join("tandem"));
    let tandem = named.or(beside).filter(|path| path.is_file());
    tandem.ok_or_else(|| "there is no tandem: build it (cargo build --release -p tandem-cli), or name it in TANDEM".into())
}
