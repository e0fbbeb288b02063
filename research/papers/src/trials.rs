//! Trials and their outcomes.
//!
//! A trial is a scenario of `research/scenarios/papers` with some settings, run with a few seeds.
//! Before [`Trials::run_all`], trials are only recorded and every measurement is pending.
//! Afterwards a trial that was not recorded is an error: a judge's set of trials must not depend on results.
//!
//! An unknown metric is an error in both passes, an unknown VM after the runs.
//! A metric whose event did not occur in a run, such as a latency without wake-ups, is `None` for that run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tandem_sim::Scenario;
use tandem_sim::scenario::load::{LoadError, Setting, Source};
use thiserror::Error;

use crate::papers;
use crate::sample::Sample;
use tandem_experiment::execute::{ExecuteError, Job};
use tandem_experiment::metrics::Metric;
use tandem_experiment::policies::PolicyError;
use tandem_experiment::progress::Progress;
use tandem_experiment::{execute, metrics, policies};

/// Error of a trial.
#[derive(Debug, Error)]
pub enum TrialsError {
    /// The folder of scenarios does not exist.
    #[error("--scenarios {}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    /// No embedded scenario has this name.
    #[error("no scenario of a published experiment is called {0}")]
    Unknown(String),
    /// A trial's file cannot be read.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// A trial's settings are invalid.
    #[error("in the trial {trial}")]
    Settings {
        /// The trial.
        trial: String,
        /// The cause.
        #[source]
        cause: LoadError,
    },
    /// A trial names an unknown policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A trial was requested after the trials had run.
    #[error("{0}: requested only after the trials had run")]
    TooLate(String),
    /// The metric does not exist.
    #[error("no metric is called `{name}`: there are {}", metrics::NAMES.join(", "))]
    Metric {
        /// The requested name.
        name: String,
    },
    /// The VM does not exist.
    #[error("no VM is called `{name}`: there are {}", known.join(", "))]
    Vm {
        /// The requested name.
        name: String,
        /// Names of the VMs.
        known: Vec<String>,
    },
    /// A run failed.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// A scenario with settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trial {
    scenario: String,
    policies: Vec<String>,
    settings: Vec<(String, String)>,
}

impl Trial {
    /// Creates a trial of a scenario, named by its file without `.toml`.
    pub fn of(scenario: &str) -> Trial {
        Trial { scenario: scenario.to_owned(), policies: Vec::new(), settings: Vec::new() }
    }

    /// Sets a key, as `--set` does; settings are applied after those of policies.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl ToString) -> Trial {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Applies a policy, as `--policies` does; `a+b` applies two.
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
        std::iter::once(scenario).chain(policies).chain(settings).collect()
    }
}

/// The figures of a trial's runs.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `None`: not run yet.
    runs: Option<Rc<Vec<Vec<Metric>>>>,
}

impl Outcome {
    /// Returns a metric of a VM, summed over all VMs with that name or that name and a number (`vm-2`).
    pub fn of(&self, vm: &str, metric: &str) -> Result<Sample, TrialsError> {
        if !metrics::NAMES.contains(&metric) {
            let name = metric.to_owned();
            return Err(TrialsError::Metric { name });
        }
        let Some(runs) = &self.runs else {
            return Ok(Sample::Pending);
        };
        let is_meant = |name: &str| {
            let number = name.strip_prefix(vm).and_then(|r| r.strip_prefix('-'));
            name == vm || number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        };
        let known = self.vms();
        if !known.iter().any(|name| is_meant(name)) {
            return Err(TrialsError::Vm {
                name: vm.to_owned(),
                known: known.into_iter().map(str::to_owned).collect(),
            });
        }
        let of_run = |metrics: &Vec<Metric>| {
            metrics
                .iter()
                .filter(|m| m.metric == metric && is_meant(&m.vm))
                .map(|m| m.value)
                .reduce(|a, b| a + b)
        };
        Ok(Sample::Runs(runs.iter().map(of_run).collect()))
    }

    /// Returns a metric of the host.
    pub fn of_host(&self, metric: &str) -> Result<Sample, TrialsError> {
        if !metrics::NAMES.contains(&metric) {
            let name = metric.to_owned();
            return Err(TrialsError::Metric { name });
        }
        let Some(runs) = &self.runs else {
            return Ok(Sample::Pending);
        };
        let of_run = |metrics: &Vec<Metric>| {
            let found = metrics.iter().find(|m| m.metric == metric && m.vm.is_empty());
            found.map(|metric| metric.value)
        };
        Ok(Sample::Runs(runs.iter().map(of_run).collect()))
    }

    /// Returns the names of the VMs in their order; empty before the trials have run.
    pub fn vms(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for metric in self.runs.iter().flat_map(|runs| runs.iter().flatten()) {
            if !metric.vm.is_empty() && !names.contains(&metric.vm.as_str()) {
                names.push(&metric.vm);
            }
        }
        names
    }
}

/// All trials.
#[derive(Debug)]
pub struct Trials {
    /// Folder of the scenarios; `None`: the embedded ones.
    folder: Option<PathBuf>,
    runs: u32,
    /// Settings of every trial, applied after its own.
    settings: Vec<Setting>,
    noted: BTreeMap<Trial, Scenario>,
    /// `None` until all have run.
    done: Option<BTreeMap<Trial, Rc<Vec<Vec<Metric>>>>>,
}

impl Trials {
    /// Finds the scenarios: `folder`, or `research/scenarios/papers` in the current folder or one above it, or the embedded ones.
    pub fn open(folder: Option<&Path>, runs: u32) -> Result<Trials, TrialsError> {
        let folder = match folder {
            Some(folder) => Some(folder.to_owned()),
            None => std::env::current_dir().ok().and_then(|here| {
                let mut above =
                    here.ancestors().map(|folder| folder.join("research/scenarios/papers"));
                above.find(|folder| folder.is_dir())
            }),
        };
        if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(TrialsError::NoFolder(folder.clone()));
        }
        Ok(Trials { folder, runs, settings: Vec::new(), noted: BTreeMap::new(), done: None })
    }

    /// Adds a setting to every trial that is recorded from now on, applied after the trial's own settings.
    pub fn set(&mut self, setting: Setting) {
        self.settings.push(setting);
    }

    /// Returns the outcome of a trial; before [`Trials::run_all`], records the trial and returns a pending outcome.
    pub fn run(&mut self, trial: &Trial) -> Result<Outcome, TrialsError> {
        let runs = match &self.done {
            Some(done) => {
                let runs = done.get(trial);
                let runs = runs.ok_or_else(|| TrialsError::TooLate(trial.name()))?;
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
        Ok(Outcome { runs })
    }

    /// Runs all recorded trials; trials that yield the same scenario run once.
    pub fn run_all(&mut self, workers: usize, progress: &dyn Progress) -> Result<(), TrialsError> {
        let mut scenarios: Vec<&Scenario> = Vec::new();
        let mut scenario_of: Vec<usize> = Vec::with_capacity(self.noted.len());
        for scenario in self.noted.values() {
            let known = scenarios.iter().position(|&other| other == scenario);
            scenario_of.push(known.unwrap_or(scenarios.len()));
            if known.is_none() {
                scenarios.push(scenario);
            }
        }
        let runs = u64::from(self.runs);
        let of = |scenario| {
            (0..runs).map(move |run| Job { scenario, seed: scenario.seed.wrapping_add(run) })
        };
        let jobs: Vec<Job<'_>> = scenarios.iter().copied().flat_map(of).collect();
        let mut figures = execute::all(&jobs, workers, progress)?.into_iter();
        let each: Vec<Rc<Vec<Vec<Metric>>>> = scenarios
            .iter()
            .map(|_| Rc::new(figures.by_ref().take(self.runs as usize).collect()))
            .collect();
        let done = self.noted.keys().zip(scenario_of);
        let done = done.filter_map(|(trial, at)| Some((trial.clone(), Rc::clone(each.get(at)?))));
        self.done = Some(done.collect());
        Ok(())
    }

    fn scenario(&self, trial: &Trial) -> Result<Scenario, TrialsError> {
        let file = format!("{}.toml", trial.scenario);
        let mut source = match &self.folder {
            Some(folder) => Source::read(&folder.join(file))?,
            None => papers::source(&trial.scenario)
                .ok_or_else(|| TrialsError::Unknown(trial.scenario.clone()))??,
        };
        for combination in policies::combinations(&trial.policies)? {
            for setting in combination.settings {
                source.set(setting);
            }
        }
        for (key, value) in &trial.settings {
            source.set(Setting::new(key, value));
        }
        for setting in &self.settings {
            source.set(setting.clone());
        }
        source.scenario().map_err(|cause| TrialsError::Settings { trial: trial.name(), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tandem_experiment::progress::Silent;
    use tandem_model::Nanos;

    fn trials() -> (Trials, Trial) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/papers");
        let trials = Trials::open(Some(Path::new(folder)), 2).unwrap();
        let trial = Trial::of("gleaner-wake").set("vm.pair.workload", "same");
        (trials, trial.set("duration", "20ms").set("warmup", "0ms"))
    }

    #[test]
    fn pending_missing_and_unknown_metrics_differ() {
        let (mut trials, trial) = trials();
        let before = trials.run(&trial).unwrap();
        assert_eq!(before.of("pair", "work_rate").unwrap(), Sample::Pending);
        let error = before.of("pair", "work_rte").unwrap_err().to_string();
        assert!(error.contains("`work_rte`") && error.contains("wake_p99"), "{error}");
        trials.run_all(1, &Silent).unwrap();
        let after = trials.run(&trial).unwrap();
        assert!(after.of("pair", "work_rate").unwrap().mean().is_some());
        // The threads wait on condition variables, so there are no TLB flushes.
        let flushes = after.of("pair", "shootdown_p99").unwrap();
        assert_eq!(flushes, Sample::Runs(vec![None, None]));
        assert!(after.of("pair", "work_rte").is_err());
        let error = after.of("pear", "work_rate").unwrap_err().to_string();
        assert!(error.contains("`pear`: there are pair"), "{error}");
    }

    /// Keeps the last message.
    struct LastMessage(Mutex<String>);

    impl Progress for LastMessage {
        fn begin(&self, _total: Nanos) {}

        fn say(&self, what: &str) {
            *self.0.lock().unwrap() = what.to_owned();
        }

        fn add(&self, _time: Nanos) {}
    }

    #[test]
    fn equal_scenarios_run_once() {
        let (mut trials, trial) = trials();
        let same = trial.clone().set("vm.pair.weight", 1024);
        let other = trial.clone().set("duration", "10ms");
        for one in [&trial, &same, &other] {
            trials.run(one).unwrap();
        }
        let last = LastMessage(Mutex::new(String::new()));
        trials.run_all(2, &last).unwrap();
        assert_eq!(last.0.into_inner().unwrap(), "4 runs", "of two trials, two each");
        let mut rate = |trial| trials.run(trial).unwrap().of("pair", "work_rate").unwrap();
        assert_eq!(rate(&trial), rate(&same));
        assert_ne!(rate(&trial), rate(&other));
    }

    #[test]
    fn late_trial_is_an_error() {
        let (mut trials, trial) = trials();
        trials.run(&trial).unwrap();
        trials.run_all(2, &Silent).unwrap();
        let error = trials.run(&trial.policy("hvs")).unwrap_err().to_string();
        assert!(error.contains("gleaner-wake with hvs"), "{error}");
    }
}
