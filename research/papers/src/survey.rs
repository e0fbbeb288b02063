//! Every policy with every program, on a host that is overcommitted more and more.
//!
//! At 1× the program's VM has the 16 pCPUs to itself, at 2× it shares them with a VM that only computes, at
//! 4× two of it share them with two of those (`research/scenarios/papers/survey-*.toml`). Of each policy in each
//! place three things are told:
//!
//! - *throughput*: the geometric mean over all VMs of their work relative to stock in the same place;
//! - *unfairness*: how much slower the VM that is slowed down most is than the one slowed down least, each
//!   against itself alone on the host under stock (the ratio of largest to least slowdown; 1 is fair);
//! - *worst*: the least work of a VM relative to stock in the same place, and which VM that is; and the same against what stock does
//!   with no more than the VM is due ([`due`](mod@due)): what stock gave it beyond that is not its own.
//!
//! Hosts have 16 pCPUs, or 64 with VMs of 64 vCPUs. VMs take turns only after they have not slept for half a second, and have their
//! vCPUs put apart only after they wanted more for as long, so policies with `turns` or `apart` are measured for longer, against a stock that is.
//!
//! A program that does no unit of work in the time that is simulated is not measured. What an entry is
//! and what is asked of all of them is in [`entry`]; [`file`](mod@file) reads figures that were kept.

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

/// pCPUs that hosts can have: VMs have as many vCPUs.
const HOSTS: [u32; 2] = [entry::PCPUS, 64];

/// Warm-up and duration where VMs may take turns, or have their vCPUs put apart.
const WITH_PATIENCE: [(&str, &str); 2] = [("warmup", "1s"), ("duration", "2s")];

/// How often the host is overcommitted.
const OVERCOMMIT: [u32; 3] = [1, 2, 4];

/// Why there is no survey.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// There is no scenario for that.
    #[error("--overcommit {0} is not possible: 1, 2 or 4")]
    Overcommit(u32),
    /// There is no such host.
    #[error("--pcpus {0} is not possible: 16 or 64")]
    Pcpus(u32),
    /// A trial cannot be made.
    #[error(transparent)]
    Trials(#[from] TrialsError),
}

/// What is to be surveyed.
#[derive(Clone, Debug)]
pub struct Plan {
    policies: Vec<String>,
    workloads: Vec<String>,
    overcommit: Vec<u32>,
    pcpus: u32,
}

impl Plan {
    /// These policies (and stock), programs and overcommits, of which an empty list means all, on hosts of so many pCPUs, 16
    /// or 64.
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

    /// Runs it with the scenarios of `folder` (`None`: those of the checkout), `runs` times each.
    pub fn run(
        &self,
        folder: Option<&Path>,
        runs: u32,
        workers: usize,
        progress: &dyn Progress,
    ) -> Result<Survey, SurveyError> {
        let mut trials = Trials::open(folder, runs)?;
        // Asked twice, as the judges of published claims are: the first time for what is needed.
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

    /// All entries; before the trials have run, only what is needed is noted down.
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

    /// What comes out of a policy in a place.
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

/// The program of the VMs beside the one that is looked at.
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
    for (key, value) in WITH_PATIENCE.iter().filter(|_| is_long) {
        place = place.set(key, value);
    }
    place.policy(policy)
}

/// A policy against stock in the same place, and each program alone.
struct Compared {
    ours: Outcome,
    stock: Outcome,
    computing: Outcome,
    program: Outcome,
}

/// A VM under a policy.
struct Change<'a> {
    vm: &'a str,
    /// Its work relative to stock.
    gain: f64,
    /// What it received under stock, and alone, pCPUs.
    received: f64,
    alone: f64,
}

impl Compared {
    /// A figure of a VM's program alone.
    fn alone(&self, vm: &str, metric: &str) -> Result<Sample, TrialsError> {
        match vm.starts_with(COMPUTING) {
            true => self.computing.of("program", metric),
            false => self.program.of("program", metric),
        }
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
        let dues = due::due(pcpus, &alone);
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

/// The least, and whose it is.
fn least<'a>(parts: impl Iterator<Item = (f64, &'a str)>) -> Option<(f64, &'a str)> {
    parts.min_by(|a, b| a.0.total_cmp(&b.0))
}
