//! Causes outside of a VM: other VMs, threads and processes on the pCPUs that it waits for.

use std::collections::BTreeSet;

use tandem_model::{Nanos, PcpuSet, State, VmId};

use super::cure;
use super::finding::{Cure, Finding, Kind, percent, ratio};
use super::patient::Patient;
use super::situation::Situation;
use super::waits::{Culprit, Sum, Waits};

/// A VM whose vCPUs halt for less than this part of the time never sleeps. It is above 0 because statistics-based sources count a wait
/// that is not over at the end of the interval as HALT: some scheduler slices, tens of ms.
const SLEEPS: f64 = 0.05;

/// Lag relative to the fair share above which the VM is short of time, beyond waits within its share.
const BEHIND: f64 = 0.10;

/// Maximum number of culprits named.
const MAX_NAMED: usize = 3;

/// Builds a finding from the waits for some culprits. `explain` adds evidence and the remedy.
fn waits_for(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
    kind: Kind,
    is_included: impl Fn(&Culprit) -> bool,
    explain: impl FnOnce(&Sum) -> (Vec<String>, Cure),
) -> Option<Finding> {
    let (sum, severity) = waits.take(patient, |_| true, is_included)?;
    let mut evidence =
        vec![format!("it waits for {}: {}", names(situation, &sum), sum.ready(patient))];
    let (more, cure) = explain(&sum);
    evidence.extend(more);
    Some(patient.finding(situation, kind, severity, sum.total, evidence, cure))
}

/// Whether the vCPUs of a VM hardly sleep.
fn never_sleeps(patient: &Patient<'_>) -> bool {
    let halted = |state| patient.times.get(state).unwrap_or_default();
    let slept = halted(State::Halted) + halted(State::Costop) + halted(State::Limited);
    patient.part(slept) < SLEEPS
}

pub(super) fn turns(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    patients: &[Patient<'_>],
    waits: &mut Waits,
) -> Option<Finding> {
    if patient.vm.vcpus.len() < 2 || patient.known.takes_turns || !never_sleeps(patient) {
        return None;
    }
    // vCPUs that cannot run at the same time gain nothing from turns.
    let mut room = PcpuSet::default();
    for vcpu in &patient.vm.vcpus {
        room.extend(&vcpu.allowed);
    }
    if room.len() < patient.vm.vcpus.len() {
        return None;
    }
    let restless: BTreeSet<VmId> = patients
        .iter()
        .filter(|other| other.id() != patient.id() && never_sleeps(other))
        .map(Patient::id)
        .collect();
    let is_included =
        |culprit: &Culprit| matches!(culprit, Culprit::Vm(vm) if restless.contains(vm));
    waits_for(situation, patient, waits, Kind::Turns, is_included, |sum| {
        let slept = patient.times.get(State::Halted).unwrap_or_default();
        let evidence = vec![
            format!(
                "none of its {} vCPUs sleeps (HALT {}), nor do those of these VMs",
                patient.vm.vcpus.len(),
                percent(patient.part(slept))
            ),
            "whether its vCPUs wait for each other by spinning cannot be seen from outside: a VM that spins gets done far more in turns, one that \
             computes no less"
                .to_owned(),
        ];
        let remark = "VMs that never sleep take turns, so that the vCPUs of each run together";
        let cure = cure::daemon(situation, &with_culprits(patient, sum), &[], remark);
        (evidence, cure)
    })
}

pub(super) fn own_threads(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_included = |culprit: &Culprit| matches!(culprit, Culprit::OwnThread(_));
    waits_for(situation, patient, waits, Kind::OwnThreads, is_included, |sum| {
        let ran = |name: &str| {
            let thread = patient.vm.threads.iter().find(|thread| thread.name == name);
            situation.pcpus(thread.map_or(Nanos::ZERO, |thread| thread.time))
        };
        let named = sum.by.iter().filter_map(|(culprit, _)| match culprit {
            Culprit::OwnThread(name) => Some(name.as_str()),
            _ => None,
        });
        let longest: Vec<&str> = named.take(MAX_NAMED).collect();
        let shown: Vec<String> =
            longest.iter().map(|name| format!("{name} ran {:.2} pCPUs", ran(name))).collect();
        let mut room = situation.host.online.clone();
        for pcpu in patient.vm.vcpus.iter().flat_map(|vcpu| vcpu.allowed.iter()) {
            room.remove(pcpu);
        }
        let first = longest.first().copied().unwrap_or_default();
        (vec![shown.join(", ")], cure::move_threads(patient, first, &room))
    })
}

pub(super) fn host_process(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_included = |culprit: &Culprit| matches!(culprit, Culprit::Process { .. });
    waits_for(situation, patient, waits, Kind::HostProcess, is_included, |sum| {
        let Some((Culprit::Process { name, cgroup }, _)) = sum.by.first() else {
            return (Vec::new(), Cure::default());
        };
        let top = situation.interval.host.top_tasks.iter();
        let same: Vec<_> =
            top.filter(|task| task.name == *name && task.cgroup == *cgroup).collect();
        let ran: Nanos = same.iter().map(|task| task.time).sum();
        let evidence = same.first().map(|first| {
            let place = cgroup.as_deref().unwrap_or("an unknown cgroup");
            let pids: Vec<String> = same.iter().map(|task| task.pid.to_string()).collect();
            format!(
                "{} (process {}, in {place}) ran {:.2} pCPUs",
                first.name,
                pids.join(", "),
                situation.pcpus(ran)
            )
        });
        let pids: Vec<u32> = same.iter().map(|task| task.pid).collect();
        let cure = cure::calm_processes(situation, patient, name, cgroup.as_deref(), &pids);
        (evidence.into_iter().collect(), cure)
    })
}

pub(super) fn neighbour(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_included = |culprit: &Culprit| matches!(culprit, Culprit::Vm(_) | Culprit::Others);
    waits_for(situation, patient, waits, Kind::Neighbour, is_included, |sum| {
        let known = patient.known;
        let lag = match known.due {
            Nanos::ZERO => 0.0,
            due => 1.0 - known.received.0 as f64 / due.0 as f64,
        };
        let verdict = match lag {
            lag if lag >= BEHIND => "less than its due",
            lag if lag <= -BEHIND => "more than its due",
            _ => "what it is due",
        };
        let evidence = format!(
            "it received {:.2} of {:.2} pCPUs due: {verdict}",
            situation.pcpus(known.received),
            situation.pcpus(known.due)
        );
        let all = with_culprits(patient, sum);
        let cure = if lag >= BEHIND && !known.is_managed {
            cure::fair_weights(situation, patient, &all)
        } else {
            cure::more_weight(situation, patient, &all)
        };
        (vec![evidence], cure)
    })
}

/// Reports the waits that no other finding explains.
pub(super) fn unexplained(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    waits_for(
        situation,
        patient,
        waits,
        Kind::Unexplained,
        |_| true,
        |_| {
            let unseen = situation.interval.host.unseen(situation.interval.length);
            let evidence = unseen.map(|unseen| {
                format!(
                    "{:.2} pCPUs are in no account: tasks that ended, interrupts, time that this host's own hypervisor took",
                    situation.pcpus(unseen)
                )
            });
            (evidence.into_iter().collect(), cure::look_closer())
        },
    )
}

/// Returns the VM and the VMs that it waits for.
fn with_culprits(patient: &Patient<'_>, sum: &Sum) -> Vec<VmId> {
    let mut all = vec![patient.id()];
    all.extend(sum.by.iter().filter_map(|(culprit, _)| match culprit {
        Culprit::Vm(vm) => Some(*vm),
        _ => None,
    }));
    all
}

/// Formats the top culprits, each with its part of the sum.
fn names(situation: &Situation<'_>, sum: &Sum) -> String {
    let name = |culprit: &Culprit| match culprit {
        Culprit::Itself => "itself".to_owned(),
        Culprit::OwnThread(name) | Culprit::Process { name, .. } => name.clone(),
        Culprit::Vm(vm) => situation.name(*vm),
        Culprit::Kernel(name) => format!("[{name}]"),
        Culprit::Unseen => "nobody that was seen".to_owned(),
        Culprit::Others => "others".to_owned(),
    };
    let total = sum.total;
    let mut named: Vec<String> = sum
        .by
        .iter()
        .take(MAX_NAMED)
        .map(|(culprit, time)| format!("{} ({})", name(culprit), percent(ratio(*time, total))))
        .collect();
    if sum.by.len() > MAX_NAMED {
        named.push(format!("{} more", sum.by.len() - MAX_NAMED));
    }
    named.join(", ")
}
