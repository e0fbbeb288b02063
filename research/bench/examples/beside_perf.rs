//! Compares run time and ready time (RDY) of threads in the BPF programs and in `perf sched`: `beside_perf SECONDS TID…`
//!
//! perf records on CLOCK_MONOTONIC, the clock of the BPF programs, from one second before the interval to one second after it.
//! `perf sched timehist --time` then cuts the record to the interval between the two readings of the programs.
//! Both sources thus cover the same seconds, up to the duration of a reading, which is printed.
//! perf splits ready time into preempted time and wake-up delay.
//! perf counts a wait that began before the interval in full, and omits a wait that outlasts it.
//! Needs perf and root.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{VcpuId, VmId};
use tandem_observe::bpf::{Bpf, BpfReading, Options, Watch};

/// Run time and ready time in ms, by TID.
type Figures = BTreeMap<u32, (f64, f64)>;

/// Parses the lines of the summary: `COMM[TID/PID] PARENT SCHED-IN RUN-TIME SLEEP IOWAIT PREEMPT DELAY`, times in ms.
fn figures(text: &str) -> Figures {
    let line = |line: &str| {
        // A thread name may contain any character.
        let (_, rest) = line.rsplit_once('[')?;
        let (numbers, rest) = rest.split_once(']')?;
        let tid = numbers.split('/').next()?.parse().ok()?;
        let columns = rest.split_ascii_whitespace().map(str::parse::<f64>);
        let columns: Vec<f64> = columns.collect::<Result<_, _>>().ok()?;
        let [_, _, ran, _, _, preempted, delayed] = columns[..] else {
            return None;
        };
        Some((tid, (ran, preempted + delayed)))
    };
    text.lines().filter_map(line).collect()
}

/// CLOCK_MONOTONIC, in ns.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads the programs, and returns the midpoint and the duration of the reading in ns.
fn read(bpf: &mut Bpf) -> Result<(BpfReading, u64, u64), Box<dyn std::error::Error>> {
    let begun = now();
    let reading = bpf.read()?;
    let took = now() - begun;
    Ok((reading, begun + took / 2, took))
}

/// Formats a time for perf.
fn in_seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let usage = "usage: beside_perf SECONDS TID…";
    let seconds = numbers.next().ok_or(usage)??;
    let mut threads = Vec::new();
    for (index, tid) in (0..).zip(numbers) {
        let tid = tid?;
        threads.push(Watch {
            index,
            // `/proc/TID` exists for each thread.
            thread: ThreadRef::read(&ProcFs::host(), Pid(tid), Tid(tid))?,
            vm: VmId(1),
            vcpu: VcpuId(index),
        });
    }
    if threads.is_empty() {
        return Err(usage.into());
    }
    let data = std::env::temp_dir().join(format!("tandem-perf-{}.data", std::process::id()));
    let mut bpf = Bpf::open(Options::default())?;
    bpf.watch(&threads)?;
    let mut record = Command::new("perf")
        .args(["sched", "record", "-k", "CLOCK_MONOTONIC", "-o"])
        .arg(&data)
        .args(["--", "sleep", &(seconds + 2).to_string()])
        .spawn()?;
    // perf usually starts within this time.
    std::thread::sleep(Duration::from_secs(1));
    let (_, start, first) = read(&mut bpf)?;
    std::thread::sleep(Duration::from_secs(seconds.into()));
    let (reading, stop, second) = read(&mut bpf)?;
    record.wait()?;
    let perf = Command::new("perf")
        .args(["sched", "-i"])
        .arg(&data)
        .args(["timehist", "--state", "--summary", "--time"])
        .arg(format!("{},{}", in_seconds(start), in_seconds(stop)))
        .output()?;
    std::fs::remove_file(&data)?;
    let perf = figures(&String::from_utf8_lossy(&perf.stdout));
    println!(
        "{:.3} s; readings took {:.1} and {:.1} ms",
        (stop - start) as f64 / 1e9,
        first as f64 / 1e6,
        second as f64 / 1e6
    );
    println!("thread    ran ms: BPF      perf    RDY ms: BPF      perf");
    for vcpu in &reading.vcpus {
        let ms = |time: tandem_model::Nanos| time.0 as f64 / 1e6;
        let (ran, ready) = (ms(vcpu.times.on_pcpu()), ms(vcpu.times.ready));
        let of_perf = perf.get(&vcpu.tid.0);
        let shown = |figure: Option<f64>| figure.map_or("–".to_owned(), |ms| format!("{ms:.1}"));
        println!(
            "{:<10}{ran:>11.1}{:>10}{ready:>15.1}{:>10}",
            vcpu.tid.0,
            shown(of_perf.map(|figures| figures.0)),
            shown(of_perf.map(|figures| figures.1)),
        );
    }
    Ok(())
}
