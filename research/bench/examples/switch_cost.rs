//! Measures the cost of the BPF programs for context switches: `switch_cost [SECONDS [ROUNDS [RATE [COMMAND…]]]]`
//!
//! On each pCPU two threads pass a byte back and forth through pipes, which is two switches per round trip.
//! Their rate is measured in turn:
//!
//! - without the programs;
//! - with the programs, watching no thread;
//! - watching all threads, with one reading per second;
//! - the same while the kernel counts the programs' own time, which is shown too;
//! - with each shell COMMAND running, such as `perf sched record -o /dev/null`.
//!
//! The order changes from round to round.
//! Figures are medians of the slowdown relative to the run without programs in the same round.
//!
//! With a RATE other than 0 the threads compute between switches, to reach about RATE switches per second on all pCPUs together.
//! The slowdown is then that of the computation.

use std::io::{Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tandem_linux::ProcFs;
use tandem_linux::affinity::{affinity, set_affinity};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{PcpuId, VcpuId, VmId};
use tandem_observe::bpf::{Bpf, BpfCost, Options, Watch};

type AnyError = Box<dyn std::error::Error>;

/// A setting in which the rate is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Setting {
    Without,
    Nothing,
    All,
    AllCosts,
    /// Without the programs, while a shell command runs.
    Beside(String),
}

/// State shared by the threads.
#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    /// Round trips of a byte, of two switches each.
    rounds: AtomicU64,
    /// Steps of computation before each switch.
    steps: AtomicU64,
}

impl Shared {
    fn compute(&self) {
        compute(self.steps.load(Ordering::Relaxed));
    }
}

/// Figures of one run of a setting.
#[derive(Debug, Default)]
struct Shown {
    /// Switches per second.
    rate: f64,
    costs: Vec<BpfCost>,
    /// CPU time of the readings, in pCPUs.
    reading: f64,
    /// Waits, edges, links and events that were not counted.
    lost: u64,
}

/// Computes for a time proportional to `steps`.
fn compute(steps: u64) {
    for step in 0..steps {
        std::hint::black_box(step);
    }
}

/// Identifies a thread of this process.
fn myself(tid: Tid) -> ThreadRef {
    ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), tid).expect("it lives")
}

fn gettid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

/// Starts a pair of threads pinned to a pCPU.
fn start_pair(pcpu: PcpuId, tids: &Sender<Tid>, shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let (mut from_first, mut to_second) = pipe().expect("a pipe");
    let (mut from_second, mut to_first) = pipe().expect("a pipe");
    let pin = move |tids: &Sender<Tid>| {
        set_affinity(gettid(), &[pcpu].into_iter().collect()).expect("it may be pinned");
        tids.send(gettid()).expect("the receiver waits");
    };
    let (ours, theirs) = (tids.clone(), tids.clone());
    let (mine, others) = (shared.clone(), shared.clone());
    let first = std::thread::spawn(move || {
        pin(&ours);
        let mut byte = [0];
        while !mine.ends.load(Ordering::Relaxed) {
            mine.compute();
            to_second.write_all(&byte).expect("the other reads");
            from_second.read_exact(&mut byte).expect("the other writes");
            mine.rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    let second = std::thread::spawn(move || {
        pin(&theirs);
        let mut byte = [0];
        while from_first.read_exact(&mut byte).is_ok() {
            others.compute();
            if to_first.write_all(&byte).is_err() {
                break;
            }
        }
    });
    vec![first, second]
}

/// Returns the switches per second; calls `each` every second.
fn rate(shared: &Shared, time: Duration, mut each: impl FnMut()) -> f64 {
    let (begin, before) = (Instant::now(), shared.rounds.load(Ordering::Relaxed));
    while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(Duration::from_secs(1)));
        each();
    }
    let switches = 2 * (shared.rounds.load(Ordering::Relaxed) - before);
    switches as f64 / begin.elapsed().as_secs_f64()
}

/// Sets the steps for about `wanted` switches per second on `pcpus` pCPUs together.
fn pace(shared: &Shared, wanted: f64, pcpus: usize) {
    let begin = Instant::now();
    compute(10_000_000);
    let step = begin.elapsed().as_secs_f64() / 1e7;
    for _ in 0..4 {
        let now = rate(shared, Duration::from_millis(500), || ());
        let more = (1.0 / wanted - 1.0 / now) * pcpus as f64 / step;
        let steps = shared.steps.load(Ordering::Relaxed) as f64 + more;
        shared.steps.store(steps.max(0.0) as u64, Ordering::Relaxed);
    }
}

/// CPU time of this thread.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the rate while a shell command runs.
fn beside(command: &str, shared: &Shared, time: Duration) -> Result<f64, AnyError> {
    let mut child = Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    // Let the command start.
    std::thread::sleep(Duration::from_secs(3));
    let rate = rate(shared, time, || ());
    if let Some(status) = child.try_wait()? {
        return Err(format!("`{command}` exited early: {status}").into());
    }
    let group = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process_group(group, rustix::process::Signal::INT)?;
    child.wait()?;
    Ok(rate)
}

/// Measures one setting.
fn measure(
    setting: &Setting,
    watched: &[Watch],
    shared: &Shared,
    time: Duration,
) -> Result<Shown, AnyError> {
    let without_programs = |rate| Shown { rate, ..Shown::default() };
    match setting {
        Setting::Without => return Ok(without_programs(rate(shared, time, || ()))),
        Setting::Beside(command) => return Ok(without_programs(beside(command, shared, time)?)),
        Setting::Nothing | Setting::All | Setting::AllCosts => {}
    }
    let mut bpf = Bpf::open(Options::default())?;
    if *setting != Setting::Nothing {
        bpf.watch(watched)?;
    }
    bpf.read()?;
    if *setting == Setting::AllCosts {
        bpf.count_costs()?;
    }
    let (mut lost, mut failed) = (0, None);
    let before = cpu_time();
    let rate = rate(shared, time, || match bpf.read() {
        Ok(reading) => lost += reading.lost.parts().iter().map(|part| part.1).sum::<u64>(),
        Err(error) => failed = Some(error),
    });
    let reading = (cpu_time() - before) / time.as_secs_f64();
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Shown { rate, costs: bpf.cost(), reading, lost }),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_costs(costs: &[BpfCost], seconds: f64) {
    for cost in costs.iter().filter(|cost| cost.runs > 0) {
        println!(
            "    {:20} {:>10.0} runs/s {:>6.0} ns each {:>7.3} % of a pCPU",
            cost.program,
            cost.runs as f64 / seconds,
            cost.time.0 as f64 / cost.runs as f64,
            cost.time.0 as f64 / seconds / 1e7,
        );
    }
}

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |unless: u64| arguments.next().map_or(Ok(unless), |text| text.parse());
    let time = Duration::from_secs(number(1)?);
    let (repeats, wanted) = (number(9)?, number(0)?);
    let mut settings = vec![Setting::Without, Setting::Nothing, Setting::All, Setting::AllCosts];
    settings.extend(arguments.map(Setting::Beside));
    let shared = Arc::new(Shared::default());
    let (tids, told) = channel();
    let mut threads = Vec::new();
    let pcpus = affinity(gettid())?;
    for pcpu in pcpus.iter() {
        threads.extend(start_pair(pcpu, &tids, &shared));
    }
    let numbered = (0u32..).zip(threads.iter().map(|_| told.recv().expect("it starts")));
    let watched: Vec<Watch> = numbered
        .map(|(index, tid)| Watch { index, thread: myself(tid), vm: VmId(1), vcpu: VcpuId(index) })
        .collect();
    if wanted > 0 {
        pace(&shared, wanted as f64, pcpus.iter().count());
    }
    let mut shown: Vec<Vec<Shown>> = settings.iter().map(|_| Vec::new()).collect();
    for repeat in 0..repeats as usize {
        for turn in 0..settings.len() {
            let at = (repeat + turn) % settings.len();
            shown[at].push(measure(&settings[at], &watched, &shared, time)?);
            // Let the kernel detach the programs.
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    for (setting, runs) in settings.iter().zip(&shown) {
        // Compare each run with the one without programs in its round.
        let pairs = runs.iter().zip(&shown[0]);
        let mut slower: Vec<f64> =
            pairs.map(|(with, without)| (1.0 - with.rate / without.rate) * 100.0).collect();
        let mut rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
        let mut reading: Vec<f64> = runs.iter().map(|run| run.reading * 100.0).collect();
        let name = match setting {
            Setting::Beside(command) => command.clone(),
            other => format!("{other:?}"),
        };
        println!(
            "{name:24} {:>9.0} switches/s {:>6.2} % slower, reading {:.2} % of a pCPU, {} not counted",
            median(&mut rates),
            median(&mut slower),
            median(&mut reading),
            runs.iter().map(|run| run.lost).sum::<u64>()
        );
        if let Some(run) = runs.last() {
            print_costs(&run.costs, time.as_secs_f64());
        }
    }
    shared.ends.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("it ends");
    }
    Ok(())
}
