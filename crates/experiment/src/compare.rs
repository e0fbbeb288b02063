//! Every combination of some settings, several runs each.
//!
//! Run i has the same seed in every combination, so that all of them meet the same arrivals and
//! times (common random numbers), and differences are taken run by run. Runs are independent: worker
//! threads take them in turn, and figures are put together in the order of combinations and runs, so
//! the output does not depend on how many workers there are.

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

/// Metrics that are shown unless others are asked for.
pub const SHOWN: &str = "work_rate,received,steal,wake_p99";

/// Why there is no comparison.
#[derive(Debug, Error)]
pub enum CompareError {
    /// A combination's scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// There is no combination.
    #[error("there is nothing to compare")]
    Nothing,
    /// The runs did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// There is no such metric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no metric is called `{name}`: there are {}", known.join(", "))]
pub struct UnknownMetric {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

/// A comparison, as it is kept as JSON.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// [`Comparison::SCHEMA`].
    pub schema: u32,
    /// The scenario's name.
    pub scenario: String,
    /// The seeds of the runs.
    pub seeds: Vec<u64>,
    /// The combinations, the first being what the others are held against.
    pub combinations: Vec<CombinationFigures>,
}

impl Comparison {
    /// The version of its form in JSON (`docs/schemas`): raised when a field changes its meaning or goes; fields may be added.
    pub const SCHEMA: u32 = 1;

    /// A figure of a combination.
    pub fn figure(&self, combination: usize, vm: &str, metric: &str) -> Option<&Figure> {
        self.combinations.get(combination)?.figure(vm, metric)
    }

    /// The metrics that were asked for, by a comma between each; refuses those that no VM has.
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
    /// What it is called; empty if it is the scenario as it is.
    pub name: String,
    /// What was set, by key.
    pub settings: BTreeMap<String, String>,
    /// Every metric of every VM.
    pub figures: Vec<Figure>,
}

impl CombinationFigures {
    /// A figure.
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
    /// What.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How many runs have it.
    pub runs: usize,
    /// Their mean.
    #[serde(flatten)]
    pub mean: Mean,
    /// The paired difference to the first combination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<Mean>,
    /// The value of each run.
    pub values: Vec<f64>,
}

/// What is to be compared.
#[derive(Debug)]
pub struct Plan {
    combinations: Vec<Combination>,
    parameters: Parameters,
    /// One for each combination.
    scenarios: Vec<Scenario>,
    seeds: Vec<u64>,
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub comparison: Comparison,
    /// Each run, in the order of combinations and seeds.
    pub runs: Vec<Run>,
    /// All that the first run of each combination has, if that was to be kept; else nothing.
    pub watched: Vec<Results>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The scenario's name.
    pub scenario: String,
    /// The combination's.
    pub combination: String,
    /// Its seed.
    pub seed: u64,
    /// Its figures.
    pub metrics: Vec<Metric>,
}

impl Plan {
    /// Reads the scenario of every combination, before any runs.
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

    /// What is varied.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// A row for each figure of each run.
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

    /// The scenario of each combination.
    pub fn scenarios(&self) -> &[Scenario] {
        &self.scenarios
    }

    /// Runs it. With `watch` all results of each combination's first run are kept, and who waited for
    /// whom in it is recorded.
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

    /// What comes out of these figures of each run, in the order of combinations and seeds.
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

    /// Means of every metric of every combination.
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
