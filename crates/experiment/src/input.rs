//! A scenario's file with what is different in it, as it is asked for in words; how many runs and workers.

use std::path::Path;

use tandem_sim::scenario::load::{LoadError, Setting, Source};
use thiserror::Error;

/// Runs of each combination at most.
const MOST_RUNS: u32 = 1000;

/// Worker threads at most.
const MOST_WORKERS: usize = 1024;

/// A number of runs or workers that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// Of runs.
    #[error("--runs {0} is not possible: 1 … {MOST_RUNS}")]
    Runs(u32),
    /// Of workers.
    #[error("--workers {0} is not possible: 1 … {MOST_WORKERS}")]
    Workers(usize),
}

/// How many worker threads are meant: one for each CPU unless it is said; refuses numbers of runs and workers that are not possible.
pub fn workers(runs: u32, workers: Option<usize>) -> Result<usize, InputError> {
    if !(1..=MOST_RUNS).contains(&runs) {
        return Err(InputError::Runs(runs));
    }
    match workers {
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Some(workers) if (1..=MOST_WORKERS).contains(&workers) => Ok(workers),
        Some(workers) => Err(InputError::Workers(workers)),
    }
}

/// Reads a scenario and notes what is different: settings as `KEY=VALUE`, the seed, and how long to
/// simulate, such as `200ms`; later ones replace what earlier ones said.
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
