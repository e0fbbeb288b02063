//! Survey of every policy with every program, at increasing overcommit.
//!
//! At 1× the program's VM has the 16 pCPUs to itself.
//! At 2× it shares them with a VM that only computes, at 4× two such pairs share them (`research/scenarios/papers/survey-*.toml`).
//! A place is a program at one overcommit.
//! Each policy has three measures in each place:
//!
//! - *throughput*: the geometric mean over all VMs of their work rates relative to stock in the same place;
//! - *unfairness*: the largest slowdown of a VM relative to the least; the baseline of a slowdown is the VM alone on the host under stock;
//! - *worst*: the least work rate of a VM relative to stock in the same place, and the name of that VM.
//!
//! A second form of *worst*, "by due", excludes the time that stock gave a VM beyond its fair share ([`due`](mod@due)).
//!
//! Hosts have 16 pCPUs, or 64 with VMs of 64 vCPUs.
//! VMs take turns only after half a second without sleeping, and their vCPUs are separated only after half a second of unmet demand.
//! So policies with `turns` or `apart`, and their baseline, have longer runs.
//!
//! A program that completes no unit of work in the simulated time is not measured.
//! [`entry`] has the entries and aggregates over them; [`file`](mod@file) reads stored figures.

pub mod document;
pub mod due;
pub mod entry;
pub mod file;
pub mod matrix;
pub mod page;
pub mod tables;

use std::path::Path;

use thiserror::Error;

use self::entry::{Entry, STOCK, Survey};
use crate::programs;
use crate::sample::Sample;
use crate::trials::{Outcome, Trial, Trials, TrialsError};
use tandem_experiment::mixed::fair_share;
use tandem_experiment::progress::Progress;

/// Policies and baselines, alone and joined.
const POLICIES: [&str; 32] = [
    STOCK,
    "ple-off",
    "fixed",
    "aple",
    "hvs",
    "cpth-r",
    "cpth-l",
    "cch",
    "apples",
    "flexw",
    "flexs",
    "flex",
    "eevdf",
    "credit",
    "pin",
    "balance",
    "cap",
    "gang",
    "demand",
    "balance+cap+gang",
    "demand+cap",
    "apples+flexw",
    "apples+flex",
    "fair+turns",
    "eevdf+fair",
    "eevdf+fair+turns",
    "fair+apart",
    "fair+turns+apart",
    "asymmetric",
    "fair+asymmetric",
    "eevdf+fair+asymmetric",
    "apples+fair+asymmetric",
];

/// Supported numbers of pCPUs; VMs have the same number of vCPUs.
const HOSTS: [u32; 2] = [entry::PCPUS, 64];

/// Warm-up and duration for policies with turns or separated vCPUs.
const LONG_RUN: [(&str, &str); 2] = [("warmup", "1s"), ("duration", "2s")];

/// Overcommit of the host.
const OVERCOMMIT: [u32; 3] = [1, 2, 4];

/// Error of a survey.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// No scenario has this overcommit.
    #[error("--overcommit {0} is not possible: 1, 2 or 4")]
    Overcommit(u32),
    /// Hosts of this size are not supported.
    #[error("--pcpus {0} is not possible: 16 or 64")]
    Pcpus(u32),
    /// A trial is invalid.
    #[error(transparent)]
    Trials(#[from] TrialsError),
}

/// Selection of policies, programs, overcommits and host size.
#[derive(Clone, Debug)]
pub struct Plan {
    policies: Vec<String>,
    workloads: Vec<String>,
    overcommit: Vec<u32>,
    pcpus: u32,
}

impl Plan {
    /// Creates a plan for these policies (and stock), programs and overcommits, on hosts of 16 or 64 pCPUs.
    ///
    /// An empty list selects all.
    pub fn new(
        policies: &[String],
        workloads: &[String],
        overcommit: &[u32],
        pcpus: u32,
    ) -> Result<Plan, SurveyError> {
        if !HOSTS.contains(&pcpus) {
            return Err(SurveyError::Pcpus(pcpus));
        }
        let mut policies = chosen(policies, &POLICIES);
        if !policies.iter().any(|policy| policy == STOCK) {
            policies.insert(0, STOCK.to_owned());
        }
        let overcommit = match overcommit {
            [] => OVERCOMMIT.to_vec(),
            some => some.to_vec(),
        };
        for &times in &overcommit {
            if !OVERCOMMIT.contains(&times) {
                return Err(SurveyError::Overcommit(times));
            }
        }
        Ok(Plan { policies, workloads: chosen(workloads, &programs::all()), overcommit, pcpus })
    }

    /// Runs each trial `runs` times with the scenarios of `folder` (`None`: see [`Trials::open`]).
    pub fn run(
        &self,
        folder: Option<&Path>,
        runs: u32,
        workers: usize,
        progress: &dyn Progress,
    ) -> Result<Survey, SurveyError> {
        let mut trials = Trials::open(folder, runs)?;
        // The first pass records the trials that are needed, as for judges of published claims.
        self.entries(&mut trials)?;
        trials.run_all(workers, progress)?;
        Ok(Survey {
            entries: self.entries(&mut trials)?,
            policies: self.policies.clone(),
            workloads: self.workloads.clone(),
            overcommit: self.overcommit.clone(),
            pcpus: self.pcpus,
        })
    }

    /// Returns all entries; before the trials have run, only records the trials that are needed.
    fn entries(&self, trials: &mut Trials) -> Result<Vec<Entry>, TrialsError> {
        let mut entries = Vec::new();
        for workload in &self.workloads {
            for &times in &self.overcommit {
                for policy in &self.policies {
                    entries.push(self.entry(trials, workload, times, policy)?);
                }
            }
        }
        Ok(entries)
    }

    /// Returns the entry of a policy in a place.
    fn entry(
        &self,
        trials: &mut Trials,
        workload: &str,
        times: u32,
        policy: &str,
    ) -> Result<Entry, TrialsError> {
        let is_long = policy.split('+').any(|part| ["turns", "apart"].contains(&part));
        let mut run = |times: u32, workload: &str, policy: &str| {
            trials.run(&trial(times, workload, policy, self.pcpus, is_long))
        };
        let compared = Compared {
            ours: run(times, workload, policy)?,
            stock: run(times, workload, STOCK)?,
            computing: run(1, COMPUTING, STOCK)?,
            program: run(1, workload, STOCK)?,
        };
        compared.entry(workload, times, policy, self.pcpus)
    }
}

/// The program of the neighbours.
const COMPUTING: &str = "matmul";

fn chosen(asked: &[String], all: &[&str]) -> Vec<String> {
    match asked {
        [] => all.iter().map(|&name| name.to_owned()).collect(),
        some => some.to_vec(),
    }
}

fn trial(times: u32, workload: &str, policy: &str, pcpus: u32, is_long: bool) -> Trial {
    let scenario = format!("survey-{times}x");
    let mut place = Trial::of(&scenario).set("vm.program.workload", workload);
    if pcpus != entry::PCPUS {
        place = place.set("machine.pcpus", pcpus).set("vm.*.vcpus", pcpus);
    }
    for (key, value) in LONG_RUN.iter().filter(|_| is_long) {
        place = place.set(key, value);
    }
    place.policy(policy)
}

/// Outcomes of a policy, of stock in the same place, and of each program alone.
struct Compared {
    ours: Outcome,
    stock: Outcome,
    computing: Outcome,
    program: Outcome,
}

/// A VM under a policy compared with stock.
struct Change<'a> {
    vm: &'a str,
    /// Work rate relative to stock.
    gain: f64,
    /// CPU time received under stock, and alone, pCPUs.
    received: f64,
    alone: f64,
}

impl Compared {
    /// Returns a metric of a VM's program alone on the host.
    fn alone(&self, vm: &str, metric: &str) -> Result<Sample, TrialsError> {
        let outcome = if vm.starts_with(COMPUTING) { &self.computing } else { &self.program };
        outcome.of("program", metric)
    }

    fn change<'a>(&self, vm: &'a str) -> Result<Option<Change<'a>>, TrialsError> {
        let gain = self.ours.of(vm, "work_rate")?.over(&self.stock.of(vm, "work_rate")?);
        let received = self.stock.of(vm, "received")?;
        let alone = self.alone(vm, "received")?;
        let change = |gain, received, alone| Change { vm, gain, received, alone };
        let figures = (gain.mean(), received.mean(), alone.mean());
        Ok(match figures {
            (Some(gain), Some(received), Some(alone)) => Some(change(gain, received, alone)),
            _ => None,
        })
    }

    fn entry(
        &self,
        workload: &str,
        overcommit: u32,
        policy: &str,
        pcpus: u32,
    ) -> Result<Entry, TrialsError> {
        let mut changes: Vec<Change<'_>> = Vec::new();
        let mut slowdowns: Vec<f64> = Vec::new();
        let mut measured = true;
        for vm in self.ours.vms() {
            let rate = self.ours.of(vm, "work_rate")?;
            let change = self.change(vm)?;
            let slowdown = self.alone(vm, "work_rate")?.over(&rate).mean();
            measured &=
                change.as_ref().is_some_and(|change| change.gain.is_finite() && change.gain > 0.0)
                    && slowdown.is_some_and(f64::is_finite);
            changes.extend(change);
            slowdowns.extend(slowdown);
        }
        let measured = measured && !changes.is_empty();
        let of_stock: Vec<(f64, &str)> = changes.iter().map(|c| (c.gain, c.vm)).collect();
        let alone: Vec<f64> = changes.iter().map(|change| change.alone).collect();
        let dues = fair_share(pcpus, &alone);
        let by_due = changes.iter().zip(dues).map(|(change, due)| {
            let part = due::against_due(change.gain, change.received, due);
            (part, change.vm)
        });
        let worst = least(of_stock.iter().copied());
        let worst_by_due = least(by_due);
        let logs: f64 = of_stock.iter().map(|(gain, _)| libm::log(*gain)).sum();
        let most = slowdowns.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let fewest = slowdowns.iter().copied().fold(f64::INFINITY, f64::min);
        let when = |value: f64| measured.then_some(value);
        let name = |worst: Option<(f64, &str)>| {
            let worst = worst.filter(|_| measured);
            worst.map(|(_, vm)| vm.to_owned())
        };
        Ok(Entry {
            workload: workload.to_owned(),
            pcpus,
            overcommit,
            policy: policy.to_owned(),
            throughput: when(libm::exp(logs / of_stock.len() as f64)),
            unfairness: when(most / fewest),
            worst: worst.and_then(|(value, _)| when(value)),
            victim: name(worst),
            worst_by_due: worst_by_due.and_then(|(value, _)| when(value)),
            victim_by_due: name(worst_by_due),
        })
    }
}

/// Returns the least value with the name of its VM.
fn least<'a>(parts: impl Iterator<Item = (f64, &'a str)>) -> Option<(f64, &'a str)> {
    parts.min_by(|a, b| a.0.total_cmp(&b.0))
}
