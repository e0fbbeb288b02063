//! `fair`: each VM receives its fair share, by FlexW's weights and, if the operator allows it, by
//! moves of pinned vCPUs.

use super::config::{ControllerConfig, Placement};
use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope, Sight};
use crate::flexw::{FlexW, Round};
use crate::placement::Rebalancer;
use tandem_model::decision::Knob;
use tandem_model::observation::VmObservation;

/// The registry entry.
pub const ENTRY: Registered = Registered {
    name: "fair",
    about: "each VM receives its fair share, by weights and, if allowed, by moving pinned vCPUs",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity, Sight::IdleTime],
    turns: &[Knob::Weight, Knob::Affinity],
    excludes: &[],
    build: |config| Box::new(Fair::new(config)),
};

#[derive(Debug)]
struct Fair {
    weights: FlexW,
    /// `None`: affinities stay as they are.
    rebalancer: Option<Rebalancer>,
}

impl Fair {
    fn new(config: &ControllerConfig) -> Fair {
        Fair {
            weights: FlexW::new(config.flexw.clone()),
            rebalancer: (config.placement == Placement::Rebalance).then(Rebalancer::default),
        }
    }
}

impl Policy for Fair {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let Round { groups, decisions, .. } = self.weights.decide(host, |vm| scope.includes(vm));
        round.decisions.extend(decisions);
        if let Some(rebalancer) = &mut self.rebalancer {
            // A vCPU in turns that may roam has a slot for a while, which is no pin.
            let is_pinned = |vm: &VmObservation| vm.vcpus.iter().all(|v| v.granted().len() == 1);
            let movable =
                |vm: &VmObservation| scope.includes(vm) && (!vm.in_force.rotating || is_pinned(vm));
            let moves = rebalancer.decide(host.period, &host.vms, &groups, movable);
            round.decisions.extend(moves);
        }
        round.groups = groups;
    }
}
