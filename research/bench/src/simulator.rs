//! Measures the speed of the simulator: events per second and memory, on one core.
//!
//! Each scenario runs in its own process, to separate peak memory; the figure is the median of several runs.
//! The same process also measures the bare event queue, with as many pending slots as the scenario.
//! Each popped event only sets its slot again a random time later.
//! This rate is the upper limit of any simulation on the queue.
//!
//! Without scenarios it measures the two reference scenarios: 16 pCPUs with fine-grained locks, and 4,096 vCPUs on 256 pCPUs.

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

/// The reference scenarios, by name in the arguments.
const OWN: [(&str, &str); 2] = [
    ("bench-locks", include_str!("../../../scenarios/bench-locks.toml")),
    ("bench-scale", include_str!("../../../scenarios/bench-scale.toml")),
];

/// Portions of a run; pending events are counted after each.
const PORTIONS: u64 = 50;

/// Events in the measurement of the bare queue.
const QUEUE_EVENTS: u64 = 10_000_000;

/// A scenario with settings.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of a built-in scenario, or path of a file.
    pub name: String,
    /// Name of the combination of settings; empty without settings.
    pub set: String,
    /// The settings.
    pub settings: Vec<Setting>,
}

impl Case {
    /// Creates a case without settings.
    pub fn new(name: &str) -> Case {
        Case { name: name.to_owned(), set: String::new(), settings: Vec::new() }
    }

    /// Returns the names of the built-in scenarios.
    pub fn own() -> impl Iterator<Item = &'static str> {
        OWN.iter().map(|(name, _)| *name)
    }

    /// Loads the scenario.
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

/// Figures of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The scenario's name.
    pub scenario: String,
    /// Varied settings, by key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// vCPUs of all its VMs.
    pub vcpus: u32,
    /// Events of a run.
    pub events: u64,
    /// Median time of a run.
    pub seconds: f64,
    /// Events per second.
    pub events_per_second: f64,
    /// Peak resident memory of the process.
    pub peak_rss_bytes: u64,
    /// Simulated time of a run.
    pub simulated_seconds: f64,
    /// Pending events, mean over the run.
    pub pending: u64,
    /// Events per second of the bare queue with as many pending events.
    pub queue_events_per_second: f64,
}

/// Error of a measuring process.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The path of this program is unknown.
    #[error("cannot tell which program this is")]
    Program(#[source] io::Error),
    /// The process did not start.
    #[error("cannot start a process to measure {scenario}")]
    Start {
        /// The scenario.
        scenario: String,
        /// OS error.
        source: io::Error,
    },
    /// The process failed.
    #[error("measuring {scenario} failed: {status}")]
    Failed {
        /// The scenario.
        scenario: String,
        /// Exit status.
        status: ExitStatus,
    },
    /// Its output has no figures.
    #[error("measuring {scenario} gave no figures")]
    NoFigures {
        /// The scenario.
        scenario: String,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// Measures a case in a separate process: `tandem-lab bench sim --here`.
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

/// Measures a scenario in this process.
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

/// Returns the events per second of a bare queue with `pending` events.
fn queue_alone(pending: usize) -> f64 {
    let mut stream = Stream::new(1, "bench", 0);
    // Draw random numbers beforehand, to exclude their cost.
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

/// Tabulates the scenarios.
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
    fn reference_scenarios_have_documented_sizes() {
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
    fn bare_queue_handles_events() {
        assert!(queue_alone(16) > 0.0);
    }
}
