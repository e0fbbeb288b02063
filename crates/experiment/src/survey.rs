//! Every policy with every program, on a host that is overcommitted more and more.
//!
//! At 1× the program's VM has the 16 pCPUs to itself, at 2× it shares them with a VM that only computes, at
//! 4× two of it share them with two of those (`scenarios/papers/survey-*.toml`). Of each policy in each
//! place three things are told:
//!
//! - *throughput*: the geometric mean over all VMs of their work relative to stock in the same place;
//! - *unfairness*: how much slower the VM that is slowed down most is than the one slowed down least, each
//!   against itself alone on the host under stock (the ratio of largest to least slowdown; 1 is fair);
//! - *worst*: the least work of a VM relative to stock in the same place, and which VM that is.
//!
//! A program that does no unit of work in the time that is simulated is not measured. What an entry is
//! and what is asked of all of them is in [`entry`]; [`file`](mod@file) reads figures that were kept.

pub mod entry;
pub mod file;

use std::path::Path;

use thiserror::Error;

use self::entry::Entry;
use self::entry::STOCK;
use self::entry::Survey;
use crate::programs;
use crate::progress::Progress;
use crate::sample::Sample;
use crate::trials::Outcome;
use crate::trials::Trial;
use crate::trials::Trials;
use crate::trials::TrialsError;

/// Policies and baselines, alone and joined.
const POLICIES: [&str; 23] = [
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
];

/// How often the host is overcommitted.
const OVERCOMMIT: [u32; 3] = [1, 2, 4];

/// Why there is no survey.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// There is no scenario for that.
    #[error("--overcommit {0} is not possible: 1, 2 or 4")]
    Overcommit(u32),
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
}

impl Plan {
    /// These policies (and stock), programs and overcommits; an empty list means all.
    pub fn new(
        policies: &[String],
        workloads: &[String],
        overcommit: &[u32],
    ) -> Result<Plan, SurveyError> {
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
        Ok(Plan {
            policies,
            workloads: chosen(workloads, &programs::all()),
            overcommit,
        })
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
        })
    }

    /// All entries; before the trials have run, only what is needed is noted down.
    fn entries(&self, trials: &mut Trials) -> Result<Vec<Entry>, TrialsError> {
        let mut entries = Vec::new();
        let computing = trials
            .run(&trial(1, "matmul", STOCK))?
            .of("program", "work_rate")?;
        for workload in &self.workloads {
            let program = trials
                .run(&trial(1, workload, STOCK))?
                .of("program", "work_rate")?;
            for &times in &self.overcommit {
                let stock = trials.run(&trial(times, workload, STOCK))?;
                for policy in &self.policies {
                    let ours = trials.run(&trial(times, workload, policy))?;
                    let alone = |vm: &str| match vm.starts_with("matmul") {
                        true => &computing,
                        false => &program,
                    };
                    entries.push(entry((workload, times, policy), &ours, &stock, alone)?);
                }
            }
        }
        Ok(entries)
    }
}

fn chosen(asked: &[String], all: &[&str]) -> Vec<String> {
    match asked {
        [] => all.iter().map(|&name| name.to_owned()).collect(),
        some => some.to_vec(),
    }
}

fn trial(times: u32, workload: &str, policy: &str) -> Trial {
    let scenario = format!("survey-{times}x");
    let place = Trial::of(&scenario).set("vm.program.workload", workload);
    place.policy(policy)
}

/// What came out of a policy against stock; `alone` is each VM's rate alone.
fn entry<'a>(
    (workload, overcommit, policy): (&str, u32, &str),
    ours: &Outcome,
    stock: &Outcome,
    alone: impl Fn(&str) -> &'a Sample,
) -> Result<Entry, TrialsError> {
    let mut gains: Vec<(f64, &str)> = Vec::new();
    let mut slowdowns: Vec<f64> = Vec::new();
    let mut measured = true;
    for vm in ours.vms() {
        let rate = ours.of(vm, "work_rate")?;
        let gain = rate.over(&stock.of(vm, "work_rate")?).mean();
        let slowdown = alone(vm).over(&rate).mean();
        measured &= gain.is_some_and(|gain| gain.is_finite() && gain > 0.0)
            && slowdown.is_some_and(f64::is_finite);
        gains.extend(gain.map(|gain| (gain, vm)));
        slowdowns.extend(slowdown);
    }
    let measured = measured && !gains.is_empty();
    let worst = gains.iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let logs: f64 = gains.iter().map(|(gain, _)| gain.ln()).sum();
    let largest = slowdowns.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = slowdowns.iter().copied().fold(f64::INFINITY, f64::min);
    let when = |value: f64| measured.then_some(value);
    Ok(Entry {
        workload: workload.to_owned(),
        overcommit,
        policy: policy.to_owned(),
        throughput: when((logs / gains.len() as f64).exp()),
        unfairness: when(largest / least),
        worst: worst.and_then(|worst| when(worst.0)),
        victim: worst.filter(|_| measured).map(|worst| worst.1.to_owned()),
    })
}
