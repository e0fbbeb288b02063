//! Log lines about the daemon's decisions, for dry runs and verbose logs.

use std::mem::discriminant;

use tandem_linux::log::RESULT;
use tandem_model::{Decision, Target};
use tandem_policy::host::{HostObservation, Period};
use tracing::{debug, info};

use super::Daemon;
use crate::apply::Applied;
use crate::demands;

impl Daemon {
    /// Logs in a dry run the demands of vCPUs, and the VMs that the policy leaves alone.
    pub(super) fn log_demands(&self, period: &Period<Applied>) {
        for (vm, state, line) in demands::lines(period.observation.period, &period.round) {
            if let Some(managed) = self.fleet.vm(vm) {
                info!(subject = ?("demands", vm), ?state, "VM {} {line}", managed.vm.name);
            }
        }
    }

    /// Logs each decision once, until its text or the kind of its reason changes; the figures of a reason always change.
    pub(super) fn log_decisions(&self, period: &Period<Applied>) {
        for decision in &period.round.decisions {
            let Some(text) = self.describe(decision, &period.observation) else {
                continue;
            };
            let because = decision.because();
            let subject = (decision.vm(), decision.knob(), decision.vcpu());
            let state = (&text, discriminant(because));
            match (&period.applied, decision) {
                (None, _) => info!(target: RESULT, ?subject, ?state, "would {text}: {because}"),
                // Moves are logged by `account`, verbose or not.
                (Some(_), Decision::SetAffinity { .. }) => {}
                (Some(_), _) => debug!(?subject, ?state, "{text}: {because}"),
            }
        }
    }

    /// Describes a decision without its reason; `None` if its VM is gone.
    fn describe(&self, decision: &Decision, observed: &HostObservation) -> Option<String> {
        let managed = self.fleet.vm(decision.vm())?;
        let in_force = observed.vm(decision.vm())?;
        let vm = &managed.vm.name;
        let whose = match decision.vcpu() {
            Some(vcpu) => format!("VM {vm} vCPU {vcpu}"),
            None => format!("VM {vm}"),
        };
        Some(match decision {
            Decision::SetWeight { target, weight, .. } => {
                let from = match target {
                    Target::Vm(_) => Some(in_force.in_force.weight),
                    Target::Vcpu(_, vcpu) => in_force.vcpu(*vcpu)?.in_force.weight,
                };
                let from = from.map_or_else(String::new, |from| format!(" from {from}"));
                format!("set the weight of {whose}{from} to {weight}")
            }
            Decision::SetIdle { idle: true, .. } => format!("put {whose} into the idle class"),
            Decision::SetIdle { idle: false, .. } => format!("take {whose} out of the idle class"),
            Decision::SetNice { nice, .. } => format!("set the nice value of {whose} to {nice}"),
            Decision::SetSlice { slice, .. } => match slice {
                Some(slice) => format!("set the slice of {whose} to {slice}"),
                None => format!("set the slice of {whose} to the usual one"),
            },
            Decision::Divide { portions, .. } if portions.is_empty() => {
                format!("put the vCPUs of {whose} together into its group")
            }
            Decision::Divide { portions, .. } => {
                let portions = portions
                    .iter()
                    .map(|(vcpu, portion)| format!("{vcpu}: {:.0} %", portion * 100.0));
                let portions = portions.collect::<Vec<_>>().join(", ");
                format!(
                    "put the vCPUs of {whose} into groups of their own, with parts of its weight ({portions})"
                )
            }
            Decision::SetAffinity { pcpus, .. } => format!("move {whose} to pCPU {pcpus}"),
        })
    }
}
