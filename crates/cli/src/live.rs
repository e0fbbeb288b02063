//! Shared arguments of the demo and of benchmarks on live VMs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::placement::PlacementArg;
use clap::{Args, ValueEnum};
use tandem_command::number::time;
use tandem_demo::plan::DaemonPlan;
use tandem_demo::range::RangeError;
use tandem_demo::{daemon_process, range, state_dir};
use tandem_host::config::Placement;
use tandem_microvm::Backend;
use tandem_model::PolicySet;
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::host::registry;

/// The backend that runs the vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// Real KVM vCPUs
    Kvm,
    /// The same workloads on plain threads, for hosts without KVM
    Threads,
}

impl From<BackendArg> for Backend {
    fn from(backend: BackendArg) -> Backend {
        match backend {
            BackendArg::Kvm => Backend::Kvm,
            BackendArg::Threads => Backend::Threads,
        }
    }
}

/// How the daemon of mode `tandem` is started.
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    /// The daemon's accounting period, 30 … 1000 ms [default: the daemon's own]
    #[arg(long, value_name = "MS", value_parser = time::<u64>("milliseconds"))]
    period_ms: Option<u64>,
    /// May the daemon change where vCPUs run? [default: rebalance; in bench work and demos of free vCPUs: turns]
    #[arg(long, value_enum)]
    placement: Option<PlacementArg>,
    /// The policies of all VMs [default: the daemon's own]
    #[arg(long, value_name = "NAME,…", value_parser = policy_names)]
    policies: Option<PolicySet>,
    /// Which parts of the policy asymmetric act: time, latency, resolver [default: all]
    #[arg(long, value_name = "PART,…", value_parser = AsymmetricConfig::parse)]
    asymmetric: Option<AsymmetricConfig>,
}

/// Parses a list of policies.
pub fn policy_names(text: &str) -> Result<PolicySet, String> {
    let mut names = text.split([',', '+']).map(str::trim);
    if names.clone().count() > 1 && names.any(|name| name == "none") {
        Err("none excludes other policies: it means that no policy acts".to_owned())
    } else {
        registry::parse(text).map_err(|error| error.to_string())
    }
}

impl DaemonArgs {
    /// Returns the given options as on the command line.
    pub fn as_given(&self) -> String {
        let placement = self.placement.and_then(|arg| arg.to_possible_value());
        let policies = self.policies.map(daemon_process::policy_names);
        let period = self.period_ms.map(|ms| format!(" --period-ms {ms}"));
        let placement = placement.map(|value| format!(" --placement {}", value.get_name()));
        let policies = policies.map(|names| format!(" --policies {names}"));
        let parts = self.asymmetric.map(|parts| format!(" --asymmetric {parts}"));
        [period, placement, policies, parts].into_iter().flatten().collect()
    }

    /// Checks the arguments; `placement` is the default.
    pub fn plan(&self, placement: Placement) -> Result<DaemonPlan, RangeError> {
        Ok(DaemonPlan {
            period_ms: self.period_ms.map(range::period_ms).transpose()?,
            scan_ms: None,
            placement: self.placement.map_or(placement, Placement::from),
            policies: self.policies,
            asymmetric: self.asymmetric,
            counters: None,
        })
    }
}

/// For how long VMs are measured.
#[derive(Clone, Debug, Args)]
pub struct SecondsArgs {
    /// Measured time per mode and run, 0.5 … 3600 s
    #[arg(
        long,
        visible_alias = "duration",
        value_name = "TIME",
        default_value_t = 10.0,
        allow_negative_numbers = true,
        value_parser = time::<f64>("seconds")
    )]
    seconds: f64,
    /// Seconds to settle before, not counted, 0 … 600
    #[arg(
        long,
        value_name = "S",
        default_value_t = 2.0,
        allow_negative_numbers = true,
        value_parser = time::<f64>("seconds")
    )]
    settle_seconds: f64,
    /// Seconds for which each distinct VM is measured alone first, 0.5 … 60; 0: not at all (not in bench work)
    #[arg(
        long,
        value_name = "S",
        default_value_t = 2.0,
        allow_negative_numbers = true,
        value_parser = time::<f64>("seconds")
    )]
    alone_seconds: f64,
}

impl SecondsArgs {
    /// Returns `--seconds`.
    pub fn window(&self) -> Result<Duration, RangeError> {
        range::seconds("--seconds", self.seconds, 0.5, 3600.0)
    }

    /// Returns `--settle-seconds`.
    pub fn settle(&self) -> Result<Duration, RangeError> {
        range::seconds("--settle-seconds", self.settle_seconds, 0.0, 600.0)
    }

    /// Returns `--alone-seconds`, if work alone is the required baseline.
    pub fn alone(&self) -> Result<Duration, RangeError> {
        range::seconds("--alone-seconds", self.alone_seconds, 0.5, 60.0)
    }

    /// Returns `--alone-seconds`, or `None` for 0: VMs are not measured alone.
    pub fn alone_if_wanted(&self) -> Result<Option<Duration>, RangeError> {
        match self.alone_seconds {
            0.0 => Ok(None),
            _ => self.alone().map(Some),
        }
    }
}

/// Formats the options as on the command line.
impl fmt::Display for SecondsArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "--seconds {} --settle-seconds {} --alone-seconds {}",
            self.seconds, self.settle_seconds, self.alone_seconds
        )
    }
}

/// Returns the given state directory of an experiment, or the default one.
pub fn state_dir(given: Option<&PathBuf>) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    given.map_or_else(|| state_dir::default_for(uid), PathBuf::clone)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        seconds: SecondsArgs,
    }

    fn parse(args: &[&str]) -> SecondsArgs {
        let args = ["test"].iter().chain(args);
        Whole::try_parse_from(args).unwrap().seconds
    }

    #[test]
    fn seconds_have_defaults() {
        let text = "--seconds 10 --settle-seconds 2 --alone-seconds 2";
        assert_eq!(parse(&[]).to_string(), text);
        let typed = ["--seconds", "0.5", "--settle-seconds", "0"];
        let text = "--seconds 0.5 --settle-seconds 0 --alone-seconds 2";
        assert_eq!(parse(&typed).to_string(), text);
    }

    #[test]
    fn zero_skips_measurements_alone() {
        let none = parse(&["--alone-seconds", "0"]);
        assert_eq!(none.alone_if_wanted(), Ok(None));
        let error = none.alone().unwrap_err().to_string();
        assert!(error.contains("--alone-seconds 0 is not possible: 0.5 … 60"));
        let short = parse(&["--alone-seconds", "0.1"]);
        assert!(short.alone_if_wanted().is_err());
    }
}
