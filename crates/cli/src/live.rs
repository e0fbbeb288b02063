//! Arguments that the demo and the benches on live VMs share.

use std::path::PathBuf;

use crate::placement::PlacementArg;
use clap::Args;
use clap::ValueEnum;
use tandem_bench::plan::DaemonPlan;
use tandem_bench::range;
use tandem_bench::range::RangeError;
use tandem_bench::state_dir;
use tandem_microvm::Backend;

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
    /// May the daemon change where vCPUs run?
    #[arg(long, value_enum, default_value = "rebalance")]
    placement: PlacementArg,
}

impl DaemonArgs {
    /// The checked form.
    pub fn plan(&self) -> Result<DaemonPlan, RangeError> {
        Ok(DaemonPlan {
            period_ms: self.period_ms.map(range::period_ms).transpose()?,
            placement: self.placement.into(),
        })
    }
}

/// Where an experiment works: where it was told to, or where experiments do.
pub fn state_dir(given: Option<&PathBuf>) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    given.map_or_else(|| state_dir::default_for(uid), PathBuf::clone)
}
