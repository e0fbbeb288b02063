//! The work of each VM alone on this host: the baseline of its work next to other VMs.
//!
//! Each distinct VM (workload, settings, vCPUs, pins) is booted once without other VMs and without a cgroup.
//! After [`SETTLE`], it is measured; workloads in rounds are measured for whole rounds.
//! Later experiments of the same run reuse the results; all of them have the same backend.

use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::sampler::Sampler;
use tandem_microvm::Backend;
use tandem_model::PcpuId;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::boot::boot;
use crate::cpu_time::{Reading, ReadingError, others};
use crate::plan::{Plan, VmPlan};
use crate::state_dir::StateDir;
use crate::vm_process::{VmError, stop_all};

/// Time that a VM runs alone before it is measured.
pub const SETTLE: Duration = Duration::from_millis(500);

/// A VM could not be measured alone.
#[derive(Debug, Error)]
pub enum AloneError {
    /// The VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The CPU time of the VM could not be read.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// The user interrupted the measurement.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Results of a VM alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredAlone {
    /// Items of work per second.
    pub work_per_second: f64,
    /// CPU time, in pCPUs.
    pub share: f64,
}

/// The properties that distinguish VMs here; weights do not, because they have no effect on a VM alone.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    workload: String,
    settings: Vec<String>,
    vcpus: u32,
    pins: Vec<PcpuId>,
}

impl Kind {
    fn of(vm: &VmPlan) -> Kind {
        Kind {
            workload: vm.workload.clone(),
            settings: vm.settings.clone(),
            vcpus: vm.vcpus,
            pins: vm.pins.clone(),
        }
    }
}

/// The results so far.
#[derive(Debug, Default)]
pub struct AloneResults {
    backend: Option<Backend>,
    notes: Vec<String>,
    measured: Vec<(Kind, MeasuredAlone)>,
}

/// Returns the number of distinct VMs in plans.
pub fn distinct<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> u64 {
    let mut kinds: Vec<Kind> = Vec::new();
    for vm in plans.into_iter().flat_map(|plan| &plan.vms) {
        let kind = Kind::of(vm);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.len() as u64
}

impl AloneResults {
    /// Returns the results of each VM of `plan`; measures VMs without results for `time`.
    pub fn of(
        &mut self,
        plan: &Plan,
        time: Duration,
        dir: &StateDir,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<Vec<MeasuredAlone>, AloneError> {
        let mut all = Vec::with_capacity(plan.vms.len());
        for vm in &plan.vms {
            let kind = Kind::of(vm);
            let known = self.measured.iter().find(|(known, _)| *known == kind);
            let measured = match known {
                Some((_, measured)) => *measured,
                None => {
                    let time = vm.whole_rounds(time);
                    progress.say(&format!("{} alone: measuring {} s", vm.name, time.as_secs_f64()));
                    let measured = self.measure(vm, plan, time, dir, interrupt)?;
                    progress.step();
                    self.measured.push((kind, measured));
                    measured
                }
            };
            all.push(measured);
        }
        Ok(all)
    }

    /// Returns the backend of the results, if there are any: compared runs must use the same one.
    pub fn backend(&self) -> Option<Backend> {
        self.backend
    }

    /// Returns notes for the reader: the backend is not KVM, or the rest of the host used CPU time meanwhile.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn measure(
        &mut self,
        vm: &VmPlan,
        plan: &Plan,
        time: Duration,
        dir: &StateDir,
        interrupt: &Interrupt,
    ) -> Result<MeasuredAlone, AloneError> {
        let backend = self.backend.or(plan.backend);
        let mut booted = boot(std::slice::from_ref(vm), backend, plan.seed, dir)?;
        self.backend = Some(booted.backend);
        self.notes.extend(booted.note);
        let mut sampler = Sampler::new(ProcFs::host());
        let now = std::time::Instant::now();
        interrupt.sleep_until(now + SETTLE)?;
        let mut read = || {
            let reading = Reading::take(&mut sampler, &booted.vms, &plan.pcpus)?;
            let mut snapshots = Vec::with_capacity(1);
            for vm in &mut booted.vms {
                vm.ask()?;
                snapshots.push(vm.counters()?);
            }
            Ok::<_, AloneError>((reading, snapshots))
        };
        let (first, before) = read()?;
        interrupt.sleep_until(now + SETTLE + time)?;
        let (last, after) = read()?;
        stop_all(booted.vms)?;
        let work = before.iter().zip(&after).map(|(before, after)| {
            let seconds = after.t_ns.saturating_sub(before.t_ns) as f64 / 1e9;
            after.work().saturating_sub(before.work()) as f64 / seconds.max(f64::MIN_POSITIVE)
        });
        let measured = MeasuredAlone {
            work_per_second: work.sum(),
            share: last.shares_since(&first).iter().sum(),
        };
        let pcpus = plan.pcpus.len();
        if let Some(others) = others(pcpus, measured.share, last.idle_since(&first)) {
            self.notes.push(format!(
                "While {} with {} {} vCPUs was measured alone, the rest of the host used {others:.2} of {pcpus} pCPUs; its work \
                 relative to alone is overestimated.",
                vm.description(),
                vm.vcpus,
                if vm.pins.is_empty() { "free" } else { "pinned" },
            ));
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plan::plan;

    #[test]
    fn weight_and_name_do_not_distinguish_vms() {
        let one = plan("2,2,1", "1,2,1", "burn", "0-1");
        assert_eq!(distinct([&one]), 2);
        let mut other = plan("2,2", "1,1", "mutex", "0-1");
        assert_eq!(distinct([&one, &other]), 3);
        other.vms[0].settings.push("spin=0".to_owned());
        other.vms[1].pins.clear();
        assert_eq!(distinct([&one, &other]), 4);
        assert_eq!(distinct([]), 0);
    }
}
