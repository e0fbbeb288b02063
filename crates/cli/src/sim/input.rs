//! Arguments that `run` and `compare` share, and the scenario they mean.

use std::path::PathBuf;

use clap::Args;
use tandem_sim::scenario::load::Setting;
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
        let mut source = Source::read(&self.scenario)?;
        for setting in &self.settings {
            source.set(Setting::parse(setting)?);
        }
        if let Some(seed) = self.seed {
            source.set(Setting::parse(&format!("seed={seed}"))?);
        }
        if let Some(duration) = &self.duration {
            source.set(Setting::parse(&format!("duration={duration}"))?);
        }
        Ok(source)
    }
}
