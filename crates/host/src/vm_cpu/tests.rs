//! Property: whatever policies, operators and faults do to VMs, the journal covers every change, and one owner makes it.
//!
//! The host of cgroups and threads is in memory (`fake_host`), with v2's rules.
//! A VM in a group that the daemon made and one in a cgroup of its own get random decisions, turns, foreign writes, failing
//! system calls, new and ended vCPUs, and releases; at a random change the daemon is killed.
//! After every step, a restore on a copy of the host must leave only the changes of the environment.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rustix::io::Errno;
use tandem_linux::actuator::{Actuator, Slots};
use tandem_linux::cgroup::Version;
use tandem_model::decision::Because;
use tandem_model::{Decision, Knob as Setting, Nanos, PcpuId, PcpuSet, Target, VcpuId, VmId};
use tandem_policy::turns::{Member, Slot};
use tandem_policy::vm_cpu::steps;
use tandem_testing::fake_host::{Crash, Fake, open_on, state_dir};
use tandem_testing::faulty::{self, Faults};

use super::*;
use crate::discovery::VcpuThread;
use crate::fixtures;
use crate::fleet::held_by;
use crate::managed::ManagedVm;

/// Steps of a case.
const STEPS: usize = 60;

/// A step; VMs and vCPUs are counted modulo their number.
#[derive(Clone, Debug)]
enum Event {
    Weight { vm: usize, weight: u16 },
    Idle { vm: usize, idle: bool },
    VcpuWeight { vm: usize, vcpu: u32, weight: u16 },
    VcpuIdle { vm: usize, vcpu: u32, idle: bool },
    Nice { vm: usize, vcpu: u32, nice: i8 },
    Slice { vm: usize, vcpu: u32, ms: u64 },
    Affinity { vm: usize, vcpu: u32, pcpus: u8 },
    Divide { vm: usize, parts: bool },
    Swap { vm: usize },
    Rotation { members: [bool; 2], moves: bool },
    Turn { on: usize, pcpu: u32 },
    OperatorWeight { weight: u16 },
    OperatorAffinity { vm: usize, vcpu: u32 },
    OperatorNice { vm: usize, vcpu: u32, nice: i8 },
    OperatorIdle { vm: usize, idle: bool },
    OperatorIdleOfVcpu { vm: usize, vcpu: u32, idle: bool },
    OperatorMove { vm: usize, vcpu: u32, to: &'static str },
    Recheck { vm: usize },
    VcpuEnds { vm: usize, vcpu: u32 },
    VcpuStarts { vm: usize },
    Release { vm: usize },
    Fault { after: usize, error: Errno },
}

fn event() -> impl Strategy<Value = Event> {
    let vm = 0..2usize;
    let vcpu = (vm.clone(), 0..4u32);
    prop_oneof![
        // The operator's values differ from the daemon's and the kernel's defaults; the journal cannot distinguish equal ones.
        4 => (vm.clone(), 51..5_000u16)
            .prop_map(|(vm, half)| Event::Weight { vm, weight: 2 * half }),
        2 => (vm.clone(), any::<bool>()).prop_map(|(vm, idle)| Event::Idle { vm, idle }),
        2 => (vcpu.clone(), 1..20_000u16)
            .prop_map(|((vm, vcpu), weight)| Event::VcpuWeight { vm, vcpu, weight }),
        1 => (vcpu.clone(), any::<bool>())
            .prop_map(|((vm, vcpu), idle)| Event::VcpuIdle { vm, vcpu, idle }),
        2 => (vcpu.clone(), -20..10i8).prop_map(|((vm, vcpu), nice)| Event::Nice { vm, vcpu, nice }),
        1 => (vcpu.clone(), 0..4u64).prop_map(|((vm, vcpu), ms)| Event::Slice { vm, vcpu, ms }),
        3 => (vcpu.clone(), 1..16u8)
            .prop_map(|((vm, vcpu), pcpus)| Event::Affinity { vm, vcpu, pcpus }),
        4 => (vm.clone(), any::<bool>()).prop_map(|(vm, parts)| Event::Divide { vm, parts }),
        2 => vm.clone().prop_map(|vm| Event::Swap { vm }),
        4 => (any::<[bool; 2]>(), any::<bool>())
            .prop_map(|(members, moves)| Event::Rotation { members, moves }),
        6 => (vm.clone(), 0..4u32).prop_map(|(on, pcpu)| Event::Turn { on, pcpu }),
        1 => (1..5_000u16).prop_map(|half| Event::OperatorWeight { weight: 2 * half - 1 }),
        1 => vcpu.clone().prop_map(|(vm, vcpu)| Event::OperatorAffinity { vm, vcpu }),
        1 => (vcpu.clone(), 10..20i8)
            .prop_map(|((vm, vcpu), nice)| Event::OperatorNice { vm, vcpu, nice }),
        2 => (vm.clone(), any::<bool>()).prop_map(|(vm, idle)| Event::OperatorIdle { vm, idle }),
        1 => (vcpu.clone(), any::<bool>())
            .prop_map(|((vm, vcpu), idle)| Event::OperatorIdleOfVcpu { vm, vcpu, idle }),
        2 => (vcpu.clone(), prop_oneof![Just("/other"), Just("/vms")])
            .prop_map(|((vm, vcpu), to)| Event::OperatorMove { vm, vcpu, to }),
        3 => vm.clone().prop_map(|vm| Event::Recheck { vm }),
        1 => vcpu.prop_map(|(vm, vcpu)| Event::VcpuEnds { vm, vcpu }),
        2 => vm.clone().prop_map(|vm| Event::VcpuStarts { vm }),
        1 => vm.prop_map(|vm| Event::Release { vm }),
        3 => (0..40usize, prop_oneof![Just(Errno::INVAL), Just(Errno::NOSPC), Just(Errno::ACCESS)])
            .prop_map(|(after, error)| Event::Fault { after, error }),
    ]
}

/// A VM and the turn keeper's handles of it.
struct Subject {
    managed: ManagedVm,
    switch: Option<IdleSwitch>,
    slots: BTreeMap<ThreadRef, Slots>,
    /// Whether the daemon has set the idle class of its group.
    had_class: bool,
}

struct World {
    host: Fake,
    faults: Faults,
    actuator: Actuator,
    vms: Vec<Subject>,
}

fn cgroup(path: &str) -> CgroupPath {
    CgroupPath(path.to_owned())
}

impl World {
    fn new(version: Version, dir: &Path) -> World {
        let (host, faults) = (Fake::new(version), Faults::default());
        let actuator = faulty::open(&host, &faults, dir);
        let mut world = World { host, faults, actuator, vms: Vec::new() };
        for n in 0..2 {
            let subject = world.adopt(n);
            world.vms.push(subject);
            for _ in 0..3 {
                world.start_vcpu(n);
            }
        }
        world
    }

    /// Manages the VM with this number again, without vCPUs.
    fn adopt(&mut self, n: usize) -> Subject {
        let made = n == 0;
        let mut managed = fixtures::managed(fixtures::vm(n as u64, "web", 0));
        let group = if made {
            self.actuator.create_group(&cgroup("/vms"), "tandem-0").unwrap_or(cgroup("/vms/none"))
        } else {
            cgroup("/vms/own.scope")
        };
        let (weight, idle) = shares(self.actuator.controller(), &group)
            .unwrap_or((self.actuator.controller().default_weight(), false));
        managed.cpu = VmCpu::new(group, weight, idle);
        (managed.made, managed.cpu.divisible) = (made, made);
        Subject { managed, switch: None, slots: BTreeMap::new(), had_class: false }
    }

    /// Starts a vCPU of the VM and takes it, as a scan would.
    fn start_vcpu(&mut self, n: usize) {
        let thread = self.host.start_in(&cgroup(["/vms/shared", "/vms/own.scope"][n]));
        self.take_vcpu(n, thread);
    }

    fn take_vcpu(&mut self, n: usize, thread: ThreadRef) {
        let managed = &mut self.vms[n].managed;
        if managed.made
            && !matches!(self.actuator.move_thread(&thread, managed.cgroup()), Ok(Outcome::Done))
        {
            return;
        }
        let id = (0..).find(|id| managed.cpu.vcpu(VcpuId(*id)).is_none()).map(VcpuId).unwrap();
        let threads = self.actuator.threads();
        let (Ok(nice), Ok(slice), Ok(allowed)) =
            (threads.nice(thread.tid), threads.slice(thread.tid), threads.affinity(thread.tid))
        else {
            return;
        };
        let settings = VcpuSettings { nice, slice, ..VcpuSettings::default() };
        managed.vm.vcpus.push(VcpuThread { index: id, thread });
        managed.cpu.vcpus.push(VcpuCpu::new(id, LiveVcpu::new(thread), settings, allowed));
        managed.cpu.vcpus.sort_by_key(|vcpu| vcpu.id);
    }

    /// Applies decisions, and checks that a VM that takes turns keeps the idle class and weight of its group.
    fn apply(&mut self, n: usize, decisions: &[Decision]) {
        self.reread_after_turns(n);
        for step in steps(decisions) {
            let group = self.vms[n].managed.cgroup().clone();
            let look = |host: &Fake| {
                let controller = host.controller();
                (controller.is_idle(&group).ok(), controller.weight(&group).ok())
            };
            let before = look(&self.host);
            let Subject { managed, had_class, .. } = &mut self.vms[n];
            *had_class |= step.decisions.iter().any(|decision| decision.knob() == Setting::Idle);
            let (cpu, mut knobs) = managed.with_knobs(&mut self.actuator);
            let _ = cpu.reconcile(&step, &mut knobs);
            if cpu.takes_turns() {
                assert_eq!(look(&self.host), before, "the turn keeper owns them: {step:?}");
            }
        }
    }

    fn vcpu(&self, n: usize, vcpu: u32) -> VcpuId {
        let vcpus = &self.vms[n].managed.cpu.vcpus;
        let at = vcpu as usize % vcpus.len().max(1);
        vcpus.get(at).map_or(VcpuId(99), |vcpu| vcpu.id)
    }

    fn thread(&self, n: usize, vcpu: u32) -> Option<ThreadRef> {
        let vcpu = self.vms[n].managed.cpu.vcpu(self.vcpu(n, vcpu))?;
        self.host.threads().is_alive(&vcpu.host.thread).then_some(vcpu.host.thread)
    }

    fn set_weight(&mut self, n: usize, target: Target, weight: u16) {
        let weight = Weight::saturating(weight.into());
        self.apply(n, &[Decision::SetWeight { target, weight, because: Because::Outside }]);
    }

    fn set_idle(&mut self, n: usize, target: Target, idle: bool) {
        self.apply(n, &[Decision::SetIdle { target, idle, because: Because::Outside }]);
    }

    fn take(&mut self, event: &Event) {
        let id = |vm: usize| VmId(vm as u64);
        match *event {
            Event::Weight { vm, weight } => self.set_weight(vm, Target::Vm(id(vm)), weight),
            Event::Idle { vm, idle } => self.set_idle(vm, Target::Vm(id(vm)), idle),
            Event::VcpuWeight { vm, vcpu, weight } => {
                self.set_weight(vm, Target::Vcpu(id(vm), self.vcpu(vm, vcpu)), weight);
            }
            Event::VcpuIdle { vm, vcpu, idle } => {
                self.set_idle(vm, Target::Vcpu(id(vm), self.vcpu(vm, vcpu)), idle);
            }
            Event::Nice { vm, vcpu, nice } => {
                let (vcpu, nice) = (self.vcpu(vm, vcpu), Nice(nice));
                self.apply(
                    vm,
                    &[Decision::SetNice { vm: id(vm), vcpu, nice, because: Because::Outside }],
                );
            }
            Event::Slice { vm, vcpu, ms } => {
                let slice = (ms > 0).then(|| Nanos::from_millis(ms));
                let vcpu = self.vcpu(vm, vcpu);
                self.apply(
                    vm,
                    &[Decision::SetSlice { vm: id(vm), vcpu, slice, because: Because::Outside }],
                );
            }
            Event::Affinity { vm, vcpu, pcpus } => {
                let pcpus = (0..4).filter(|bit| pcpus >> bit & 1 == 1).map(PcpuId).collect();
                let vcpu = self.vcpu(vm, vcpu);
                let decision =
                    Decision::SetAffinity { vm: id(vm), vcpu, pcpus, because: Because::Outside };
                self.apply(vm, &[decision]);
            }
            Event::Divide { vm, parts } => {
                let vcpus = &self.vms[vm].managed.cpu.vcpus;
                let part = 1.0 / vcpus.len().max(1) as f64;
                let portions = vcpus.iter().filter(|_| parts).map(|vcpu| (vcpu.id, part)).collect();
                self.apply(
                    vm,
                    &[Decision::Divide { vm: id(vm), portions, because: Because::Outside }],
                );
            }
            Event::Swap { vm } => self.swap(vm),
            Event::Rotation { members, moves } => self.rotate(members, moves),
            Event::Turn { on, pcpu } => self.turn(on, pcpu),
            Event::OperatorWeight { weight } => {
                let cpu = &self.vms[1].managed.cpu;
                // In turns a foreign weight is overwritten without a look at it.
                if !cpu.takes_turns() && !cpu.has_ended_turns() {
                    self.host.operator_sets_weight(&cpu.group, &weight.to_string());
                }
            }
            Event::OperatorAffinity { vm, vcpu } => {
                if let Some(thread) = self.thread(vm, vcpu) {
                    self.host.operator_sets_affinity(&thread, &"5-7".parse().unwrap());
                }
            }
            Event::OperatorNice { vm, vcpu, nice } => {
                if let Some(thread) = self.thread(vm, vcpu) {
                    self.host.operator_sets_nice(&thread, Nice(nice));
                }
            }
            Event::OperatorIdle { vm, idle } => {
                let subject = &self.vms[vm];
                // The journal cannot distinguish the operator's class from one that the daemon set.
                if subject.managed.made || !subject.had_class {
                    self.host.operator_sets_idle(subject.managed.cgroup(), idle);
                }
            }
            Event::OperatorIdleOfVcpu { vm, vcpu, idle } => {
                let vcpu = self.vms[vm].managed.cpu.vcpu(self.vcpu(vm, vcpu));
                if let Some(group) = vcpu.and_then(|vcpu| vcpu.group.as_ref()) {
                    self.host.operator_sets_idle(group, idle);
                }
            }
            Event::OperatorMove { vm, vcpu, to } => {
                if let Some(thread) = self.thread(vm, vcpu) {
                    self.host.operator_moves(&thread, &cgroup(to));
                }
            }
            Event::Recheck { vm } => self.recheck(vm),
            Event::VcpuEnds { vm, vcpu } => self.end_vcpu(vm, vcpu),
            Event::VcpuStarts { vm } => {
                if self.vms[vm].managed.vcpu_count() < 5 {
                    self.start_vcpu(vm);
                }
            }
            Event::Release { vm } => self.release(vm),
            Event::Fault { after, error } => self.faults.fail_after(after, error.raw_os_error()),
        }
    }

    fn swap(&mut self, vm: usize) {
        let (one, other) = (self.vcpu(vm, 0), self.vcpu(vm, 1));
        let [from, to] = [PcpuId(0), PcpuId(1)];
        let takes_place = |vcpu: VcpuId, of: VcpuId, pcpu: PcpuId| Decision::SetAffinity {
            vm: VmId(vm as u64),
            vcpu,
            pcpus: [pcpu].into_iter().collect(),
            because: Because::TakesPlace { of, from, to, waited: 0.5 },
        };
        if one != other {
            self.apply(vm, &[takes_place(one, other, to), takes_place(other, one, from)]);
        }
    }

    /// Replaces the rotation, as the fleet and the keeper do together.
    fn rotate(&mut self, members: [bool; 2], moves: bool) {
        (0..2).for_each(|n| self.reread_after_turns(n));
        let keeper = self.host.controller();
        for (n, subject) in self.vms.iter_mut().enumerate() {
            let Subject { managed, switch, slots, had_class } = subject;
            *had_class |= members[n];
            let (cpu, mut knobs) = managed.with_knobs(&mut self.actuator);
            // The slots of a VM's first vCPU are on the operator's pCPUs.
            let first = cpu.vcpus.first().map(|vcpu| (vcpu.id, vcpu.granted.as_ref()));
            let (id, home) = first.map_or((VcpuId(0), None), |(id, home)| (id, home.cloned()));
            let allowed = cpu.vcpus.first().map(|vcpu| vcpu.allowed.clone()).unwrap_or_default();
            let slots_on = home.unwrap_or(allowed);
            let member = Member {
                vm: VmId(n as u64),
                slots: (0u64..)
                    .zip(slots_on.iter())
                    .map(|(at, pcpu)| Slot {
                        from: Nanos(10 * at),
                        to: Nanos(10 * at + 10),
                        pcpus: [(id, pcpu)].into(),
                    })
                    .collect(),
                moves,
            };
            let joins = members[n].then(|| cpu.prepare_turns(&member, &mut knobs));
            if let Some(Ok(Some(prepared))) = joins {
                if cpu.takes_turns() && keeper.is_idle(&cpu.group).ok() == Some(Some(false)) {
                    let _ = prepared.reweigh(&*keeper);
                }
                *switch = Some(prepared);
                cpu.on_turns();
                for vcpu in cpu.vcpus.iter().filter(|vcpu| !vcpu.slots.is_empty()) {
                    let thread = vcpu.host.thread;
                    let home = || Slots::journaled(thread, vcpu.allowed.clone());
                    slots.entry(thread).or_insert_with(home);
                }
                continue;
            }
            if let Ok(Some(last)) = cpu.prepare_end_of_turns(&mut knobs) {
                *switch = Some(last);
            }
            if let Some(switch) = switch.take() {
                let _ = switch.leave(&*keeper).and_then(|()| switch.reweigh(&*keeper));
            }
            for mut slots in std::mem::take(slots).into_values() {
                let _ = slots.leave(&*self.host.threads());
            }
            cpu.vcpus.iter_mut().for_each(|vcpu| vcpu.slots = PcpuSet::default());
            cpu.on_end_of_turns(false);
        }
    }

    /// The keeper lets one VM run.
    fn turn(&mut self, on: usize, pcpu: u32) {
        let keeper = self.host.controller();
        for (n, subject) in self.vms.iter_mut().enumerate() {
            for slots in subject.slots.values_mut() {
                let slot = slots.home().iter().nth(pcpu as usize % slots.home().len());
                let _ = slot.map(|slot| slots.sit(&*self.host.threads(), slot));
            }
            if let Some(switch) = &subject.switch {
                let _ = if n == on {
                    switch.leave(&*keeper).and_then(|()| switch.reweigh(&*keeper))
                } else {
                    switch.enter(&*keeper)
                };
            }
        }
    }

    /// Reads a VM's settings again, as an update of the fleet does.
    fn recheck(&mut self, n: usize) {
        self.reread_after_turns(n);
        let managed = &mut self.vms[n].managed;
        let notes = &mut Vec::new();
        let _ = managed.recheck_group(&mut self.actuator, notes);
        let _ = managed.recheck_vcpu_groups(&mut self.actuator, notes);
    }

    /// Reads a VM that has left its turns, as each observation does before policies decide.
    fn reread_after_turns(&mut self, n: usize) {
        let managed = &mut self.vms[n].managed;
        if managed.cpu.has_ended_turns()
            && let Ok((weight, idle)) = shares(&*self.host.controller(), managed.cgroup())
        {
            managed.cpu.on_read(weight, idle);
        }
    }

    fn end_vcpu(&mut self, n: usize, vcpu: u32) {
        let Some(thread) = self.thread(n, vcpu) else { return };
        self.host.end(&thread);
        let Subject { managed, slots, .. } = &mut self.vms[n];
        slots.clear();
        let (cpu, mut knobs) = managed.with_knobs(&mut self.actuator);
        let at = cpu.vcpus.iter().position(|vcpu| vcpu.host.thread == thread).unwrap();
        if let Some(group) = cpu.vcpus.remove(at).group {
            knobs.remove_group(group);
        }
        let _ = cpu.settle_division(&mut knobs);
    }

    /// Releases a VM, whose settings must then be those of the operator, and manages it again.
    fn release(&mut self, n: usize) {
        self.rotate([false; 2], false);
        let held = held_by(&self.vms[n].managed);
        let mut busy = std::mem::take(&mut self.vms[n].managed.busy);
        self.faults.stop();
        let reports = self.actuator.release_empty(&[&held]);
        assert!(reports.iter().all(RestoreReport::is_complete), "{reports:?}");
        busy.retain(|group| self.actuator.controller().exists(group));
        let busy = Held { cgroups: busy, ..Held::default() };
        let reports = self.actuator.release_empty(&[&busy]);
        assert!(reports.iter().all(RestoreReport::is_complete), "{reports:?}");
        let vcpus = std::mem::take(&mut self.vms[n].managed.cpu.vcpus);
        self.vms[n] = self.adopt(n);
        for vcpu in vcpus {
            if self.host.threads().is_alive(&vcpu.host.thread) {
                self.take_vcpu(n, vcpu.host.thread);
            }
        }
    }
}

/// Restores a copy of the host from a copy of the journal.
fn check_covered(host: &Fake, dir: &Path, after: &str) {
    let copy = state_dir();
    for file in fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let host = host.fork();
    drop(open_on(&host, copy.path()));
    assert_eq!(host.differences(), Vec::<String>::new(), "after {after}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_700,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 600,
        ..ProptestConfig::default()
    })]

    /// 1,700 cases of up to 60 steps each: about 10⁵ steps with kills.
    #[test]
    fn journal_covers_all_changes_of_one_owner(
        version in prop_oneof![Just(Version::V1), Just(Version::V2)],
        events in proptest::collection::vec(event(), STEPS - 1..=STEPS),
        kill in proptest::option::of((0..200usize, any::<bool>())),
    ) {
        let dir = state_dir();
        let mut world = World::new(version, dir.path());
        let host = world.host.clone();
        if let Some((at, applied)) = kill {
            host.die_at(at, applied);
        }
        let alive = catch_unwind(AssertUnwindSafe(|| {
            for (number, event) in events.iter().enumerate() {
                world.take(event);
                check_covered(&host, dir.path(), &format!("event {number}, {event:?}"));
            }
        }));
        host.live();
        world.faults.stop();
        if let Err(panic) = alive {
            if !panic.is::<Crash>() {
                world.actuator.abandon();
                std::panic::resume_unwind(panic);
            }
            world.actuator.abandon();
            check_covered(&host, dir.path(), "a kill");
            return Ok(());
        }
        drop(world);
        prop_assert!(!tandem_linux::journal::is_pending(dir.path()));
        prop_assert_eq!(host.differences(), Vec::<String>::new());
    }
}
