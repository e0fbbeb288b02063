//! The state machine as a table: each event in each state, the next state, and the changes in order.
//!
//! A VM of weight 100 has vCPUs 0 and 1 on pCPUs 0 and 1; vCPU 1 has the nice value 5.
//! `transitions.txt` has a line for each: `state -> next state | changes`.
//! `vCPU 0` in a state is its group, if any, and its thread's settings, if they differ from those at the start.

use std::collections::BTreeMap;
use std::fmt::Write;

use tandem_model::{Because, PcpuId, Target, VmId};

use super::*;
use crate::turns::{Member, Slot};

type Cpu = VmCpu<String, u32>;
type Vcpu = VcpuCpu<String, u32>;

/// Records changes, and refuses those that start with `refuses`.
#[derive(Default)]
struct Log {
    changes: Vec<String>,
    refuses: Option<&'static str>,
    /// A thread that has ended.
    ended: Option<u32>,
    /// Whether the VM's group is in the idle class.
    is_idle: bool,
}

impl Log {
    fn change(&mut self, change: String) -> Result<(), String> {
        if self.refuses.is_some_and(|refused| change.starts_with(refused)) {
            self.changes.push(format!("{change} refused"));
            return Err(change);
        }
        self.changes.push(change);
        Ok(())
    }

    /// Changes a thread, if it lives.
    fn of_thread<T>(&mut self, vcpu: u32, change: String, value: T) -> Result<Option<T>, String> {
        if self.ended == Some(vcpu) {
            return Ok(None);
        }
        self.change(change).map(|()| Some(value))
    }
}

impl Knobs<String, u32> for Log {
    type Error = String;
    type Switch = ();

    fn default_weight(&self) -> Weight {
        Weight::constant(100.0)
    }

    fn is_idle(&self, _: &String) -> Result<bool, String> {
        Ok(self.is_idle)
    }

    fn set_weight(&mut self, group: &String, weight: Weight) -> Result<Weight, String> {
        self.change(format!("{group} weight {}", weight.value())).map(|()| weight)
    }

    fn set_idle(&mut self, group: &String, idle: bool) -> Result<(), String> {
        self.change(format!("{group} idle {}", u8::from(idle)))
    }

    fn find_inner_group(&mut self, vm: &String, vcpu: &mut Vcpu) -> Result<bool, String> {
        let group = format!("{vm}/{}", vcpu.host);
        let made = self.of_thread(vcpu.host, format!("{group} made"), group)?;
        vcpu.on_group(made.map(|group| (group, self.default_weight(), false)));
        Ok(vcpu.group.is_some())
    }

    fn separate(
        &mut self,
        vm: &String,
        vcpu: &Vcpu,
        weight: Weight,
    ) -> Result<Option<(String, Weight)>, String> {
        let group = format!("{vm}-{}", vcpu.host);
        self.of_thread(vcpu.host, format!("{group} made {}", weight.value()), (group, weight))
    }

    fn rejoin(&mut self, vm: &String, vcpu: &Vcpu) -> Result<(), String> {
        self.change(format!("{} to {vm}", vcpu.host))
    }

    fn remove_group(&mut self, group: String) {
        self.changes.push(format!("{group} removed"));
    }

    fn set_nice(&mut self, vcpu: &u32, nice: Nice) -> Result<Option<Nice>, String> {
        self.of_thread(*vcpu, format!("{vcpu} nice {}", nice.0), nice)
    }

    fn set_slice(
        &mut self,
        vcpu: &u32,
        slice: Option<Nanos>,
    ) -> Result<Option<Option<Nanos>>, String> {
        let text = slice.map_or("default".to_owned(), |slice| slice.to_string());
        self.of_thread(*vcpu, format!("{vcpu} slice {text}"), slice)
    }

    fn set_affinity(&mut self, vcpu: &u32, pcpus: &PcpuSet) -> Result<Option<PcpuSet>, String> {
        self.of_thread(*vcpu, format!("{vcpu} on {pcpus}"), pcpus.clone())
    }

    fn prepare_turns(
        &mut self,
        group: &String,
        weight: Weight,
        goes_on: bool,
    ) -> Result<(), String> {
        let goes_on = if goes_on { "goes on" } else { "turns" };
        self.change(format!("{group} {goes_on} {}", weight.value()))
    }

    fn prepare_slots(&mut self, vcpu: &u32, pcpus: &PcpuSet) -> Result<bool, String> {
        Ok(self.of_thread(*vcpu, format!("{vcpu} slots {pcpus}"), ())?.is_some())
    }
}

fn vcpu(n: u32) -> Vcpu {
    let settings = VcpuSettings { nice: Nice(5 * n as i8), ..VcpuSettings::default() };
    VcpuCpu::new(VcpuId(n), n, settings, [PcpuId(n)].into_iter().collect())
}

/// A VM in this state.
fn start(share: Share) -> Cpu {
    let mut cpu = VmCpu::new("vm".to_owned(), Weight::constant(100.0), false);
    cpu.divisible = true;
    cpu.vcpus = vec![vcpu(0), vcpu(1)];
    if matches!(share, Share::PerVcpu { .. }) {
        reconcile(&mut cpu, &mut Log::default(), &[divide(&[0.5, 0.5])]);
    }
    cpu.share = share;
    cpu
}

fn reconcile(cpu: &mut Cpu, log: &mut Log, decisions: &[Decision]) {
    for step in steps(decisions) {
        let _ = cpu.reconcile(&step, log);
    }
}

fn weight(target: Target, weight: f64) -> Decision {
    Decision::SetWeight { target, weight: Weight::constant(weight), because: Because::Outside }
}

fn idle(target: Target, idle: bool) -> Decision {
    Decision::SetIdle { target, idle, because: Because::Outside }
}

fn divide(portions: &[f64]) -> Decision {
    let portions = (0..).map(VcpuId).zip(portions.iter().copied()).collect();
    Decision::Divide { vm: VmId(1), portions, because: Because::Outside }
}

fn affinity(n: u32, pcpu: u32, because: Because) -> Decision {
    let pcpus = [PcpuId(pcpu)].into_iter().collect();
    Decision::SetAffinity { vm: VmId(1), vcpu: VcpuId(n), pcpus, because }
}

fn nice(n: u32, nice: i8, because: Because) -> Decision {
    Decision::SetNice { vm: VmId(1), vcpu: VcpuId(n), nice: Nice(nice), because }
}

/// The vCPUs exchange pCPUs and nice values; the nice values are decided first.
fn swap() -> Vec<Decision> {
    let because = |n| {
        let [from, to] = [PcpuId(n), PcpuId(1 - n)];
        Because::TakesPlace { of: VcpuId(1 - n), from, to, waited: 0.5 }
    };
    let nice = |n| nice(n, 5 * (1 - n) as i8, because(n));
    let affinity = |n| affinity(n, 1 - n, because(n));
    vec![nice(0), nice(1), affinity(0), affinity(1)]
}

/// Takes turns with vCPU 0; if it `moves`, it has a slot on each of the pCPUs 0 and 1.
fn take_turns(cpu: &mut Cpu, log: &mut Log, moves: bool) {
    let slot = |n: u32| Slot {
        from: Nanos(10 * u64::from(n)),
        to: Nanos(10 * u64::from(n) + 10),
        pcpus: BTreeMap::from([(VcpuId(0), PcpuId(n))]),
    };
    let member = Member { vm: VmId(1), slots: vec![slot(0), slot(1)], moves };
    if let Ok(Some(())) = cpu.prepare_turns(&member, log) {
        cpu.on_turns();
    }
}

fn end_turns(cpu: &mut Cpu, log: &mut Log, slept: bool) {
    let _ = cpu.prepare_end_of_turns(log);
    cpu.on_end_of_turns(slept);
}

/// Removes a vCPU that ended, as the fleet does.
fn unplug(cpu: &mut Cpu, log: &mut Log) {
    if let Some(group) = cpu.vcpus.remove(0).group {
        log.remove_group(group);
    }
    let _ = cpu.settle_division(log);
}

/// Others move a vCPU out of its group.
fn move_out(cpu: &mut Cpu, log: &mut Log, n: usize) {
    cpu.vcpus[n].on_group(None);
    cpu.vcpus[n].settings.portion = None;
    let _ = cpu.settle_division(log);
}

/// Takes in a foreign change; in turns the group is not read.
fn recheck(cpu: &mut Cpu, take_in: fn(&mut Cpu)) {
    if !cpu.takes_turns() && !cpu.has_ended_turns() {
        take_in(cpu);
    }
}

type Event = (&'static str, fn(&mut Cpu, &mut Log));

const VM: Target = Target::Vm(VmId(1));
const VCPU: Target = Target::Vcpu(VmId(1), VcpuId(0));

/// Events in each state.
const EVENTS: &[Event] = &[
    ("weight 200", |cpu, log| reconcile(cpu, log, &[weight(VM, 200.0)])),
    ("weight 200, refused", |cpu, log| {
        log.refuses = Some("vm");
        reconcile(cpu, log, &[weight(VM, 200.0)]);
    }),
    ("idle", |cpu, log| reconcile(cpu, log, &[idle(VM, true)])),
    ("idle, refused", |cpu, log| {
        log.refuses = Some("vm idle");
        reconcile(cpu, log, &[idle(VM, true)]);
    }),
    ("not idle", |cpu, log| reconcile(cpu, log, &[idle(VM, false)])),
    ("divide", |cpu, log| reconcile(cpu, log, &[divide(&[0.75, 0.25])])),
    ("divide, second group refused", |cpu, log| {
        log.refuses = Some("vm-1 made");
        reconcile(cpu, log, &[divide(&[0.75, 0.25])]);
    }),
    ("divide, vCPU 1 ended", |cpu, log| {
        log.ended = Some(1);
        reconcile(cpu, log, &[divide(&[0.75, 0.25])]);
    }),
    ("unite", |cpu, log| reconcile(cpu, log, &[divide(&[])])),
    ("turns", |cpu, log| take_turns(cpu, log, false)),
    ("turns, refused", |cpu, log| {
        log.refuses = Some("vm turns");
        take_turns(cpu, log, false);
    }),
    ("turns with slots", |cpu, log| take_turns(cpu, log, true)),
    ("turns end", |cpu, log| end_turns(cpu, log, false)),
    ("turns end in sleep", |cpu, log| end_turns(cpu, log, true)),
    ("turn keeper dies", |cpu, log| drop(cpu.recover_from_turns(log))),
    ("foreign weight 300", |cpu, _| {
        recheck(cpu, |cpu| cpu.on_weight(Weight::constant(300.0)));
    }),
    ("rule overwrites foreign weight", |cpu, log| drop(cpu.restore_group_weight(log))),
    ("foreign idle", |cpu, _| recheck(cpu, |cpu| cpu.on_idle(true, Weight::constant(100.0)))),
    ("foreign not idle", |cpu, _| {
        recheck(cpu, |cpu| cpu.on_idle(false, Weight::constant(100.0)));
    }),
    ("foreign idle, then unite", |cpu, log| {
        log.is_idle = true;
        recheck(cpu, |cpu| cpu.on_idle(true, Weight::constant(100.0)));
        reconcile(cpu, log, &[divide(&[])]);
    }),
    ("foreign move of vCPU 0", |cpu, log| move_out(cpu, log, 0)),
    ("foreign move of both vCPUs", |cpu, log| (0..2).for_each(|n| move_out(cpu, log, n))),
    ("read after turns: weight 300", |cpu, _| {
        if cpu.has_ended_turns() {
            cpu.on_read(Weight::constant(300.0), false);
        }
    }),
    ("vCPU 2 starts, divide", |cpu, log| {
        cpu.vcpus.push(vcpu(2));
        reconcile(cpu, log, &[divide(&[0.5, 0.25, 0.25])]);
    }),
    ("vCPU 0 ends", unplug),
    ("both vCPUs end", |cpu, log| (0..2).for_each(|_| unplug(cpu, log))),
];

/// Events of single vCPUs, in the state together.
const VCPU_EVENTS: &[Event] = &[
    ("weight 70 of vCPU 0", |cpu, log| reconcile(cpu, log, &[weight(VCPU, 70.0)])),
    ("idle, weight 70 and not idle of vCPU 0", |cpu, log| {
        let decisions = [idle(VCPU, true), weight(VCPU, 70.0), idle(VCPU, false)];
        reconcile(cpu, log, &decisions);
    }),
    ("weight 70 of vCPU 0, divide", |cpu, log| {
        reconcile(cpu, log, &[weight(VCPU, 70.0), divide(&[0.75, 0.25])]);
    }),
    ("weight 70 of vCPU 0, ended", |cpu, log| {
        log.ended = Some(0);
        reconcile(cpu, log, &[weight(VCPU, 70.0)]);
    }),
    ("affinity", |cpu, log| reconcile(cpu, log, &[affinity(0, 1, Because::Outside)])),
    ("affinity and back", |cpu, log| {
        let there = affinity(0, 1, Because::Outside);
        reconcile(cpu, log, &[there, affinity(0, 0, Because::Outside)]);
    }),
    ("affinity, refused", |cpu, log| {
        log.refuses = Some("0 on");
        reconcile(cpu, log, &[affinity(0, 1, Because::Outside)]);
    }),
    ("affinity, then foreign affinity", |cpu, log| {
        reconcile(cpu, log, &[affinity(0, 1, Because::Outside)]);
        cpu.vcpus[0].on_affinity([PcpuId(2)].into_iter().collect());
    }),
    ("affinity, then turns with slots", |cpu, log| {
        reconcile(cpu, log, &[affinity(0, 1, Because::Outside)]);
        take_turns(cpu, log, true);
    }),
    ("turns with slots, then affinity", |cpu, log| {
        take_turns(cpu, log, true);
        reconcile(cpu, log, &[affinity(0, 1, Because::Outside)]);
    }),
    ("turns with slots, vCPU 0 ended", |cpu, log| {
        log.ended = Some(0);
        take_turns(cpu, log, true);
    }),
    ("turns with slots, turn keeper dies in a slot", |cpu, log| {
        take_turns(cpu, log, true);
        let slot = [PcpuId(0)].into_iter().collect();
        let _ = cpu.vcpus[0].recover_from_slot(&slot, log);
    }),
    ("turns with slots, turn keeper dies after foreign affinity", |cpu, log| {
        take_turns(cpu, log, true);
        let foreign = [PcpuId(3)].into_iter().collect();
        let _ = cpu.vcpus[0].recover_from_slot(&foreign, log);
    }),
    ("swap", |cpu, log| reconcile(cpu, log, &swap())),
    ("swap, first move refused", |cpu, log| {
        log.refuses = Some("0 on 1");
        reconcile(cpu, log, &swap());
    }),
    ("swap, second move refused", |cpu, log| {
        log.refuses = Some("1 on 0");
        reconcile(cpu, log, &swap());
    }),
    ("swap, first nice value refused", |cpu, log| {
        log.refuses = Some("0 nice");
        reconcile(cpu, log, &swap());
    }),
    ("swap, second nice value refused", |cpu, log| {
        log.refuses = Some("1 nice");
        reconcile(cpu, log, &swap());
    }),
    ("swap, vCPU 1 ended", |cpu, log| {
        log.ended = Some(1);
        reconcile(cpu, log, &swap());
    }),
    ("swap with one move", |cpu, log| reconcile(cpu, log, &swap()[..3])),
];

/// Returns the state in words.
fn text(cpu: &Cpu) -> String {
    let weight = cpu.weight().value();
    let mut text = match cpu.share() {
        Share::PerVcpu { empty, idle } => {
            let idle = if idle { ", idle" } else { "" };
            format!("per vCPU {weight}, empty {}{idle}", empty.value())
        }
        Share::Ended { slept } => {
            format!("ended{} {weight}", if slept { " in sleep" } else { "" })
        }
        other => format!("{other:?} {weight}").to_lowercase(),
    };
    for now in &cpu.vcpus {
        let mut parts = Vec::new();
        let before = vcpu(now.host);
        if let (Some(group), Some(weight)) = (&now.group, now.settings.weight) {
            parts.push(format!("{group} {}", weight.value()));
        }
        if now.allowed != before.allowed {
            parts.push(format!("on {}", now.allowed));
        }
        parts.extend(now.granted.as_ref().map(|granted| format!("granted {granted}")));
        if now.settings.nice != before.settings.nice {
            parts.push(format!("nice {}", now.settings.nice.0));
        }
        parts.extend((!now.slots.is_empty()).then(|| format!("slots {}", now.slots)));
        if !parts.is_empty() {
            let _ = write!(text, "; vCPU {}: {}", now.id, parts.join(", "));
        }
    }
    text
}

#[test]
fn each_event_has_its_next_state_and_changes() {
    let states = [
        ("together", Share::Together),
        ("idle", Share::Idle),
        ("per vCPU", Share::PerVcpu { empty: Weight::constant(100.0), idle: false }),
        ("rotation", Share::Rotation),
        ("ended", Share::Ended { slept: false }),
    ];
    let mut table = "adoption\n".to_owned();
    for (group, idle) in [("group", false), ("group in the idle class", true)] {
        let adopted: Cpu = VmCpu::new("vm".to_owned(), Weight::constant(100.0), idle);
        let _ = writeln!(table, "  {group} -> {}", text(&adopted));
    }
    let outcome = |cpu: &mut Cpu, event: fn(&mut Cpu, &mut Log)| {
        let before = text(cpu);
        let mut log = Log { is_idle: cpu.is_idle(), ..Log::default() };
        event(cpu, &mut log);
        let after = text(cpu);
        let after = if after == before { "same".to_owned() } else { after };
        let changes = log.changes.join(", ");
        let end = if changes.is_empty() { "" } else { " | " };
        format!("{after}{end}{changes}\n")
    };
    for (name, event) in EVENTS {
        let _ = writeln!(table, "{name}");
        for (state, share) in states {
            let row = outcome(&mut start(share), *event);
            let _ = write!(table, "  {state} -> {row}");
        }
    }
    for (name, event) in VCPU_EVENTS {
        let row = outcome(&mut start(Share::Together), *event);
        let _ = write!(table, "{name}\n  {} -> {row}", states[0].0);
    }
    assert!(table == include_str!("transitions.txt"), "{table}");
}
