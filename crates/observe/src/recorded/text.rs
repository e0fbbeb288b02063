//! A recorded host as the text of a scenario, with remarks for the reader as comments.

use std::fmt::Write;

use tandem_model::{Nanos, PcpuId, PcpuSet};

use super::pattern::{Demand, Pattern};
use super::scenario::{HostVcpu, HostVm, RecordedHost};

/// Properties that no record contains.
const NOT_KNOWN: &str = "\
# Each vCPU runs and sleeps here as it did on average, without its waits for pCPUs, which the simulator determines.
# A record does not tell, and so this scenario does not have:
# - dependencies between vCPUs of a guest: a vCPU that slept until a sibling was done sleeps as long here, whatever the sibling does
# - how bursts and sleeps vary: exponentially here, or not at all where there were few
# - what a VM would do with another vCPU: where its vCPUs are alike, `--set vm.NAME.vcpus=N` gives it more of the same
# - quotas: throttled time is sleep, in periods of 100 ms; halt polling is a part of running
# - how cgroups lie within each other: each VM has one of its own, and so has what is background here, at the usual weight;
#   the shares of the host's cgroups with processes are not in it, so next to VMs that wait these take another part here than there; the host's scheduler and tick: EEVDF and 4 ms unless set
# Throughput of a VM is its `useful` time; a unit of work is a burst, which differs from vCPU to vCPU.
";

/// Costs that are part of bursts, which were measured with their wake-ups, exits and guest kernel work.
pub(super) const COSTS: [&str; 21] = [
    "vm_exit",
    "halt_exit",
    "halt_wake",
    "halt_poll_wake",
    "ipi_send_exit",
    "interrupt_exit",
    "posted_interrupt",
    "eoi_exit",
    "timer_exit",
    "ipi_flight",
    "nested_switch",
    "interrupt_handler",
    "thread_switch",
    "wakeup",
    "syscall",
    "futex_work",
    "tick_work",
    "tlb_flush",
    "queue_work",
    "timer_slack",
    "timer_work",
];

impl RecordedHost {
    /// Returns the scenario.
    pub fn toml(&self) -> String {
        toml(self)
    }
}

/// Returns the scenario.
fn toml(host: &RecordedHost) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write(&mut out, host);
    out
}

fn write(out: &mut String, host: &RecordedHost) -> std::fmt::Result {
    let about = in_a_line(&host.about);
    writeln!(out, "# A recorded host: {about}.")?;
    out.push_str(NOT_KNOWN);
    for remark in &host.remarks {
        writeln!(out, "# {}", in_a_line(remark))?;
    }
    writeln!(out, "\nabout = \"{}\"", quoted(&format!("recorded: {about}")))?;
    writeln!(out, "duration = \"{}\"", time(host.duration))?;
    writeln!(out, "warmup = \"{}\"", time(host.warmup))?;
    writeln!(out, "\n[machine]\npcpus = {}", host.pcpus)?;
    if let Some(pcpus) = host.pcpus_per_llc {
        writeln!(out, "pcpus_per_llc = {pcpus}")?;
    }
    writeln!(out, "\n[machine.costs] # in the bursts already")?;
    for cost in COSTS {
        writeln!(out, "{cost} = 0")?;
    }
    writeln!(out, "\n[host]\nscheduler = \"{}\"", host.scheduler)?;
    if let Some(tick) = host.tick {
        writeln!(out, "tick = \"{}\"", time(tick))?;
    }
    writeln!(out, "halt_poll = \"0ns\"")?;
    writeln!(out, "\n[policies]\nweights = \"{}\"", host.knob.name())?;
    for policy in &host.policies {
        writeln!(out, "{policy} = true")?;
    }
    host.vms.iter().try_for_each(|vm| write_vm(out, vm, host.pcpus))
}

fn write_vm(out: &mut String, vm: &HostVm, pcpus: u32) -> std::fmt::Result {
    let name = &vm.name;
    out.push('\n');
    for remark in &vm.remarks {
        writeln!(out, "# {}", in_a_line(remark))?;
    }
    writeln!(out, "[[vm]]\nname = \"{name}\"\nvcpus = {}", vm.vcpus.len())?;
    writeln!(out, "weight = {:.1}\nworkload = \"{name}\"", vm.weight)?;
    let alike = alike(vm);
    if alike.is_some() {
        // This also applies to vCPUs that are added.
        writeln!(out, "per_thread = true")?;
    }
    writeln!(out, "tick = \"100ms\"\nbalance = false")?;
    if vm.is_background {
        writeln!(out, "policies = []")?;
    }
    if let Some(pins) = pins(&vm.vcpus, pcpus) {
        writeln!(out, "pins = {pins}")?;
    }
    writeln!(out, "\n[[workload]]\nname = \"{name}\"\nunit = \"bursts\"")?;
    match alike {
        Some(all) => {
            writeln!(out, "[[workload.role]] # {}", seen(&all))?;
            writeln!(out, "name = \"vcpu\"\nthreads = \"1 per vcpu\"")?;
            writeln!(out, "program = {}", program(all.pattern()))
        }
        None => write_roles(out, vm),
    }
}

/// Writes a role for each vCPU.
fn write_roles(out: &mut String, vm: &HostVm) -> std::fmt::Result {
    for (number, vcpu) in vm.vcpus.iter().enumerate() {
        writeln!(out, "[[workload.role]] # {}", seen(&vcpu.demand))?;
        writeln!(out, "name = \"vcpu{number}\"\npins = [{number}]")?;
        writeln!(out, "program = {}", program(vcpu.demand.pattern()))?;
    }
    Ok(())
}

/// Returns the demand of all vCPUs together, if they are similar.
fn alike(vm: &HostVm) -> Option<Demand> {
    let all = Demand::together(vm.vcpus.iter().map(|vcpu| &vcpu.demand))?;
    let is_alike = vm.vcpus.iter().all(|vcpu| vcpu.demand.is_like(&all));
    is_alike.then_some(all)
}

/// Returns the affinity of the vCPUs in scenario syntax; `None` if unrestricted.
fn pins(vcpus: &[HostVcpu], pcpus: u32) -> Option<String> {
    let first = vcpus.first()?;
    if vcpus.iter().all(|vcpu| vcpu.pins == first.pins) {
        return first.pins.as_ref().map(|pins| format!("\"{pins}\""));
    }
    // If any vCPU is bound, unbound ones need an explicit list, too.
    let all: PcpuSet = (0..pcpus).map(PcpuId).collect();
    let each = vcpus.iter().map(|vcpu| {
        let pins = vcpu.pins.as_ref().unwrap_or(&all);
        format!("\"{pins}\"")
    });
    Some(format!("[{}]", each.collect::<Vec<_>>().join(", ")))
}

/// Returns the steps of a pattern.
pub(super) fn program(pattern: Pattern) -> String {
    match pattern {
        Pattern::Idle => "[{ forever = [{ sleep = \"1s\" }] }]".to_owned(),
        Pattern::Always => "[{ forever = [{ compute = \"1ms\" }, \"work\"] }]".to_owned(),
        Pattern::Bursts { run, sleep, varies } => {
            let (run, sleep) = (time(run), time(sleep));
            let begin = format!("{{ sleep = \"uniform(0ns, {sleep})\" }}");
            let (run, sleep) = if varies {
                (format!("exp({run})"), format!("exp({sleep})"))
            } else {
                (run, sleep)
            };
            format!(
                "[{begin}, {{ forever = [{{ compute = \"{run}\" }}, {{ sleep = \"{sleep}\" }}, \"work\"] }}]"
            )
        }
        Pattern::Periodic { run, period } => {
            let (run, period) = (time(run), time(period));
            format!(
                "[{{ sleep = \"uniform(0ns, {period})\" }}, \
                 {{ forever = [{{ every = \"{period}\" }}, {{ compute = \"{run}\" }}, \"work\"] }}]"
            )
        }
    }
}

/// Formats the measurements for a comment.
fn seen(demand: &Demand) -> String {
    let part = |time: Nanos| time.0 as f64 / demand.wall.0.max(1) as f64 * 100.0;
    let cycles = demand.cycles as f64 / demand.wall.as_secs_f64().max(f64::MIN_POSITIVE);
    format!(
        "recorded: ran {:.1} %, waited {:.1} %, slept {:.1} %, {cycles:.1} bursts a second",
        part(demand.ran),
        part(demand.waited),
        part(demand.slept)
    )
}

/// Formats a time in scenario syntax.
pub(super) fn time(time: Nanos) -> String {
    let (unit, factor, decimals) = match time.0 {
        0..1_000 => return format!("{}ns", time.0),
        1_000..1_000_000 => ("us", 1e3, 3),
        1_000_000..1_000_000_000 => ("ms", 1e6, 4),
        _ => ("s", 1e9, 4),
    };
    let number = format!("{:.decimals$}", time.0 as f64 / factor);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number}{unit}")
}

/// Returns text for a comment, with blanks in place of control characters.
pub(super) fn in_a_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Escapes text for quotes.
pub(super) fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
