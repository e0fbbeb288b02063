//! The thread of a managed vCPU, and its samples.

use tandem_linux::sampler::{Sampler, VcpuSample};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, PcpuSet, VcpuObservation};

use crate::quotas::CapId;
use crate::vm_cpu::VcpuCpu;

/// Periods between two reads of the state of a quiet vCPU, after one read when it becomes quiet.
const LOOK_EVERY: u32 = 10;

/// The thread of a managed vCPU.
#[derive(Debug)]
pub(crate) struct LiveVcpu {
    pub(crate) thread: ThreadRef,
    pub(crate) last: Option<VcpuSample>,
    /// The pCPUs of its cpuset; `None` if no cpuset is known to restrict it, or no policy uses this.
    pub(crate) cpuset: Option<PcpuSet>,
    /// The quotas of the cgroups at and above its own; `None`: not read yet.
    pub(crate) quotas: Option<Vec<CapId>>,
    /// Periods in a row without any run or wait, and whether it was runnable when last looked at.
    quiet: u32,
    runnable: bool,
}

impl LiveVcpu {
    /// Returns a vCPU without samples.
    pub(crate) fn new(thread: ThreadRef) -> LiveVcpu {
        LiveVcpu { thread, last: None, cpuset: None, quotas: None, quiet: 0, runnable: true }
    }

    /// Returns the known quotas at and above its cgroup.
    pub(crate) fn caps(&self) -> &[CapId] {
        self.quotas.as_deref().unwrap_or_default()
    }

    /// Keeps `runnable` up to date without a read per period for vCPUs that sleep long.
    fn note_activity(&mut self, active: Nanos, closely: bool, sampler: &Sampler) {
        if active > Nanos::ZERO {
            (self.quiet, self.runnable) = (0, true);
            return;
        }
        self.quiet = self.quiet.saturating_add(1);
        if closely && (self.quiet == 1 || self.quiet.is_multiple_of(LOOK_EVERY)) {
            self.runnable = sampler.read_state(&self.thread).is_ok_and(|state| state.is_runnable());
        } else if !closely {
            self.runnable = false;
        }
    }
}

/// Returns a vCPU's run and wait times since the last sample, times `scale`; zero without an earlier sample.
pub(crate) fn observe(
    vcpu: &mut VcpuCpu,
    sample: VcpuSample,
    scale: f64,
    closely: bool,
    sampler: &Sampler,
) -> VcpuObservation {
    let live = &mut vcpu.host;
    let fresh = VcpuObservation {
        in_force: vcpu.settings,
        granted: vcpu.granted.clone(),
        cpuset: live.cpuset.clone(),
        ..VcpuObservation::new(vcpu.id, vcpu.allowed.clone())
    };
    let Some(last) = live.last.replace(sample) else {
        return fresh;
    };
    let scaled =
        |now: Nanos, then: Nanos| Nanos((now.saturating_sub(then).0 as f64 * scale) as u64);
    let ran = scaled(sample.ran, last.ran);
    let waited = scaled(sample.waited, last.waited);
    live.note_activity(ran + waited, closely, sampler);
    VcpuObservation {
        ran,
        waited,
        runs: Some((sample.runs.saturating_sub(last.runs) as f64 * scale) as u64),
        runnable: live.runnable,
        ..fresh
    }
}
