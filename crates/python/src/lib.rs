//! The simulator from Python: the native half of the wheel `tandem-sched`.
//!
//! - `scenario`: scenarios from TOML and dictionaries.
//! - `simulate`: `run` and `compare` with their results; `sweep`: grids, whole or in shards.
//! - `policy`: policies written in Python.
//! - `table`: figures as Arrow tables, which other libraries use without copying (the Arrow PyCapsule interface).
//! - `watch`: work on another thread, with progress and Ctrl-C on the calling thread.
//! - `errors`: conversion of errors to exceptions.
//!
//! This layer is thin: `tandem_experiment` simulates and `tandem_sim_report` formats results, so results equal those of the
//! command line byte for byte.
//! The classes in `python/tandem_sched` wrap the native ones; they have the Python types, defaults and documentation.

mod errors;
mod policy;
mod scenario;
mod simulate;
mod sweep;
mod table;
mod watch;

/// The native half of `tandem_sched`; not for direct use.
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
