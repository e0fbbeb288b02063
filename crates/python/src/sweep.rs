//! `sweep`: a grid, here or spread over other machines, and its file.
//!
//! A [`Grid`] is all that there is to simulate. It runs as a whole or as a shard, into a file or not; it says into which shards it is
//! divided and which of them are there, and joins them. Whoever spreads shards (Dask, in `python/tandem_sched/_dask.py`) does no more
//! than call it elsewhere. A [`Sweep`] is what comes out of a whole grid or a shard.

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

/// What stands for a text of a damaged file.
const NO_TEXT: &str = "\u{fffd}";

/// What a grid is made of.
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
    /// Every combination of policies and values, `runs` times each.
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

    /// What tells this grid from others.
    #[getter]
    fn fingerprint(&self) -> String {
        let identity = self.grid.identity(Shard::WHOLE);
        format!("{} {}", identity.version, identity.fingerprint)
    }

    /// How many cells it has.
    #[getter]
    fn cells(&self) -> u64 {
        self.grid.cells()
    }

    /// Runs it, or a shard of it, into `out` if that is given.
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
        // The file and the table of a large one take seconds, too.
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

    /// Whether the complete file of it, or of a shard, is there; refuses a name that cannot be, and a file of something else unless
    /// `force` says that it may be replaced.
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

    /// What the complete file of it, or of a shard, holds.
    #[pyo3(signature = (out, shard=None))]
    fn read(&self, py: Python<'_>, out: PathBuf, shard: Option<&str>) -> PyResult<Sweep> {
        let shard = self.shard(py, shard)?;
        let whole = (shard == Shard::WHOLE).then(|| self.asked.clone());
        let cells = shard.cells(self.grid.cells());
        watched(py, None, |progress| written(&out, cells, whole, &|| progress.is_cancelled()))?
    }

    /// Into how many shards it is divided whose file is `out`, where their files are, and which are there. With `force` shards that
    /// are in the way are removed.
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

    /// Joins the files of all shards into `out`.
    fn merge(&self, py: Python<'_>, out: PathBuf, shards: Vec<PathBuf>) -> PyResult<()> {
        watched(py, None, |progress| {
            let mut merge = Merge::open(&out, &shards).map_err(|error| errors::file(&error))?;
            let wanted = self.grid.identity(Shard::WHOLE);
            if *merge.identity() != wanted {
                let found = merge.identity();
                return Err(PyOSError::new_err(format!(
                    "the shards are of another sweep: {found}. Asked for is {wanted}"
                )));
            }
            let rows = merge.write(&out, &|| progress.is_cancelled());
            rows.map(|_| ()).map_err(|error| errors::file(&error))
        })?
    }
}

impl Grid {
    /// What came out of runs of it.
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

    /// A shard as it is written; `None`: all of it.
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
    /// Those of each cell, without any that no simulation has.
    figures: Vec<Vec<Metric>>,
    /// `None`: it is a shard.
    whole: Option<Asked>,
}

#[pymethods]
impl Sweep {
    /// A row for each figure.
    fn table(&self) -> Table {
        self.table.clone()
    }

    /// The same as a comparison of the combinations.
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

/// What a complete file of these cells holds, unless nobody wants to know any more.
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
    // Whether these are the rows that were written shows at the end.
    if !reader.is_at_end().map_err(|error| errors::file(&error))? {
        return Err(PyOSError::new_err(format!(
            "{} has rows of cells that are not its own: it is damaged, make it anew with force",
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
