//! `sweep`: a grid, on this or other machines, and its file.
//!
//! A [`Grid`] is the whole set of runs.
//! It runs as a whole or as a shard, with or without a file; it divides itself into shards, lists the missing ones and merges them.
//! Dask (`python/tandem_sched/_dask.py`) only calls it on other machines.
//! A [`Sweep`] is the result of a whole grid or a shard.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use tandem_experiment::metrics::Metric;
use tandem_experiment::sweep::division::Division;
use tandem_experiment::sweep::file::Reader;
use tandem_experiment::sweep::grid::Shard;
use tandem_experiment::sweep::merge::Merge;
use tandem_experiment::sweep::{grid, place};
use tandem_experiment::vary::Combination;
use tandem_experiment::{compare, input, sweep};
use tandem_sim::scenario::load;

use crate::errors;
use crate::scenario::Source;
use crate::simulate::{Comparison, combinations};
use crate::table::{Line, Table};
use crate::watch::watched;

/// Replacement of an invalid text in a damaged file.
const NO_TEXT: &str = "\u{fffd}";

/// The arguments of a grid.
#[derive(Clone)]
struct Asked {
    source: load::Source,
    combinations: Vec<Combination>,
    runs: u32,
}

/// A grid of settings and seeds.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Grid {
    grid: grid::Grid,
    asked: Asked,
}

#[pymethods]
impl Grid {
    /// Makes a grid of every combination of policies and values, `runs` times each.
    #[new]
    fn new(
        py: Python<'_>,
        source: &Source,
        policies: Vec<String>,
        vary: Vec<String>,
        runs: u32,
    ) -> PyResult<Grid> {
        input::workers(runs, None).map_err(|error| errors::argument(&error))?;
        let asked = Asked {
            source: source.source.clone(),
            combinations: combinations(&policies, &vary)?,
            runs,
        };
        let grid = grid::Grid::read(&asked.source, &asked.combinations, runs);
        let grid = grid.map_err(|error| errors::grid(py, &error))?;
        Ok(Grid { grid, asked })
    }

    /// Returns the fingerprint, which identifies the grid.
    #[getter]
    fn fingerprint(&self) -> String {
        let identity = self.grid.identity(Shard::WHOLE);
        format!("{} {}", identity.version, identity.fingerprint)
    }

    /// Returns the number of cells.
    #[getter]
    fn cells(&self) -> u64 {
        self.grid.cells()
    }

    /// Runs the grid, or a shard of it; writes `out` if it is given.
    #[pyo3(signature = (workers=None, out=None, shard=None, listener=None))]
    fn run(
        &self,
        py: Python<'_>,
        workers: Option<usize>,
        out: Option<PathBuf>,
        shard: Option<&str>,
        listener: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Sweep> {
        let runs = self.asked.runs;
        let workers = input::workers(runs, workers).map_err(|error| errors::argument(&error))?;
        let shard = self.shard(py, shard)?;
        let whole = (shard == Shard::WHOLE).then(|| self.asked.clone());
        // The file and the table of a large grid take seconds as well.
        watched(py, listener.as_ref(), |progress| {
            let figures = sweep::run(&self.grid, shard, workers, progress);
            let figures = figures.map_err(errors::execute)?;
            if let Some(out) = &out {
                let rows = figures.write(out, &|| progress.is_cancelled());
                rows.map_err(|error| errors::file(&error))?;
            }
            self.sweep(&figures, whole)
        })?
    }

    /// Returns whether the complete file of the grid, or of a shard, exists.
    /// Rejects an invalid name, and a file of something else unless `force` permits to replace it.
    #[pyo3(signature = (out, shard=None, force=false))]
    fn is_done(
        &self,
        py: Python<'_>,
        out: PathBuf,
        shard: Option<&str>,
        force: bool,
    ) -> PyResult<bool> {
        let shard = self.shard(py, shard)?;
        let identity = self.grid.identity(shard);
        place::check_name(&out, shard).map_err(|error| errors::argument(&error))?;
        let done = place::is_done(&out, &identity, force);
        let done = done.map_err(|error| errors::file(&error))?;
        if !done {
            place::check(&out).map_err(|error| errors::file(&error))?;
        }
        Ok(done)
    }

    /// Reads the complete file of the grid, or of a shard.
    #[pyo3(signature = (out, shard=None))]
    fn read(&self, py: Python<'_>, out: PathBuf, shard: Option<&str>) -> PyResult<Sweep> {
        let shard = self.shard(py, shard)?;
        let whole = (shard == Shard::WHOLE).then(|| self.asked.clone());
        let cells = shard.cells(self.grid.cells());
        watched(py, None, |progress| written(&out, cells, whole, &|| progress.is_cancelled()))?
    }

    /// Divides the grid with file `out` into shards; returns their files and the numbers of the missing ones.
    /// `force` removes damaged or foreign files among the shards.
    #[pyo3(signature = (out, of=None, force=false, listener=None))]
    fn divide(
        &self,
        py: Python<'_>,
        out: PathBuf,
        of: Option<u32>,
        force: bool,
        listener: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(Vec<PathBuf>, Vec<u32>)> {
        let division = watched(py, listener.as_ref(), |progress| {
            Division::of(&self.grid, &out, of, force, progress)
        })?;
        let division = division.map_err(|error| errors::division(&error))?;
        Ok((division.files(), division.missing()))
    }

    /// Merges the files of all shards into `out`.
    fn merge(&self, py: Python<'_>, out: PathBuf, shards: Vec<PathBuf>) -> PyResult<()> {
        watched(py, None, |progress| {
            let mut merge = Merge::open(&out, &shards).map_err(|error| errors::file(&error))?;
            let wanted = self.grid.identity(Shard::WHOLE);
            if *merge.identity() != wanted {
                let found = merge.identity();
                return Err(PyOSError::new_err(format!(
                    "the shards are of another sweep: {found}. Expected: {wanted}"
                )));
            }
            let rows = merge.write(&out, &|| progress.is_cancelled());
            rows.map(|_| ()).map_err(|error| errors::file(&error))
        })?
    }
}

impl Grid {
    /// Makes a sweep of the figures of runs.
    fn sweep(&self, figures: &sweep::Figures<'_>, whole: Option<Asked>) -> PyResult<Sweep> {
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
        let own = figures.cells().map(|(_, _, metrics)| metrics.to_vec());
        Ok(Sweep {
            table: Table::new(true, self.grid.parameters().columns(), lines)?,
            figures: own.collect(),
            whole,
        })
    }

    /// Parses a shard; `None` is the whole grid.
    fn shard(&self, py: Python<'_>, text: Option<&str>) -> PyResult<Shard> {
        let shard: Shard = match text {
            None => Shard::WHOLE,
            Some(text) => text.parse().map_err(|error| {
                PyValueError::new_err(format!("shard {text:?} is not possible: {error}"))
            })?,
        };
        let checked = self.grid.check(shard);
        checked.map_err(|error| errors::grid(py, &error))?;
        Ok(shard)
    }
}

/// The figures of a grid or a shard.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Sweep {
    table: Table,
    /// The figures of each cell that are valid metrics.
    figures: Vec<Vec<Metric>>,
    /// The arguments of the grid; `None` for a shard.
    whole: Option<Asked>,
}

#[pymethods]
impl Sweep {
    /// Returns a table with a row for each figure.
    fn table(&self) -> Table {
        self.table.clone()
    }

    /// Returns a comparison of the combinations.
    fn comparison(&self, py: Python<'_>) -> PyResult<Comparison> {
        let Some(asked) = &self.whole else {
            return Err(PyValueError::new_err(
                "a shard has not all runs of any combination: compare the whole sweep",
            ));
        };
        let combinations = asked.combinations.clone();
        let plan = compare::Plan::read(&asked.source, combinations, asked.runs);
        let plan = plan.map_err(|error| errors::compare(py, &error))?;
        let outcome = plan.outcome(self.figures.clone(), Vec::new());
        let outcome = outcome.map_err(|error| errors::compare(py, &error))?;
        Ok(Comparison { plan, outcome })
    }
}

/// Reads a complete file of these cells; stops early if interrupted.
fn written(
    path: &Path,
    cells: impl Iterator<Item = u64>,
    whole: Option<Asked>,
    is_interrupted: &dyn Fn() -> bool,
) -> PyResult<Sweep> {
    let mut reader = Reader::open(path).map_err(|error| errors::file(&error))?;
    let (mut rows, mut ends) = (Vec::new(), Vec::new());
    for cell in cells {
        while let Some(row) = reader.next_of(cell).map_err(|error| errors::file(&error))? {
            rows.push(row);
        }
        ends.push(rows.len());
        if is_interrupted() {
            break;
        }
    }
    // The digest is checked at the end, after all rows.
    if !reader.is_at_end().map_err(|error| errors::file(&error))? {
        return Err(PyOSError::new_err(format!(
            "{} has rows of foreign cells: it is damaged; rewrite it with force",
            path.display()
        )));
    }
    let lines: Vec<Line<'_>> = rows
        .iter()
        .map(|row| {
            let text = [&row.scenario, &row.combination, &row.vm, &row.metric, &row.unit]
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
        })
        .collect();
    let metric = |line: &Line<'_>| Metric::read(line.vm, line.metric, line.unit, line.value);
    let mut figures = Vec::new();
    let mut begin = 0;
    for end in ends {
        let own = lines.get(begin..end).unwrap_or_default();
        figures.push(own.iter().filter_map(metric).collect());
        begin = end;
    }
    Ok(Sweep { table: Table::new(true, reader.parameters(), lines.into_iter())?, figures, whole })
}
