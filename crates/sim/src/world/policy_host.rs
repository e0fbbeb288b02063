//! The simulated host's state for the controller of policies: the controller itself, and the values that it has set.

use tandem_model::{PolicySet, VcpuSettings, Weight};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Controller, HostObservation, WeightKnob};

/// The controller of policies, its last observation, and the values that it has set.
pub(crate) struct Policies {
    /// `None` while it decides, and without any enabled policy.
    pub controller: Option<Controller>,
    pub knob: WeightKnob,
    /// By vCPU, at the last observation: run time, wait time, number of times switched in.
    pub seen: Vec<(u64, u64, u64)>,
    /// By VM: the configured weight, the policies that may act on it, and whether it is in the idle class.
    pub vms: Vec<(Weight, PolicySet, bool)>,
    /// Current values by vCPU, except the affinity.
    pub vcpus: Vec<VcpuSettings>,
    /// Observations and decisions, if they are recorded.
    pub recording: Option<Vec<(HostObservation, Round)>>,
}

impl Policies {
    /// State for VMs with these weights and policies, and vCPUs with these settings.
    pub fn new(
        controller: Option<Controller>,
        knob: WeightKnob,
        vms: Vec<(Weight, PolicySet)>,
        vcpus: Vec<VcpuSettings>,
    ) -> Policies {
        let vms = vms.into_iter();
        Policies {
            controller,
            knob,
            seen: vec![(0, 0, 0); vcpus.len()],
            vms: vms.map(|(weight, set)| (weight, set, false)).collect(),
            vcpus,
            recording: None,
        }
    }
}
