//! The simulator from Python: the native half of the wheel `tandem-sched`.
//!
//! - `scenario`: scenarios of TOML and dictionaries.
//! - `simulate`: `run` and `compare` with what comes out; `sweep`: grids, whole or in shards.
//! - `policy`: policies written in Python.
//! - `table`: figures as Arrow, which other libraries take without copying (the Arrow PyCapsule interface).
//! - `watch`: work on another thread, while this one tells progress and hears Ctrl-C.
//! - `errors`: our errors as exceptions.
//!
//! Everything is thin: what is simulated is `tandem_experiment`, what is shown is `tandem_report`, so a result here is
//! the command line's to the byte. Arguments in Python's own types, defaults and documentation are in
//! `python/tandem_sched`, whose classes wrap these.

mod errors;
mod policy;
mod scenario;
mod simulate;
mod sweep;
mod table;
mod watch;

/// What `tandem_sched` is made of; not for direct use.
#[pyo3::pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::errors::ScenarioError;
    #[pymodule_export]
    use crate::scenario::Source;
    #[pymodule_export]
    use crate::simulate::Comparison;
    #[pymodule_export]
    use crate::simulate::Run;
    #[pymodule_export]
    use crate::simulate::run;
    #[pymodule_export]
    use crate::simulate::run_comparison;
    #[pymodule_export]
    use crate::sweep::Grid;
    #[pymodule_export]
    use crate::sweep::Sweep;
    #[pymodule_export]
    use crate::table::Table;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("VERSION", env!("CARGO_PKG_VERSION"))
    }
}
