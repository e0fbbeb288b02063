//! Cost of watching a large host: `tandem host top` and `tandem host export` with 1,000 VMs of 8 vCPUs.
//!
//! ```text
//! cargo run --release -p tandem-host --example fleet_cost [-- PROCESSES THREADS MOVING…]
//! ```
//!
//! The VMs are processes of this program, with threads named as a microVM's vCPUs.
//! The vCPUs of MOVING of them wake up twice a second, and the others sleep.
//! Each number of MOVING is a case of its own: 0, 100 and 1000 by default.
//! KVM has no figures of such vCPUs, so the cost of reading POLL is not included.
//! It prints JSON:
//!
//! - `top`: an interval per second, measured, sorted and drawn on a screen of 110 × 40.
//!   `refresh_ms` is wall time (median and maximum), and `cpu` is the CPU time as a part of one pCPU.
//! - `export`: the exporter as a process of its own with its default interval of 5 s, scraped every second.
//!   `scrape_ms` is the wall time of the whole page, next to `page_bytes`, `series` and `cpu` as above.
//!   `interval_ms` is the maximum of its own figure for reading an interval.
//!
//! Other load on the machine affects the wall times. Each case takes about 45 s.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::{Value, json};
use tandem_host::discovery::DiscoveryOptions;
use tandem_host::export::{Detail, Export, ExportConfig};
use tandem_host::select::Selector;
use tandem_host::top::Top;
use tandem_host::top::screen::Screen;
use tandem_host::top::screen::draw::draw;
use tandem_host::top::text::notes;
use tandem_linux::ProcFs;
use tandem_linux::cpu_clock::process_cpu_time;
use tandem_linux::log::{Console, LevelFilter};
use tandem_linux::thread::Pid;
use tandem_observe::Plain;

/// Number of measured intervals of `top`.
const REFRESHES: u32 = 15;

/// Number of scrapes once the exporter has its first pages.
const SCRAPES: u32 = 20;

/// The default interval of `tandem host export`.
const EXPORT_INTERVAL: Duration = Duration::from_secs(5);

/// A state directory without a daemon.
const NO_STATE: &str = "/nonexistent";

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--vm") => return be_a_vm(&arguments[1..]),
        Some("--export") => return export(arguments[1..].to_vec()),
        _ => {}
    }
    let numbers: Vec<usize> =
        arguments.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let of = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (processes, threads) = (of(0, 1_000), of(1, 8));
    let cases = match numbers.get(2..) {
        Some(given) if !given.is_empty() => given.to_vec(),
        _ => vec![0, processes / 10, processes],
    };
    let cases: Result<Vec<Value>, AnyError> =
        cases.into_iter().map(|moving| case(processes, threads, moving)).collect();
    let document = json!({ "vms": processes, "vcpus_of_each": threads, "cases": cases? });
    println!("{}", serde_json::to_string_pretty(&document)?);
    Ok(())
}

/// Measures with this number of moving VMs.
fn case(processes: usize, threads: usize, moving: usize) -> Result<Value, AnyError> {
    eprintln!("{processes} VMs of {threads} vCPUs, {moving} of which move …");
    let mut vms = Vec::new();
    let outcome = (0..processes)
        .try_for_each(|n| {
            vms.push(start_vm(n, threads, n < moving)?);
            Ok(())
        })
        .and_then(|()| {
            let pids: Vec<String> = vms.iter().map(|vm| vm.id().to_string()).collect();
            let top = watch_top(&pids, threads)?;
            let export = watch_export(&pids)?;
            Ok(json!({ "moving": moving, "top": top, "export": export }))
        });
    for vm in &mut vms {
        drop(vm.stdin.take());
    }
    for vm in &mut vms {
        vm.wait()?;
    }
    outcome
}

fn find(pids: Vec<String>) -> DiscoveryOptions {
    DiscoveryOptions { without_kvm: pids, ..DiscoveryOptions::default() }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 1e2
}

/// Returns the median and the maximum.
fn spread(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let most = times.last().copied().unwrap_or_default();
    json!({ "median": milliseconds(median), "most": milliseconds(most) })
}

/// Returns the run time of all threads of a process so far, in seconds.
fn cpu_seconds(pid: u32) -> Result<f64, AnyError> {
    let time = process_cpu_time(Pid(pid)).ok_or("the process is gone")?;
    Ok(time.as_secs_f64())
}

fn watch_top(pids: &[String], threads: usize) -> Result<Value, AnyError> {
    let mut top = Top::open(
        Box::new(Plain::new(ProcFs::host())),
        find(pids.to_vec()),
        Selector::all(),
        Path::new(NO_STATE),
    )?;
    let mut screen = Screen::new(false);
    let area = Rect::new(0, 0, 110, 40);
    let me = std::process::id();
    top.begin()?;
    let (begin, before) = (Instant::now(), cpu_seconds(me)?);
    let mut times = Vec::new();
    for round in 1..=REFRESHES {
        let next = begin + Duration::from_secs(1) * round;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let woken = Instant::now();
        let interval = top.interval()?;
        let seen: usize = interval.vms.iter().map(|vm| vm.vcpus.len()).sum();
        // The interval may include other VMs of this host.
        if seen < pids.len() * threads {
            return Err(format!("{seen} vCPUs are in the interval").into());
        }
        let said = notes(&interval, true);
        screen.take(interval, said);
        let mut buffer = Buffer::empty(area);
        draw(&mut screen, area, &mut buffer, true);
        times.push(woken.elapsed());
    }
    let cpu = (cpu_seconds(me)? - before) / begin.elapsed().as_secs_f64();
    Ok(json!({ "refresh_ms": spread(times), "cpu": rounded(cpu) }))
}

fn rounded(part: f64) -> f64 {
    (part * 1e5).round() / 1e5
}

/// Runs an exporter until it is killed.
fn export(pids: Vec<String>) -> Result<(), AnyError> {
    let config = ExportConfig {
        find: find(pids),
        selector: Selector::all(),
        state_dir: NO_STATE.into(),
        listen: "127.0.0.1:0".parse()?,
        interval: EXPORT_INTERVAL,
        detail: Detail { culprits: 5, vcpus: false, process_names: true },
    };
    Console { name: None, print_ready: false, level: LevelFilter::INFO }.install();
    let source = Box::new(Plain::new(ProcFs::host()));
    Ok(Export::open(source, config)?.run()?)
}

/// A child that is killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch_export(pids: &[String]) -> Result<Value, AnyError> {
    let mut exporter = Guard(
        Command::new("/proc/self/exe").arg("--export").args(pids).stderr(Stdio::piped()).spawn()?,
    );
    let said = exporter.0.stderr.take().ok_or("no stderr")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    let address = line
        .trim()
        .strip_prefix("info: metrics at http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .ok_or_else(|| format!("the exporter says '{}'", line.trim()))?
        .to_owned();
    // All files are open from the second interval on.
    thread::sleep(EXPORT_INTERVAL * 2 + EXPORT_INTERVAL / 2);
    let pid = exporter.0.id();
    let (begin, before) = (Instant::now(), cpu_seconds(pid)?);
    let (mut times, mut intervals, mut page) = (Vec::new(), Vec::new(), String::new());
    for round in 1..=SCRAPES {
        let asked = Instant::now();
        page = scrape(&address)?;
        times.push(asked.elapsed());
        let took = value(&page, "tandem_export_took_seconds ").ok_or("no interval was read")?;
        intervals.push(Duration::from_secs_f64(took));
        let next = begin + Duration::from_secs(1) * round;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let cpu = (cpu_seconds(pid)? - before) / begin.elapsed().as_secs_f64();
    let vms = value(&page, "tandem_export_vms ").unwrap_or_default();
    if vms < pids.len() as f64 {
        return Err(format!("{vms} VMs have series").into());
    }
    let series = page.lines().filter(|line| line.starts_with("tandem_"));
    Ok(json!({
        "scrape_ms": spread(times),
        "page_bytes": page.len(),
        "series": series.count(),
        "interval_ms": spread(intervals),
        "cpu": rounded(cpu),
    }))
}

/// Returns the whole page.
fn scrape(address: &str) -> Result<String, AnyError> {
    let mut connection = TcpStream::connect(address)?;
    write!(connection, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (_, page) = answer.split_once("\r\n\r\n").ok_or("an answer without a page")?;
    Ok(page.to_owned())
}

fn value(page: &str, beginning: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(beginning))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn start_vm(n: usize, threads: usize, moves: bool) -> Result<Child, AnyError> {
    let moves = if moves { "moves" } else { "sleeps" };
    let mut vm = Command::new("/proc/self/exe")
        .args(["--vm", &format!("vm{n}"), &threads.to_string(), moves])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = vm.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    match line.as_str() {
        "ready\n" => Ok(vm),
        other => Err(format!("the process says '{other}' instead of 'ready'").into()),
    }
}

/// Runs threads that sleep, or wake up twice a second, until the input ends.
fn be_a_vm(arguments: &[String]) -> Result<(), AnyError> {
    let [name, threads, moves] = arguments else {
        return Err("usage: fleet_cost --vm NAME THREADS moves|sleeps".into());
    };
    let naps = match moves.as_str() {
        "moves" => Duration::from_millis(500),
        _ => Duration::from_secs(1_000_000),
    };
    for n in 0..threads.parse()? {
        let vcpu = thread::Builder::new().stack_size(64 << 10);
        vcpu.name(format!("{name}/vcpu{n}")).spawn(move || {
            loop {
                thread::sleep(naps);
            }
        })?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
