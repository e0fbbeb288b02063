//! `configured`: each VM has its configured weight in a cgroup of its own, and nothing more.
//! This is common practice, and so the baseline. It also suits single VMs whose weight must not change.

use super::observation::HostObservation;
use super::policy::{Policy, Registered, Scope};
use crate::flexw::Round;
use tandem_model::decision::{Because, Decision, Knob, Target};

/// The registry entry.
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
