//! What a host policy is: a type that turns an observation of the host into decisions, and an entry that says what it needs.

use std::fmt::Debug;

use super::config::ControllerConfig;
use super::observation::HostObservation;
use crate::flexw::Round;
use tandem_model::decision::Knob;
use tandem_model::observation::VmObservation;
use tandem_model::policy_set::PolicyId;

/// A policy of the host.
pub trait Policy: Debug + Send {
    /// Takes in what happened in a period, and adds to `round` what to change.
    ///
    /// It may look at every VM, and act on those of `scope`: decisions about others are dropped. Values need not be
    /// rounded, and what is in force already need not be left out: the controller does both.
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

/// What a policy needs to see besides which VMs and vCPUs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// What each vCPU ran and waited.
    RunAndWait,
    /// Whether quiet vCPUs are asleep or starved.
    Runnable,
    /// Where vCPUs may run.
    Affinity,
    /// Each pCPU's idle time.
    IdleTime,
    /// What vCPUs' branch counters count. Live hosts only: simulated ones have FlexS in the scheduler.
    Branches,
}

/// A policy's entry in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Its name, for `--policies` and configuration files.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// What it needs to see.
    pub sees: &'static [Sight],
    /// The knobs that it may turn; decisions about others are dropped.
    pub turns: &'static [Knob],
    /// Policies that cannot act on the same VM.
    pub excludes: &'static [&'static str],
    /// Makes one that has seen nothing yet.
    pub build: fn(&ControllerConfig) -> Box<dyn Policy>,
}
