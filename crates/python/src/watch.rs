//! Runs work on another thread, with progress and Ctrl-C on the calling thread.
//!
//! Python delivers signals only to its main thread, and only while it runs Python code.
//! So the work runs on another thread without the interpreter, and this thread checks for signals every [`PERIOD`].
//! An exception of a signal handler or of the progress function cancels the work, and is raised when the work has ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tandem_experiment::progress::Progress;
use tandem_model::Nanos;

/// Interval of checks for signals and of progress reports.
const PERIOD: Duration = Duration::from_millis(50);

/// Progress of the work.
#[derive(Debug, Default)]
struct State {
    total: AtomicU64,
    done: AtomicU64,
    what: Mutex<String>,
    cancelled: AtomicBool,
    ended: AtomicBool,
}

impl Progress for State {
    fn begin(&self, total: Nanos) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total.0, Ordering::Relaxed);
    }

    fn say(&self, what: &str) {
        if let Ok(mut said) = self.what.lock() {
            what.clone_into(&mut said);
        }
    }

    fn add(&self, time: Nanos) {
        self.done.fetch_add(time.0, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl State {
    /// Calls `listener(done, total, what)` with times in simulated seconds.
    fn tell(&self, listener: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(listener) = listener else {
            return Ok(());
        };
        let seconds = |time: &AtomicU64| Nanos(time.load(Ordering::Relaxed)).as_secs_f64();
        let what = self.what.lock().map_or_else(|_| String::new(), |what| what.clone());
        listener.call1((seconds(&self.done), seconds(&self.total), what))?;
        Ok(())
    }
}

/// Runs the work; calls `listener` with its progress.
pub fn watched<T: Send>(
    py: Python<'_>,
    listener: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&dyn Progress) -> T + Send,
) -> PyResult<T> {
    interruptible(py, listener, || {}, work)
}

/// Runs work that may call Python; after a cancellation, calls `interrupt` periodically until the work ends.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    listener: Option<&Bound<'_, PyAny>>,
    interrupt: impl Fn(),
    work: impl FnOnce(&dyn Progress) -> T + Send,
) -> PyResult<T> {
    let state = State::default();
    let watcher = std::thread::current();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Its drop also handles a panic of the work.
            let _ended = Ended(&state, watcher);
            work(&state)
        });
        let mut raised = None;
        while !state.ended.load(Ordering::Acquire) {
            py.detach(|| std::thread::park_timeout(PERIOD));
            if raised.is_some() {
                interrupt();
                continue;
            }
            if let Err(error) = py.check_signals().and_then(|()| state.tell(listener)) {
                state.cancelled.store(true, Ordering::Relaxed);
                raised = Some(error);
            }
        }
        if raised.is_none() {
            raised = state.tell(listener).err();
        }
        let done = worker.join();
        match (raised, done) {
            (Some(error), _) => Err(error),
            (None, Ok(done)) => Ok(done),
            (None, Err(_)) => Err(PyRuntimeError::new_err(
                "the simulator panicked, which is a bug in Tandem: please report it with the scenario",
            )),
        }
    })
}

/// Signals the end of the work on drop.
struct Ended<'a>(&'a State, std::thread::Thread);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.1.unpark();
    }
}
