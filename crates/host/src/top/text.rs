//! [`TopInterval`] as text: one line for each VM, optionally for each vCPU, and totals.
//!
//! Percentages are of wall time per vCPU: a VM of four vCPUs of which one never sleeps has RUN 25.
//! Below 10 they have a decimal. `–` is "not measured".
//! Colour, if enabled, marks RDY from 5 and from 10 % on, the limits that operators of other hypervisors use.

use std::collections::BTreeMap;

use tandem_model::{Nanos, State, VcpuTimes};

use crate::columns::{Columns, Field, Style, Tone, line};
use crate::top::{Culprit, TopInterval, TopVm};

/// RDY from which a vCPU is noteworthy, and from which it is bad.
const READY: [f64; 2] = [0.05, 0.10];

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
    let has_costop = interval.vms.iter().any(|vm| vm.times.get(State::Costop).is_some());
    // Leave out a column that no source fills here; the notes mention it.
    let states: Vec<State> =
        State::ALL.into_iter().filter(|state| *state != State::Costop || has_costop).collect();
    let mut headings = vec!["<VM", "vCPU"];
    headings.extend(states.iter().map(|state| state.name()));
    headings.extend(["due", "recv", "lag%", "<waits for"]);
    let mut columns = Columns::new(&headings);
    for vm in &interval.vms {
        columns.row(
            [vm.called.as_str().into(), vm.vcpus.len().to_string().into()]
                .into_iter()
                .chain(shares(&vm.times, &states))
                .chain([
                    format!("{:.2}", vm.due).into(),
                    format!("{:.2}", vm.received).into(),
                    lag(vm).into(),
                    culprit(&vm.culprits, &vm.times).into(),
                ]),
        );
        for vcpu in vm.vcpus.iter().filter(|_| with_vcpus) {
            columns.row(
                [format!("  {}", vcpu.allowed).into(), vcpu.index.to_string().into()]
                    .into_iter()
                    .chain(shares(&vcpu.times, &states))
                    .chain(["".into(), "".into(), "".into()])
                    .chain([culprit(&vcpu.culprits, &vcpu.times).into()]),
            );
        }
    }
    if interval.vms.len() > 1 {
        columns.row(sum_of(&interval.vms, &states));
    }
    format!("{}\n{}", columns.text(style), totals(interval, style))
}

/// Returns the sum line of several VMs.
fn sum_of(vms: &[TopVm], states: &[State]) -> Vec<Field> {
    let times = VcpuTimes::sum(vms.iter().map(|vm| &vm.times)).unwrap_or_default();
    let vcpus: usize = vms.iter().map(|vm| vm.vcpus.len()).sum();
    let mut row =
        vec![Field::toned(format!("{} VMs", vms.len()), Tone::Faint), vcpus.to_string().into()];
    row.extend(shares(&times, states));
    row.push(format!("{:.2}", vms.iter().map(|vm| vm.due).sum::<f64>()).into());
    row.push(format!("{:.2}", vms.iter().map(|vm| vm.received).sum::<f64>()).into());
    row
}

fn shares<'a>(times: &'a VcpuTimes, states: &'a [State]) -> impl Iterator<Item = Field> + 'a {
    states.iter().map(|state| match times.share(*state) {
        None => Field::toned("–", Tone::Faint),
        Some(share) => Field::toned(percent(share), tone(*state, share)),
    })
}

pub(super) fn tone(state: State, share: f64) -> Tone {
    match state {
        State::Ready if share >= READY[1] => Tone::Bad,
        State::Ready if share >= READY[0] => Tone::Warn,
        _ => Tone::Plain,
    }
}

pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 9.95 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    }
}

/// Formats the lag. A VM without a fair share has none.
pub(super) fn lag(vm: &TopVm) -> String {
    match (vm.lag * 100.0).round() {
        0.0 => "0".to_owned(),
        lag => format!("{lag:+.0}"),
    }
}

/// Formats the first culprit with its part of RDY; empty if that is under 1 % of the time.
fn culprit(culprits: &[Culprit], times: &VcpuTimes) -> String {
    let Some(first) = culprits.first() else {
        return String::new();
    };
    match (times.get(State::Ready), times.share(State::Ready)) {
        (Some(ready), Some(share)) if share >= 0.01 => {
            format!("{} {:.0}%", first.name, first.time.0 as f64 / ready.0 as f64 * 100.0)
        }
        (Some(_), _) => String::new(),
        (None, _) => first.name.clone(),
    }
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
