//! `configured`: each VM has its configured weight and nothing more, what a cgroup of its own gives it. What people do today,
//! and so the baseline; also for single VMs whose weight nobody is to move.

use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope};
use crate::flexw::Round;
use tandem_model::decision::{Because, Decision, Knob, Target};

/// The entry.
pub const ENTRY: Registered = Registered {
    name: "configured",
    about: "each VM has its configured weight, in a group of its own, and nothing more",
    sees: &[],
    turns: &[Knob::Weight],
    excludes: &["fair"],
    build: |_| Box::new(Configured),
};

#[derive(Debug)]
struct Configured;

impl Policy for Configured {
    fn decide(&mut self, host: &HostObservation, scope: Scope, round: &mut Round) {
        let vms = host.vms.iter().filter(|vm| scope.includes(vm));
        round.decisions.extend(vms.map(|vm| Decision::SetWeight {
            target: Target::Vm(vm.vm),
            weight: vm.weight,
            because: Because::Configured,
        }));
    }
}
