//! Converts errors to exceptions.
//!
//! An error in a scenario is a `ScenarioError` with file and line.
//! A file error is an `OSError` (`FileNotFoundError`, `PermissionError`, …).
//! Any other invalid argument is a `ValueError`.

use std::error::Error;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tandem_experiment::columns::ColumnError;
use tandem_experiment::compare::CompareError;
use tandem_experiment::execute::ExecuteError;
use tandem_experiment::sweep::division::DivisionError;
use tandem_experiment::sweep::grid::GridError;
use tandem_report::explain;
use tandem_sim::scenario::load::{LoadError, Place};

pyo3::create_exception!(
    tandem_sched,
    ScenarioError,
    PyValueError,
    "An error in a scenario, with its `file` and `line`, or None if it is not in a file or text."
);

/// Converts an error in a scenario.
pub fn load(py: Python<'_>, error: &LoadError) -> PyErr {
    if let LoadError::Read { source, .. } = error {
        return of_system(source, error.to_string());
    }
    let raised = ScenarioError::new_err(explain(error));
    let (file, line) = match error {
        LoadError::Wrong { place: Place::Line { file, line }, .. } => {
            (Some(file.to_string()), Some(*line))
        }
        _ => (None, None),
    };
    let value = raised.value(py);
    let set = value.setattr("file", file).and_then(|()| value.setattr("line", line));
    match set {
        Ok(()) => raised,
        Err(error) => error,
    }
}

/// Converts an invalid argument.
pub fn argument(error: &(dyn Error + 'static)) -> PyErr {
    PyValueError::new_err(explain(error))
}

/// Converts the error of a file that cannot be written, or may not be replaced.
pub fn file(error: &(dyn Error + 'static)) -> PyErr {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    match causes.find_map(refusal) {
        Some(source) => of_system(source, explain(error)),
        None => PyOSError::new_err(explain(error)),
    }
}

/// Returns the operating system's error if this error only wraps it.
fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a std::io::Error> {
    let of_column = || match error.downcast_ref()? {
        ColumnError::Io(source) => Some(source),
        _ => None,
    };
    error.downcast_ref().or_else(of_column)
}

/// Returns an `OSError` with the error number, if there is one.
fn of_system(source: &std::io::Error, text: String) -> PyErr {
    match source.raw_os_error() {
        Some(number) => PyOSError::new_err((number, text)),
        None => std::io::Error::new(source.kind(), text).into(),
    }
}

/// Converts the error of runs that did not complete.
pub fn execute(error: ExecuteError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Converts the error of a comparison.
pub fn compare(py: Python<'_>, error: &CompareError) -> PyErr {
    match error {
        CompareError::Scenario(error) => load(py, error),
        CompareError::Execute(error) => execute(*error),
        CompareError::Nothing => argument(error),
    }
}

/// Converts the error of a grid.
pub fn grid(py: Python<'_>, error: &GridError) -> PyErr {
    match error {
        GridError::Scenario(error) => load(py, error),
        GridError::Nothing | GridError::Unexpected { .. } | GridError::TooManyShards { .. } => {
            argument(error)
        }
    }
}

/// Converts the error of the division of a grid.
pub fn division(error: &DivisionError) -> PyErr {
    match error {
        DivisionError::Number(_) => argument(error),
        DivisionError::Execute(error) => execute(*error),
        DivisionError::Folder { .. }
        | DivisionError::Foreign { .. }
        | DivisionError::Read(_)
        | DivisionError::Remove { .. }
        | DivisionError::Other { .. }
        | DivisionError::Divided { .. } => file(error),
    }
}
