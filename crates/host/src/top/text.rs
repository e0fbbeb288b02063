//! [`TopInterval`] as text: one line for each VM, optionally for each vCPU, and totals.
//!
//! Percentages are of wall time per vCPU: a VM of four vCPUs of which one never sleeps has RUN 25.
//! Below 10 they have a decimal. `–` is "not measured".
//! Colour, if enabled, marks RDY from 5 and from 10 % on, the limits that operators of other hypervisors use.

use std::collections::BTreeMap;

use tandem_model::{Nanos, VcpuTimes};

use crate::columns::{Columns, Field, Style, Tone, line};
use crate::top::figures::{culprit_parts, shown};
use crate::top::{Culprit, TopInterval};

/// Unaccounted time is shown from this part of all pCPUs on.
const UNSEEN: f64 = 0.02;

/// Returns a line for each kind of missing figure.
pub fn notes(interval: &TopInterval, is_root: bool) -> Vec<String> {
    let mut notes: Vec<String> = interval.missing.iter().map(ToString::to_string).collect();
    notes.extend(interval.notes.iter().cloned());
    let vms = |count: usize| match count {
        1 => "1 VM".to_owned(),
        _ => format!("{count} VMs"),
    };
    if interval.unreadable > 0 {
        let cure = if is_root {
            "this process cannot inspect them (in a container, or hidepid?)"
        } else {
            "run as root"
        };
        notes.push(format!("{} not readable: {cure}", vms(interval.unreadable)));
    }
    if interval.left_out > 0 {
        notes.push(format!(
            "{} not shown: their users, or this host, have more than the maximum number",
            vms(interval.left_out)
        ));
    }
    if interval.unidentified > 0 {
        notes.push(format!(
            "{} without known vCPU threads: give a QMP socket or a thread pattern",
            vms(interval.unidentified)
        ));
    }
    notes
}

/// Formats the table and the totals.
pub fn text(interval: &TopInterval, with_vcpus: bool, style: Style) -> String {
    if interval.vms.is_empty() {
        return format!("no VM to show\n{}", totals(interval, style));
    }
    let figures = shown(interval);
    let mut headings = vec!["<VM", "vCPU"];
    headings.extend(figures.iter().map(|figure| figure.heading));
    headings.push("<waits for");
    let mut columns = Columns::new(&headings);
    for vm in &interval.vms {
        columns.row(row(
            vm.called.as_str().into(),
            vm.vcpus.len().to_string(),
            figures.iter().map(|figure| figure.vm_field(vm)),
            culprit(&vm.culprits, &vm.times),
        ));
        for vcpu in vm.vcpus.iter().filter(|_| with_vcpus) {
            columns.row(row(
                format!("  {}", vcpu.allowed).into(),
                vcpu.index.to_string(),
                figures.iter().map(|figure| figure.vcpu_field(vcpu)),
                culprit(&vcpu.culprits, &vcpu.times),
            ));
        }
    }
    if interval.vms.len() > 1 {
        let vms = &interval.vms;
        let vcpus: usize = vms.iter().map(|vm| vm.vcpus.len()).sum();
        columns.row(row(
            Field::toned(format!("{} VMs", vms.len()), Tone::Faint),
            vcpus.to_string(),
            figures.iter().map(|figure| figure.total_field(vms)),
            String::new(),
        ));
    }
    format!("{}\n{}", columns.text(style), totals(interval, style))
}

fn row(
    name: Field,
    vcpus: String,
    figures: impl Iterator<Item = Field>,
    culprit: String,
) -> impl Iterator<Item = Field> {
    [name, vcpus.into()].into_iter().chain(figures).chain([culprit.into()])
}

/// Formats the first culprit with its part of RDY.
fn culprit(culprits: &[Culprit], times: &VcpuTimes) -> String {
    let first = culprit_parts(culprits, times).next();
    first.map_or_else(String::new, |(name, part)| format!("{name} {part:.0}%"))
}

/// Formats the use of the host's pCPUs, and the tasks that used most.
fn totals(interval: &TopInterval, style: Style) -> String {
    let host = &interval.host;
    let pcpus = |time: Nanos| time.as_secs_f64() / interval.seconds.max(1e-9);
    let idle = match host.idle {
        Some(idle) => format!("{:.2}", pcpus(idle)),
        None => "not measured".to_owned(),
    };
    let whole = format!(
        "{} pCPUs over {:.2} s: vCPUs {:.2}, other threads of VMs {:.2}, idle {idle}",
        host.pcpus,
        interval.seconds,
        pcpus(host.vcpus),
        pcpus(host.vm_threads),
    );
    let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
    for task in &host.top_tasks {
        *by_name.entry(&task.name).or_default() += pcpus(task.time);
    }
    let mut named: Vec<(&str, f64)> = by_name.into_iter().collect();
    named.retain(|(_, pcpus)| *pcpus >= 0.005);
    named.sort_by(|one, two| two.1.total_cmp(&one.1));
    let named: Vec<String> =
        named.iter().map(|(name, pcpus)| format!("{name} {pcpus:.2}")).collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    // Clocks are read one after the other, and idle time is in ticks, so a small remainder is noise.
    let length = Nanos((interval.seconds * 1e9) as u64);
    let rest = host.unseen(length).map(pcpus);
    let rest = rest.filter(|rest| *rest >= UNSEEN * host.pcpus as f64);
    let others = format!(
        "kernel threads {:.2}, host tasks {:.2}{named}{}",
        pcpus(host.kernel),
        pcpus(host.tasks),
        rest.map_or_else(String::new, |rest| format!(
            ", {rest:.2} not seen (tasks that ended, interrupts, steal)"
        ))
    );
    format!("{}\n{}", line(&whole, style), line(&others, style))
}
