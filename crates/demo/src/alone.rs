//! What each VM does alone on this host: the measure of what it does beside others.
//!
//! Each distinct VM (workload, settings, vCPUs, pins) is booted once by itself, with no cgroup and nobody beside it, runs for a
//! moment that is not counted, and is then counted, one that goes through rounds for whole ones. What was measured is kept for all later experiments of the same run, which
//! is one backend's.

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

/// Time that a VM runs alone before it is counted.
pub const SETTLE: Duration = Duration::from_millis(500);

/// Why a VM was not measured alone.
#[derive(Debug, Error)]
pub enum AloneError {
    /// It failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// Its CPU time could not be read.
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// What a VM did alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredAlone {
    /// Items of work per second.
    pub work_per_second: f64,
    /// CPU time, in pCPUs.
    pub share: f64,
}

/// What tells one VM from another here; a weight does not matter to a VM that is alone.
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

/// What was measured so far.
#[derive(Debug, Default)]
pub struct AloneResults {
    backend: Option<Backend>,
    notes: Vec<String>,
    measured: Vec<(Kind, MeasuredAlone)>,
}

/// How many distinct VMs plans have.
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
    /// Each VM of `plan`, measured for `time` where it was not yet.
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

    /// The backend that it was measured with, if anything was: what is compared with it must have the same.
    pub fn backend(&self) -> Option<Backend> {
        self.backend
    }

    /// What a reader must know: that the backend is not KVM, and that a VM was not quite alone.
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
                "While {} with {} {} vCPUs was measured alone, {others:.2} of {pcpus} pCPUs went to the rest of the host; its work \
                 relative to alone is too large.",
                vm.description(),
                vm.vcpus,
                match vm.pins.is_empty() {
                    true => "free",
                    false => "pinned",
                },
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
    fn vms_that_differ_in_weight_or_name_only_are_measured_once() {
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
