//! Decisions made real: which knob of which cgroup or thread each one turns.
//!
//! Each is made for itself, but for those of a swap, of which all are made or none (`swap`).

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

/// What came of a set of decisions.
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

/// A change that was asked for and could not be made; the VM stays as it was.
#[derive(Debug)]
pub struct Refused {
    /// Which VM.
    pub vm: String,
    /// What went wrong, with path and value.
    pub error: String,
    /// Whether the journal could not be written: then it is the same for all VMs.
    pub is_of_disk: bool,
    /// Whether another daemon looks after the VM.
    pub is_others: bool,
}

impl Refused {
    /// Of this VM.
    pub(crate) fn new(vm: &str, error: &ActuatorError) -> Refused {
        // Whichever step it was at which the disk failed: it is the same trouble, and is told once.
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

    /// Of this VM something is not put back.
    pub(crate) fn not_put_back(vm: &str, report: &RestoreReport, hint: &str) -> Refused {
        Refused {
            vm: vm.to_owned(),
            error: format!("{report}{hint}"),
            is_of_disk: false,
            is_others: false,
        }
    }

    /// In words; of a journal that cannot be written the same whatever VM it was.
    pub fn in_words(&self) -> String {
        match self.is_of_disk {
            true => format!(
                "{}; until that is mended nothing more is changed, and what was changed stays as it is and is put back in the end",
                self.error
            ),
            false => format!("VM {}: {}", self.vm, self.error),
        }
    }
}

impl Applied {
    /// Makes changes, in order; those of a swap together, in the place of the first of them.
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

    /// Makes one change. A thread or cgroup that is gone is dropped at the next scan, and is no error.
    fn apply(&mut self, decision: &Decision, managed: &mut ManagedVm, actuator: &mut Actuator) {
        match apply(decision, managed, actuator) {
            Ok(true) => self.count(decision),
            Ok(false) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => self.refused.push(Refused::new(&managed.vm.name, &error)),
        }
    }

    /// A change was made.
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

/// Makes one change, and keeps what is in force; true if it was made.
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
        // In the idle class there is none to set. In turns, whoever keeps them sets it.
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
    // Whoever keeps turns puts it back first.
    if vcpu.roams && decision.knob() == Knob::Affinity {
        return Ok(false);
    }
    let thread = vcpu.thread;
    let outcome = match (decision, group) {
        (Decision::SetWeight { weight, .. }, Some(group)) => {
            vcpu.settings.weight = Some(match vcpu.settings.idle {
                true => *weight,
                false => actuator.set_weight(&group, *weight)?,
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
    // The kernel may have made something else of it: a slice in range, those of the pCPUs that there are.
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

/// The cgroup that holds a vCPU alone: the one it has below its VM's (libvirt makes `vcpuN`), or one that is made for it.
/// `None`: the vCPU is gone.
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
