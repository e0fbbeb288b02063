//! `[[vm]]`: VMs, their vCPUs and guest kernels, checked against the machine.
//!
//! `count` creates several identical VMs.
//! In native mode the only VM is the machine itself: its vCPUs are the pCPUs.

use std::collections::HashSet;

use tandem_kpolicy::MAX_VCPUS as MAX_RANKED;
use tandem_model::{Nanos, PcpuId, PcpuSet, Weight};

use super::{
    Apic, Guest, IdleLoop, IdleTlb, Machine, MmLock, Mode, TlbFlush, Vm, agent, governor, host,
    policies,
};
use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::document::units;
use crate::host::{Candidate, HostConfig, HostScheduler, Placement, Starts};
use crate::workload::{SpinKind, Workload, parse};

/// Maximum number of a VM's vCPUs (KVM_MAX_VCPUS of 6.12).
const MAX_VCPUS: u32 = 4096;

/// Maximum number of vCPUs of all VMs.
const MAX_TOTAL_VCPUS: u64 = 65_536;

/// Maximum number of threads of all VMs.
const MAX_THREADS: u64 = 1_000_000;

/// Maximum number of objects of all VMs.
const MAX_OBJECTS: u64 = 4_000_000;

/// Maximum number of program steps and thread pins of all VMs, of which each VM has a copy.
const MAX_STEPS: u64 = 4_000_000;

/// Maximum number of changes of a VM's vCPU count.
const MAX_HOTPLUG_CHANGES: usize = 1_000;

pub(super) const KEYS: [&str; 29] = [
    "name",
    "count",
    "vcpus",
    "weight",
    "vcpu_weights",
    "pins",
    "begins_on",
    "policies",
    "starts",
    "hotplug",
    "workload",
    "scheduler",
    "cfs",
    "eevdf",
    "idle",
    "tick",
    "tlb",
    "idle_tlb",
    "apic",
    "mm_lock",
    "mm_readers",
    "spin_locks",
    "steal_clock",
    "balance",
    "gleaner",
    "preferred",
    "wake_delay",
    "per_thread",
    "sized_for",
];

/// Context in which VMs are read.
pub struct VmContext<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The host.
    pub host: &'a HostConfig,
    /// Simulated time.
    pub duration: Nanos,
    /// Resolves a reference to a workload.
    pub workload: &'a dyn Fn(&Field<'_>) -> Result<Workload, LoadError>,
}

/// Reads all VMs.
pub fn read(document: &Table<'_>, context: &VmContext<'_>) -> Result<Vec<Vm>, LoadError> {
    let list = document.need("vm", "[{ name = \"a\", vcpus = 4, workload = \"spin\" }]")?;
    let fields = list.list()?;
    let mut vms: Vec<Vm> = Vec::new();
    let mut names = HashSet::new();
    let (mut vcpus, mut threads, mut objects, mut steps) = (0u64, 0u64, 0u64, 0u64);
    for field in &fields {
        let (vm, count) = one(field, context)?;
        vcpus += u64::from(vm.vcpus) * u64::from(count);
        let roles = vm.workload.roles.iter();
        let of_one: u64 = roles.map(|role| u64::from(role.threads.count(vm.sized_for()))).sum();
        threads += of_one * u64::from(count);
        objects += vm.workload.objects.len() as u64 * u64::from(count);
        let roles = vm.workload.roles.iter();
        let of_one: usize = roles.map(|role| role.program.len() + role.pins.len()).sum();
        steps += of_one as u64 * u64::from(count);
        for (what, sum, most) in [
            ("vCPUs", vcpus, MAX_TOTAL_VCPUS),
            ("threads", threads, MAX_THREADS),
            ("objects", objects, MAX_OBJECTS),
            ("steps of programs", steps, MAX_STEPS),
        ] {
            if sum > most {
                return Err(field.wrong(format!(
                    "with this one the scenario has {sum} {what}: at most {most}"
                )));
            }
        }
        for number in 1..=count {
            let name = match count {
                1 => vm.name.clone(),
                _ => format!("{}-{number}", vm.name),
            };
            if !names.insert(name.clone()) {
                return Err(
                    field.wrong(format!("another VM is called `{name}` too: names must differ"))
                );
            }
            vms.push(Vm { name, ..vm.clone() });
        }
    }
    if vms.is_empty() {
        return Err(list.wrong("at least one VM is needed"));
    }
    if context.machine.mode == Mode::Native && vms.len() != 1 {
        return Err(list.wrong(format!(
            "in native mode the only VM is the machine itself: one, not {}",
            vms.len()
        )));
    }
    Ok(vms)
}

fn one(field: &Field<'_>, context: &VmContext<'_>) -> Result<(Vm, u32), LoadError> {
    let table = field.table(&KEYS)?;
    let name = table.need("name", "\"a\"")?.name()?;
    let native = context.machine.mode == Mode::Native;
    let pcpus = context.machine.pcpus;
    let vcpus = match table.get("vcpus") {
        None if native => pcpus,
        None => table.need("vcpus", "4")?.small(1, MAX_VCPUS)?,
        Some(vcpus) => vcpus.small(1, MAX_VCPUS)?,
    };
    if matches!(context.host.candidate, Candidate::Ranked(_)) && vcpus as usize > MAX_RANKED {
        return Err(field.wrong(format!(
            "HVS chooses among at most {MAX_RANKED} vCPUs of a VM, and `{name}` has {vcpus}: give it \
             fewer, or host.pause_loop.candidate = \"stock\""
        )));
    }
    if native && vcpus != pcpus {
        return Err(field.wrong(format!(
            "in native mode a CPU of `{name}` is a pCPU, so vcpus = {vcpus} is not possible: \
             leave it out or write {pcpus}"
        )));
    }
    if context.host.placement == Placement::NoStacking && vcpus > pcpus {
        return Err(field.wrong(format!(
            "placement = \"no-stacking\" needs a pCPU for each vCPU of a VM: `{name}` has {vcpus} \
             vCPUs, the machine {pcpus} pCPUs"
        )));
    }
    let reference = table.need("workload", "\"spin\" or \"folder/file.toml\"")?;
    let workload = (context.workload)(&reference)?;
    let sized_for = match table.get("sized_for") {
        None => None,
        Some(field) => Some(field.small(1, MAX_VCPUS)?),
    };
    parse::fits(&workload, vcpus, sized_for.unwrap_or(vcpus)).map_err(|message| {
        LoadError::at(
            &reference.node.place,
            format!("{} `{}`: {message}", reference.path, workload.name),
        )
    })?;
    let guest = guest(&table, vcpus, context.machine.mode)?;
    let pins = pins(&table, &name, vcpus, context)?;
    let vm = Vm {
        vcpus,
        weight: Weight::saturating(
            table.or("weight", 1024.0, |field| field.number(1.0, 262_144.0))?,
        ),
        vcpu_weights: vcpu_weights(&table, &name, vcpus, context)?,
        begins_on: begins_on(&table, &name, &pins, vcpus, context)?,
        pins,
        policies: match table.get("policies") {
            None => None,
            Some(field) => Some(policies::list(&field)?),
        },
        starts: table
            .or("starts", Nanos::ZERO, |field| field.time(Nanos::ZERO, context.duration))?,
        hotplug: hotplug(&table, vcpus, &guest, context)?,
        guest,
        workload,
        sized_for,
        name,
    };
    Ok((vm, table.or("count", 1, |field| field.small(1, 10_000))?))
}

/// Reads `hotplug = [{ at = "2s", vcpus = 1 }]`: times and numbers of online vCPUs.
fn hotplug(
    table: &Table<'_>,
    vcpus: u32,
    guest: &Guest,
    context: &VmContext<'_>,
) -> Result<Vec<(Nanos, u32)>, LoadError> {
    let Some(field) = table.get("hotplug") else {
        return Ok(Vec::new());
    };
    let keeps = guest.agent.is_some() || guest.preferred.is_some() || guest.per_thread;
    if context.machine.mode == Mode::Native || keeps {
        return Err(field.wrong(
            "the machine itself, and VMs with gleaner, preferred or per_thread, keep their vCPUs: leave \
             it out",
        ));
    }
    let list = field.list()?;
    if list.len() > MAX_HOTPLUG_CHANGES {
        return Err(field
            .wrong(format!("{} changes are too many: at most {MAX_HOTPLUG_CHANGES}", list.len())));
    }
    let mut changes: Vec<(Nanos, u32)> = Vec::new();
    for field in list {
        let change = field.table(&["at", "vcpus"])?;
        let at = change.need("at", "\"2s\"")?.time(Nanos::ZERO, context.duration)?;
        let has = change.need("vcpus", "1")?.small(1, vcpus)?;
        if changes.last().is_some_and(|&(before, _)| before >= at) {
            return Err(field.wrong("changes must be in the order of their times"));
        }
        changes.push((at, has));
    }
    Ok(changes)
}

/// Reads the weights of the vCPUs within the VM.
fn vcpu_weights(
    table: &Table<'_>,
    name: &str,
    vcpus: u32,
    context: &VmContext<'_>,
) -> Result<Vec<u32>, LoadError> {
    let Some(field) = table.get("vcpu_weights") else {
        return Ok(Vec::new());
    };
    if context.machine.mode == Mode::Native {
        return Err(field.wrong("there are no vCPUs in native mode: leave it out"));
    }
    if matches!(context.host.scheduler, HostScheduler::Credit(_)) {
        return Err(field.wrong(
            "credit gives all vCPUs of a VM the same weight: leave it out, or take cfs or eevdf",
        ));
    }
    let weights = field.list()?;
    if weights.len() != vcpus as usize {
        return Err(field.wrong(format!(
            "there are {} weights for the {vcpus} vCPUs of `{name}`: write one for each",
            weights.len()
        )));
    }
    weights.iter().map(|field| field.small(1, 262_144)).collect()
}

/// Reads the affinities: one set for all vCPUs, or one for each.
fn pins(
    table: &Table<'_>,
    name: &str,
    vcpus: u32,
    context: &VmContext<'_>,
) -> Result<Vec<PcpuSet>, LoadError> {
    let Some(field) = table.get("pins") else {
        return Ok(Vec::new());
    };
    if context.machine.mode == Mode::Native {
        return Err(field.wrong("there are no pins in native mode: leave them out"));
    }
    if context.host.placement == Placement::Pin {
        return Err(field.wrong(
            "placement = \"pin\" pins every vCPU itself: leave pins out, or place by \"balance\"",
        ));
    }
    if let Ok(text) = field.text() {
        return Ok(vec![set(&field, text, context)?; vcpus as usize]);
    }
    let sets = field.list()?;
    if sets.len() != vcpus as usize {
        return Err(field.wrong(format!(
            "there are {} sets of pCPUs for the {vcpus} vCPUs of `{name}`: write one for each, or \
             a single string for all",
            sets.len()
        )));
    }
    sets.iter().map(|field| set(field, field.text()?, context)).collect()
}

/// Reads the initial pCPU of each vCPU.
fn begins_on(
    table: &Table<'_>,
    name: &str,
    pins: &[PcpuSet],
    vcpus: u32,
    context: &VmContext<'_>,
) -> Result<Vec<u32>, LoadError> {
    let Some(field) = table.get("begins_on") else {
        return Ok(Vec::new());
    };
    if context.machine.mode == Mode::Native {
        return Err(field.wrong("there are no vCPUs in native mode: leave it out"));
    }
    if context.host.placement == Placement::Pin {
        return Err(field.wrong("placement = \"pin\" pins every vCPU itself: leave it out"));
    }
    if matches!(&context.host.scheduler, HostScheduler::Credit(credit) if credit.starts == Starts::Picked)
    {
        return Err(field.wrong("credit.starts = \"picked\" has Xen pick them: leave it out"));
    }
    let list = field.list()?;
    if list.len() != vcpus as usize {
        return Err(field.wrong(format!(
            "there are {} pCPUs for the {vcpus} vCPUs of `{name}`: write one for each",
            list.len()
        )));
    }
    let one = |(at, field): (usize, &Field<'_>)| {
        let pcpu = field.small(0, context.machine.pcpus - 1)?;
        match pins.get(at) {
            Some(pins) if !pins.contains(PcpuId(pcpu)) => {
                Err(field.wrong(format!("vCPU {at} may run on the pCPUs {pins} only")))
            }
            _ => Ok(pcpu),
        }
    };
    let pcpus: Vec<u32> = list.iter().enumerate().map(one).collect::<Result<_, _>>()?;
    let is_twice = |(at, pcpu): (usize, &u32)| pcpus[..at].contains(pcpu);
    if context.host.placement == Placement::NoStacking && pcpus.iter().enumerate().any(is_twice) {
        return Err(field.wrong(
            "placement = \"no-stacking\" has no two vCPUs of a VM on a pCPU: name each once",
        ));
    }
    Ok(pcpus)
}

fn set(field: &Field<'_>, text: &str, context: &VmContext<'_>) -> Result<PcpuSet, LoadError> {
    let set: PcpuSet = text.parse().map_err(|error| field.wrong(error))?;
    let pcpus = context.machine.pcpus;
    match set.iter().last() {
        None => Err(field.wrong("name at least one pCPU, such as \"0-3\"")),
        Some(last) if last.0 >= pcpus => {
            Err(field.wrong(format!("the machine has the pCPUs 0 … {}", pcpus - 1)))
        }
        Some(_) => Ok(set),
    }
}

fn guest(table: &Table<'_>, vcpus: u32, mode: Mode) -> Result<Guest, LoadError> {
    let names = [("cfs", host::SchedulerName::Cfs), ("eevdf", host::SchedulerName::Eevdf)];
    let name = table.or("scheduler", host::SchedulerName::Eevdf, |field| field.choice(&names))?;
    // Without dedicated vCPUs, KVM_FEATURE_PV_UNHALT has Linux take paravirtual locks (arch/x86/kernel/kvm.c, `kvm_spinlock_init`).
    let spin_locks = match mode {
        Mode::Virtual => SpinKind::Paravirtual,
        Mode::Native => SpinKind::Queued,
    };
    Ok(Guest {
        scheduler: host::fair(table, name, vcpus)?,
        idle: table.or("idle", IdleLoop::Halt, idle)?,
        tick: table.or("tick", Nanos::from_millis(4), host::tick)?,
        tlb: table.or("tlb", TlbFlush::Ipi, Field::parse)?,
        idle_tlb: table.or("idle_tlb", IdleTlb::LeftOut, Field::parse)?,
        apic: table.or("apic", Apic::Cluster, Field::parse)?,
        mm_lock: table.or("mm_lock", MmLock::Stealing, Field::parse)?,
        mm_readers: table.or("mm_readers", false, Field::flag)?,
        spin_locks: table.or("spin_locks", spin_locks, |field| {
            field.choice(&[
                ("ticket", SpinKind::Ticket),
                ("queued", SpinKind::Queued),
                ("paravirtual", SpinKind::Paravirtual),
            ])
        })?,
        steal_clock: table.or("steal_clock", true, Field::flag)?,
        balance: table.or("balance", true, Field::flag)?,
        per_thread: table.or("per_thread", false, Field::flag)?,
        wake_delay: wake_delay(table, vcpus)?,
        agent: agent::read(table)?,
        preferred: governor::read(table)?,
    })
}

/// Reads the maximum delay of delayed scheduling.
fn wake_delay(table: &Table<'_>, vcpus: u32) -> Result<Nanos, LoadError> {
    const MAX_DELAY: Nanos = Nanos::from_millis(100);
    let Some(field) = table.get("wake_delay") else {
        return Ok(Nanos::ZERO);
    };
    let delay = field.time(Nanos::ZERO, MAX_DELAY)?;
    if delay > Nanos::ZERO && vcpus > 1 {
        Err(field.wrong(format!(
            "delayed scheduling is for VMs of one vCPU, and this one has {vcpus}: leave it out, or set \
             vcpus = 1; threads on several vCPUs are consolidated by gleaner"
        )))
    } else {
        Ok(delay)
    }
}

/// Reads `halt`, `poll`, `haltpoll` or `haltpoll(200us)`.
fn idle(field: &Field<'_>) -> Result<IdleLoop, LoadError> {
    /// guest_halt_poll_ns of the haltpoll governor.
    const HALTPOLL: Nanos = Nanos(200_000);
    let text = field.text()?;
    if let Some(time) = text.strip_prefix("haltpoll(").and_then(|rest| rest.strip_suffix(')')) {
        let time = units::time(time).map_err(|expected| field.wrong(expected))?;
        return if time <= Nanos::from_secs(1) {
            Ok(IdleLoop::HaltPoll(time))
        } else {
            Err(field.wrong("haltpoll(0ns) … haltpoll(1s)"))
        };
    }
    match text {
        "halt" => Ok(IdleLoop::Halt),
        "poll" => Ok(IdleLoop::Poll),
        "haltpoll" => Ok(IdleLoop::HaltPoll(HALTPOLL)),
        _ => Err(field.wrong("possible are \"halt\", \"poll\", \"haltpoll(200us)\"")),
    }
}
