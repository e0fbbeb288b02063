//! What the BPF programs cost a program that does nothing but switch: `switch_cost [SECONDS [ROUNDS]]`
//!
//! On each pCPU two threads hand a byte to and fro through pipes, which is two switches a round. Their rate is measured in turn:
//! without the programs; with the programs, watching nothing; watching all of them; and the same while the kernel counts what the
//! programs take, which is shown too. The order changes from round to round, and medians are shown, of how much slower each was than
//! without in the same round.

use std::io::Read;
use std::io::Write;
use std::io::pipe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::ProcFs;
use tandem_linux::affinity::affinity;
use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_observe::bpf::Bpf;
use tandem_observe::bpf::BpfCost;
use tandem_observe::bpf::BpfError;
use tandem_observe::bpf::Options;
use tandem_observe::bpf::Watch;
use tandem_policy::PcpuId;
use tandem_policy::VcpuId;
use tandem_policy::VmId;

/// What is measured against what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Without,
    Nothing,
    All,
    AllCosts,
}

const SETTINGS: [Setting; 4] = [
    Setting::Without,
    Setting::Nothing,
    Setting::All,
    Setting::AllCosts,
];

/// A thread of this process.
fn myself(tid: Tid) -> ThreadRef {
    ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), tid).expect("it lives")
}

fn gettid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

/// A pair on a pCPU.
fn start_pair(
    pcpu: PcpuId,
    tids: &Sender<Tid>,
    ends: &Arc<AtomicBool>,
    rounds: &Arc<AtomicU64>,
) -> Vec<JoinHandle<()>> {
    let (mut from_first, mut to_second) = pipe().expect("a pipe");
    let (mut from_second, mut to_first) = pipe().expect("a pipe");
    let pin = move |tids: &Sender<Tid>| {
        set_affinity(gettid(), &[pcpu].into_iter().collect()).expect("it may be pinned");
        tids.send(gettid()).expect("who asked waits");
    };
    let (ours, theirs) = (tids.clone(), tids.clone());
    let (ends, rounds) = (ends.clone(), rounds.clone());
    let first = std::thread::spawn(move || {
        pin(&ours);
        let mut byte = [0];
        while !ends.load(Ordering::Relaxed) {
            to_second.write_all(&byte).expect("the other reads");
            from_second.read_exact(&mut byte).expect("the other writes");
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    let second = std::thread::spawn(move || {
        pin(&theirs);
        let mut byte = [0];
        while from_first.read_exact(&mut byte).is_ok() {
            if to_first.write_all(&byte).is_err() {
                break;
            }
        }
    });
    vec![first, second]
}

fn rate(rounds: &AtomicU64, time: Duration) -> f64 {
    let (begin, before) = (Instant::now(), rounds.load(Ordering::Relaxed));
    std::thread::sleep(time);
    let switches = 2 * (rounds.load(Ordering::Relaxed) - before);
    switches as f64 / begin.elapsed().as_secs_f64()
}

/// The rate in a setting, and what the programs cost if that is counted.
fn measure(
    setting: Setting,
    watched: &[Watch],
    rounds: &AtomicU64,
    time: Duration,
) -> Result<(f64, Vec<BpfCost>), BpfError> {
    if setting == Setting::Without {
        return Ok((rate(rounds, time), Vec::new()));
    }
    let mut bpf = Bpf::open(Options::default())?;
    if setting != Setting::Nothing {
        bpf.watch(watched)?;
    }
    bpf.read()?;
    if setting == Setting::AllCosts {
        bpf.count_costs()?;
    }
    let rate = rate(rounds, time);
    let costs = bpf.cost();
    let lost = bpf.read()?.lost;
    assert_eq!(lost, Default::default());
    Ok((rate, costs))
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let time = Duration::from_secs(arguments.next().transpose()?.unwrap_or(1));
    let repeats = arguments.next().transpose()?.unwrap_or(9);
    let ends = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let (tids, told) = channel();
    let mut threads = Vec::new();
    for pcpu in affinity(gettid())?.iter() {
        threads.extend(start_pair(pcpu, &tids, &ends, &rounds));
    }
    let numbered = (0u32..).zip(threads.iter().map(|_| told.recv().expect("it starts")));
    let watched: Vec<Watch> = numbered
        .map(|(index, tid)| Watch {
            index,
            thread: myself(tid),
            vm: VmId(1),
            vcpu: VcpuId(index),
        })
        .collect();
    let mut rates: Vec<Vec<f64>> = SETTINGS.iter().map(|_| Vec::new()).collect();
    let mut costs = Vec::new();
    for repeat in 0..repeats as usize {
        for turn in 0..SETTINGS.len() {
            let at = (repeat + turn) % SETTINGS.len();
            let (rate, cost) = measure(SETTINGS[at], &watched, &rounds, time)?;
            rates[at].push(rate);
            if SETTINGS[at] == Setting::AllCosts {
                costs = cost;
            }
            // The kernel takes a moment to detach.
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // Each repeat against its own.
    for (at, setting) in SETTINGS.iter().enumerate() {
        let pairs = rates[at].iter().zip(&rates[0]);
        let mut slower: Vec<f64> = pairs
            .map(|(with, without)| (1.0 - with / without) * 100.0)
            .collect();
        let slower = median(&mut slower);
        println!(
            "{:10} {:>9.0} switches/s {:>6.2} % slower",
            format!("{setting:?}"),
            median(&mut rates[at].clone()),
            slower
        );
    }
    print_costs(&costs, time.as_secs_f64());
    ends.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("it ends");
    }
    Ok(())
}
