//! Where the time of threads goes by the BPF programs, beside `perf sched` in the same seconds: `beside_perf SECONDS TID…`
//!
//! `perf sched latency` tells how long each thread ran, how often it waited for a pCPU and for how long on average: its RDY is the
//! product. Recording begins some ms before the reading and ends some ms after, so figures differ by that, and waits that are open at the
//! ends are perf's not at all. Needs perf, and root.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_observe::bpf::Bpf;
use tandem_observe::bpf::Options;
use tandem_observe::bpf::Watch;
use tandem_policy::VcpuId;
use tandem_policy::VmId;

/// By number: how long a thread ran and waited, in ms.
type Figures = BTreeMap<u32, (f64, f64)>;

/// What `perf sched latency -p` says, line by line: `COMM:TID | RUNTIME ms | COUNT | avg: MEAN ms | …`.
fn figures(text: &str) -> Figures {
    let number = |column: &str| -> Option<f64> {
        let words = column.split_ascii_whitespace();
        words
            .flat_map(|word| word.trim_start_matches("avg:").parse())
            .next()
    };
    let line = |line: &str| {
        let columns: Vec<&str> = line.split('|').collect();
        let [name, runtime, count, mean, ..] = columns[..] else {
            return None;
        };
        let tid = name.trim().rsplit_once(':')?.1.parse().ok()?;
        Some((tid, (number(runtime)?, number(count)? * number(mean)?)))
    };
    text.lines().filter_map(line).collect()
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
            // `/proc` has each thread under its own number too.
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
        .args(["sched", "record", "-o"])
        .arg(&data)
        .args(["--", "sleep", &format!("{}.5", seconds)])
        .spawn()?;
    // perf begins within this time as a rule.
    std::thread::sleep(Duration::from_millis(250));
    bpf.read()?;
    std::thread::sleep(Duration::from_secs(seconds.into()));
    let reading = bpf.read()?;
    record.wait()?;
    let perf = Command::new("perf")
        .args(["sched", "-i"])
        .arg(&data)
        .args(["latency", "-p"])
        .output()?;
    std::fs::remove_file(&data)?;
    let perf = figures(&String::from_utf8_lossy(&perf.stdout));
    println!("thread    ran ms: BPF      perf    RDY ms: BPF      perf");
    for vcpu in &reading.vcpus {
        let ms = |time: tandem_policy::Nanos| time.0 as f64 / 1e6;
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
