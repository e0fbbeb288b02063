//! Arguments that the demo and the benches on live VMs share.

use std::path::PathBuf;
use std::time::Duration;

use crate::placement::PlacementArg;
use clap::Args;
use clap::ValueEnum;
use tandem_bench::daemon_process;
use tandem_bench::plan::DaemonPlan;
use tandem_bench::range;
use tandem_bench::range::RangeError;
use tandem_bench::state_dir;
use tandem_host::config::Placement;
use tandem_microvm::Backend;
use tandem_policy::PolicySet;
use tandem_policy::host::registry;

/// Seconds for which each distinct VM is measured alone unless told otherwise.
pub const ALONE_SECONDS: f64 = 2.0;

/// What runs the vCPUs.
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
    #[arg(long, value_name = "MS")]
    period_ms: Option<u64>,
    /// May the daemon change where vCPUs run? [default: rebalance; in bench work and demos of free vCPUs: turns]
    #[arg(long, value_enum)]
    placement: Option<PlacementArg>,
    /// The policies of all VMs [default: the daemon's own]
    #[arg(long, value_name = "NAME,…", value_parser = policy_names)]
    policies: Option<PolicySet>,
}

/// A list of policies, for an argument.
pub fn policy_names(text: &str) -> Result<PolicySet, String> {
    registry::parse(text).map_err(|error| error.to_string())
}

impl DaemonArgs {
    /// What was given, as it was given.
    pub fn as_given(&self) -> String {
        let placement = self.placement.and_then(|arg| arg.to_possible_value());
        let policies = self.policies.map(daemon_process::policy_names);
        let period = self.period_ms.map(|ms| format!(" --period-ms {ms}"));
        let placement = placement.map(|value| format!(" --placement {}", value.get_name()));
        let policies = policies.map(|names| format!(" --policies {names}"));
        [period, placement, policies]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The checked form, with the placement that is meant where none was given.
    pub fn plan(&self, placement: Placement) -> Result<DaemonPlan, RangeError> {
        Ok(DaemonPlan {
            period_ms: self.period_ms.map(range::period_ms).transpose()?,
            placement: self.placement.map_or(placement, Placement::from),
            policies: self.policies,
        })
    }
}

/// Where an experiment works: where it was told to, or where experiments do.
pub fn state_dir(given: Option<&PathBuf>) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    given.map_or_else(|| state_dir::default_for(uid), PathBuf::clone)
}

/// `--alone-seconds`, of which 0 means that VMs are not measured alone.
pub fn alone(seconds: f64) -> Result<Option<Duration>, RangeError> {
    match seconds {
        0.0 => Ok(None),
        seconds => range::seconds("--alone-seconds", seconds, 0.5, 60.0).map(Some),
    }
}
