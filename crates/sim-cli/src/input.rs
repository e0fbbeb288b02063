//! Shared arguments of commands: the scenario with its changes, and the combinations of settings.

use std::path::PathBuf;

use clap::Args;
use tandem_experiment::input::source;
pub use tandem_experiment::input::workers;
use tandem_experiment::vary::Combination;
use tandem_experiment::{policies, vary};
use tandem_sim::scenario::load::Source;

/// The scenario and its changes.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// The scenario: a TOML file, see docs/reference/scenarios.md
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    /// Replace a value, such as host.scheduler=cfs, vm.0.vcpus=8, vm.*.idle=poll
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Seed of all randomness [default: the scenario's]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// How long to simulate, such as 200ms [default: the scenario's]
    #[arg(long, value_name = "TIME")]
    pub duration: Option<String>,
}

impl ScenarioArgs {
    /// Reads the scenario file, with the changes to apply.
    pub fn source(&self) -> anyhow::Result<Source> {
        let duration = self.duration.as_deref();
        Ok(source(&self.scenario, &self.settings, self.seed, duration)?)
    }
}

/// Returns the combinations of `--policies` and `--vary`.
pub fn combinations(policies: &[String], vary: &[String]) -> anyhow::Result<Vec<Combination>> {
    Ok(vary::combinations(policies::combinations(policies)?, vary)?)
}
