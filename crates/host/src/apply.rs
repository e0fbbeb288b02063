//! Application of decisions to knobs of cgroups and threads.
//!
//! Each decision is independent, except those of a swap, which are applied together or not at all (`swap`).

mod swap;

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::actuator::{Actuator, ActuatorError, Outcome};
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::journal::JournalError;
use tandem_linux::restore::RestoreReport;
use tandem_linux::sched_attr;
use tandem_model::decision::Swap;
use tandem_model::{Decision, Knob, Target, VcpuId, VmId};

use crate::division;
use crate::managed::{ManagedVcpu, ManagedVm, give_up_group};

/// The result of a set of decisions.
#[derive(Debug, Default)]
pub struct Applied {
    /// Weights written, of VMs and vCPUs.
    pub weights: u64,
    /// vCPUs moved to other pCPUs.
    pub moved: BTreeSet<(VmId, VcpuId)>,
    /// vCPUs that changed places.
    pub swaps: Vec<Swap>,
    /// Other settings changed.
    pub others: u64,
    /// Changes that could not be made.
    pub refused: Vec<Refused>,
}

/// A change that failed; the VM stays as it was.
#[derive(Debug)]
pub struct Refused {
    /// The VM's name.
    pub vm: String,
    /// The error, with path and value.
    pub error: String,
    /// Whether the journal could not be written, which affects all VMs.
    pub is_of_disk: bool,
    /// Whether another daemon manages the VM.
    pub is_others: bool,
}

impl Refused {
    /// Returns the report of an error for this VM.
    pub(crate) fn new(vm: &str, error: &ActuatorError) -> Refused {
        // Disk errors of all steps get the same text, so that it is logged once.
        let of_disk = match error {
            ActuatorError::Journal(JournalError::File { path, source, .. }) => {
                Some(format!("cannot write to {}: {source}", path.display()))
            }
            _ => None,
        };
        Refused {
            vm: vm.to_owned(),
            is_of_disk: of_disk.is_some(),
            error: of_disk.unwrap_or_else(|| error.to_string()),
            is_others: false,
        }
    }

    /// Returns the report of a failed revert for this VM.
    pub(crate) fn not_put_back(vm: &str, report: &RestoreReport, hint: &str) -> Refused {
        Refused {
            vm: vm.to_owned(),
            error: format!("{report}{hint}"),
            is_of_disk: false,
            is_others: false,
        }
    }

    /// Returns the log message; for a journal that cannot be written, it is the same for all VMs.
    pub fn message(&self) -> String {
        if self.is_of_disk {
            format!(
                "{}; nothing more is changed until it can be written; earlier changes stay, and are reverted when the daemon ends",
                self.error
            )
        } else {
            format!("VM {}: {}", self.vm, self.error)
        }
    }
}

impl Applied {
    /// Makes changes in order; those of a swap together, at the position of the first of them.
    pub(crate) fn all(
        decisions: &[Decision],
        vms: &mut BTreeMap<VmId, ManagedVm>,
        actuator: &mut Actuator,
    ) -> Applied {
        let mut applied = Applied::default();
        let mut seen: BTreeSet<Swap> = BTreeSet::new();
        for decision in decisions {
            let Some(managed) = vms.get_mut(&decision.vm()) else {
                continue;
            };
            match decision.swap() {
                None => applied.apply(decision, managed, actuator),
                Some(swap) => {
                    if seen.insert(swap) {
                        applied.swap(swap, decisions, managed, actuator);
                    }
                }
            }
        }
        applied
    }

    /// Makes one change.
    /// A thread or cgroup that is gone is no error; the next scan drops it.
    fn apply(&mut self, decision: &Decision, managed: &mut ManagedVm, actuator: &mut Actuator) {
        match apply(decision, managed, actuator) {
            Ok(true) => self.count(decision),
            Ok(false) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => self.refused.push(Refused::new(&managed.vm.name, &error)),
        }
    }

    /// Counts a change.
    fn count(&mut self, decision: &Decision) {
        match decision.knob() {
            Knob::Weight => self.weights += 1,
            Knob::Affinity => {
                let vcpu = decision.vcpu();
                self.moved.extend(vcpu.map(|vcpu| (decision.vm(), vcpu)));
            }
            Knob::Idle | Knob::Nice | Knob::Slice | Knob::Division => self.others += 1,
        }
    }
}

/// Makes one change and records the current value; true if it was made.
fn apply(
    decision: &Decision,
    managed: &mut ManagedVm,
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    if let Some(vcpu) = decision.vcpu() {
        let group = match decision.knob() {
            Knob::Weight | Knob::Idle => vcpu_group(managed, vcpu, actuator)?,
            Knob::Nice | Knob::Slice | Knob::Affinity | Knob::Division => None,
        };
        return match managed.vcpu_mut(vcpu) {
            Some(vcpu) => apply_to_vcpu(decision, vcpu, group, actuator),
            None => Ok(false),
        };
    }
    match decision {
        // The idle class has no weight, and in turns the turn thread sets it.
        Decision::SetWeight { weight, .. }
            if managed.in_force.idle || managed.in_force.rotating =>
        {
            managed.in_force.weight = *weight;
            Ok(false)
        }
        Decision::SetWeight { weight, .. } => {
            managed.write_weight(*weight, actuator)?;
            Ok(true)
        }
        Decision::Divide { portions, .. } => division::divide(managed, portions, actuator),
        Decision::SetIdle { idle, .. } => {
            actuator.set_idle(&managed.cgroup, *idle)?;
            managed.in_force.idle = *idle;
            if !idle {
                let weight = managed.in_force.weight;
                managed.in_force.weight = actuator.controller().default_weight();
                managed.in_force.weight = actuator.set_weight(&managed.cgroup, weight)?;
            }
            Ok(true)
        }
        Decision::SetNice { .. } | Decision::SetSlice { .. } | Decision::SetAffinity { .. } => {
            Ok(false)
        }
    }
}

fn apply_to_vcpu(
    decision: &Decision,
    vcpu: &mut ManagedVcpu,
    group: Option<CgroupPath>,
    actuator: &mut Actuator,
) -> Result<bool, ActuatorError> {
    // The turn thread must restore it first.
    if vcpu.roams && decision.knob() == Knob::Affinity {
        return Ok(false);
    }
    let thread = vcpu.thread;
    let outcome = match (decision, group) {
        (Decision::SetWeight { weight, .. }, Some(group)) => {
            vcpu.settings.weight = Some(if vcpu.settings.idle {
                *weight
            } else {
                actuator.set_weight(&group, *weight)?
            });
            Outcome::Done
        }
        (Decision::SetIdle { idle, .. }, Some(group)) => {
            actuator.set_idle(&group, *idle)?;
            vcpu.settings.idle = *idle;
            if let Some(weight) = vcpu.settings.weight.filter(|_| !idle) {
                vcpu.settings.weight = Some(actuator.controller().default_weight());
                vcpu.settings.weight = Some(actuator.set_weight(&group, weight)?);
            }
            Outcome::Done
        }
        (Decision::SetWeight { .. } | Decision::SetIdle { .. }, None) => Outcome::Gone,
        (Decision::SetNice { nice, .. }, _) => actuator.set_nice(&thread, *nice)?,
        (Decision::SetSlice { slice, .. }, _) => actuator.set_slice(&thread, *slice)?,
        (Decision::SetAffinity { pcpus, .. }, _) => actuator.set_affinity(&thread, pcpus)?,
        (Decision::Divide { .. }, _) => Outcome::Gone,
    };
    if outcome == Outcome::Gone {
        return Ok(false);
    }
    // The kernel may have adjusted the value: a slice to its range, an affinity to the existing pCPUs.
    match decision {
        Decision::SetNice { nice, .. } => {
            vcpu.settings.nice = sched_attr::nice(thread.tid).unwrap_or(*nice);
        }
        Decision::SetSlice { slice, .. } => {
            vcpu.settings.slice = sched_attr::slice(thread.tid).unwrap_or(*slice);
        }
        Decision::SetAffinity { pcpus, .. } => {
            let before = affinity(thread.tid).unwrap_or_else(|_| pcpus.clone());
            let before = std::mem::replace(&mut vcpu.allowed, before);
            let granted = vcpu.granted.take().unwrap_or(before);
            vcpu.granted = (granted != vcpu.allowed).then_some(granted);
        }
        Decision::SetWeight { .. } | Decision::SetIdle { .. } | Decision::Divide { .. } => {}
    }
    if !matches!(target(decision), Some(Target::Vcpu(..))) {
        vcpu.ours.insert(decision.knob());
    }
    Ok(true)
}

fn target(decision: &Decision) -> Option<Target> {
    match decision {
        Decision::SetWeight { target, .. } | Decision::SetIdle { target, .. } => Some(*target),
        _ => None,
    }
}

/// Returns the cgroup that holds a vCPU alone: an existing one below its VM's (libvirt makes `vcpuN`), or a new one.
/// Returns `None` if the vCPU is gone.
fn vcpu_group(
    managed: &mut ManagedVm,
    vcpu: VcpuId,
    actuator: &mut Actuator,
) -> Result<Option<CgroupPath>, ActuatorError> {
    let cgroup = managed.cgroup.clone();
    let mut vcpus = managed.vcpus.iter_mut();
    let Some(vcpu) = vcpus.find(|managed| managed.index == vcpu) else {
        return Ok(None);
    };
    if vcpu.group.is_none() {
        vcpu.reread_group(actuator.controller(), &cgroup)?;
    }
    if vcpu.group.is_none() {
        let group = actuator.create_group(&cgroup, &format!("vcpu{}", vcpu.index))?;
        match actuator.move_thread(&vcpu.thread, &group) {
            Ok(Outcome::Done) => {}
            other => {
                give_up_group(group, &mut managed.busy, actuator);
                return other.map(|_| None);
            }
        }
        vcpu.reread_group(actuator.controller(), &cgroup)?;
    }
    Ok(vcpu.group.clone())
}
