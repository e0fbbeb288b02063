//! Trials and what came out of them.
//!
//! A trial is a scenario of `scenarios/papers` with some settings, run with a few seeds. Until
//! [`Lab::run_all`] everything measured is NaN, and trials are only noted down; afterwards trials that
//! were not noted down are an error, because a judge then decided by values what it needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Context;
use anyhow::ensure;
use tandem_sim::Scenario;
use tandem_sim::scenario::load::Setting;
use tandem_sim::scenario::load::Source;

use super::sample::Sample;
use crate::sim::execute;
use crate::sim::metrics::Metric;
use crate::sim::policies;

/// A scenario with settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trial {
    scenario: String,
    policies: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Trial {
    /// A scenario by its file's name, without `.toml`.
    pub fn of(scenario: &str) -> Trial {
        Trial {
            scenario: scenario.to_owned(),
            policies: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Sets a key, as `--set` does; settings come after those of policies.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl ToString) -> Trial {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Sets what a policy's name means, as `--policies` does; `a+b` is two.
    #[must_use]
    pub fn policy(mut self, name: &str) -> Trial {
        self.policies.push(name.to_owned());
        self
    }

    fn name(&self) -> String {
        let settings = self.settings.iter().map(|(key, value)| {
            let text = format!("{key}={value}");
            format!(" --set {text}")
        });
        let policies = self.policies.iter().map(|name| format!(" with {name}"));
        let scenario = self.scenario.clone();
        std::iter::once(scenario)
            .chain(policies)
            .chain(settings)
            .collect()
    }
}

/// The figures of a trial's runs.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `None`: not run yet.
    runs: Option<Rc<Vec<Vec<Metric>>>>,
    count: usize,
}

impl Outcome {
    /// A metric of a VM, summed over all VMs called so or so with a number. What did not happen, such
    /// as a latency of something that never took place, is NaN.
    pub fn of(&self, vm: &str, metric: &str) -> Sample {
        let means = |name: &str| {
            let number = name.strip_prefix(vm).and_then(|r| r.strip_prefix('-'));
            name == vm || number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        };
        self.sum(metric, means)
    }

    /// The names of the VMs, in their order; none before the trials have run.
    pub fn vms(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for metric in self.runs.iter().flat_map(|runs| runs.iter().flatten()) {
            if !metric.vm.is_empty() && !names.contains(&metric.vm.as_str()) {
                names.push(&metric.vm);
            }
        }
        names
    }

    fn sum(&self, metric: &str, vm: impl Fn(&str) -> bool) -> Sample {
        let Some(runs) = &self.runs else {
            return Sample::new(vec![f64::NAN; self.count]);
        };
        let of_run = |metrics: &Vec<Metric>| {
            metrics
                .iter()
                .filter(|m| m.metric == metric && vm(&m.vm))
                .map(|m| m.value)
                .reduce(|a, b| a + b)
                .unwrap_or(f64::NAN)
        };
        Sample::new(runs.iter().map(of_run).collect())
    }
}

/// All trials.
#[derive(Debug)]
pub struct Lab {
    folder: PathBuf,
    runs: u32,
    noted: BTreeMap<Trial, Scenario>,
    /// `None` until all have run.
    done: Option<BTreeMap<Trial, Rc<Vec<Vec<Metric>>>>>,
}

impl Lab {
    /// Finds the scenarios: in `folder`, or in `scenarios/papers` of the current folder or one above.
    pub fn open(folder: Option<&Path>, runs: u32) -> anyhow::Result<Lab> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                let here = std::env::current_dir().context("cannot tell the current folder")?;
                let found = here
                    .ancestors()
                    .map(|above| above.join("scenarios/papers"))
                    .find(|folder| folder.is_dir());
                found.with_context(|| {
                    format!(
                        "there is no folder scenarios/papers in {} or above it: run this in a \
                         checkout of Tandem, or say where it is with --scenarios",
                        here.display()
                    )
                })?
            }
        };
        ensure!(
            folder.is_dir(),
            "--scenarios {}: there is no such folder",
            folder.display()
        );
        Ok(Lab {
            folder,
            runs,
            noted: BTreeMap::new(),
            done: None,
        })
    }

    /// What came out of a trial; before [`Lab::run_all`], notes it down.
    pub fn run(&mut self, trial: &Trial) -> anyhow::Result<Outcome> {
        let runs = match &self.done {
            Some(done) => {
                let runs = done.get(trial).with_context(|| {
                    format!("{}: needed only after the trials had run", trial.name())
                })?;
                Some(Rc::clone(runs))
            }
            None => {
                if !self.noted.contains_key(trial) {
                    let scenario = self.scenario(trial)?;
                    self.noted.insert(trial.clone(), scenario);
                }
                None
            }
        };
        Ok(Outcome {
            runs,
            count: self.runs as usize,
        })
    }

    /// Runs all trials that were noted down.
    pub fn run_all(&mut self, workers: usize) -> anyhow::Result<()> {
        let jobs: Vec<(&Trial, &Scenario, u64)> = self
            .noted
            .iter()
            .flat_map(|(trial, scenario)| {
                let runs = u64::from(self.runs);
                (0..runs).map(move |run| (trial, scenario, scenario.seed.wrapping_add(run)))
            })
            .collect();
        let each: Vec<(&Scenario, u64)> = jobs
            .iter()
            .map(|&(_, scenario, seed)| (scenario, seed))
            .collect();
        let figures = execute::all(&each, workers)?;
        let mut done: BTreeMap<Trial, Vec<Vec<Metric>>> = BTreeMap::new();
        for ((trial, ..), metrics) in jobs.into_iter().zip(figures) {
            done.entry(trial.clone()).or_default().push(metrics);
        }
        let shared = done.into_iter().map(|(trial, runs)| (trial, Rc::new(runs)));
        self.done = Some(shared.collect());
        Ok(())
    }

    fn scenario(&self, trial: &Trial) -> anyhow::Result<Scenario> {
        let path = self.folder.join(format!("{}.toml", trial.scenario));
        let mut source = Source::read(&path)?;
        for combination in policies::combinations(&trial.policies)? {
            for setting in combination.settings {
                source.set(setting);
            }
        }
        for (key, value) in &trial.settings {
            source.set(Setting {
                key: key.clone(),
                value: value.clone(),
            });
        }
        source
            .scenario()
            .with_context(|| format!("in the trial {}", trial.name()))
    }
}
