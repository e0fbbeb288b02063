//! A plan for tests: VMs by their vCPUs, weights and workloads, pinned in turn.

use std::path::PathBuf;
use std::time::Duration;

use tandem_host::config::Placement;
use tandem_model::PcpuSet;

use crate::mode::Mode;
use crate::plan::{DaemonPlan, Pinning, Plan, place, vms_of_mix};

/// Returns a plan with ten seconds of each mode of the demo; `workloads` has one for all VMs, or one per VM.
pub fn plan(mix: &str, weights: &str, workloads: &str, pcpus: &str) -> Plan {
    let pcpus: PcpuSet = pcpus.parse().unwrap();
    let mut vms = vms_of_mix(mix, Some(weights), workloads).unwrap();
    if workloads.contains(',') {
        for (vm, workload) in vms.iter_mut().zip(workloads.split(',')) {
            vm.workload = workload.to_owned();
        }
    }
    Plan {
        vms: place(vms, &pcpus, Pinning::RoundRobin).unwrap(),
        modes: Mode::DEMO.to_vec(),
        window: Duration::from_secs(10),
        settle: Duration::from_secs(2),
        backend: None,
        seed: 1,
        daemon: DaemonPlan {
            policies: None,
            asymmetric: None,
            counters: None,
            period_ms: None,
            scan_ms: None,
            placement: Placement::Rebalance,
        },
        state_dir: PathBuf::new(),
        pcpus,
        alone: None,
    }
}
