//! VMs that enter and leave turns: the CPU time that they and the others receive.
//!
//! A fluid model of two pCPUs and VMs of two vCPUs each, in steps of 1 ms.
//! In each step the VMs that are awake and not in the idle class share the pCPUs by their current weights.
//! If there is none, those in the idle class do.
//! The controller, the sequence of turns and the test for sleep are those that ship.
//! As a kernel does, the model counts a wait when it ends.
//!
//! It has no clock ticks and no slices: errors here are errors of the policy.

use tandem_model::{
    Decision, Nanos, PcpuId, PcpuSet, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::host::{Controller, ControllerConfig, HostObservation, IdleTimes, registry};
use tandem_policy::turns::sleep::{Account, VmSleep};
use tandem_policy::turns::{Sequence, SleepWatch};

const STEP: Nanos = Nanos::from_millis(1);
const T: Nanos = Nanos::from_millis(100);

/// Time at which a VM sleeps that has been awake for long enough.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At once, as a benign VM does.
    AtOnce,
    /// Only in turns, so that its sleep ends with its turn.
    EndOfTurn,
    /// Only in turns, during the turns of others: it loses nothing.
    BetweenTurns,
}

/// Spins for at least `spin`, then sleeps for `sleep`.
#[derive(Clone, Copy, Debug)]
struct Habit {
    spin: Nanos,
    sleep: Nanos,
    when: When,
}

struct FluidVm {
    habit: Option<Habit>,
    /// It spins, or sleeps, until then.
    until: Nanos,
    asleep: bool,
    observed: VmObservation,
    /// Times of each of its vCPUs.
    ran: f64,
    waited: f64,
    /// A wait in progress.
    waiting: f64,
    /// `ran` and `waited` at the last period.
    before: (f64, f64),
    /// Samples at the ends of its turns.
    watch: SleepWatch,
    /// Periods at whose end it was in the rotation.
    rotated: usize,
    /// Number of times it left because it slept.
    left: usize,
}

impl FluidVm {
    fn account(&self) -> Account {
        let nanos = |time: f64| Nanos(time.round() as u64);
        Account { ran: nanos(self.ran), waited: nanos(self.waited) }
    }
}

struct FluidHost {
    controller: Controller,
    sequence: Sequence,
    vms: Vec<FluidVm>,
    now: Nanos,
    next_turn: Nanos,
    idle: f64,
}

impl FluidHost {
    /// Equal VMs of these habits; `None` never sleeps.
    fn new(habits: &[Option<Habit>]) -> FluidHost {
        let free: PcpuSet = "0-1".parse().unwrap();
        let vm = |(id, habit): (u64, &Option<Habit>)| {
            let vcpus = (0..2).map(|n| VcpuObservation::new(VcpuId(n), free.clone()));
            FluidVm {
                habit: *habit,
                until: habit.map_or(Nanos(u64::MAX), |habit| habit.spin),
                asleep: false,
                observed: VmObservation::new(VmId(id), Weight::constant(1024.0), vcpus.collect()),
                ran: 0.0,
                waited: 0.0,
                waiting: 0.0,
                before: (0.0, 0.0),
                watch: SleepWatch::default(),
                rotated: 0,
                left: 0,
            }
        };
        FluidHost {
            controller: Controller::new(ControllerConfig::new(
                registry::set(["fair", "turns"]).unwrap(),
            )),
            sequence: Sequence::default(),
            vms: (0..).zip(habits).map(vm).collect(),
            now: Nanos::ZERO,
            next_turn: Nanos::ZERO,
            idle: 0.0,
        }
    }

    /// CPU time that each VM receives, relative to its fair share: an equal part of the total.
    fn parts(&mut self, time: Nanos) -> Vec<f64> {
        let before: Vec<f64> = self.vms.iter().map(|vm| vm.ran).collect();
        self.run(time);
        let ran = self.vms.iter().zip(&before).map(|(vm, then)| vm.ran - then);
        let ran: Vec<f64> = ran.collect();
        let due = ran.iter().sum::<f64>() / ran.len() as f64;
        ran.into_iter().map(|ran| ran / due).collect()
    }

    fn takes_turns(&self, vm: usize) -> bool {
        self.sequence.rotation().member(VmId(vm as u64)).is_some()
    }

    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            if self.now >= self.next_turn && !self.sequence.rotation().is_empty() {
                self.begin_turn();
            }
            self.wake_and_sleep();
            self.step();
            self.now += STEP;
            if self.now.0.is_multiple_of(T.0) {
                self.period();
            }
        }
    }

    fn begin_turn(&mut self) {
        let mut slept = Vec::new();
        for id in self.sequence.ending() {
            let turn = self.sequence.rotation().member(id).unwrap().length();
            let vm = &mut self.vms[id.0 as usize];
            let account = vm.account();
            let mut sleep = VmSleep::default();
            if let Some(seen) = vm.watch.look(turn, self.now, account, || !vm.asleep) {
                sleep.add(seen);
            }
            if sleep.ends_turns(turn) {
                slept.push(id);
            }
        }
        let (step, turn) = self.sequence.begin_turn(slept);
        for vm in step.left {
            let vm = &mut self.vms[vm.0 as usize];
            vm.watch = SleepWatch::default();
            vm.left += 1;
            vm.observed.in_force.left_turns = true;
            vm.observed.in_force.rotating = false;
        }
        for vm in self.sequence.row() {
            let vm = &mut self.vms[vm.0 as usize];
            if vm.watch.is_suspicious() {
                let account = vm.account();
                vm.watch.turn_begins(self.now, account);
            }
        }
        self.next_turn = self.now + turn;
    }

    fn wake_and_sleep(&mut self) {
        for vm in &mut self.vms {
            let Some(habit) = vm.habit else { continue };
            if self.now < vm.until {
                continue;
            }
            if vm.asleep {
                vm.asleep = false;
                vm.until = self.now + habit.spin;
                continue;
            }
            let id = vm.observed.vm;
            let takes_turns = self.sequence.rotation().member(id).is_some();
            let in_row = takes_turns && self.sequence.row().contains(&id);
            let may = match habit.when {
                When::EndOfTurn => in_row && self.now + habit.sleep >= self.next_turn,
                When::BetweenTurns => takes_turns && !in_row,
                When::AtOnce => true,
            };
            if may {
                vm.asleep = true;
                vm.until = self.now + habit.sleep;
            }
        }
    }

    fn step(&mut self) {
        let off = |vm: &FluidVm| self.sequence.is_off(vm.observed.vm);
        let awake = self.vms.iter().filter(|vm| !vm.asleep);
        let none_on = awake.clone().all(off);
        let worth = |vm: &FluidVm| match (vm.asleep, off(vm)) {
            (true, _) => 0.0,
            // The idle class has one weight for all.
            (false, true) if none_on => 1.0,
            (false, true) => 0.0,
            (false, false) => vm.observed.in_force.weight.value(),
        };
        let worth: Vec<f64> = self.vms.iter().map(worth).collect();
        let sum: f64 = worth.iter().sum();
        let step = STEP.0 as f64;
        if sum == 0.0 {
            self.idle += step;
        }
        for (vm, worth) in self.vms.iter_mut().zip(worth) {
            if vm.asleep {
                continue;
            }
            let ran = if worth > 0.0 { step * worth / sum } else { 0.0 };
            vm.ran += ran;
            vm.waiting += step - ran;
            if ran > 0.0 {
                vm.waited += std::mem::take(&mut vm.waiting);
            }
        }
    }

    fn period(&mut self) {
        for vm in &mut self.vms {
            let nanos = |time: f64| Nanos(time.round() as u64);
            for vcpu in &mut vm.observed.vcpus {
                vcpu.ran = nanos(vm.ran).saturating_sub(nanos(vm.before.0));
                vcpu.waited = nanos(vm.waited).saturating_sub(nanos(vm.before.1));
                vcpu.runnable = !vm.asleep;
            }
            vm.before = (vm.ran, vm.waited);
        }
        let idle = Nanos(std::mem::take(&mut self.idle) as u64);
        let idle: IdleTimes = [0, 1].map(|pcpu| (PcpuId(pcpu), idle)).into();
        let vms = self.vms.iter().map(|vm| vm.observed.clone()).collect();
        let host = HostObservation::with_any_knobs(T, vms, idle);
        let round = self.controller.decide(&host);
        for decision in &round.decisions {
            let vm = &mut self.vms[decision.vm().0 as usize].observed;
            match decision {
                Decision::SetWeight { weight, .. } => vm.in_force.weight = *weight,
                Decision::SetAffinity { vcpu, pcpus, .. } => {
                    let vcpu = &mut vm.vcpus[vcpu.0 as usize];
                    let granted = vcpu.granted().clone();
                    vcpu.allowed = pcpus.clone();
                    vcpu.granted = (granted != *pcpus).then_some(granted);
                }
                other => panic!("{other:?}"),
            }
        }
        let rotation = round.rotation.unwrap();
        let was_still = self.sequence.rotation().is_empty();
        self.sequence.follow(rotation);
        if was_still {
            self.next_turn = self.now;
        }
        for vm in &mut self.vms {
            let takes_turns = self.sequence.rotation().member(vm.observed.vm).is_some();
            vm.observed.in_force.rotating = takes_turns;
            vm.observed.in_force.left_turns = false;
            vm.rotated += usize::from(takes_turns);
            if !takes_turns {
                vm.watch = SleepWatch::default();
            }
        }
    }
}

const RUN: Nanos = Nanos::from_secs(30);

/// Equal VMs, of which the first `of_them` enter and leave turns, each a little later than the one before.
/// Asserts that none deviates by more than 5 % from its fair share.
fn assert_fair_shares(vms: usize, of_them: u64, spins: &[u64]) {
    let ms = Nanos::from_millis;
    for when in [When::AtOnce, When::EndOfTurn, When::BetweenTurns] {
        for (&spin, sleep) in
            spins.iter().flat_map(|spin| [5, 15, 20, 30, 50].map(|sleep| (spin, sleep)))
        {
            let habit = |vm: u64| Habit { spin: ms(spin + 90 * vm), sleep: ms(sleep), when };
            let habits = (0..vms as u64).map(|vm| (vm < of_them).then(|| habit(vm)));
            let parts = FluidHost::new(&habits.collect::<Vec<_>>()).parts(RUN);
            assert!(
                parts.iter().all(|part| (part - 1.0).abs() <= 0.05),
                "the first {of_them} of {vms} VMs spin for {spin} ms and sleep for {sleep} ms, {when:?}: {parts:.3?}"
            );
        }
    }
}

const SPINS: [u64; 7] = [300, 500, 600, 1000, 1100, 1500, 2000];

#[test]
fn one_gaming_vm_of_three_gains_nothing() {
    assert_fair_shares(3, 1, &SPINS);
}

#[test]
fn one_gaming_vm_of_five_gains_nothing() {
    assert_fair_shares(5, 1, &SPINS);
}

#[test]
fn two_gaming_vms_gain_nothing() {
    for vms in [3, 4, 5] {
        assert_fair_shares(vms, 2, &[500, 1000, 2000]);
    }
}

#[test]
fn awake_vms_rotate_with_fair_shares() {
    for vms in [2, 3, 5] {
        let mut host = FluidHost::new(&vec![None; vms]);
        let parts = host.parts(RUN);
        assert!(parts.iter().all(|part| (part - 1.0).abs() < 0.01), "{parts:.3?}");
        assert!(host.vms.iter().all(|vm| vm.left == 0 && vm.rotated > 290));
    }
}

#[test]
fn gaming_vm_is_kept_out_ever_longer() {
    let habit = Habit {
        spin: Nanos::from_millis(300),
        sleep: Nanos::from_millis(20),
        when: When::BetweenTurns,
    };
    let mut habits = vec![None; 5];
    habits[0] = Some(habit);
    let mut host = FluidHost::new(&habits);
    host.run(RUN);
    // After 0.5, 1, 2, 4, 8 and 10 s; if always after 0.5 s, it would be about 30 times.
    let left = host.vms[0].left;
    assert!((5..=8).contains(&left), "{left} times in 30 s");
    assert!(host.vms[0].rotated < 60, "{}", host.vms[0].rotated);
    let others = host.vms[1..].iter().map(|vm| vm.rotated);
    assert!(others.into_iter().all(|rotated| rotated > 290));
}

#[test]
fn rarely_blocking_vm_keeps_share_and_turns() {
    // Length of each of six sleeps in ms, and the minimum number of exits.
    // Ticks and waits may explain a short sleep in others' turns.
    for (sleep, left) in [(20, 2), (50, 4), (200, 4)] {
        let habit = Habit {
            spin: Nanos::from_secs(5),
            sleep: Nanos::from_millis(sleep),
            when: When::AtOnce,
        };
        let mut host = FluidHost::new(&[Some(habit), None, None, None, None]);
        let parts = host.parts(RUN);
        assert!(parts.iter().all(|part| (part - 1.0).abs() <= 0.05), "{parts:.3?}");
        let subject = &host.vms[0];
        assert!(subject.left >= left, "{}", subject.left);
        assert!(subject.rotated > 240, "{} of 300 periods", subject.rotated);
    }
}

#[test]
fn sleeping_vm_leaves_at_end_of_turn() {
    let habit = Habit {
        spin: Nanos::from_millis(2500),
        sleep: Nanos::from_millis(400),
        when: When::AtOnce,
    };
    let mut host = FluidHost::new(&[Some(habit), None, None]);
    let mut begun = 0;
    let mut was_asleep = false;
    while host.now < RUN {
        host.run(STEP);
        let began = host.vms[0].asleep && !was_asleep && host.takes_turns(0);
        was_asleep = host.vms[0].asleep;
        if began {
            // Two turns of the others, its own, and the rest of the one in which it began.
            host.run(Nanos::from_millis(80));
            assert!(!host.takes_turns(0), "at {}", host.now);
            begun += 1;
        }
    }
    assert!(begun >= 8, "{begun}");
}
