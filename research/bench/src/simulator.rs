//! How fast the simulator is: events per second and memory, on one core.
//!
//! Each scenario runs in a process of its own, so that its peak memory is its own; several runs, of
//! which the median counts. Beside it, in the same process, the bare event queue: as many slots set
//! as the scenario keeps pending, each popped event sets its slot again a random time later, and
//! nothing else happens. That is the most that any simulation on this queue could reach.
//!
//! Without scenarios it measures the two of the simulator's promise: 16 pCPUs
//! with fine-grained locks, and 4,096 vCPUs on 256 pCPUs.

use std::hint::black_box;
use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::usage::{Usage, UsageError};
use serde::{Deserialize, Serialize};
use tandem_linux::thread::Pid;
use tandem_model::Nanos;
use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};
use tandem_sim::queue::{EventQueue, Slot};
use tandem_sim::random::{Dist, Stream};
use tandem_sim::scenario::load::{LoadError, Setting, Source};
use tandem_sim::{Scenario, World};
use thiserror::Error;

/// The scenarios of the promise, by the name that stands for each in the arguments.
const OWN: [(&str, &str); 2] = [
    ("bench-locks", include_str!("../../../scenarios/bench-locks.toml")),
    ("bench-scale", include_str!("../../../scenarios/bench-scale.toml")),
];

/// Portions of a run after which it is asked how much is pending.
const PORTIONS: u64 = 50;

/// Events of the bare queue's own measurement.
const QUEUE_EVENTS: u64 = 10_000_000;

/// A scenario with what is set in it.
#[derive(Clone, Debug)]
pub struct Case {
    /// One of our own by its name, or any other by its file.
    pub name: String,
    /// What the settings are called together; empty without one.
    pub set: String,
    /// The settings.
    pub settings: Vec<Setting>,
}

impl Case {
    /// A scenario as it is.
    pub fn new(name: &str) -> Case {
        Case { name: name.to_owned(), set: String::new(), settings: Vec::new() }
    }

    /// The names of the scenarios that are built in.
    pub fn own() -> impl Iterator<Item = &'static str> {
        OWN.iter().map(|(name, _)| *name)
    }

    /// The scenario itself.
    pub fn scenario(&self) -> Result<Scenario, LoadError> {
        let name = &self.name;
        let mut source = match OWN.iter().find(|(own, _)| own == name) {
            Some((_, text)) => Source::from_text(&format!("{name}.toml"), text)?,
            None => Source::read(name.as_ref())?,
        };
        for setting in &self.settings {
            source.set(setting.clone());
        }
        source.scenario()
    }
}

/// What was measured of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The scenario's name.
    pub scenario: String,
    /// What was varied in it, by key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// vCPUs of all its VMs.
    pub vcpus: u32,
    /// Events handled in a run.
    pub events: u64,
    /// How long the median run took.
    pub seconds: f64,
    /// Events handled per second.
    pub events_per_second: f64,
    /// The most memory the process ever had.
    pub peak_rss_bytes: u64,
    /// Simulated time of a run.
    pub simulated_seconds: f64,
    /// Pending events, mean over the run.
    pub pending: u64,
    /// What the bare queue does with as many.
    pub queue_events_per_second: f64,
}

/// Why a process gave no figures.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// This program does not know its own file.
    #[error("cannot tell which program this is")]
    Program(#[source] io::Error),
    /// It did not start.
    #[error("cannot start a process to measure {scenario}")]
    Start {
        /// What it was to measure.
        scenario: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It ended in an error.
    #[error("measuring {scenario} failed: {status}")]
    Failed {
        /// What it was to measure.
        scenario: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// It said something else.
    #[error("measuring {scenario} gave no figures")]
    NoFigures {
        /// What it was to measure.
        scenario: String,
        /// What is wrong with what it said.
        source: serde_json::Error,
    },
}

/// Measures a case in a process of its own: `tandem-lab bench sim --here`.
pub fn measure_apart(case: &Case, runs: u32) -> Result<Figures, ProcessError> {
    let scenario = || case.name.clone();
    let program = std::env::current_exe().map_err(ProcessError::Program)?;
    let settings = case.settings.iter();
    let output = Command::new(program)
        .args(["bench", "sim", "--here", "--runs", &runs.to_string()])
        .args(settings.map(|one| format!("--vary={}={}", one.key, one.value)))
        .args(["--", &case.name])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| ProcessError::Start { scenario: scenario(), source })?;
    if !output.status.success() {
        return Err(ProcessError::Failed { scenario: scenario(), status: output.status });
    }
    let figures: Figures = serde_json::from_slice(&output.stdout)
        .map_err(|source| ProcessError::NoFigures { scenario: scenario(), source })?;
    let set = case.set.clone();
    Ok(Figures { set, ..figures })
}

/// Measures a scenario in this process, whose peak memory it is.
pub fn measure(scenario: &Scenario, runs: u32) -> Result<Figures, UsageError> {
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
    let times: Vec<u64> =
        (0..4096).map(|_| 1 + Dist::Exponential(1_000_000).draw(&mut stream)).collect();
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

/// A row for each scenario.
pub fn table(figures: &[Figures]) -> Table {
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
            Cell::toned(format!("{} {}", one.scenario, one.set).trim_end(), Tone::Strong),
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
            let scenario = Case::new(name).scenario().unwrap();
            let vcpus: u32 = scenario.vms.iter().map(|vm| vm.vcpus).sum();
            let threads = |vm: &tandem_sim::scenario::Vm| -> u32 {
                vm.workload.roles.iter().map(|role| role.threads.count(vm.vcpus)).sum()
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
