//! Application of decisions to knobs of cgroups and threads.
//!
//! [`tandem_policy::vm_cpu`] makes the changes; this module counts them and reports those that the kernel refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::journal::JournalError;
use tandem_linux::restore::RestoreReport;
use tandem_model::decision::Swap;
use tandem_model::{Decision, Knob, VcpuId, VmId};
use tandem_policy::vm_cpu::{Step, steps};

use crate::managed::ManagedVm;

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

    /// Returns the report of an error in a step.
    fn of_step(vm: &str, error: &ActuatorError, step: &Step<'_>) -> Refused {
        let mut refused = Refused::new(vm, error);
        // A disk error does not name the vCPUs, so that it reads the same for all.
        if let Some(Swap { vcpus: [one, other], .. }) = step.swap
            && !refused.is_of_disk
        {
            let error = refused.error;
            refused.error = format!("vCPUs {one} and {other} do not change places: {error}");
        }
        refused
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
}

/// The log message; for a journal that cannot be written, it is the same for all VMs.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_of_disk {
            write!(
                f,
                "{}; nothing more is changed until it can be written; earlier changes stay, and are reverted when the daemon ends",
                self.error
            )
        } else {
            write!(f, "VM {}: {}", self.vm, self.error)
        }
    }
}

impl Applied {
    /// Makes changes in order; those of a swap together, at the position of the first of them.
    ///
    /// A thread or cgroup that is gone is no error; the next scan drops it.
    pub(crate) fn all(
        decisions: &[Decision],
        vms: &mut BTreeMap<VmId, ManagedVm>,
        actuator: &mut Actuator,
    ) -> Applied {
        let mut applied = Applied::default();
        for step in steps(decisions) {
            let Some(managed) = vms.get_mut(&step.vm) else {
                continue;
            };
            let (cpu, mut knobs) = managed.with_knobs(actuator);
            match cpu.reconcile(&step, &mut knobs) {
                Ok(true) => applied.count(&step),
                Ok(false) => {}
                Err(errors) => {
                    let errors = errors.iter().filter(|error| !error.is_gone());
                    let name = &managed.vm.name;
                    applied
                        .refused
                        .extend(errors.map(|error| Refused::of_step(name, error, &step)));
                }
            }
        }
        applied
    }

    /// Counts the changes of a step.
    fn count(&mut self, step: &Step<'_>) {
        self.swaps.extend(step.swap);
        for decision in &step.decisions {
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
}

#[cfg(test)]
mod tests {
    use tandem_linux::affinity::AffinityError;
    use tandem_linux::thread::Tid;
    use tandem_model::{Because, Nice, PcpuId, PcpuSet};

    use super::*;

    #[test]
    fn swap_is_counted_and_refused_as_a_whole() {
        let (vm, pcpus) = (VmId(1), [PcpuId(0), PcpuId(1)]);
        let swap = [0, 1].map(|n| {
            let (vcpu, of, [from, to]) = (VcpuId(n), VcpuId(1 - n), pcpus);
            let because = Because::TakesPlace { of, from, to, waited: 0.5 };
            let pcpus = PcpuSet::from_iter([PcpuId(1 - n)]);
            let nice = Decision::SetNice { vm, vcpu, nice: Nice(0), because: because.clone() };
            [nice, Decision::SetAffinity { vm, vcpu, pcpus, because }]
        });
        let swap = swap.concat();
        let step = steps(&swap).next().unwrap();
        let mut applied = Applied::default();
        applied.count(&step);
        assert_eq!((applied.swaps.len(), applied.moved.len(), applied.others), (1, 2, 2));
        let error = AffinityError::NotAllowed { tid: Tid(7), pcpus: PcpuSet::from_iter(pcpus) };
        let refused = Refused::of_step("web", &error.into(), &step).to_string();
        assert!(refused.starts_with("VM web: vCPUs 0 and 1 do not change places: "), "{refused}");
        assert!(refused.contains("cpuset"), "{refused}");
    }
}
