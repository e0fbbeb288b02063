//! Facts of the host that readers of figures need: kernel, CPU, cgroup version, pCPUs.

use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::thread::Tid;
use tandem_linux::{ProcFs, cgroup};
use tandem_model::PcpuSet;
use tandem_report::experiment::Host;
use thiserror::Error;

/// The affinity of this process could not be read.
#[derive(Debug, Error)]
#[error("cannot read the pCPUs that this process may use")]
pub struct PcpusError(#[source] AffinityError);

/// Returns the pCPUs that this process, and so its VMs, may use: all online ones, unless its affinity is restricted.
pub fn usable_pcpus() -> Result<PcpuSet, PcpusError> {
    // Thread 0 stands for the calling thread.
    affinity(Tid(0)).map_err(PcpusError)
}

/// Reads the description of the host.
pub fn read() -> Host {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    Host {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: model,
        cgroup: match cgroup::open(&ProcFs::host()) {
            Ok(controller) => controller.version().to_string(),
            Err(_) => "none".to_owned(),
        },
    }
}
