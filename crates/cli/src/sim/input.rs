//! Arguments that commands share: the scenario, what is varied in it, how many runs and workers.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use tandem_experiment::input::source;
use tandem_experiment::policies;
use tandem_experiment::vary;
use tandem_experiment::vary::Combination;
use tandem_sim::scenario::load::Source;

/// Which scenario, and what is different in it.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// The scenario: a TOML file, see docs/scenarios.md
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Replace a value, such as host.scheduler=cfs, vm.0.vcpus=8, vm.*.idle=poll
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Seed of all randomness [default: the scenario's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long to simulate, such as 200ms [default: the scenario's]
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,
}

impl ScenarioArgs {
    /// Reads the file and notes what is different.
    pub fn source(&self) -> anyhow::Result<Source> {
        let duration = self.duration.as_deref();
        Ok(source(&self.scenario, &self.settings, self.seed, duration)?)
    }
}

/// The combinations of `--policies` and `--vary`.
pub fn combinations(policies: &[String], vary: &[String]) -> anyhow::Result<Vec<Combination>> {
    Ok(vary::combinations(policies::combinations(policies)?, vary)?)
}

/// How many worker threads are meant; refuses numbers of runs and workers that are not possible.
pub fn workers(runs: u32, workers: Option<usize>) -> anyhow::Result<usize> {
    ensure!(
        (1..=1000).contains(&runs),
        "--runs {runs} is not possible: 1 … 1000"
    );
    let Some(workers) = workers else {
        return Ok(std::thread::available_parallelism().map_or(1, usize::from));
    };
    ensure!(
        (1..=1024).contains(&workers),
        "--workers {workers} is not possible: 1 … 1024"
    );
    Ok(workers)
}
