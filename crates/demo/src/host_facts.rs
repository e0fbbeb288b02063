//! What a reader must know of the host to judge figures: kernel, CPU, cgroup version, pCPUs.

use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::thread::Tid;
use tandem_linux::{ProcFs, cgroup};
use tandem_model::PcpuSet;
use tandem_report::experiment::Host;
use thiserror::Error;

/// The pCPUs of this process could not be read.
#[derive(Debug, Error)]
#[error("cannot tell which pCPUs this process may use")]
pub struct PcpusError(#[source] AffinityError);

/// The pCPUs that this process, and so its VMs, may use: all that are online, unless somebody
/// restricted us.
pub fn usable_pcpus() -> Result<PcpuSet, PcpusError> {
    // To the kernel, thread 0 is whoever asks.
    affinity(Tid(0)).map_err(PcpusError)
}

/// The host in words.
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
