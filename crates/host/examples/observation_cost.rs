//! Cost of observation: samples of 1,000 sleeping vCPU threads in 125 processes, scans for them, and intervals of `tandem host top` without BPF.
//!
//! ```text
//! cargo run --release -p tandem-host --example observation_cost [-- PROCESSES THREADS]
//! ```
//!
//! It starts the processes (itself, again), each with threads named as a microVM's vCPUs.
//! It prints the CPU time of this process per operation.
//! It also prints the operations of a daemon's second (ten times all samples, one scan) as a part of one pCPU.
//! An interval of `top` includes a scan, all reads of vCPUs and cgroups, and the fair shares.
//! CPU time is independent of most other load on the machine; wall time is not.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, thread};

use rustix::time::{ClockId, clock_gettime};
use tandem_host::discovery::{Discovery, DiscoveryOptions};
use tandem_host::select::Selector;
use tandem_host::top::Top;
use tandem_linux::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::ThreadRef;
use tandem_observe::Plain;

/// Number of repetitions of each operation.
const ROUNDS: u32 = 50;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [role, name, threads] = arguments.as_slice()
        && role == "--vm"
    {
        return be_a_vm(name, threads.parse()?);
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (processes, threads) = (number(0, 125)?, number(1, 8)?);
    let mut vms = (0..processes).map(|n| start_vm(n, threads)).collect::<Result<Vec<_>, _>>()?;
    let pids: Vec<u32> = vms.iter().map(Child::id).collect();
    let outcome = measure(&pids, processes * threads);
    for vm in &mut vms {
        drop(vm.stdin.take());
        vm.wait()?;
    }
    outcome
}

/// Other VMs of this host are found too, but may come and go, so they are not sampled.
fn measure(pids: &[u32], wanted: usize) -> Result<(), AnyError> {
    let procfs = ProcFs::host();
    let options = DiscoveryOptions {
        without_kvm: pids.iter().map(u32::to_string).collect(),
        ..DiscoveryOptions::default()
    };
    let mut discovery = Discovery::new(options.clone(), procfs.clone())?;
    let first_scan = cpu_time(1, || Ok(discovery.scan().map(drop)?))?;
    let scan = cpu_time(ROUNDS, || Ok(discovery.scan().map(drop)?))?;
    let vms = discovery.scan()?.vms;
    let ours = vms.iter().filter(|vm| pids.contains(&vm.process.pid.0));
    let vcpus = ours.flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.thread);
    let threads: Vec<ThreadRef> = vcpus.collect();
    if threads.len() != wanted {
        return Err(format!("{} of {wanted} vCPU threads were found", threads.len()).into());
    }
    let mut sampler = Sampler::new(procfs);
    let mut all = |repeat, each: &dyn Fn(&mut Sampler, &ThreadRef) -> Result<(), AnyError>| {
        cpu_time(repeat, || threads.iter().try_for_each(|thread| each(&mut sampler, thread)))
    };
    let first_samples = all(1, &|sampler, thread| Ok(sampler.sample(thread).map(drop)?))?;
    let samples = all(ROUNDS, &|sampler, thread| Ok(sampler.sample(thread).map(drop)?))?;
    let rounds = all(ROUNDS, &|sampler, thread| {
        if thread == &threads[0] {
            sampler.begin_round();
        }
        Ok(sampler.sample(thread).map(drop)?)
    })?;
    let states = all(ROUNDS, &|sampler, thread| Ok(sampler.read_state(thread).map(drop)?))?;
    let masks = all(ROUNDS, &|sampler, thread| Ok(sampler.read_affinity(thread).map(drop)?))?;
    let idle = cpu_time(ROUNDS, || Ok(sampler.pcpu_idle().map(drop)?))?;

    let mut top = Top::open(
        Box::new(Plain::new(ProcFs::host())),
        options,
        Selector::all(),
        Path::new("/nonexistent"),
    )?;
    top.begin()?;
    let first_interval = cpu_time(1, || Ok(top.interval().map(drop)?))?;
    let interval = cpu_time(ROUNDS, || Ok(top.interval().map(drop)?))?;

    let count = threads.len() as f64;
    let each = |label: &str, seconds: f64| {
        println!("{label:<28} {:>9.2} µs", seconds / count * 1e6);
    };
    println!("{} vCPU threads in {} VMs; CPU time of the observer", threads.len(), pids.len());
    each("first sample, each", first_samples);
    each("sample, each", samples);
    each("sample in rounds, each", rounds);
    each("state, each", states);
    each("affinity mask, each", masks);
    println!("{:<28} {:>9.2} µs", "idle time of all pCPUs", idle * 1e6);
    println!("{:<28} {:>9.2} ms", "first scan", first_scan * 1e3);
    println!("{:<28} {:>9.2} ms", "scan", scan * 1e3);
    println!("{:<28} {:>9.2} ms", "first interval of top", first_interval * 1e3);
    println!("{:<28} {:>9.2} ms", "interval of top", interval * 1e3);
    let percent = |seconds: f64| seconds * 10.0 * 100.0;
    let (all_read, in_rounds) = (percent(samples), percent(rounds));
    println!("samples every 100 ms, all read: {all_read:.2} % of a pCPU");
    println!("samples every 100 ms in rounds, all asleep: {in_rounds:.2} % of a pCPU");
    println!("a scan every second: {:.2} % of a pCPU", scan * 100.0);
    println!("an interval of top every second: {:.2} % of a pCPU", interval * 100.0);
    Ok(())
}

/// Returns this thread's CPU time per call, in seconds.
fn cpu_time(calls: u32, mut call: impl FnMut() -> Result<(), AnyError>) -> Result<f64, AnyError> {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let begin = now();
    for _ in 0..calls {
        call()?;
    }
    Ok((now() - begin) / f64::from(calls))
}

fn start_vm(n: usize, threads: usize) -> Result<Child, AnyError> {
    let mut vm = Command::new("/proc/self/exe")
        .args(["--vm", &format!("vm{n}"), &threads.to_string()])
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

/// Runs threads that sleep until the input ends.
fn be_a_vm(name: &str, threads: usize) -> Result<(), AnyError> {
    for n in 0..threads {
        let name = format!("{name}/vcpu{n}");
        thread::Builder::new().name(name).spawn(|| {
            loop {
                thread::park();
            }
        })?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
