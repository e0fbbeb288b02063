//! Scenarios from TOML and dictionaries, with their settings.

use std::path::Path;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::Setting;

use crate::errors;

/// A scenario.
#[pyclass(frozen, module = "tandem_sched._native")]
pub struct Source {
    /// The text with its settings.
    pub source: load::Source,
    /// The text, if it is not from a file.
    text: Option<String>,
}

#[pymethods]
impl Source {
    /// Reads a file.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: &str) -> PyResult<Source> {
        let source = load::Source::read(Path::new(path));
        let source = source.map_err(|error| errors::load(py, &error))?;
        Source { source, text: None }.checked(py)
    }

    /// Reads a text; errors refer to it by `name`.
    #[staticmethod]
    fn from_toml(py: Python<'_>, text: &str, name: &str) -> PyResult<Source> {
        let source = load::Source::from_text(name, text);
        let source = source.map_err(|error| errors::load(py, &error))?;
        let text = Some(text.to_owned());
        Source { source, text }.checked(py)
    }

    /// Reads a dictionary, as JSON; errors refer to it by `name`, with lines of the TOML generated from it.
    #[staticmethod]
    fn from_json(py: Python<'_>, json: &str, name: &str) -> PyResult<Source> {
        let wrong = |error: &dyn std::fmt::Display| {
            PyValueError::new_err(format!("{name}: it has no form in TOML: {error}"))
        };
        let value: serde_json::Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
        let text = toml::to_string(&value).map_err(|error| wrong(&error))?;
        Source::from_toml(py, &text, name)
    }

    /// Returns a copy with settings, each a key and its value, as TOML or as a bare word.
    fn with_settings(&self, py: Python<'_>, settings: Vec<(String, String)>) -> PyResult<Source> {
        let mut source = self.source.clone();
        for (key, value) in settings {
            source.set(Setting { option: "setting", ..Setting::new(key, value) });
        }
        let text = self.text.clone();
        Source { source, text }.checked(py)
    }

    /// Returns the name, description, seed, simulated seconds, warm-up in seconds and pCPUs.
    fn facts(&self, py: Python<'_>) -> PyResult<(String, String, u64, f64, f64, u32)> {
        let scenario = self.source.scenario();
        let scenario = scenario.map_err(|error| errors::load(py, &error))?;
        Ok((
            scenario.name,
            scenario.about,
            scenario.seed,
            scenario.duration.as_secs_f64(),
            scenario.warmup.as_secs_f64(),
            scenario.machine.pcpus,
        ))
    }

    /// Returns the name of each VM with its vCPUs.
    fn vms(&self, py: Python<'_>) -> PyResult<Vec<(String, u32)>> {
        let scenario = self.source.scenario();
        let scenario = scenario.map_err(|error| errors::load(py, &error))?;
        let vms = scenario.vms.into_iter();
        Ok(vms.map(|vm| (vm.name, vm.vcpus)).collect())
    }

    /// The text, if it is not from a file.
    #[getter]
    fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

impl Source {
    /// Reports errors now rather than at the run.
    fn checked(self, py: Python<'_>) -> PyResult<Source> {
        match self.source.scenario() {
            Ok(_) => Ok(self),
            Err(error) => Err(errors::load(py, &error)),
        }
    }
}
