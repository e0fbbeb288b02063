//! Causes in the shape of a VM: the number of its vCPUs, their affinity, and the distribution of work among them.

use std::collections::{BTreeMap, BTreeSet};

use tandem_model::states::interval::VcpuInterval;
use tandem_model::{Nanos, PcpuId, PcpuSet, State, VcpuId, VcpuTimes, VmId};

use super::cure;
use super::finding::{Finding, Kind, Severity, percent, ratio};
use super::patient::Patient;
use super::situation::Situation;
use super::waits::{Culprit, READY_BAD, Waits};

/// A vCPU that demands a pCPU for this part of the time is busy; two with lower demand seldom collide.
const BUSY: f64 = 0.20;

/// Minimum idle time, in pCPUs, that moved vCPUs could use; less is within the error of the clocks.
const IDLE: f64 = 0.10;

/// Minimum lag of a VM relative to its fair share. Without pins, a stock scheduler deviates far less from fair shares.
const BEHIND: f64 = 0.10;

/// Minimum received time of a hog relative to its fair share; measured hogs received 1.5 to 3.6 times theirs.
const HOG: f64 = 1.2;

/// Minimum part of the time that a hog sleeps. A VM that never sleeps does not show the defect.
const HOG_SLEEPS: f64 = 0.02;

/// The first kernel with the defect (6d71a9c61604, "sched/fair: Fix EEVDF entity placement bug").
const HOG_SINCE: (u32, u32) = (6, 13);

/// Minimum ratio of fair shares to pCPUs at which pins overcommit a set.
const OVERCOMMITTED: f64 = 1.03;

/// A vCPU that runs or waits for this part of the time always has work.
const ALWAYS: f64 = 0.90;

/// A sibling that halts for this part of the time waits for other vCPUs.
const WAITS: f64 = 0.50;

/// A sibling that runs less than this part of the time does no work.
const WORKS: f64 = 0.02;

/// Remark about the policy that divides a VM's time among its vCPUs. It gains nothing for most programs (research/docs/results.md).
const ASYMMETRIC: &str = "try this and compare the work done before and with it: it gives the VM's time to the vCPU that needs it, \
                          but of what was measured only pipelines that were free to move gained; programs with a serial part gained nothing or lost some percent";

/// Returns the waiting time of a vCPU while no quota throttled it.
fn unlimited_wait(vcpu: &VcpuInterval) -> Nanos {
    let limited = vcpu.times.get(State::Limited).unwrap_or_default();
    vcpu.waited.saturating_sub(limited)
}

/// Returns the part of the time that a vCPU ran, or would have run without waits.
fn wanted(vcpu: &VcpuInterval) -> f64 {
    let limited = vcpu.times.get(State::Limited).unwrap_or_default();
    ratio((vcpu.ran + vcpu.waited).saturating_sub(limited), vcpu.times.wall())
}

/// Groups the VM's vCPUs by affinity.
fn by_place<'a>(patient: &Patient<'a>) -> BTreeMap<&'a PcpuSet, Vec<&'a VcpuInterval>> {
    let mut places: BTreeMap<&PcpuSet, Vec<&VcpuInterval>> = BTreeMap::new();
    for vcpu in &patient.vm.vcpus {
        places.entry(&vcpu.allowed).or_default().push(vcpu);
    }
    places
}

/// Returns the busy vCPUs of each affinity set that has fewer pCPUs than these.
fn crowded<'a>(patient: &Patient<'a>) -> Vec<(&'a PcpuSet, Vec<&'a VcpuInterval>)> {
    let places = by_place(patient).into_iter();
    let places = places.map(|(set, mut vcpus)| {
        vcpus.retain(|vcpu| wanted(vcpu) >= BUSY);
        (set, vcpus)
    });
    places.filter(|(set, vcpus)| !set.is_empty() && vcpus.len() > set.len()).collect()
}

/// Returns a lower bound of the idle time outside of `set`: the total idle time minus the largest possible idle time in `set`.
fn idle_elsewhere(situation: &Situation<'_>, set: &PcpuSet) -> Option<Nanos> {
    let may_run_there = situation.interval.vms.iter().flat_map(|vm| &vm.vcpus);
    let confined = may_run_there.filter(|vcpu| vcpu.allowed.common(set) == vcpu.allowed.len());
    let ran: Nanos = confined.map(|vcpu| vcpu.ran).sum();
    let whole = Nanos(situation.interval.length.0.saturating_mul(set.len() as u64));
    let idle = situation.interval.host.idle?;
    Some(idle.saturating_sub(whole.saturating_sub(ran)))
}

pub(super) fn stacked(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let mut crowds = crowded(patient);
    crowds.retain(|(set, _)| {
        idle_elsewhere(situation, set).is_some_and(|idle| situation.pcpus(idle) >= IDLE)
    });
    let ids: BTreeSet<VcpuId> =
        crowds.iter().flat_map(|(_, vcpus)| vcpus.iter().map(|vcpu| vcpu.vcpu)).collect();
    // Waits for others are a consequence of these pins, too, if the idle time elsewhere covers at least half of the waits.
    let is_room_for_all = crowds.iter().all(|(set, vcpus)| {
        let wanted_more: Nanos = vcpus.iter().map(|vcpu| unlimited_wait(vcpu)).sum();
        idle_elsewhere(situation, set).is_some_and(|idle| idle.0 >= wanted_more.0 / 2)
    });
    let (sum, severity) = waits.take(
        patient,
        |vcpu| ids.contains(&vcpu),
        |culprit| is_room_for_all || *culprit == Culprit::Itself,
    )?;
    let mut evidence: Vec<String> = crowds
        .iter()
        .map(|(set, vcpus)| {
            let names: Vec<String> = vcpus.iter().map(|vcpu| vcpu.vcpu.to_string()).collect();
            format!(
                "vCPUs {} want {:.2} pCPUs and may run on pCPU {set} only",
                names.join(", "),
                vcpus.iter().map(|vcpu| wanted(vcpu)).sum::<f64>()
            )
        })
        .collect();
    let idle = situation.interval.host.idle.unwrap_or_default();
    let for_culprits = if sum.by.iter().any(|(culprit, _)| *culprit != Culprit::Itself) {
        "for each other and for others"
    } else {
        "for each other"
    };
    evidence.push(format!(
        "they wait {for_culprits}: {}, while {:.2} pCPUs idled",
        sum.ready(patient),
        situation.pcpus(idle)
    ));
    let mut moves: Vec<(VcpuId, PcpuSet)> = Vec::new();
    for (set, vcpus) in &crowds {
        let ids: Vec<VcpuId> = vcpus.iter().map(|vcpu| vcpu.vcpu).collect();
        if let Some(room) = roomier(situation, patient, set, &ids) {
            moves.extend(ids.into_iter().map(|vcpu| (vcpu, room.clone())));
        }
    }
    let cure = cure::move_vcpus(patient, &moves);
    Some(patient.finding(situation, Kind::Stacked, severity, sum.total, evidence, cure))
}

/// Returns a larger set of pCPUs for these vCPUs than `set`: pCPUs that share a last-level cache with it, if these suffice, else all usable ones.
/// `None` if `set` is all that is usable.
/// Isolated pCPUs, those outside of the vCPUs' cpusets, and those pinned for other VMs are not used.
fn roomier(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    set: &PcpuSet,
    vcpus: &[VcpuId],
) -> Option<PcpuSet> {
    let taken = taken_by_others(situation, patient);
    let isolated = &situation.host.isolated;
    let in_cpusets = |pcpu| {
        let known = &patient.known.cpusets;
        let mut cpusets = vcpus.iter().filter_map(|vcpu| known.get(vcpu));
        cpusets.all(|cpuset| cpuset.contains(pcpu))
    };
    let may_be_used = |pcpu: &PcpuId| {
        let is_free = !isolated.contains(*pcpu) && !taken.contains(*pcpu);
        set.contains(*pcpu) || (is_free && in_cpusets(*pcpu))
    };
    let mut all: PcpuSet = situation.host.online.iter().filter(may_be_used).collect();
    all.extend(set);
    let caches = situation.host.caches.iter();
    let near = caches.filter(|cache| cache.overlaps(set));
    let near: PcpuSet = all
        .iter()
        .filter(|pcpu| set.contains(*pcpu) || near.clone().any(|cache| cache.contains(*pcpu)))
        .collect();
    let room = if near.len() >= vcpus.len() { near } else { all };
    (room != *set).then_some(room)
}

/// Returns the pCPUs that are dedicated to other VMs: sets to which at least as many vCPUs of one VM are confined as the set has pCPUs.
fn taken_by_others(situation: &Situation<'_>, patient: &Patient<'_>) -> PcpuSet {
    let online = &situation.host.online;
    let mut taken = PcpuSet::default();
    for vm in &situation.interval.vms {
        if vm.vm == patient.id() {
            continue;
        }
        let places: BTreeSet<&PcpuSet> = vm.vcpus.iter().map(|vcpu| &vcpu.allowed).collect();
        for place in places {
            let is_within = |vcpu: &&VcpuInterval| {
                !vcpu.allowed.is_empty() && vcpu.allowed.common(place) == vcpu.allowed.len()
            };
            let confined = vm.vcpus.iter().filter(is_within).count();
            if online.common(place) < online.len() && confined >= place.len() {
                taken.extend(place);
            }
        }
    }
    taken
}

pub(super) fn too_many_vcpus(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let crowds = crowded(patient);
    let ids: BTreeSet<VcpuId> =
        crowds.iter().flat_map(|(_, vcpus)| vcpus.iter().map(|vcpu| vcpu.vcpu)).collect();
    let (sum, severity) =
        waits.take(patient, |vcpu| ids.contains(&vcpu), |culprit| *culprit == Culprit::Itself)?;
    let mut room = PcpuSet::default();
    for vcpu in &patient.vm.vcpus {
        room.extend(&vcpu.allowed);
    }
    let busy = patient.vm.vcpus.iter().filter(|vcpu| wanted(vcpu) >= BUSY);
    let mut evidence = vec![format!(
        "{} busy vCPUs may run on pCPU {room} only; they wait for each other: {}",
        busy.count(),
        sum.ready(patient)
    )];
    if let Some(costop) = patient.times.get(State::Costop) {
        evidence.push(format!("CSTP {}", percent(patient.part(costop))));
    }
    // No idle pCPU is known, and other pCPUs may be reserved for other VMs.
    let cure = cure::fewer_vcpus(patient, &room, &situation.host.online);
    Some(patient.finding(situation, Kind::TooManyVcpus, severity, sum.total, evidence, cure))
}

/// Returns the part of the time halted, including co-stop if that is measured separately.
fn halted(times: &VcpuTimes) -> f64 {
    let share = |state| times.share(state).unwrap_or(0.0);
    share(State::Halted) + share(State::Costop)
}

/// Whether a VM has two or more vCPUs pinned to one pCPU, spans several, and sleeps (see decision 018 for measurements).
fn is_pinned_and_stacked(other: &Patient<'_>) -> bool {
    let mut on: BTreeMap<PcpuId, usize> = BTreeMap::new();
    for vcpu in &other.vm.vcpus {
        match (vcpu.allowed.len(), vcpu.allowed.iter().next()) {
            (1, Some(pcpu)) => *on.entry(pcpu).or_default() += 1,
            _ => return false,
        }
    }
    let halted = halted(&other.times);
    on.len() >= 2 && on.values().any(|vcpus| *vcpus >= 2) && halted >= HOG_SLEEPS
}

pub(super) fn pinned_hog(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    patients: &[Patient<'_>],
    waits: &mut Waits,
) -> Option<Finding> {
    let known = patient.known;
    let is_behind = known.received.0 as f64 <= known.due.0 as f64 * (1.0 - BEHIND);
    if !is_behind || situation.host.kernel.is_some_and(|kernel| kernel < HOG_SINCE) {
        return None;
    }
    let hogs = patients.iter().filter(|other| {
        let is_ahead = other.known.received.0 as f64 >= other.known.due.0 as f64 * HOG;
        other.id() != patient.id() && is_ahead && is_pinned_and_stacked(other)
    });
    let hogs: BTreeMap<_, _> = hogs.map(|hog| (hog.id(), hog)).collect();
    let is_included =
        |culprit: &Culprit| matches!(culprit, Culprit::Vm(vm) if hogs.contains_key(vm));
    let (sum, severity) = waits.take(patient, |_| true, is_included)?;
    let (Culprit::Vm(worst), _) = sum.by.first()? else {
        return None;
    };
    let hog = hogs.get(worst)?;
    let pcpus = |time| situation.pcpus(time);
    let evidence = vec![
        format!(
            "{} has several vCPUs pinned to a pCPU, spans several and sleeps at times: it received {:.2} pCPUs of {:.2} due",
            hog.known.name,
            pcpus(hog.known.received),
            pcpus(hog.known.due)
        ),
        format!(
            "{} received {:.2} of {:.2} due, and waited for it: {}",
            known.name,
            pcpus(known.received),
            pcpus(known.due),
            sum.ready(patient)
        ),
    ];
    let lost = known.due.saturating_sub(known.received).min(sum.total);
    let cure = cure::daemon(
        situation,
        &[*worst, patient.id()],
        &[],
        "the daemon corrects the shares with weights and a group for each vCPU",
    );
    Some(patient.finding(situation, Kind::PinnedHog, severity, lost, evidence, cure))
}

/// Finds VMs confined to a set whose fair shares exceed it, which no weights can satisfy (decision 004).
pub(super) fn unfair_pins(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    patients: &[Patient<'_>],
    waits: &mut Waits,
) -> Option<Finding> {
    let known = patient.known;
    let place = |patient: &Patient<'_>| {
        let mut place = PcpuSet::default();
        for vcpu in &patient.vm.vcpus {
            place.extend(&vcpu.allowed);
        }
        place
    };
    let set = place(patient);
    let is_behind = known.received.0 as f64 <= known.due.0 as f64 * (1.0 - BEHIND);
    if !is_behind || situation.host.online.common(&set) == situation.host.online.len() {
        return None;
    }
    let confined: Vec<&Patient<'_>> = patients
        .iter()
        .filter(|other| {
            let theirs = place(other);
            !theirs.is_empty() && theirs.common(&set) == theirs.len()
        })
        .collect();
    let due: Nanos = confined.iter().map(|other| other.known.due).sum();
    if situation.pcpus(due) < set.len() as f64 * OVERCOMMITTED {
        return None;
    }
    let (sum, severity) =
        waits.take(patient, |_| true, |culprit| matches!(culprit, Culprit::Vm(_)))?;
    let pcpus = |time| situation.pcpus(time);
    let evidence = vec![format!(
        "{} VMs may run on pCPU {set} only and are due {:.2} pCPUs there; {} received {:.2} of {:.2} due, and waited: {}",
        confined.len(),
        pcpus(due),
        known.name,
        pcpus(known.received),
        pcpus(known.due),
        sum.ready(patient)
    )];
    let mut all: BTreeSet<VmId> = confined.iter().map(|other| other.id()).collect();
    all.extend(sum.by.iter().filter_map(|(culprit, _)| match culprit {
        Culprit::Vm(vm) => Some(*vm),
        _ => None,
    }));
    let all: Vec<VmId> = all.into_iter().collect();
    let lost = known.due.saturating_sub(known.received).min(sum.total);
    let cure = cure::daemon(
        situation,
        &all,
        &["--placement", "rebalance"],
        "no weights can correct that; the daemon may move vCPUs that are pinned to one pCPU",
    );
    Some(patient.finding(situation, Kind::UnfairPins, severity, lost, evidence, cure))
}

pub(super) fn slow_sibling(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    waits: &mut Waits,
) -> Option<Finding> {
    let share = |vcpu: &VcpuInterval, state| vcpu.times.share(state).unwrap_or(0.0);
    let (slow, siblings): (Vec<&VcpuInterval>, Vec<_>) =
        patient.vm.vcpus.iter().partition(|vcpu| wanted(vcpu) >= ALWAYS);
    let [slow] = slow[..] else { return None };
    let they_wait = siblings.iter().all(|vcpu| halted(&vcpu.times) >= WAITS);
    let they_work = siblings.iter().any(|vcpu| ratio(vcpu.ran, vcpu.times.wall()) >= WORKS);
    let ready = share(slow, State::Ready);
    if siblings.is_empty() || !they_wait || !they_work || ready < READY_BAD {
        return None;
    }
    let (sum, _) = waits.take(
        patient,
        |vcpu| vcpu == slow.vcpu,
        |culprit| matches!(culprit, Culprit::Vm(_)),
    )?;
    let halted: f64 = siblings.iter().map(|vcpu| halted(&vcpu.times)).sum();
    let evidence = vec![format!(
        "vCPU {} always has work and is RDY for {} of its time, while its siblings ran at times and halted for {} in the mean; it waits for other VMs: {}",
        slow.vcpu,
        percent(ready),
        percent(halted / siblings.len() as f64),
        sum.ready(patient)
    )];
    let mut all = vec![patient.id()];
    all.extend(sum.by.iter().filter_map(|(culprit, _)| match culprit {
        Culprit::Vm(vm) => Some(*vm),
        _ => None,
    }));
    let cure =
        cure::daemon(situation, &all, &["--policies", "fair,turns,apart,asymmetric"], ASYMMETRIC);
    Some(patient.finding(situation, Kind::SlowSibling, Severity::Bad, sum.total, evidence, cure))
}
