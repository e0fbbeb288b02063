//! CPU time that vCPU threads received, and what the pCPUs had left, read at one moment.
//!
//! The numbers are those of the host crate's sampler: `schedstat` of each thread (brought up to date
//! at ticks and context switches, so up to one tick late at either end of a window) and idle time of
//! `/proc/stat` (in ticks of 10 ms). All VMs are read one right after the other against one clock,
//! so that their shares of a window add up.

use std::time::Instant;

use tandem_linux::sampler::{SampleError, Sampler, VcpuSample};
use tandem_model::{Nanos, PcpuSet};
use thiserror::Error;

use crate::vm_process::VmProcess;

/// CPU time of the host outside the VMs from which on a note tells of it, as a part of the pCPUs.
const OTHERS: f64 = 0.05;

/// CPU time that went neither to VMs nor to idleness, in pCPUs, if it is enough to matter.
pub fn others(pcpus: usize, vms: f64, idle: f64) -> Option<f64> {
    let others = pcpus as f64 - vms - idle;
    (others > OTHERS * pcpus as f64).then_some(others)
}

/// Why CPU time could not be read.
#[derive(Debug, Error)]
pub enum ReadingError {
    /// Of a VM's thread.
    #[error("a VM ended while it was measured")]
    Vm(#[source] SampleError),
    /// Of the pCPUs.
    #[error("idle time of the pCPUs")]
    Idle(#[source] SampleError),
}

/// All VMs and the idle time of their pCPUs at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When.
    pub at: Instant,
    /// Per VM, per vCPU, since the thread started.
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

    /// Seconds since `earlier`.
    pub fn seconds_since(&self, earlier: &Reading) -> f64 {
        self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// Each VM's share since `earlier`, in pCPUs.
    pub fn shares_since(&self, earlier: &Reading) -> Vec<f64> {
        let seconds = self.seconds_since(earlier);
        let ran = |vm: &[VcpuSample]| vm.iter().map(|vcpu| vcpu.ran).sum::<Nanos>();
        self.vms
            .iter()
            .zip(&earlier.vms)
            .map(|(now, then)| ran(now).saturating_sub(ran(then)).as_secs_f64() / seconds)
            .collect()
    }

    /// Idle time since `earlier`, in pCPUs.
    pub fn idle_since(&self, earlier: &Reading) -> f64 {
        self.idle.saturating_sub(earlier.idle).as_secs_f64() / self.seconds_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_others_took_matters_from_a_twentieth_on() {
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
