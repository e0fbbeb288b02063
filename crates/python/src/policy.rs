//! Policies written in Python: each period the controller's observation goes out as JSON, and decisions come back so.
//!
//! Everything else is the controller that ships: when it looks, the knobs' ranges and rounding, and that what is in force is left
//! alone. The call happens on the thread that simulates, which waits for the interpreter. The first exception ends the
//! simulation and is raised where it was started.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tandem_experiment::progress::Progress;
use tandem_policy::Decision;
use tandem_policy::Nanos;
use tandem_policy::flexw::Round;
use tandem_policy::host::HostObservation;
use tandem_policy::host::Policy;
use tandem_policy::host::policy::Scope;

/// The exception that ended everything, if one did.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// It, if there is one.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().ok()?.take()
    }

    fn is_there(&self) -> bool {
        self.0.lock().is_ok_and(|failure| failure.is_some())
    }

    fn set(&self, error: PyErr) {
        if let Ok(mut failure) = self.0.lock() {
            failure.get_or_insert(error);
        }
    }
}

/// A policy: a function from JSON to JSON.
pub struct PythonPolicy {
    function: Py<PyAny>,
    failure: Failure,
}

impl PythonPolicy {
    /// One that says in `failure` why it does not go on.
    pub fn new(function: Py<PyAny>, failure: Failure) -> PythonPolicy {
        PythonPolicy { function, failure }
    }

    fn ask(&self, host: &HostObservation) -> PyResult<Vec<Decision>> {
        let wrong = |error: serde_json::Error| {
            PyValueError::new_err(format!("the decisions of a policy cannot be read: {error}"))
        };
        let observation = serde_json::to_string(host).map_err(wrong)?;
        let decisions: String =
            Python::attach(|py| self.function.bind(py).call1((observation,))?.extract())?;
        let decisions: Vec<Decision> = serde_json::from_str(&decisions).map_err(wrong)?;
        for decision in &decisions {
            if let Decision::SetAffinity { vcpu, pcpus, .. } = decision
                && !pcpus.iter().any(|pcpu| host.idle.contains_key(&pcpu))
            {
                return Err(PyValueError::new_err(format!(
                    "a policy lets vCPU {vcpu} run on pCPUs '{pcpus}', none of which the host has"
                )));
            }
        }
        Ok(decisions)
    }
}

impl fmt::Debug for PythonPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PythonPolicy")
    }
}

impl Policy for PythonPolicy {
    fn decide(&mut self, host: &HostObservation, _scope: Scope, round: &mut Round) {
        // It sees every period, also where there is pCPU time to spare.
        round.contended = true;
        if self.failure.is_there() {
            return;
        }
        match self.ask(host) {
            Ok(decisions) => round.decisions.extend(decisions),
            Err(error) => self.failure.set(error),
        }
    }
}

/// Progress that ends where a policy has failed.
pub struct UntilFailure<'a>(pub &'a dyn Progress, pub Failure);

impl Progress for UntilFailure<'_> {
    fn begin(&self, total: Nanos) {
        self.0.begin(total);
    }

    fn say(&self, what: &str) {
        self.0.say(what);
    }

    fn add(&self, time: Nanos) {
        self.0.add(time);
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled() || self.1.is_there()
    }
}
