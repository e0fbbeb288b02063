//! Log lines about the daemon's decisions, for dry runs and verbose logs.

use std::time::Instant;

use tandem_linux::service::Reporter;
use tandem_model::{Decision, Target};
use tandem_policy::host::{HostObservation, Period};

use super::Daemon;
use crate::apply::Applied;

impl Daemon {
    /// Logs in a dry run the demands of vCPUs, and the VMs that the policy leaves alone.
    pub(super) fn say_demands(&mut self, period: &Period<Applied>, reporter: &mut dyn Reporter) {
        self.demands.retain(|vm| self.fleet.vm(vm).is_some());
        let length = period.observation.period;
        let news = self.demands.news(Instant::now(), length, &period.round);
        for (vm, line) in news {
            if let Some(managed) = self.fleet.vm(vm) {
                reporter.info(&format!("VM {} {line}", managed.vm.name));
            }
        }
    }

    /// Logs each decision once, until it changes.
    pub(super) fn say_decisions(&mut self, period: &Period<Applied>, reporter: &mut dyn Reporter) {
        self.said.retain(|vm| self.fleet.vm(vm).is_some());
        let decisions = &period.round.decisions;
        let news: Vec<&Decision> = self.said.news(Instant::now(), decisions).collect();
        for decision in news {
            let Some(line) = self.describe(decision, &period.observation) else {
                continue;
            };
            match (&period.applied, decision) {
                (None, _) => reporter.would(&format!("would {line}")),
                // Moves are logged by `account`, verbose or not.
                (Some(_), Decision::SetAffinity { .. }) => {}
                (Some(_), _) => reporter.info(&line),
            }
        }
    }

    /// Describes a decision; `None` if its VM is gone.
    fn describe(&self, decision: &Decision, observed: &HostObservation) -> Option<String> {
        let managed = self.fleet.vm(decision.vm())?;
        let in_force = observed.vm(decision.vm())?;
        let vm = &managed.vm.name;
        let whose = match decision.vcpu() {
            Some(vcpu) => format!("VM {vm} vCPU {vcpu}"),
            None => format!("VM {vm}"),
        };
        let because = decision.because();
        Some(match decision {
            Decision::SetWeight { target, weight, .. } => {
                let from = match target {
                    Target::Vm(_) => Some(in_force.in_force.weight),
                    Target::Vcpu(_, vcpu) => in_force.vcpu(*vcpu)?.in_force.weight,
                };
                let from = from.map_or_else(String::new, |from| format!(" from {from}"));
                format!("set the weight of {whose}{from} to {weight}: {because}")
            }
            Decision::SetIdle { idle: true, .. } => {
                format!("put {whose} into the idle class: {because}")
            }
            Decision::SetIdle { idle: false, .. } => {
                format!("take {whose} out of the idle class: {because}")
            }
            Decision::SetNice { nice, .. } => {
                format!("set the nice value of {whose} to {nice}: {because}")
            }
            Decision::SetSlice { slice, .. } => match slice {
                Some(slice) => format!("set the slice of {whose} to {slice}: {because}"),
                None => format!("set the slice of {whose} to the usual one: {because}"),
            },
            Decision::Divide { portions, .. } if portions.is_empty() => {
                format!("put the vCPUs of {whose} together into its group: {because}")
            }
            Decision::Divide { portions, .. } => {
                let portions = portions
                    .iter()
                    .map(|(vcpu, portion)| format!("{vcpu}: {:.0} %", portion * 100.0));
                let portions = portions.collect::<Vec<_>>().join(", ");
                format!(
                    "put the vCPUs of {whose} into groups of their own, with parts of its weight ({portions}): {because}"
                )
            }
            Decision::SetAffinity { pcpus, .. } => {
                format!("move {whose} to pCPU {pcpus}: {because}")
            }
        })
    }
}
