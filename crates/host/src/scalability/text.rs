//! The analysis as text: one line per VM, the meaning of its type, and the missing figures.

use tandem_linux::thread::Pid;
use tandem_policy::scalability::{Speedup, Type};

use super::{Analysis, NotMeasured, VmScalability};
use crate::columns::{Columns, Field, Style, Tone};
use crate::told_apart::told_apart;

/// Placeholder of a missing figure.
const NONE: &str = "–";

/// Explanation of the columns.
const LEGEND: &str = "active: vCPUs that work at a time, of N, as on hardware; high from 75 % on. blocks/s: how often a vCPU runs out of work; often from \
                      once in";

/// Formats the analysis.
pub fn text(analysis: &Analysis, style: Style) -> String {
    if analysis.vms.is_empty() {
        return "no VM was measured".to_owned();
    }
    let mut columns = Columns::new(&[
        "<VM",
        "N",
        "active",
        "blocks/s",
        "type",
        "on hardware",
        "share",
        "received",
        "in the VM",
        "possible",
    ]);
    let vms = analysis.vms.iter().enumerate();
    let called = told_apart(vms.map(|(at, vm)| (at, vm.name.as_str(), Pid(vm.pid))));
    let called = || analysis.vms.iter().zip(called.values());
    for (vm, called) in called() {
        columns.row(row(vm, called));
    }
    let mut parts = vec![
        format!("over {:.1} s, from source {}", analysis.seconds, analysis.source),
        String::new(),
        columns.text(style),
        String::new(),
    ];
    parts.extend(called().map(|(vm, called)| said(vm, called)));
    parts.push(String::new());
    parts.extend(not_measured(analysis, called));
    parts.push(format!(
        "{LEGEND} {}. Speedups are N × the part of the CPU time available (in the VM: allocated) that was used; possible: what the VM's share \
         allows.",
        analysis.timeslice
    ));
    parts.join("\n")
}

fn row(vm: &VmScalability, called: &str) -> Vec<Field> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(
            || Field::toned(NONE, Tone::Faint),
            |value| Field::from(format!("{value:.digits$}")),
        )
    };
    let most = |speedup: Option<Speedup>| {
        speedup.map_or_else(
            || Field::toned(NONE, Tone::Faint),
            |speedup| Field::from(format!("≤{:.1}", speedup.0)),
        )
    };
    let inside = vm.vm.as_ref();
    let types: Vec<String> = vm.types.iter().map(u8::to_string).collect();
    let possible = inside.and_then(|of| of.potential_efficiency);
    vec![
        called.into(),
        vm.n.to_string().into(),
        number(vm.parallelism, 2),
        number(vm.synchronization, 0),
        if types.is_empty() { Field::toned(NONE, Tone::Faint) } else { types.join("/").into() },
        most(vm.hardware.map(|hardware| hardware.speedup)),
        number(inside.map(|of| of.share), 2),
        number(inside.map(|of| of.received), 2),
        most(inside.map(|of| of.scaling.speedup)),
        number(possible.map(|part| part.get() * f64::from(vm.n)), 1),
    ]
}

/// Returns the meaning of a VM's type.
fn said(vm: &VmScalability, called: &str) -> String {
    let what = match vm.class {
        Some(Type::ScalesOnBoth) => {
            "type 1, many vCPUs active and seldom blocked: scales on hardware and in a VM"
        }
        Some(Type::PoorOnBoth) => {
            "type 2, few vCPUs active and often blocked: scales poorly on hardware and in a VM; fewer vCPUs do"
        }
        Some(Type::WorseOnVm) => {
            "type 3, many vCPUs active and often blocked: scales worse in a VM, as each block costs exits and a wake-up; vCPUs that run \
             together or stay awake help"
        }
        Some(Type::BetterOnVm) => {
            "type 4, few vCPUs active and seldom blocked: scales better in a VM, as others use what its idle vCPUs leave"
        }
        None if vm.types.is_empty() => "its type is not known: it never ran",
        None => "its type is not known, because its blocks were not counted",
    };
    format!("{called}: {what}")
}

/// Returns each missing figure once, with the VMs unless all lack it.
fn not_measured<'a, I: Iterator<Item = (&'a VmScalability, &'a String)>>(
    analysis: &Analysis,
    called: impl Fn() -> I,
) -> Vec<String> {
    let mut all: Vec<&NotMeasured> = Vec::new();
    for lack in analysis.vms.iter().flat_map(|vm| &vm.not_measured) {
        if !all.contains(&lack) {
            all.push(lack);
        }
    }
    let line = |lack: &NotMeasured| {
        let of = called().filter(|(vm, _)| vm.not_measured.contains(lack));
        let names: Vec<&str> = of.map(|(_, called)| called.as_str()).collect();
        let whose = if names.len() == analysis.vms.len() {
            String::new()
        } else {
            format!(" of {}", names.join(", "))
        };
        format!("not measured: {}{whose}: {}", lack.what, lack.want)
    };
    all.into_iter().map(line).collect()
}
