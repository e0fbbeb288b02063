//! What the simulated host keeps for the controller of policies: the controller itself, and what it has set.

use tandem_model::{PolicySet, VcpuSettings, Weight};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Controller, HostObservation, WeightKnob};

/// What the controller of policies knows of the host, and what it has set.
pub(crate) struct Policies {
    /// `None` while it decides, and where no policy is in use.
    pub controller: Option<Controller>,
    pub knob: WeightKnob,
    /// For each vCPU: ran, waited and put on a pCPU when it was last observed.
    pub seen: Vec<(u64, u64, u64)>,
    /// Of each VM: its configured weight, the policies that may act on it, whether it is in the idle class.
    pub vms: Vec<(Weight, PolicySet, bool)>,
    /// Of each vCPU: what is in force besides the affinity.
    pub vcpus: Vec<VcpuSettings>,
    /// What was observed and decided, if that is asked for.
    pub recording: Option<Vec<(HostObservation, Round)>>,
}

impl Policies {
    /// For VMs with these weights and policies, whose vCPUs have these settings.
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
