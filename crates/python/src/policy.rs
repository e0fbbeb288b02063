//! Policies written in Python: each period the function receives the controller's observation as JSON, and returns decisions as JSON.
//!
//! The controller is the daemon's: its periods, the ranges and rounding of knobs, and no writes of unchanged values.
//! The simulating thread calls the function, and waits for the interpreter.
//! The first exception ends the simulation and is raised in its caller.

use std::ffi::c_long;
use std::fmt;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use tandem_experiment::progress::Progress;
use tandem_model::{Decision, Nanos, VcpuId};
use tandem_policy::flexw::Round;
use tandem_policy::host::policy::Scope;
use tandem_policy::host::{HostObservation, Policy};

/// The exception that ended the simulation, if any.
#[derive(Clone, Default)]
pub struct Failure {
    raised: Arc<Mutex<Option<PyErr>>>,
    /// Python's identifier of the thread that runs the policy, during a call.
    asking: Arc<Mutex<Option<c_long>>>,
}

impl Failure {
    /// Takes the exception, if there is one.
    pub fn take(&self) -> Option<PyErr> {
        self.raised.lock().ok()?.take()
    }

    /// Raises a KeyboardInterrupt in the policy during a call: one that does not return would never see Ctrl-C.
    pub fn interrupt(&self, py: Python<'_>) {
        // This thread holds the interpreter, so a call neither starts nor ends meanwhile.
        let Some(thread) = self.asking.lock().ok().and_then(|asking| *asking) else {
            return;
        };
        let exception = py.get_type::<PyKeyboardInterrupt>();
        // SAFETY: this thread holds the interpreter; the exception is a live class, of which Python takes its own reference. Python ignores
        // an unknown thread.
        unsafe {
            ffi::PyThreadState_SetAsyncExc(thread, exception.as_ptr());
        }
    }

    fn is_there(&self) -> bool {
        self.raised.lock().is_ok_and(|failure| failure.is_some())
    }

    fn set(&self, error: PyErr) {
        if let Ok(mut failure) = self.raised.lock() {
            failure.get_or_insert(error);
        }
    }

    fn asks(&self, thread: Option<c_long>) {
        if let Ok(mut asking) = self.asking.lock() {
            *asking = thread;
        }
    }
}

/// A policy: a function from JSON to JSON.
pub struct PythonPolicy {
    function: Py<PyAny>,
    failure: Failure,
}

impl PythonPolicy {
    /// Makes a policy that stores its first exception in `failure`.
    pub fn new(function: Py<PyAny>, failure: Failure) -> PythonPolicy {
        PythonPolicy { function, failure }
    }

    fn ask(&self, host: &HostObservation) -> PyResult<Vec<Decision>> {
        let wrong = |error: serde_json::Error| {
            PyValueError::new_err(format!("the decisions of a policy cannot be read: {error}"))
        };
        let observation = serde_json::to_string(host).map_err(wrong)?;
        let decisions: String = Python::attach(|py| {
            let thread = py.import("threading")?.call_method0("get_ident")?;
            self.failure.asks(Some(thread.extract()?));
            let said = self.function.bind(py).call1((observation,));
            self.failure.asks(None);
            said?.extract()
        })?;
        let decisions: Vec<Decision> = serde_json::from_str(&decisions).map_err(wrong)?;
        for decision in &decisions {
            check_target(decision, host)?;
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

/// Returns an error if the VM or a vCPU of a decision does not exist.
fn check_target(decision: &Decision, host: &HostObservation) -> PyResult<()> {
    let refused = |text| Err(PyValueError::new_err(text));
    let vm = decision.vm();
    let Some(observed) = host.vm(vm) else {
        let vms: Vec<String> = host.vms.iter().map(|vm| vm.vm.to_string()).collect();
        let vms = vms.join(", ");
        return refused(format!(
            "a policy decides about VM {vm}, which does not exist; the VMs are {vms}"
        ));
    };
    let divided = match decision {
        Decision::Divide { portions, .. } => portions.as_slice(),
        _ => &[],
    };
    let divided = divided.iter().map(|(vcpu, _)| *vcpu);
    let mut vcpus = decision.vcpu().into_iter().chain(divided);
    let is_known = |vcpu: &VcpuId| observed.vcpus.iter().any(|known| known.vcpu == *vcpu);
    match vcpus.find(|vcpu| !is_known(vcpu)) {
        Some(vcpu) => refused(format!(
            "a policy decides about vCPU {vcpu} of VM {vm}, which has {} vCPUs",
            observed.vcpus.len()
        )),
        None => Ok(()),
    }
}

impl fmt::Debug for PythonPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PythonPolicy")
    }
}

impl Policy for PythonPolicy {
    fn decide(&mut self, host: &HostObservation, _scope: Scope, round: &mut Round) {
        // The function sees every period, even with idle pCPU time.
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

/// Progress that is cancelled if a policy fails.
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
