//! Scenario file with settings from the command line, and checks of the numbers of runs and workers.

use std::path::Path;

use tandem_sim::scenario::load::{LoadError, Setting, Source};
use thiserror::Error;

/// Maximum number of runs of each combination.
const MAX_RUNS: u32 = 1000;

/// Maximum number of worker threads.
const MAX_WORKERS: usize = 1024;

/// An invalid number of runs or workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// The number of runs is out of range.
    #[error("--runs {0} is not possible: 1 … {MAX_RUNS}")]
    Runs(u32),
    /// The number of workers is out of range.
    #[error("--workers {0} is not possible: 1 … {MAX_WORKERS}")]
    Workers(usize),
}

/// Checks the numbers of runs and workers, and returns the number of workers: by default one per CPU.
pub fn workers(runs: u32, workers: Option<usize>) -> Result<usize, InputError> {
    if !(1..=MAX_RUNS).contains(&runs) {
        return Err(InputError::Runs(runs));
    }
    match workers {
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Some(workers) if (1..=MAX_WORKERS).contains(&workers) => Ok(workers),
        Some(workers) => Err(InputError::Workers(workers)),
    }
}

/// Reads a scenario and applies settings (`KEY=VALUE`), the seed and the duration (such as `200ms`).
///
/// Later settings override earlier ones.
pub fn source(
    path: &Path,
    settings: &[String],
    seed: Option<u64>,
    duration: Option<&str>,
) -> Result<Source, LoadError> {
    let mut source = Source::read(path)?;
    for setting in settings {
        source.set(Setting::parse(setting)?);
    }
    if let Some(seed) = seed {
        source.set(Setting::parse(&format!("seed={seed}"))?);
    }
    if let Some(duration) = duration {
        source.set(Setting::parse(&format!("duration={duration}"))?);
    }
    Ok(source)
}
