//! A VM under the daemon's care, and what is in force for it: read back, and read again now and then, because others
//! may change it.

use std::collections::BTreeSet;

use tandem_linux::actuator::Actuator;
use tandem_linux::actuator::ActuatorError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::Knob;
use tandem_linux::sampler::Sampler;
use tandem_linux::sampler::VcpuSample;
use tandem_linux::sched_attr;
use tandem_linux::thread::ThreadRef;
use tandem_policy::Knob as Setting;
use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::PolicySet;
use tandem_policy::VcpuId;
use tandem_policy::VcpuObservation;
use tandem_policy::VcpuSettings;
use tandem_policy::VmSettings;
use tandem_policy::Weight;

use crate::discovery::Vm;

/// A vCPU that has just become quiet is looked at once, and from then on every so many periods.
const LOOK_EVERY: u32 = 10;

/// One vCPU thread under care.
#[derive(Debug)]
pub(crate) struct ManagedVcpu {
    pub(crate) index: VcpuId,
    pub(crate) thread: ThreadRef,
    pub(crate) last: Option<VcpuSample>,
    pub(crate) allowed: PcpuSet,
    /// What else is in force.
    pub(crate) settings: VcpuSettings,
    /// The cgroup that holds it alone, if it has one.
    pub(crate) group: Option<CgroupPath>,
    /// What we set on its thread; what differs from that was set by somebody else.
    pub(crate) ours: BTreeSet<Setting>,
    /// Periods in a row without any run or wait, and whether it was runnable when last looked at.
    quiet: u32,
    runnable: bool,
}

/// One VM under care.
#[derive(Debug)]
pub struct ManagedVm {
    /// As discovered.
    pub vm: Vm,
    /// The cgroup whose weight is the VM's.
    pub cgroup: CgroupPath,
    /// Whether the cgroup was made by us.
    pub made: bool,
    /// Configured weight w_i, in the knob's units.
    pub configured: Weight,
    /// What is in force. In the idle class there is no weight: then it is the one that the VM gets when it leaves.
    pub in_force: VmSettings,
    /// The policies that may act on it.
    pub policies: PolicySet,
    pub(crate) vcpus: Vec<ManagedVcpu>,
}

/// Something an operator would want to read in the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Note(pub String);

impl ManagedVm {
    /// How many vCPU threads are under care.
    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len()
    }

    /// Where each vCPU may run, by vCPU number.
    pub fn allowed(&self) -> Vec<(VcpuId, PcpuSet)> {
        let vcpus = self.vcpus.iter();
        vcpus
            .map(|vcpu| (vcpu.index, vcpu.allowed.clone()))
            .collect()
    }

    pub(crate) fn vcpu_mut(&mut self, vcpu: VcpuId) -> Option<&mut ManagedVcpu> {
        self.vcpus.iter_mut().find(|managed| managed.index == vcpu)
    }

    /// Reads the cgroup's settings again. What somebody else set counts from now on: a weight as configured.
    pub(crate) fn recheck_group(
        &mut self,
        actuator: &mut Actuator,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let controller = actuator.controller();
        self.in_force.quota = quota(controller, &self.cgroup);
        let idle = controller.is_idle(&self.cgroup)?.unwrap_or(false);
        let foreign = |knob: &str, value: &dyn std::fmt::Display| {
            Note(format!(
                "VM {}: someone else set the {knob} of {} to {value}; it counts as configured from \
                 now on",
                self.vm.name, self.cgroup
            ))
        };
        if idle != self.in_force.idle {
            notes.push(foreign("cpu.idle", &u8::from(idle)));
            actuator.forget_knob(&self.cgroup, Knob::Idle)?;
            self.in_force.idle = idle;
        }
        if idle {
            return Ok(());
        }
        let current = actuator.controller().weight(&self.cgroup)?;
        if current != self.in_force.weight {
            notes.push(foreign("weight", &current));
            actuator.forget_knob(&self.cgroup, Knob::Weight)?;
            (self.configured, self.in_force.weight) = (current, current);
        }
        Ok(())
    }
}

/// A cgroup's hard cap in pCPUs; none too where it cannot be read.
pub(crate) fn quota(controller: &dyn CpuController, cgroup: &CgroupPath) -> Option<f64> {
    let quota = controller.quota(cgroup).ok().flatten()?;
    Some(quota.quota_us as f64 / quota.period_us as f64)
}

impl ManagedVcpu {
    /// A thread that has just been found.
    pub(crate) fn new(index: VcpuId, thread: ThreadRef, allowed: PcpuSet) -> ManagedVcpu {
        ManagedVcpu {
            settings: VcpuSettings {
                nice: sched_attr::nice(thread.tid).unwrap_or_default(),
                slice: sched_attr::slice(thread.tid).unwrap_or_default(),
                ..VcpuSettings::default()
            },
            index,
            thread,
            last: None,
            allowed,
            group: None,
            ours: BTreeSet::new(),
            quiet: 0,
            runnable: true,
        }
    }

    /// Reads what is set on the thread again. What somebody else set stays, and is no longer ours to put back.
    pub(crate) fn recheck(
        &mut self,
        vm: &str,
        sampler: &Sampler,
        actuator: Option<&mut Actuator>,
        notes: &mut Vec<Note>,
    ) -> Result<(), ActuatorError> {
        let Ok(allowed) = sampler.read_affinity(&self.thread) else {
            return Ok(());
        };
        let mut foreign: Vec<(Setting, String)> = Vec::new();
        if allowed != self.allowed {
            foreign.push((Setting::Affinity, format!("its affinity to {allowed}")));
            self.allowed = allowed;
        }
        if let Ok(nice) = sched_attr::nice(self.thread.tid)
            && nice != self.settings.nice
        {
            foreign.push((Setting::Nice, format!("its nice value to {nice}")));
            self.settings.nice = nice;
        }
        if let Ok(slice) = sched_attr::slice(self.thread.tid)
            && slice != self.settings.slice
        {
            let slice_text =
                slice.map_or_else(|| "the usual".to_owned(), |slice| slice.to_string());
            foreign.push((Setting::Slice, format!("its slice to {slice_text}")));
            self.settings.slice = slice;
        }
        let foreign: Vec<_> = foreign
            .into_iter()
            .filter(|(setting, _)| self.ours.remove(setting))
            .collect();
        let Some(actuator) = actuator else {
            return Ok(());
        };
        for (setting, what) in foreign {
            actuator.forget_thread(&self.thread, setting)?;
            notes.push(Note(format!(
                "VM {vm} vCPU {}: someone else set {what}; it stays there",
                self.index
            )));
        }
        Ok(())
    }

    /// What it did since the last sample, `scale` times; nothing where there is no earlier one.
    pub(crate) fn observe(
        &mut self,
        sample: VcpuSample,
        scale: f64,
        closely: bool,
        sampler: &Sampler,
    ) -> VcpuObservation {
        let fresh = VcpuObservation {
            in_force: self.settings,
            ..VcpuObservation::new(self.index, self.allowed.clone())
        };
        let Some(last) = self.last.replace(sample) else {
            return fresh;
        };
        let scaled =
            |now: Nanos, then: Nanos| Nanos((now.saturating_sub(then).0 as f64 * scale) as u64);
        let ran = scaled(sample.ran, last.ran);
        let waited = scaled(sample.waited, last.waited);
        self.note_activity(ran + waited, closely, sampler);
        VcpuObservation {
            ran,
            waited,
            runnable: self.runnable,
            ..fresh
        }
    }

    /// Keeps `runnable` up to date without a read per period for those that sleep for long.
    fn note_activity(&mut self, active: Nanos, closely: bool, sampler: &Sampler) {
        if active > Nanos::ZERO {
            (self.quiet, self.runnable) = (0, true);
            return;
        }
        self.quiet = self.quiet.saturating_add(1);
        if closely && (self.quiet == 1 || self.quiet.is_multiple_of(LOOK_EVERY)) {
            self.runnable = sampler
                .read_state(&self.thread)
                .is_ok_and(|state| state.is_runnable());
        } else if !closely {
            self.runnable = false;
        }
    }
}
