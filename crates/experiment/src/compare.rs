//! Comparison of every combination of some settings, with several runs each.
//!
//! Run i has the same seed in every combination, so all have the same arrivals and times (common random numbers).
//! Differences are taken run by run.
//! Runs are independent and distributed over worker threads.
//! Figures are in the order of combinations and runs, so the output does not depend on the number of workers.

use std::collections::BTreeMap;

use serde::Serialize;
use tandem_sim::scenario::load::{LoadError, Source};
use tandem_sim::{Results, Scenario};
use thiserror::Error;

use crate::execute::{ExecuteError, Job};
use crate::figures::Row;
use crate::metrics::Metric;
use crate::parameters::Parameters;
use crate::progress::Progress;
use crate::statistics::Mean;
use crate::vary::Combination;
use crate::{execute, metrics};

/// Metrics that are shown by default.
pub const SHOWN: &str = "work_rate,received,steal,wake_p99";

/// Error of a comparison.
#[derive(Debug, Error)]
pub enum CompareError {
    /// A combination's scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// There is no combination.
    #[error("there is nothing to compare")]
    Nothing,
    /// The runs did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// The metric does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no metric is called `{name}`: there are {}", known.join(", "))]
pub struct UnknownMetric {
    /// The requested name.
    pub name: String,
    /// Names of the metrics.
    pub known: Vec<&'static str>,
}

/// A comparison, as stored in JSON.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// [`Comparison::SCHEMA`].
    pub schema: u32,
    /// The scenario's name.
    pub scenario: String,
    /// The seeds of the runs.
    pub seeds: Vec<u64>,
    /// The combinations; the first is the baseline.
    pub combinations: Vec<CombinationFigures>,
}

impl Comparison {
    /// Version of the JSON format (`docs/schemas`): increased when a field changes its meaning or is removed; fields may be added.
    pub const SCHEMA: u32 = 1;

    /// Returns a figure of a combination.
    pub fn figure(&self, combination: usize, vm: &str, metric: &str) -> Option<&Figure> {
        self.combinations.get(combination)?.figure(vm, metric)
    }

    /// Splits a comma-separated list of metrics; an unknown metric is an error.
    pub fn chosen<'a>(&self, metrics: &'a str) -> Result<Vec<&'a str>, UnknownMetric> {
        let chosen: Vec<&str> = metrics.split(',').map(str::trim).collect();
        let figures = || self.combinations.iter().flat_map(|c| &c.figures);
        for name in &chosen {
            let is_known = figures().any(|figure| figure.metric == *name);
            if !is_known && !SHOWN.split(',').any(|shown| shown == *name) {
                let mut known: Vec<&str> = figures().map(|figure| figure.metric).collect();
                known.sort_unstable();
                known.dedup();
                return Err(UnknownMetric { name: (*name).to_owned(), known });
            }
        }
        Ok(chosen)
    }
}

/// The figures of one combination.
#[derive(Debug, Serialize)]
pub struct CombinationFigures {
    /// Name; empty for the unchanged scenario.
    pub name: String,
    /// Settings by key.
    pub settings: BTreeMap<String, String>,
    /// Every metric of every VM.
    pub figures: Vec<Figure>,
}

impl CombinationFigures {
    /// Returns a figure.
    pub fn figure(&self, vm: &str, metric: &str) -> Option<&Figure> {
        let same = |figure: &&Figure| figure.vm == vm && figure.metric == metric;
        self.figures.iter().find(same)
    }
}

/// One metric of one VM over all runs.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The VM; empty: the host or all VMs together.
    pub vm: String,
    /// The metric.
    pub metric: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// Number of runs that have the metric.
    pub runs: usize,
    /// Mean over these runs.
    #[serde(flatten)]
    pub mean: Mean,
    /// Paired difference to the first combination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<Mean>,
    /// The value of each run.
    pub values: Vec<f64>,
}

/// Combinations and seeds to compare.
#[derive(Debug)]
pub struct Plan {
    combinations: Vec<Combination>,
    parameters: Parameters,
    /// One scenario per combination.
    scenarios: Vec<Scenario>,
    seeds: Vec<u64>,
}

/// Results of a comparison.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub comparison: Comparison,
    /// Each run, in the order of combinations and seeds.
    pub runs: Vec<Run>,
    /// Complete results of the first run of each combination, if requested; else empty.
    pub watched: Vec<Results>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The scenario's name.
    pub scenario: String,
    /// The combination's name.
    pub combination: String,
    /// The seed.
    pub seed: u64,
    /// The figures.
    pub metrics: Vec<Metric>,
}

impl Plan {
    /// Reads the scenarios of all combinations without running them.
    pub fn read(
        source: &Source,
        combinations: Vec<Combination>,
        runs: u32,
    ) -> Result<Plan, CompareError> {
        let scenarios = combinations
            .iter()
            .map(|combination| combination.scenario(source))
            .collect::<Result<Vec<Scenario>, LoadError>>()?;
        let first = scenarios.first().ok_or(CompareError::Nothing)?.seed;
        Ok(Plan {
            seeds: (0..u64::from(runs)).map(|run| first.wrapping_add(run)).collect(),
            parameters: Parameters::of(&combinations),
            combinations,
            scenarios,
        })
    }

    /// Returns the varied parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns a row for each figure of each run.
    pub fn rows<'a>(&'a self, runs: &'a [Run]) -> impl Iterator<Item = Row<'a>> {
        let each = self.seeds.len().max(1);
        runs.iter().enumerate().flat_map(move |(at, run)| {
            run.metrics.iter().map(move |metric| Row {
                scenario: &run.scenario,
                combination: &run.combination,
                parameters: self.parameters.row(at / each),
                seed: run.seed,
                metric,
            })
        })
    }

    /// Returns the scenario of each combination.
    pub fn scenarios(&self) -> &[Scenario] {
        &self.scenarios
    }

    /// Runs the plan.
    ///
    /// With `watch` the complete results of each combination's first run are kept, with the waits between VMs.
    pub fn run(
        &self,
        workers: usize,
        watch: bool,
        progress: &dyn Progress,
    ) -> Result<Outcome, CompareError> {
        let jobs: Vec<Job<'_>> = self
            .scenarios
            .iter()
            .flat_map(|scenario| self.seeds.iter().map(move |&seed| Job { scenario, seed }))
            .collect();
        let runs = self.seeds.len().max(1);
        let is_watched = |at: usize| watch && at.is_multiple_of(runs);
        let done = execute::each(
            &jobs,
            workers,
            progress,
            |at, world| {
                if is_watched(at) {
                    world.record_waits();
                }
            },
            |at, scenario, results| {
                let metrics = metrics::of(scenario, &results);
                (metrics, is_watched(at).then_some(results))
            },
        )?;
        let (done, watched): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        self.outcome(done, watched.into_iter().flatten().collect())
    }

    /// Builds the outcome from the figures of each run, in the order of combinations and seeds.
    pub fn outcome(
        &self,
        figures: Vec<Vec<Metric>>,
        watched: Vec<Results>,
    ) -> Result<Outcome, CompareError> {
        let of_seeds = || self.seeds.iter();
        let each = self.combinations.iter().zip(&self.scenarios);
        let each = each.flat_map(|one| of_seeds().map(move |&seed| (one, seed)));
        let run = |(((combination, scenario), seed), metrics): ((_, u64), Vec<Metric>)| {
            let (combination, scenario): (&Combination, &Scenario) = (combination, scenario);
            Run { scenario: scenario.name.clone(), combination: combination.name(), seed, metrics }
        };
        let runs: Vec<Run> = each.zip(figures).map(run).collect();
        let scenario = self.scenarios.first().ok_or(CompareError::Nothing)?;
        Ok(Outcome {
            comparison: Comparison {
                schema: Comparison::SCHEMA,
                scenario: scenario.name.clone(),
                seeds: self.seeds.clone(),
                combinations: self.figures(&runs),
            },
            runs,
            watched,
        })
    }

    /// Returns the means of every metric of every combination.
    fn figures(&self, runs: &[Run]) -> Vec<CombinationFigures> {
        let mut all: Vec<CombinationFigures> = Vec::new();
        let own = runs.chunks(self.seeds.len().max(1));
        for (combination, runs) in self.combinations.iter().zip(own) {
            let mut figures: Vec<Figure> = Vec::new();
            for metric in runs.iter().flat_map(|run| &run.metrics) {
                let same = |f: &&mut Figure| f.vm == metric.vm && f.metric == metric.metric;
                match figures.iter_mut().find(same) {
                    Some(figure) => figure.values.push(metric.value),
                    None => figures.push(Figure {
                        vm: metric.vm.clone(),
                        metric: metric.metric,
                        unit: metric.unit,
                        runs: 0,
                        mean: Mean { mean: metric.value, ci95: None },
                        against_first: None,
                        values: vec![metric.value],
                    }),
                }
            }
            for figure in &mut figures {
                figure.runs = figure.values.len();
                if let Some(mean) = Mean::of(&figure.values) {
                    figure.mean = mean;
                }
                let first = all.first();
                let first = first.and_then(|first| first.figure(&figure.vm, figure.metric));
                figure.against_first =
                    first.and_then(|first| Mean::of_difference(&figure.values, &first.values));
            }
            let settings = combination.settings.iter();
            all.push(CombinationFigures {
                name: combination.name(),
                settings: settings
                    .map(|setting| (setting.key.clone(), setting.value.clone()))
                    .collect(),
                figures,
            });
        }
        all
    }
}
