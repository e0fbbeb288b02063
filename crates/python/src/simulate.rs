//! `run` and `compare`, with their results.

use pyo3::prelude::*;
use tandem_experiment::execute::ExecuteError;
use tandem_experiment::vary::Combination;
use tandem_experiment::{compare, execute, input, metrics, policies, vary};
use tandem_model::PolicySet;
use tandem_policy::flexw::Round;
use tandem_policy::host::HostObservation;
use tandem_report::json;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::Setting;
use tandem_sim::{Results, Scenario, World};
use tandem_sim_report::comparison_page::Data;
use tandem_sim_report::{comparison_page, comparison_table, run_page, run_tables};

use crate::errors;
use crate::policy::{Failure, PythonPolicy, UntilFailure};
use crate::scenario::Source;
use crate::table::{Line, Table};
use crate::watch::{interruptible, watched};

/// One run.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Run {
    scenario: Scenario,
    results: Results,
    /// Observation and decisions of each period with a decision, if requested.
    decided: Vec<(HostObservation, Round)>,
}

#[pymethods]
impl Run {
    /// Returns the output of `tandem-sim run --json`.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&tandem_sim_report::versioned(&self.results));
        text.map(|text| text + "\n").map_err(|error| errors::argument(&error))
    }

    /// Returns the output of `tandem-sim run`.
    fn text(&self) -> String {
        run_tables::text(&self.scenario, &self.results)
    }

    /// Returns a page with charts; `command` is shown as the command that made it.
    fn html(&self, command: &str) -> String {
        run_page::html(&self.scenario, &self.results, command, &tandem_sim_report::footer())
    }

    /// Returns observation and decisions of each period as JSON: a list of pairs.
    fn decided(&self) -> PyResult<String> {
        let pairs = self.decided.iter();
        let pairs: Vec<_> = pairs.map(|(host, round)| (host, &round.decisions)).collect();
        serde_json::to_string(&pairs).map_err(|error| errors::argument(&error))
    }

    /// Returns a table with a row for each figure.
    fn table(&self) -> PyResult<Table> {
        let metrics = metrics::of(&self.scenario, &self.results);
        let lines = metrics.iter().map(|metric| Line {
            cell: 0,
            scenario: &self.scenario.name,
            combination: "",
            parameters: &[],
            seed: self.scenario.seed,
            vm: &metric.vm,
            metric: metric.metric,
            unit: metric.unit,
            value: metric.value,
        });
        Table::new(false, &[], lines)
    }
}

/// Runs a scenario once; `policy` replaces its host policies if it is given.
#[pyfunction]
#[pyo3(signature = (source, listener=None, policy=None, decisions=false))]
pub fn run(
    py: Python<'_>,
    source: &Source,
    listener: Option<Bound<'_, PyAny>>,
    policy: Option<Py<PyAny>>,
    decisions: bool,
) -> PyResult<Run> {
    let mut source = source.source.clone();
    let read = |source: &load::Source| source.scenario().map_err(|error| errors::load(py, &error));
    let mut scenario = read(&source)?;
    if policy.is_some() && !has_controller(&scenario) {
        source.set(Setting::new("policies.configured", "true"));
        scenario = read(&source)?;
    }
    let failure = Failure::default();
    let policy = policy.map(|function| PythonPolicy::new(function, failure.clone()));
    let interrupt = || failure.interrupt(py);
    let done = interruptible(py, listener.as_ref(), interrupt, |progress| {
        let mut world = World::new(&scenario);
        world.record_waits();
        if decisions {
            world.record_decisions();
        }
        if let Some(policy) = policy {
            world.replace_policies(Box::new(policy));
        }
        progress.begin(scenario.duration);
        progress.say(&scenario.name);
        let progress = UntilFailure(progress, failure.clone());
        let results = execute::run(&mut world, scenario.duration, &progress)?;
        Ok::<_, ExecuteError>((results, world.take_decisions()))
    })?;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let (results, decided) = done.map_err(errors::execute)?;
    Ok(Run { scenario, results, decided })
}

/// Returns whether any host policy acts on any VM, so that there is a controller.
fn has_controller(scenario: &Scenario) -> bool {
    let of_host = scenario.policies.host.controller.policies;
    let of_vms = scenario.vms.iter().filter_map(|vm| vm.policies);
    of_vms.fold(of_host, |used, set| used.or(set)) != PolicySet::NONE
}

/// Returns the combinations of policies by name and `KEY=VALUE,…`.
pub fn combinations(policies: &[String], vary: &[String]) -> PyResult<Vec<Combination>> {
    let first = policies::combinations(policies).map_err(|error| errors::argument(&error))?;
    vary::combinations(first, vary).map_err(|error| errors::argument(&error))
}

/// A comparison.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Comparison {
    /// The plan of the comparison.
    pub plan: compare::Plan,
    /// Its results.
    pub outcome: compare::Outcome,
}

impl Comparison {
    fn shown<'a>(&self, metrics: Option<&'a str>) -> PyResult<Vec<&'a str>> {
        let comparison = &self.outcome.comparison;
        let shown = comparison.chosen(metrics.unwrap_or(compare::SHOWN));
        shown.map_err(|error| errors::argument(&error))
    }

    fn data<'a>(&'a self, shown: &'a [&'a str], command: &'a str) -> Data<'a> {
        Data {
            comparison: &self.outcome.comparison,
            parameters: self.plan.parameters(),
            scenarios: self.plan.scenarios(),
            watched: &self.outcome.watched,
            shown,
            command,
        }
    }
}

#[pymethods]
impl Comparison {
    /// Returns the output of `tandem-sim compare --json`.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&self.outcome.comparison);
        text.map(|text| text + "\n").map_err(|error| errors::argument(&error))
    }

    /// Returns the output of `tandem-sim compare`.
    #[pyo3(signature = (metrics=None))]
    fn text(&self, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        Ok(comparison_table::text(&self.outcome.comparison, &shown))
    }

    /// Returns a page with charts; `command` is shown as the command that made it.
    #[pyo3(signature = (command, metrics=None))]
    fn html(&self, command: &str, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        let data = self.data(&shown, command);
        Ok(comparison_page::html(&data, &tandem_sim_report::footer()))
    }

    /// Returns an SVG picture of the metrics.
    #[pyo3(signature = (metrics=None))]
    fn svg(&self, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        let picture = comparison_page::picture(&self.data(&shown, ""));
        picture.map_err(|error| errors::argument(&error))
    }

    /// Returns a table with a row for each figure of each run.
    fn table(&self) -> PyResult<Table> {
        let rows = self.plan.rows(&self.outcome.runs).map(|row| Line {
            cell: 0,
            scenario: row.scenario,
            combination: row.combination,
            parameters: row.parameters,
            seed: row.seed,
            vm: &row.metric.vm,
            metric: row.metric.metric,
            unit: row.metric.unit,
            value: row.metric.value,
        });
        Table::new(false, self.plan.parameters().columns(), rows)
    }
}

/// Runs every combination several times.
#[pyfunction(name = "compare")]
#[pyo3(signature = (source, policies, vary, runs, workers=None, watch=false, listener=None))]
// The arguments are those of the Python function, which has named arguments.
#[allow(clippy::too_many_arguments)]
pub fn run_comparison(
    py: Python<'_>,
    source: &Source,
    policies: Vec<String>,
    vary: Vec<String>,
    runs: u32,
    workers: Option<usize>,
    watch: bool,
    listener: Option<Bound<'_, PyAny>>,
) -> PyResult<Comparison> {
    let workers = input::workers(runs, workers).map_err(|error| errors::argument(&error))?;
    let combinations = combinations(&policies, &vary)?;
    let plan = compare::Plan::read(&source.source, combinations, runs);
    let plan = plan.map_err(|error| errors::compare(py, &error))?;
    let outcome = watched(py, listener.as_ref(), |progress| plan.run(workers, watch, progress))?;
    let outcome = outcome.map_err(|error| errors::compare(py, &error))?;
    Ok(Comparison { plan, outcome })
}
