//! The simulated host as the controller of policies sees it: the same controller, through the same trait, as on a live host.
//!
//! Once per period, every VM is observed as the daemon observes it:
//! each vCPU's run and wait times (a wait counts when it ends, as in the kernel's schedstat), its runnable state, its current values,
//! and each pCPU's idle time.
//! Decisions turn the knobs of the simulated host's scheduler ([`crate::host::Scheduler`]).

use tandem_model::{
    Decision, Nanos, PcpuId, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Host, HostObservation, IdleTimes, Knobs, Policy};
use tandem_policy::turns::Rotation;
use tandem_policy::vm_cpu::steps;

use crate::host::Scheduler;
use crate::trace::VcpuState;

use super::calendar::Event;
use super::simulation::World;
use super::state::{NONE, PcpuState, Work};

impl World {
    /// Starts recording the controller's observations and decisions.
    pub fn record_decisions(&mut self) {
        self.policies.recording = Some(Vec::new());
    }

    /// Stops the recording, and returns it.
    pub fn take_decisions(&mut self) -> Vec<(HostObservation, Round)> {
        self.policies.recording.take().unwrap_or_default()
    }
}

impl World {
    /// Replaces the scenario's host policies by a policy from outside the registry.
    /// Returns false if the scenario has none, and therefore no controller.
    pub fn replace_policies(&mut self, policy: Box<dyn Policy>) -> bool {
        let controller = self.policies.controller.as_mut();
        controller.map(|controller| controller.replace(policy)).is_some()
    }

    /// Makes the controller's first observation.
    pub(crate) fn begin_policies(&mut self) {
        let divisible = self.host.is_divisible();
        for cpu in &mut self.policies.cpu {
            cpu.divisible = divisible;
        }
        if let Some(mut controller) = self.policies.controller.take() {
            controller.begin(self);
            self.policies.controller = Some(controller);
        }
    }

    /// Ends a period of the policies.
    pub(crate) fn policies(&mut self) {
        let Some(mut controller) = self.policies.controller.take() else {
            return;
        };
        let next = self.now + controller.config().period.0;
        self.calendar.set(Event::Policies, 0, next);
        let period = controller.period(self);
        if let Some(recording) = &mut self.policies.recording
            && let Some(period) = period
        {
            recording.push((period.observation, period.round));
        }
        self.policies.controller = Some(controller);
    }

    fn observe_vm(&mut self, vm: usize, scale: impl Fn(u64) -> Nanos) -> Option<VmObservation> {
        let state = &self.vms[vm];
        if state.started > self.now || state.alive == 0 {
            return None;
        }
        let (first, present) = (state.first_vcpu, state.present);
        let id = VmId(vm as u64);
        let (weight, policies, idle) = self.policies.vms[vm];
        if self.policies.cpu[vm].has_ended_turns() {
            self.policies.cpu[vm].on_read(Weight::saturating(self.weights[vm]), idle);
        }
        if self.turns.left.remove(&id) {
            self.policies.cpu[vm].on_end_of_turns(true);
        }
        let mut vcpus = Vec::with_capacity(present as usize);
        for index in 0..present {
            let v = first + index;
            self.sync(v);
            let vcpu = &mut self.vcpus[v as usize];
            let woken_by = vcpu.woken_by.drain(..).map(|by| VcpuId(by - first));
            let woken_by: Vec<VcpuId> = woken_by.collect();
            let now = (vcpu.ran_total, vcpu.waited_total, vcpu.runs_total);
            let seen = std::mem::replace(&mut self.policies.seen[v as usize], now);
            let known = &self.policies.cpu[vm].vcpus[index as usize];
            vcpus.push(VcpuObservation {
                in_force: known.settings,
                ran: scale(now.0 - seen.0),
                waited: scale(now.1 - seen.1),
                runs: Some(scale(now.2 - seen.2).0),
                pcpu: (vcpu.pcpu != NONE).then_some(PcpuId(vcpu.pcpu)),
                woken_by,
                runnable: matches!(vcpu.state, VcpuState::Running | VcpuState::Ready),
                granted: known.granted.clone(),
                ..VcpuObservation::new(VcpuId(index), known.allowed.clone())
            });
        }
        Some(VmObservation {
            in_force: self.policies.cpu[vm].settings(None),
            policies,
            divisible: self.host.is_divisible() && self.host.inflates_lag(),
            ..VmObservation::new(id, weight, vcpus)
        })
    }

    /// Number in the world of a decision's vCPU, if the VM has it now.
    pub(super) fn vcpu_of(&self, vm: VmId, vcpu: VcpuId) -> Option<u32> {
        let vm = self.vms.get(vm.0 as usize)?;
        (vcpu.0 < vm.present).then_some(vm.first_vcpu + vcpu.0)
    }

    /// Accounts every running vCPU's time with the host's scheduler, before settings change.
    pub(super) fn account_all(&mut self) {
        for p in 0..self.pcpus.len() {
            let current = self.pcpus[p].current;
            if current != NONE {
                self.host_account(current);
            }
        }
    }

    /// Sets the weight of a VM's group.
    pub(super) fn set_vm_weight(&mut self, vm: u32, weight: Weight) {
        self.account_all();
        self.weights[vm as usize] = weight.value();
        self.host.set_weight(vm, weight.value(), self.now);
    }

    /// Moves a VM into the idle class, or out of it, which restores its weight.
    pub(super) fn set_vm_idle(&mut self, vm: u32, idle: bool) {
        self.account_all();
        self.policies.vms[vm as usize].2 = idle;
        self.host.set_idle(vm, idle, self.now);
    }

    /// Applies a vCPU's settings within its VM: the weight of its group there if it has one, otherwise its thread's nice value.
    pub(super) fn weigh_vcpu(&mut self, v: u32) {
        self.account_all();
        let settings = self.policies.vcpus[v as usize];
        let weight = match settings.weight {
            Some(weight) => weight.value().round() as u32,
            None => nice_weight(settings.nice.0),
        };
        self.host.set_vcpu(v, weight, settings.idle, self.now);
    }

    /// Sets a vCPU's affinity, and migrates it if necessary.
    pub(super) fn set_vcpu_affinity(&mut self, v: u32, allowed: &PcpuSet) {
        // The kernel rejects a set without any existing CPU (EINVAL).
        let pcpus = self.pcpus.len() as u32;
        let allowed: PcpuSet = allowed.iter().filter(|pcpu| pcpu.0 < pcpus).collect();
        if allowed.is_empty() {
            return;
        }
        let allowed = &allowed;
        self.allowed[v as usize] = allowed.clone();
        self.host.set_affinity(v, allowed);
        let (from, state, queued) = {
            let vcpu = &self.vcpus[v as usize];
            (vcpu.pcpu, vcpu.state, vcpu.queued)
        };
        if allowed.contains(PcpuId(from)) || !queued {
            return;
        }
        if state == VcpuState::Running {
            self.stop_running(v, from);
        } else if state == VcpuState::Ready {
            self.host.dequeue(v, from, false, self.now);
            self.vcpus[v as usize].queued = false;
            self.end_pcpu_wait(v);
        } else {
            return;
        }
        let to = self.host.select(v, from, None, &self.idle_pcpus, self.now);
        self.migrate(v, to);
    }

    /// Changes a VM's number of plugged vCPUs as its hot-plug plan says.
    pub(crate) fn plug(&mut self, vm: u32) {
        let state = &mut self.vms[vm as usize];
        let Some(&(_, vcpus)) = state.hotplug.first() else {
            return;
        };
        state.hotplug.remove(0);
        state.present = vcpus;
        if let Some(&(at, _)) = state.hotplug.first() {
            self.calendar.set(Event::Hotplug, vm, at.0);
        }
        self.set_active(vm, vcpus);
        let (first, size) = (self.vms[vm as usize].first_vcpu, self.vms[vm as usize].vcpus);
        for v in first + vcpus..first + size {
            self.vcpus[v as usize].need_resched = true;
            self.work.push(Work::Guest(v));
        }
    }

    /// Returns the vCPU that receives the threads of an unplugged vCPU; `None` if `v` is plugged in.
    pub(crate) fn instead_of(&self, v: u32) -> Option<u32> {
        let vm = &self.vms[self.vcpus[v as usize].vm as usize];
        let index = v - vm.first_vcpu;
        (index >= vm.present).then(|| vm.first_vcpu + index % vm.present)
    }
}

impl Host for World {
    type Applied = ();

    fn idle(&mut self) -> (Nanos, IdleTimes) {
        let pcpus = (0u32..).zip(&self.pcpus);
        let idle = pcpus.map(|(number, pcpu)| {
            let now = match pcpu.state {
                PcpuState::Idle => self.now - pcpu.since,
                _ => 0,
            };
            (PcpuId(number), Nanos(pcpu.idle_total + now))
        });
        (Nanos(self.now), idle.collect())
    }

    fn knobs(&self) -> Knobs {
        self.host.knobs(self.policies.knob)
    }

    fn observe(&mut self, elapsed: Nanos, period: Nanos, _closely: bool) -> Vec<VmObservation> {
        let scale = |time: u64| {
            let scaled = u128::from(time) * u128::from(period.0) / u128::from(elapsed.0.max(1));
            Nanos(scaled as u64)
        };
        (0..self.vms.len()).filter_map(|vm| self.observe_vm(vm, scale)).collect()
    }

    fn apply(&mut self, decisions: &[Decision], rotation: Option<&Rotation>) {
        for step in steps(decisions) {
            let is_plugged = |decision: &&Decision| {
                decision.vcpu().is_none_or(|vcpu| self.vcpu_of(step.vm, vcpu).is_some())
            };
            if step.vm.0 as usize >= self.vms.len() || !step.decisions.iter().all(is_plugged) {
                continue;
            }
            let mut cpu = self.policies.take(step.vm.0 as u32);
            // No knob of the simulated host refuses a change.
            let _ = cpu.reconcile(&step, self);
            self.policies.cpu[step.vm.0 as usize] = cpu;
        }
        if let Some(rotation) = rotation {
            self.follow_turns(rotation);
        }
    }
}

/// Weights of nice values from -20 on: sched_prio_to_weight of kernel/sched/core.c.
const NICE: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

/// Weight of a thread with this nice value.
fn nice_weight(nice: i8) -> u32 {
    let at = (i32::from(nice) + 20).clamp(0, 39);
    NICE[at as usize]
}
