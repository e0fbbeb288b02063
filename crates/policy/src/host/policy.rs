//! Host policies: a type that turns an observation of the host into decisions, and a registry entry with its needs.

use std::fmt::Debug;

use super::config::ControllerConfig;
use super::observation::HostObservation;
use crate::flexw::Round;
use tandem_model::decision::Knob;
use tandem_model::observation::VmObservation;
use tandem_model::policy_set::PolicyId;

/// A policy of the host.
pub trait Policy: Debug + Send {
    /// Adds the changes that an observed period calls for to `round`.
    ///
    /// The policy may look at every VM, and act on those of `scope`: decisions about others are dropped.
    /// The controller rounds values and drops unchanged settings.
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round);
}

/// The VMs that a policy may act on.
#[derive(Clone, Copy, Debug)]
pub struct Scope(pub PolicyId);

impl Scope {
    /// Whether the policy may act on this VM.
    pub fn includes(self, vm: &VmObservation) -> bool {
        vm.policies.contains(self.0)
    }
}

/// Observations that a policy needs in addition to the lists of VMs and vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Running and waiting time of each vCPU.
    RunAndWait,
    /// Whether quiet vCPUs are asleep or starved.
    Runnable,
    /// Affinity of each vCPU.
    Affinity,
    /// Each pCPU's idle time.
    IdleTime,
    /// Branch counters of vCPUs. Live hosts only: simulated ones have FlexS in the scheduler.
    Branches,
}

/// A policy's entry in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Its name, for `--policies` and configuration files.
    pub name: &'static str,
    /// Its description, in a sentence.
    pub about: &'static str,
    /// Observations that it needs.
    pub sees: &'static [Sight],
    /// Knobs that it may set; decisions about others are dropped.
    pub turns: &'static [Knob],
    /// Policies that cannot act on the same VM.
    pub excludes: &'static [&'static str],
    /// Creates an instance without observations.
    pub build: fn(&ControllerConfig) -> Box<dyn Policy>,
}
