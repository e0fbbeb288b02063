//! `survey` and `reproduce`: every policy with every program, and published figures against the simulator's.

use std::path::PathBuf;

use pyo3::prelude::*;
use tandem_experiment::input;
use tandem_experiment::reproduce;
use tandem_experiment::reproduce::verdict;
use tandem_experiment::reproduce::verdict::Verdict;
use tandem_experiment::survey::Plan;
use tandem_experiment::survey::entry;
use tandem_report::claims_page;
use tandem_report::claims_table;
use tandem_report::json;
use tandem_report::simulation;
use tandem_report::survey::page;
use tandem_report::survey::tables;

use crate::errors;
use crate::watch::watched;

/// What a survey found.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Survey {
    survey: entry::Survey,
}

#[pymethods]
impl Survey {
    /// What `tandem sim survey --json` writes.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&self.survey.entries);
        text.map(|text| text + "\n")
            .map_err(|error| errors::argument(&error))
    }

    /// What `tandem sim survey` prints.
    fn text(&self) -> String {
        tables::show(&self.survey)
    }

    /// A page with charts; it says that `command` made it.
    fn html(&self, command: &str) -> String {
        page::html(&self.survey, command, &simulation::footer())
    }
}

/// Runs every policy with every program; empty lists mean all.
#[pyfunction(name = "survey")]
#[pyo3(signature = (policies, workloads, overcommit, pcpus, runs, workers=None, scenarios=None, listener=None))]
// They are those of the Python function, where they have names.
#[allow(clippy::too_many_arguments)]
pub fn run_survey(
    py: Python<'_>,
    policies: Vec<String>,
    workloads: Vec<String>,
    overcommit: Vec<u32>,
    pcpus: u32,
    runs: u32,
    workers: Option<usize>,
    scenarios: Option<PathBuf>,
    listener: Option<Bound<'_, PyAny>>,
) -> PyResult<Survey> {
    let workers = input::workers(runs, workers).map_err(|error| errors::argument(&error))?;
    let plan = Plan::new(&policies, &workloads, &overcommit, pcpus);
    let plan = plan.map_err(|error| errors::argument(&error))?;
    let survey = watched(py, listener.as_ref(), |progress| {
        plan.run(scenarios.as_deref(), runs, workers, progress)
    })?;
    let survey = survey.map_err(|error| errors::argument(&error))?;
    Ok(Survey { survey })
}

/// What came out of published claims.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Reproduction {
    verdicts: Vec<Verdict>,
    runs: u32,
}

#[pymethods]
impl Reproduction {
    /// What `tandem sim reproduce --json` writes.
    fn json(&self) -> PyResult<String> {
        let text = json::text(&verdict::list(&self.verdicts));
        text.map(|text| text + "\n")
            .map_err(|error| errors::argument(&error))
    }

    /// What `tandem sim reproduce` prints.
    fn text(&self) -> String {
        claims_table::table(&self.verdicts)
    }

    /// A page with charts; it says that `command` made it.
    fn html(&self, command: &str) -> String {
        claims_page::html(&self.verdicts, self.runs, command, &simulation::footer())
    }
}

/// Runs what published claims need and judges them; an empty list means all claims.
#[pyfunction(name = "reproduce")]
#[pyo3(signature = (claims, settings, runs, workers=None, scenarios=None, listener=None))]
pub fn run_reproduction(
    py: Python<'_>,
    claims: Vec<String>,
    settings: Vec<String>,
    runs: u32,
    workers: Option<usize>,
    scenarios: Option<PathBuf>,
    listener: Option<Bound<'_, PyAny>>,
) -> PyResult<Reproduction> {
    let workers = input::workers(runs, workers).map_err(|error| errors::argument(&error))?;
    let claims = reproduce::chosen(&claims).map_err(|error| errors::argument(&error))?;
    let verdicts = watched(py, listener.as_ref(), |progress| {
        let folder = scenarios.as_deref();
        reproduce::judge_all(claims, folder, &settings, runs, workers, progress)
    })?;
    let verdicts = verdicts.map_err(|error| errors::argument(&error))?;
    Ok(Reproduction { verdicts, runs })
}
