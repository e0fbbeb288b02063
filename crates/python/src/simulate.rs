//! `run`, `compare` and `sweep`, with what comes out.

use std::path::Path;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tandem_experiment::compare;
use tandem_experiment::execute;
use tandem_experiment::execute::ExecuteError;
use tandem_experiment::input;
use tandem_experiment::metrics;
use tandem_experiment::policies;
use tandem_experiment::sweep;
use tandem_experiment::sweep::file;
use tandem_experiment::sweep::grid::Grid;
use tandem_experiment::sweep::grid::Shard;
use tandem_experiment::sweep::place;
use tandem_experiment::vary;
use tandem_experiment::vary::Combination;
use tandem_policy::PolicySet;
use tandem_policy::flexw::Round;
use tandem_policy::host::HostObservation;
use tandem_report::json;
use tandem_report::simulation;
use tandem_report::simulation::comparison_page;
use tandem_report::simulation::comparison_page::Data;
use tandem_report::simulation::comparison_table;
use tandem_report::simulation::run_page;
use tandem_report::simulation::run_tables;
use tandem_sim::Results;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::Setting;

use crate::errors;
use crate::policy::Failure;
use crate::policy::PythonPolicy;
use crate::policy::UntilFailure;
use crate::scenario::Source;
use crate::table::Line;
use crate::table::Table;
use crate::watch::watched;

/// What stands for a text of a damaged file.
const NO_TEXT: &str = "\u{fffd}";

/// One run.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Run {
    scenario: Scenario,
    results: Results,
    /// What the controller saw and decided in each period with a decision, if that was asked for.
    decided: Vec<(HostObservation, Round)>,
}

#[pymethods]
impl Run {
    /// What `tandem sim run --json` writes.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&simulation::versioned(&self.results));
        text.map(|text| text + "\n")
            .map_err(|error| errors::argument(&error))
    }

    /// What `tandem sim run` prints.
    fn text(&self) -> String {
        run_tables::text(&self.scenario, &self.results)
    }

    /// A page with charts; it says that `command` made it.
    fn html(&self, command: &str) -> String {
        run_page::html(
            &self.scenario,
            &self.results,
            command,
            &simulation::footer(),
        )
    }

    /// What the controller saw and decided in each period, as JSON: a list of pairs.
    fn decided(&self) -> PyResult<String> {
        let pairs = self.decided.iter();
        let pairs: Vec<_> = pairs
            .map(|(host, round)| (host, &round.decisions))
            .collect();
        serde_json::to_string(&pairs).map_err(|error| errors::argument(&error))
    }

    /// A row for each figure.
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

/// Runs a scenario once, with `policy` in the place of its host policies if that is given.
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
    let done = watched(py, listener.as_ref(), |progress| {
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
    Ok(Run {
        scenario,
        results,
        decided,
    })
}

/// Whether any host policy acts on any VM, so that there is a controller.
fn has_controller(scenario: &Scenario) -> bool {
    let of_host = scenario.policies.host.controller.policies;
    let of_vms = scenario.vms.iter().filter_map(|vm| vm.policies);
    of_vms.fold(of_host, |used, set| used.or(set)) != PolicySet::NONE
}

/// What is varied: policies by name, then `KEY=VALUE,…`.
fn combinations(policies: &[String], vary: &[String]) -> PyResult<Vec<Combination>> {
    let first = policies::combinations(policies).map_err(|error| errors::argument(&error))?;
    vary::combinations(first, vary).map_err(|error| errors::argument(&error))
}

/// A comparison.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Comparison {
    plan: compare::Plan,
    outcome: compare::Outcome,
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
    /// What `tandem sim compare --json` writes.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&self.outcome.comparison);
        text.map(|text| text + "\n")
            .map_err(|error| errors::argument(&error))
    }

    /// What `tandem sim compare` prints.
    #[pyo3(signature = (metrics=None))]
    fn text(&self, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        Ok(comparison_table::text(&self.outcome.comparison, &shown))
    }

    /// A page with charts; it says that `command` made it.
    #[pyo3(signature = (command, metrics=None))]
    fn html(&self, command: &str, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        let data = self.data(&shown, command);
        Ok(comparison_page::html(&data, &simulation::footer()))
    }

    /// A picture of the metrics, SVG.
    #[pyo3(signature = (metrics=None))]
    fn svg(&self, metrics: Option<&str>) -> PyResult<String> {
        let shown = self.shown(metrics)?;
        let picture = comparison_page::picture(&self.data(&shown, ""));
        picture.map_err(|error| errors::argument(&error))
    }

    /// A row for each figure of each run.
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
// They are those of the Python function, where they have names.
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
    let outcome = watched(py, listener.as_ref(), |progress| {
        plan.run(workers, watch, progress)
    })?;
    let outcome = outcome.map_err(|error| errors::compare(py, &error))?;
    Ok(Comparison { plan, outcome })
}

/// Runs a grid, or a shard of it; with `out` into a file, which is read instead if it is complete.
#[pyfunction(name = "sweep")]
#[pyo3(signature = (source, policies, vary, runs, workers=None, out=None, shard=None, force=false, listener=None))]
// They are those of the Python function, where they have names.
#[allow(clippy::too_many_arguments)]
pub fn run_sweep(
    py: Python<'_>,
    source: &Source,
    policies: Vec<String>,
    vary: Vec<String>,
    runs: u32,
    workers: Option<usize>,
    out: Option<PathBuf>,
    shard: Option<&str>,
    force: bool,
    listener: Option<Bound<'_, PyAny>>,
) -> PyResult<Table> {
    let workers = input::workers(runs, workers).map_err(|error| errors::argument(&error))?;
    let combinations = combinations(&policies, &vary)?;
    let grid = Grid::read(&source.source, &combinations, runs);
    let grid = grid.map_err(|error| errors::grid(py, &error))?;
    let shard: Shard = match shard {
        None => Shard::WHOLE,
        Some(text) => text.parse().map_err(|error| {
            PyValueError::new_err(format!("shard {text:?} is not possible: {error}"))
        })?,
    };
    grid.check(shard)
        .map_err(|error| errors::grid(py, &error))?;
    if let Some(out) = &out {
        let identity = grid.identity(shard);
        place::check_name(out, shard).map_err(|error| errors::argument(&error))?;
        if place::is_done(out, &identity, force).map_err(|error| errors::file(&error))? {
            return written(out, grid.cells());
        }
        place::check(out).map_err(|error| errors::file(&error))?;
    }
    let figures = watched(py, listener.as_ref(), |progress| {
        sweep::run(&grid, shard, workers, progress)
    })?;
    let figures = figures.map_err(errors::execute)?;
    if let Some(out) = &out {
        // Ctrl-C while the file is written is heard once it is whole.
        let rows = figures.write(out, &|| false);
        rows.map_err(|error| errors::file(&error))?;
    }
    let lines = figures.cells().flat_map(|(number, cell, metrics)| {
        metrics.iter().map(move |metric| Line {
            cell: number,
            scenario: &cell.scenario.name,
            combination: cell.combination,
            parameters: cell.parameters,
            seed: cell.seed,
            vm: &metric.vm,
            metric: metric.metric,
            unit: metric.unit,
            value: metric.value,
        })
    });
    Table::new(true, grid.parameters().columns(), lines)
}

/// The table of a complete file of so many cells.
fn written(path: &Path, cells: u64) -> PyResult<Table> {
    let mut reader = file::Reader::open(path).map_err(|error| errors::file(&error))?;
    let mut rows = Vec::new();
    for cell in 0..cells {
        while let Some(row) = reader.next_of(cell).map_err(|error| errors::file(&error))? {
            rows.push(row);
        }
    }
    let lines = rows.iter().map(|row| {
        let text = [
            &row.scenario,
            &row.combination,
            &row.vm,
            &row.metric,
            &row.unit,
        ]
        .map(|bytes| bytes.as_utf8().unwrap_or(NO_TEXT));
        Line {
            cell: row.cell,
            scenario: text[0],
            combination: text[1],
            parameters: &row.parameters,
            seed: row.seed,
            vm: text[2],
            metric: text[3],
            unit: text[4],
            value: row.value,
        }
    });
    Table::new(true, reader.parameters(), lines)
}
