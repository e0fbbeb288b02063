//! `tandem sim bench`: events per second and memory of the simulator, on one core.
//!
//! Each scenario runs in a process of its own, so that its peak memory is its own; several runs, of
//! which the median counts. Beside it, in the same process, the bare event queue: as many slots set
//! as the scenario keeps pending, each popped event sets its slot again a random time later, and
//! nothing else happens. That is the most that any simulation on this queue could reach.
//!
//! Without scenarios it measures the two of the simulator's promise (`SPECIFICATION.md`): 16 pCPUs
//! with fine-grained locks, and 4,096 vCPUs on 256 pCPUs.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use serde::Deserialize;
use serde::Serialize;
use tandem_linux::thread::Pid;
use tandem_policy::Nanos;
use tandem_report::figure;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::queue::EventQueue;
use tandem_sim::queue::Slot;
use tandem_sim::random::Dist;
use tandem_sim::random::Stream;
use tandem_sim::scenario::load::Source;

use super::vary;
use super::vary::Combination;
use crate::bench::usage::Usage;
use crate::console::print;
use crate::output;
use tandem_report::progress::Progress;

/// The scenarios of the promise, by the name that stands for each in the arguments.
const OWN: [(&str, &str); 2] = [
    (
        "bench-locks",
        include_str!("../../../../scenarios/bench-locks.toml"),
    ),
    (
        "bench-scale",
        include_str!("../../../../scenarios/bench-scale.toml"),
    ),
];

/// Portions of a run after which it is asked how much is pending.
const PORTIONS: u64 = 50;

/// Events of the bare queue's own measurement.
const QUEUE_EVENTS: u64 = 10_000_000;

/// `tandem sim bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Scenarios to measure [default: bench-locks and bench-scale, which are built in]
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Runs of each, of which the median counts, 1 … 100
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,
    /// Measure each scenario with each of these values, such as vm.vm.count=4,16,64
    #[arg(long, value_name = "KEY=VALUE,VALUE…")]
    vary: Vec<String>,
    /// Write the figures as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Measure the one scenario in this process and print its figures
    #[arg(long, hide = true)]
    here: bool,
}

/// What was measured of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    scenario: String,
    /// What was varied in it, by key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    set: String,
    /// vCPUs of all its VMs.
    vcpus: u32,
    /// Events handled in a run.
    events: u64,
    /// How long the median run took.
    seconds: f64,
    events_per_second: f64,
    /// The most memory the process ever had.
    peak_rss_bytes: u64,
    /// Simulated time of a run.
    simulated_seconds: f64,
    /// Pending events, mean over the run.
    pending: u64,
    /// What the bare queue does with as many.
    queue_events_per_second: f64,
}

/// Measures.
pub fn main(args: &BenchArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=100).contains(&args.runs),
        "--runs {} is not possible: 1 … 100",
        args.runs
    );
    let names: Vec<String> = match args.scenarios.as_slice() {
        [] => OWN.iter().map(|(name, _)| (*name).to_owned()).collect(),
        names => names.to_vec(),
    };
    // All are read before any is measured.
    let combinations = vary::combinations(Vec::new(), &args.vary)?;
    let each = |name: &String| {
        let settings = combinations.iter().cloned();
        settings
            .map(|combination| (name.clone(), combination))
            .collect::<Vec<_>>()
    };
    let cases: Vec<(String, Combination)> = names.iter().flat_map(each).collect();
    let scenarios: Vec<Scenario> = cases
        .iter()
        .map(|(name, combination)| scenario(name, combination))
        .collect::<anyhow::Result<_>>()?;
    if let (true, [scenario]) = (args.here, scenarios.as_slice()) {
        return print(&serde_json::to_string(&measure(scenario, args.runs)?)?);
    }
    output::check_json(args.json.as_deref())?;
    let progress = Progress::begin(cases.len() as u64);
    let mut figures = Vec::new();
    for (name, combination) in &cases {
        let set = combination.name();
        progress.say(&format!("{name} {set}, {} runs", args.runs));
        let measured = in_own_process(name, combination, args.runs)?;
        figures.push(Figures { set, ..measured });
        progress.step();
    }
    drop(progress);
    if !output::is_stdout(args.json.as_deref()) {
        print(&table(&figures).to_string())?;
    }
    output::write_json(args.json.as_deref(), &figures)
}

/// A scenario of our own by its name, or any other by its file, with what is varied in it.
fn scenario(name: &str, combination: &Combination) -> anyhow::Result<Scenario> {
    let mut source = match OWN.iter().find(|(own, _)| *own == name) {
        Some((name, text)) => Source::from_text(&format!("{name}.toml"), text)?,
        None => Source::read(name.as_ref())?,
    };
    for setting in &combination.settings {
        source.set(setting.clone());
    }
    Ok(source.scenario()?)
}

fn in_own_process(name: &str, combination: &Combination, runs: u32) -> anyhow::Result<Figures> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let output = Command::new(program)
        .args(["sim", "bench", "--here", "--runs", &runs.to_string()])
        .args(
            combination
                .settings
                .iter()
                .map(|one| format!("--vary={}={}", one.key, one.value)),
        )
        .args(["--", name])
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start a process to measure {name}"))?;
    ensure!(
        output.status.success(),
        "measuring {name} failed: {}",
        output.status
    );
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("measuring {name} gave no figures"))
}

fn measure(scenario: &Scenario, runs: u32) -> anyhow::Result<Figures> {
    let mut seconds = Vec::new();
    let (mut events, mut pending, mut asked) = (0, 0, 0);
    let portion = Nanos((scenario.duration.0 / PORTIONS).max(1));
    for _ in 0..runs {
        let mut world = World::new(scenario);
        let began = Instant::now();
        while !world.run_until(Nanos(world.now().0.saturating_add(portion.0))) {
            pending += world.pending() as u64;
            asked += 1;
        }
        seconds.push(began.elapsed().as_secs_f64());
        events = world.results().events;
    }
    let usage = Usage::read(Pid(std::process::id()))?;
    seconds.sort_by(f64::total_cmp);
    let seconds = seconds[seconds.len() / 2];
    let pending = pending / asked.max(1);
    Ok(Figures {
        scenario: scenario.name.clone(),
        set: String::new(),
        vcpus: scenario.vms.iter().map(|vm| vm.vcpus).sum(),
        events,
        seconds,
        events_per_second: events as f64 / seconds,
        peak_rss_bytes: usage.peak_rss_kib * 1024,
        simulated_seconds: scenario.duration.as_secs_f64(),
        pending,
        queue_events_per_second: queue_alone(pending.max(1) as usize),
    })
}

/// Events per second of a queue that has so many pending and does nothing about them.
fn queue_alone(pending: usize) -> f64 {
    let mut stream = Stream::new(1, "bench", 0);
    // Drawn before: what randomness costs is not the queue's.
    let times: Vec<u64> = (0..4096)
        .map(|_| 1 + Dist::Exponential(1_000_000).draw(&mut stream))
        .collect();
    let mut queue = EventQueue::new(pending);
    for slot in 0..pending {
        queue.set(Slot(slot as u32), times[slot % times.len()]);
    }
    let began = Instant::now();
    let mut events = 0;
    for (count, time) in (0..QUEUE_EVENTS).zip(times.iter().cycle()) {
        let Some((now, slot)) = queue.pop() else {
            break;
        };
        queue.set(black_box(slot), now + time);
        events = count + 1;
    }
    black_box(&queue);
    events as f64 / began.elapsed().as_secs_f64()
}

fn table(figures: &[Figures]) -> Table {
    let mut table = Table::new(&[
        "scenario",
        "vCPUs",
        "events",
        "seconds",
        "events/s",
        "peak memory",
        "pending",
        "queue alone, events/s",
    ]);
    for one in figures {
        table.row([
            Cell::toned(
                format!("{} {}", one.scenario, one.set).trim_end(),
                Tone::Strong,
            ),
            one.vcpus.to_string().into(),
            one.events.to_string().into(),
            format!("{:.3}", one.seconds).into(),
            figure::rate(one.events_per_second).into(),
            format!("{:.1} MiB", one.peak_rss_bytes as f64 / 1_048_576.0).into(),
            one.pending.to_string().into(),
            figure::rate(one.queue_events_per_second).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_of_the_promise_are_as_large_as_it_says() {
        let size = |name: &str| {
            let scenario = scenario(name, &Combination::default()).unwrap();
            let vcpus: u32 = scenario.vms.iter().map(|vm| vm.vcpus).sum();
            let threads = |vm: &tandem_sim::scenario::Vm| -> u32 {
                vm.workload
                    .roles
                    .iter()
                    .map(|role| role.threads.count(vm.vcpus))
                    .sum()
            };
            let threads: u32 = scenario.vms.iter().map(threads).sum();
            (scenario.machine.pcpus, scenario.vms.len(), vcpus, threads)
        };
        assert_eq!(size("bench-locks"), (16, 4, 64, 64));
        assert_eq!(size("bench-scale").0, 256);
        assert_eq!(size("bench-scale").2, 4096);
    }

    #[test]
    fn the_queue_alone_does_something() {
        assert!(queue_alone(16) > 0.0);
    }
}
