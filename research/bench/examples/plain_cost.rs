//! Measures the CPU cost of an interval of the source without BPF, with 1,000 processes of 8 threads each as VMs.
//!
//! ```text
//! cargo run --release -p tandem-bench --example plain_cost [-- PROCESSES THREADS MOVING]
//! ```
//!
//! It starts copies of itself as the processes.
//! The threads of MOVING processes (default: all) wake up twice a second; the others sleep.
//! It prints its own CPU time per interval of a second, also as a fraction of one pCPU.
//! It counts CPU time rather than wall time, so that other load on the machine has little effect.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use rustix::time::{ClockId, clock_gettime};
use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{VcpuId, VmId};
use tandem_observe::{Plain, Source, WatchedVcpu, WatchedVm};

/// Number of measured intervals.
const INTERVALS: u32 = 16;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [role, threads, moves] = arguments.as_slice()
        && role == "--vm"
    {
        return be_a_vm(threads.parse()?, moves == "moves");
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (processes, threads): (u32, u32) = (number(0, 1_000)?, number(1, 8)?);
    let moving = number(2, processes)?;
    let mut children =
        (0..processes).map(|n| start_vm(threads, n < moving)).collect::<Result<Vec<_>, _>>()?;
    let outcome = measure(&children, threads);
    for child in &mut children {
        drop(child.stdin.take());
        child.wait()?;
    }
    let (first, each) = outcome?;
    println!(
        "{} vCPUs, of which {} move: {first:.1} ms to begin, {each:.1} ms per interval, {:.2} % of a pCPU",
        processes * threads,
        moving.min(processes) * threads,
        each / 10.0,
    );
    Ok(())
}

/// Returns the CPU time of the start and the mean of an interval, in ms.
fn measure(children: &[Child], threads: u32) -> Result<(f64, f64), AnyError> {
    let procfs = ProcFs::host();
    // `vm` waits until the threads of a process exist.
    let vms = (1..)
        .zip(children)
        .map(|(number, child)| vm(&procfs, VmId(number), Pid(child.id()), threads))
        .collect::<Result<Vec<_>, _>>()?;
    let mut source = Plain::new(procfs);
    let begin = cpu_ms();
    source.begin(&vms)?;
    let first = cpu_ms() - begin;
    let mut sum = 0.0;
    for _ in 0..INTERVALS {
        thread::sleep(Duration::from_secs(1));
        let begin = cpu_ms();
        let interval = source.interval(&vms)?;
        sum += cpu_ms() - begin;
        let seen: usize = interval.vms.iter().map(|vm| vm.vcpus.len()).sum();
        if seen != vms.len() * threads as usize {
            return Err(format!("{seen} vCPUs are in the interval").into());
        }
    }
    Ok((first, sum / f64::from(INTERVALS)))
}

fn vm(procfs: &ProcFs, vm: VmId, pid: Pid, threads: u32) -> Result<WatchedVm, AnyError> {
    let folder = procfs.process(pid).join("task");
    let mut tids = Vec::new();
    while tids.len() <= threads as usize {
        tids = std::fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().parse()?))
            .collect::<Result<Vec<u32>, AnyError>>()?;
        thread::sleep(Duration::from_millis(1));
    }
    let vcpus = tids.into_iter().filter(|tid| *tid != pid.0);
    let vcpus = vcpus.zip(0..).map(|(tid, n)| {
        Ok(WatchedVcpu { vcpu: VcpuId(n), thread: ThreadRef::read(procfs, pid, Tid(tid))? })
    });
    Ok(WatchedVm {
        vm,
        process: ThreadRef::of_process(procfs, pid)?,
        vcpus: vcpus.collect::<Result<Vec<_>, AnyError>>()?,
    })
}

fn start_vm(threads: u32, moves: bool) -> Result<Child, AnyError> {
    let moves = if moves { "moves" } else { "sleeps" };
    Ok(Command::new(env::current_exe()?)
        .args(["--vm", &threads.to_string(), moves])
        .stdin(Stdio::piped())
        .spawn()?)
}

/// Runs threads that sleep, or wake up twice a second, until stdin closes.
fn be_a_vm(threads: u32, moves: bool) -> Result<(), AnyError> {
    for _ in 0..threads {
        thread::Builder::new().stack_size(64 << 10).spawn(move || {
            loop {
                let seconds = if moves { 0.5 } else { 1e6 };
                thread::sleep(Duration::from_secs_f64(seconds));
            }
        })?;
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// CPU time of this process so far, in ms.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
