//! Causes outside of a VM: others that take the pCPUs that it waits for.
//!
//! Where vCPUs may run on several pCPUs, who took them is an estimate, and a part of a wait is then always said to be for the VM itself.
//! Whoever explains the rest explains that part, too, but it does not count in the cost.

use std::collections::BTreeSet;

use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::State;
use tandem_policy::VcpuId;
use tandem_policy::VmId;

use super::cure;
use super::finding::Finding;
use super::finding::Kind;
use super::finding::Severity;
use super::finding::percent;
use super::finding::ratio;
use super::patient::Patient;
use super::situation::Situation;
use super::waits::Sum;
use super::waits::Waits;
use super::waits::Who;

/// A VM whose vCPUs halt for less than this never sleeps. Not 0: a wait that is not over when the interval ends is not known to sources
/// that read accounts, and looks like HALT; that is some scheduler slices, tens of ms.
const SLEEPS: f64 = 0.05;

/// A VM behind its due by so much is short by more than waits in its own time explain.
const BEHIND: f64 = 0.10;

/// How many culprits are named.
const NAMED: usize = 3;

/// All of `others` and, where the vCPU may run on several pCPUs, what is estimated to be its own VM.
fn with_estimate<'a>(
    patient: &'a Patient<'_>,
    others: impl Fn(&Who) -> bool + 'a,
) -> impl Fn(VcpuId, &Who) -> bool + 'a {
    let free: BTreeSet<VcpuId> = patient
        .vm
        .vcpus
        .iter()
        .filter(|vcpu| vcpu.allowed.len() > 1)
        .map(|vcpu| vcpu.vcpu)
        .collect();
    move |vcpu, who| others(who) || (*who == Who::Itself && free.contains(&vcpu))
}

/// Whether no vCPU of a VM of two or more sleeps.
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
    // vCPUs that cannot run together gain nothing from turns.
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
    let is_meant = |who: &Who| matches!(who, Who::Vm(vm) if restless.contains(vm));
    let sum = waits.sum(patient, |_, who| is_meant(who));
    let severity = sum.severity(patient)?;
    waits.explain(patient, with_estimate(patient, is_meant));
    let slept = patient.times.get(State::Halted).unwrap_or_default();
    let evidence = vec![
        format!(
            "none of its {} vCPUs sleeps (HALT {}), nor do those of {}; it waits for these: RDY {} of its time",
            patient.vm.vcpus.len(),
            percent(patient.part(slept)),
            names(situation, &sum),
            percent(patient.part(sum.total))
        ),
        "whether its vCPUs wait for each other by spinning cannot be seen from outside: a VM that spins gets done far more in turns, one that \
         computes no less"
            .to_owned(),
    ];
    let mut all = vec![patient.id()];
    all.extend(culprits(&sum));
    let cure = cure::daemon(
        situation,
        &all,
        &[],
        "VMs that never sleep take turns, so that the vCPUs of each run together",
    );
    Some(patient.finding(situation, Kind::Turns, severity, sum.total, evidence, cure))
}

pub(super) fn own_threads(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_meant = |who: &Who| matches!(who, Who::OwnThread(_));
    let sum = waits.sum(patient, |_, who| is_meant(who));
    let severity = sum.severity(patient)?;
    waits.explain(patient, |_, who| is_meant(who));
    let ran = |name: &str| {
        let thread = patient.vm.threads.iter().find(|thread| thread.name == name);
        situation.pcpus(thread.map_or(Nanos::ZERO, |thread| thread.time))
    };
    let longest: Vec<&str> = sum
        .by
        .iter()
        .take(NAMED)
        .filter_map(|(who, _)| match who {
            Who::OwnThread(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let shown: Vec<String> = longest
        .iter()
        .map(|name| format!("{name} ran {:.2} pCPUs", ran(name)))
        .collect();
    let evidence = vec![format!(
        "{}; its vCPUs waited for them: RDY {} of its time",
        shown.join(", "),
        percent(patient.part(sum.total))
    )];
    let mut room = situation.host.online.clone();
    for pcpu in patient.vm.vcpus.iter().flat_map(|vcpu| vcpu.allowed.iter()) {
        room.remove(pcpu);
    }
    let cure = cure::move_threads(patient, longest.first().copied().unwrap_or_default(), &room);
    Some(patient.finding(
        situation,
        Kind::OwnThreads,
        severity,
        sum.total,
        evidence,
        cure,
    ))
}

pub(super) fn host_process(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_meant = |who: &Who| matches!(who, Who::Process { .. });
    let sum = waits.sum(patient, |_, who| is_meant(who));
    let severity = sum.severity(patient)?;
    waits.explain(patient, with_estimate(patient, is_meant));
    let Some((Who::Process { name, cgroup }, _)) = sum.by.first() else {
        return None;
    };
    let top = situation.interval.host.top_tasks.iter();
    let same: Vec<_> = top
        .filter(|task| task.name == *name && task.cgroup == *cgroup)
        .collect();
    let ran: Nanos = same.iter().map(|task| task.time).sum();
    let mut evidence = vec![format!(
        "it waits for {}: RDY {} of its time",
        names(situation, &sum),
        percent(patient.part(sum.total))
    )];
    if let Some(first) = same.first() {
        let place = cgroup.as_deref().unwrap_or("an unknown cgroup");
        let pids: Vec<String> = same.iter().map(|task| task.pid.to_string()).collect();
        evidence.push(format!(
            "{} (process {}, in {place}) ran {:.2} pCPUs",
            first.name,
            pids.join(", "),
            situation.pcpus(ran)
        ));
    }
    let pids: Vec<u32> = same.iter().map(|task| task.pid).collect();
    let cure = cure::calm_processes(situation, patient, cgroup.as_deref(), &pids);
    Some(patient.finding(
        situation,
        Kind::HostProcess,
        severity,
        sum.total,
        evidence,
        cure,
    ))
}

pub(super) fn neighbour(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let is_meant = |who: &Who| matches!(who, Who::Vm(_) | Who::Others);
    let sum = waits.sum(patient, |_, who| is_meant(who));
    let severity = sum.severity(patient)?;
    waits.explain(patient, with_estimate(patient, is_meant));
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
    let evidence = vec![
        format!(
            "it waits for {}: RDY {} of its time",
            names(situation, &sum),
            percent(patient.part(sum.total))
        ),
        format!(
            "it received {:.2} of {:.2} pCPUs due: {verdict}",
            situation.pcpus(known.received),
            situation.pcpus(known.due)
        ),
    ];
    let mut all = vec![patient.id()];
    all.extend(culprits(&sum));
    let cure = match lag >= BEHIND && !known.is_managed {
        true => cure::daemon(
            situation,
            &all,
            &[],
            "weights follow what each is due and receives",
        ),
        false => cure::more_weight(situation, patient, &all),
    };
    Some(patient.finding(
        situation,
        Kind::Neighbour,
        severity,
        sum.total,
        evidence,
        cure,
    ))
}

/// What no other finding explains.
pub(super) fn unexplained(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let sum = waits.sum(patient, |_, _| true);
    let severity: Severity = sum.severity(patient)?;
    let unseen = situation.interval.host.unseen(situation.interval.length);
    let mut evidence = vec![format!(
        "RDY {} of its time, for {}",
        percent(patient.part(sum.total)),
        names(situation, &sum)
    )];
    evidence.extend(unseen.map(|unseen| {
        format!(
            "{:.2} pCPUs are in no account: tasks that ended, interrupts, what this host's own hypervisor took",
            situation.pcpus(unseen)
        )
    }));
    let cure = cure::look_closer();
    Some(patient.finding(
        situation,
        Kind::Unexplained,
        severity,
        sum.total,
        evidence,
        cure,
    ))
}

fn culprits(sum: &Sum) -> impl Iterator<Item = VmId> + '_ {
    sum.by.iter().filter_map(|(who, _)| match who {
        Who::Vm(vm) => Some(*vm),
        _ => None,
    })
}

/// Who is waited for most, and with which part of the sum.
fn names(situation: &Situation<'_>, sum: &Sum) -> String {
    let name = |who: &Who| match who {
        Who::Itself => "itself".to_owned(),
        Who::OwnThread(name) | Who::Process { name, .. } => name.clone(),
        Who::Vm(vm) => situation.name(*vm).to_owned(),
        Who::Kernel(name) => format!("[{name}]"),
        Who::Unseen => "nobody that was seen".to_owned(),
        Who::Others => "others".to_owned(),
    };
    let total = sum.total;
    let mut named: Vec<String> = sum
        .by
        .iter()
        .take(NAMED)
        .map(|(who, time)| format!("{} ({})", name(who), percent(ratio(*time, total))))
        .collect();
    if sum.by.len() > NAMED {
        named.push(format!("{} more", sum.by.len() - NAMED));
    }
    named.join(", ")
}
