//! Options of `tandem host run` that are keys of the settings file since 0.2; they remain for one release, hidden.

use clap::Args;
use tandem_command::number::{real, whole};
use tandem_command::tell;
use tandem_host::config::HostConfig;
use tandem_linux::branch_counters::CounterChoice;
use tandem_linux::log::LevelFilter;
use tandem_policy::FlexWConfig;
use tandem_policy::asymmetric::AsymmetricConfig;

/// Settings of the control law and of single policies.
#[derive(Clone, Debug, Args)]
pub struct ExpertArgs {
    /// Accounting period, 30 … 1000 ms
    #[arg(long, hide = true, value_name = "MS", value_parser = whole(HostConfig::PERIODS_MS, "milliseconds"))]
    period_ms: Option<u64>,
    /// Fair window, 1 … 3600 s
    #[arg(long, hide = true, value_name = "S", value_parser = whole(HostConfig::FAIR_WINDOWS_S, "seconds"))]
    fair_window_s: Option<u64>,
    /// Interval of discovery, 100 … 60000 ms
    #[arg(long, hide = true, value_name = "MS", value_parser = whole(HostConfig::SCANS_MS, "milliseconds"))]
    scan_ms: Option<u64>,
    /// Gain of the control law, 0.001 … 1
    #[arg(long, hide = true, value_parser = real(FlexWConfig::GAINS), allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Smoothing of the control law, 0.001 … 1
    #[arg(long, hide = true, value_parser = real(FlexWConfig::SMOOTHINGS), allow_negative_numbers = true)]
    smoothing: Option<f64>,
    /// Dead band of the lag, 0 … 0.5
    #[arg(long, hide = true, value_parser = real(FlexWConfig::DEAD_BANDS), allow_negative_numbers = true)]
    dead_band: Option<f64>,
    /// Idle part of the pCPUs that counts as used, 0 … 0.5
    #[arg(long, hide = true, value_parser = real(FlexWConfig::IDLE_TOLERANCES), allow_negative_numbers = true)]
    idle_tolerance: Option<f64>,
    /// Maximum factor between configured and current weight, 1 … 1000
    #[arg(long, hide = true, value_parser = real(FlexWConfig::SPREADS), allow_negative_numbers = true)]
    spread: Option<f64>,
    /// Length of a turn, 5 … 100 ms
    #[arg(long, hide = true, value_name = "MS", value_parser = whole(HostConfig::TURNS_MS, "milliseconds"))]
    turn_ms: Option<u64>,
    /// Parts of the policy asymmetric: time, latency, resolver
    #[arg(long, hide = true, value_name = "PART,…", value_parser = AsymmetricConfig::parse)]
    asymmetric: Option<AsymmetricConfig>,
    /// Branch counters of the policy flexs: hardware or synthetic
    #[arg(long, hide = true, value_name = "SOURCE")]
    counters: Option<CounterChoice>,
}

/// Sets a value if it is given, and adds its key.
fn set<T>(slot: &mut T, given: Option<T>, key: &'static str, keys: &mut Vec<&'static str>) {
    if let Some(given) = given {
        *slot = given;
        keys.push(key);
    }
}

impl ExpertArgs {
    /// Overrides settings of the file; returns their keys.
    pub fn apply(self, config: &mut HostConfig) -> Vec<&'static str> {
        let mut keys = Vec::new();
        set(&mut config.period_ms, self.period_ms, "period_ms", &mut keys);
        set(&mut config.fair_window_s, self.fair_window_s, "fair_window_s", &mut keys);
        set(&mut config.scan_ms, self.scan_ms, "scan_ms", &mut keys);
        set(&mut config.gain, self.gain, "gain", &mut keys);
        set(&mut config.smoothing, self.smoothing, "smoothing", &mut keys);
        set(&mut config.dead_band, self.dead_band, "dead_band", &mut keys);
        set(&mut config.idle_tolerance, self.idle_tolerance, "idle_tolerance", &mut keys);
        set(&mut config.spread, self.spread, "spread", &mut keys);
        set(&mut config.turn_ms, self.turn_ms, "turn_ms", &mut keys);
        set(&mut config.asymmetric, self.asymmetric, "asymmetric", &mut keys);
        set(&mut config.counters, self.counters, "counters", &mut keys);
        keys
    }
}

/// Prints a line with the keys that replace the given options.
pub fn hint(keys: &[&str]) {
    if keys.is_empty() || tandem_command::console::level() < LevelFilter::INFO {
        return;
    }
    let options: Vec<String> =
        keys.iter().map(|key| format!("--{}", key.replace('_', "-"))).collect();
    tell!(
        "tandem: set {} in the section [host] of a settings file (--config) instead of {}; the next release removes these options",
        keys.join(", "),
        options.join(", ")
    );
}
