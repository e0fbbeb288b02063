//! CPU time of vCPU threads and idle time of pCPUs, read together.
//!
//! The values come from the `linux` crate's sampler.
//! `schedstat` of each thread is updated at ticks and context switches, so it lags by up to one tick.
//! Idle time comes from `/proc/stat`, in ticks of 10 ms.
//! All VMs are read in direct succession with one timestamp, so that their shares of a window add up.

use std::time::Instant;

use tandem_linux::sampler::{SampleError, Sampler, VcpuSample};
use tandem_model::{Nanos, PcpuSet};
use thiserror::Error;

use crate::vm_process::VmProcess;

/// Minimum CPU time of the host outside the VMs that is significant, as a part of the pCPUs.
const OTHERS: f64 = 0.05;

/// Returns the CPU time that was neither used by VMs nor idle, in pCPUs, if it is significant.
pub fn others(pcpus: usize, vms: f64, idle: f64) -> Option<f64> {
    let others = pcpus as f64 - vms - idle;
    (others > OTHERS * pcpus as f64).then_some(others)
}

/// CPU time could not be read.
#[derive(Debug, Error)]
pub enum ReadingError {
    /// CPU time of a VM's thread.
    #[error("a VM ended while it was measured")]
    Vm(#[source] SampleError),
    /// Idle time of the pCPUs.
    #[error("cannot read the idle time of the pCPUs")]
    Idle(#[source] SampleError),
}

/// CPU time of all VMs and idle time of their pCPUs at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Time of the reading.
    pub at: Instant,
    /// Per VM and vCPU, since the start of the thread.
    pub vms: Vec<Vec<VcpuSample>>,
    /// Idle time of all pCPUs that VMs may use, since boot.
    pub idle: Nanos,
}

impl Reading {
    /// Reads all threads of `vms`.
    pub fn take(
        sampler: &mut Sampler,
        vms: &[VmProcess],
        pcpus: &PcpuSet,
    ) -> Result<Reading, ReadingError> {
        let at = Instant::now();
        let mut samples = Vec::with_capacity(vms.len());
        for vm in vms {
            let threads = vm.threads().iter();
            let vm: Result<Vec<VcpuSample>, _> = threads.map(|t| sampler.sample(t)).collect();
            samples.push(vm.map_err(ReadingError::Vm)?);
        }
        let idle = sampler.pcpu_idle().map_err(ReadingError::Idle)?;
        let ours = idle.iter().filter(|(pcpu, _)| pcpus.contains(**pcpu));
        Ok(Reading { at, vms: samples, idle: ours.map(|(_, &idle)| idle).sum() })
    }

    /// Returns the seconds since `earlier`.
    pub fn seconds_since(&self, earlier: &Reading) -> f64 {
        self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// Returns each VM's share since `earlier`, in pCPUs.
    pub fn shares_since(&self, earlier: &Reading) -> Vec<f64> {
        let seconds = self.seconds_since(earlier);
        let ran = |vm: &[VcpuSample]| vm.iter().map(|vcpu| vcpu.ran).sum::<Nanos>();
        self.vms
            .iter()
            .zip(&earlier.vms)
            .map(|(now, then)| ran(now).saturating_sub(ran(then)).as_secs_f64() / seconds)
            .collect()
    }

    /// Returns the idle time since `earlier`, in pCPUs.
    pub fn idle_since(&self, earlier: &Reading) -> f64 {
        self.idle.saturating_sub(earlier.idle).as_secs_f64() / self.seconds_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn other_load_is_significant_from_five_percent() {
        assert_eq!(others(2, 1.5, 0.25), Some(0.25));
        assert_eq!(others(2, 1.75, 0.2), None);
    }

    #[test]
    fn shares_and_idle_time_are_in_pcpus() {
        let at = Instant::now();
        let sample = |ms: u64| VcpuSample { ran: Nanos::from_millis(ms), ..VcpuSample::default() };
        let before = Reading {
            at,
            vms: vec![vec![sample(0), sample(100)], vec![sample(0)]],
            idle: Nanos::ZERO,
        };
        let after = Reading {
            at: at + Duration::from_secs(2),
            vms: vec![vec![sample(2000), sample(1100)], vec![sample(1000)]],
            idle: Nanos::from_millis(500),
        };
        assert_eq!(after.shares_since(&before), [1.5, 0.5]);
        assert_eq!(after.idle_since(&before), 0.25);
    }
}
