//! Causes that are settings: quotas, halt polling, and spinning that yields do not end. None of them is a wait for a pCPU.
//!
//! Cost of quotas: the throttled time of a cgroup counts once, regardless of the number of its vCPUs that waited meanwhile, and is divided
//! among its VMs in proportion to LIM. It is a loss only up to the idle time of the pCPUs. The idle time is divided among all throttled VMs, so
//! the costs of all quotas together never exceed it.
//!
//! Halt polling takes no time from its VM. Its cost is the wasted time of the host and of waiting VMs.

use std::collections::BTreeMap;

use tandem_linux::cgroup::{CgroupPath, Quota};
use tandem_model::states::edges::{EdgeKind, Party};
use tandem_model::{Nanos, State, VmId};

use super::cure;
use super::finding::{Finding, Kind, Severity, percent, ratio};
use super::patient::Patient;
use super::situation::{KnownQuota, Situation};
use super::waits::Worth;

/// Minimum LIM of a finding. esxtop's users take any %MLMTD as an effective limit. Clocks here are read one after the
/// other, which adds an error of up to about 1 %.
const LIMITED: f64 = 0.01;

/// LIM of a severe finding, the same as for RDY.
const LIMITED_BAD: f64 = 0.10;

/// Idle time, in pCPUs, below which lifting a quota gains little.
const IDLE: f64 = 0.10;

/// Minimum POLL of a finding: a tenth of a pCPU per vCPU. KVM's default polls for at most 200 µs per halt, which
/// is less for a vCPU with up to 500 halts per second.
const POLL: f64 = 0.10;

/// Minimum rate of useless yields per second and vCPU for a finding. A pause-loop exit costs 4096 cycles of spinning, and
/// as much again to exit and yield. So 1000 cost some 0.3 % of a pCPU, and a VM that makes progress yields less often.
const YIELDS: f64 = 1000.0;

/// Throttling is counted when it ends. In an interval of at least this many periods, unfinished throttling is negligible.
const PERIODS: u64 = 4;

/// Returns the size of a quota in pCPUs.
fn pcpus_of(quota: Quota) -> f64 {
    quota.quota_us as f64 / quota.period_us.max(1) as f64
}

/// Returns the throttled time of a quota's cgroup, if it is known and the interval is long enough.
fn throttled(situation: &Situation<'_>, known: &KnownQuota) -> Option<Nanos> {
    let periods = Nanos(known.quota.period_us.saturating_mul(1000 * PERIODS));
    known.throttled.filter(|_| periods <= situation.interval.length)
}

/// Returns the time that quotas withheld from each VM: LIM, at most the throttled time of its cgroups.
fn withheld(situation: &Situation<'_>, patients: &[Patient<'_>]) -> BTreeMap<VmId, Nanos> {
    let limited = |patient: &Patient<'_>| patient.times.get(State::Limited).unwrap_or_default();
    let mut of_cgroup: BTreeMap<&CgroupPath, Nanos> = BTreeMap::new();
    for patient in patients {
        for known in &patient.known.quotas {
            *of_cgroup.entry(&known.cgroup).or_default() += limited(patient);
        }
    }
    let withheld = patients.iter().map(|patient| {
        let limited = limited(patient);
        let quotas = patient.known.quotas.iter();
        // A quota without known throttled time may be the effective one.
        let parts: Option<Vec<f64>> = quotas
            .map(|known| {
                let throttled = throttled(situation, known)?;
                let all = of_cgroup.get(&known.cgroup).copied().unwrap_or_default();
                Some(throttled.0 as f64 * ratio(limited, all))
            })
            .collect();
        let most = parts.filter(|parts| !parts.is_empty());
        let most = most.map_or(limited, |parts| Nanos(parts.iter().sum::<f64>().round() as u64));
        (patient.id(), limited.min(most))
    });
    withheld.collect()
}

pub(super) fn quota(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    patients: &[Patient<'_>],
    worth: Worth,
) -> Option<Finding> {
    let limited = patient.times.get(State::Limited)?;
    let idle = situation.interval.host.idle?;
    let part = patient.part(limited);
    let is_little = part < LIMITED || situation.pcpus(idle) < IDLE;
    if is_little && worth == Worth::Look {
        return None;
    }
    let withheld = withheld(situation, patients);
    let all: Nanos = withheld.values().copied().sum();
    let withheld = withheld.get(&patient.id()).copied().unwrap_or(limited);
    // The quota with the longest throttled time acts; if unknown, the smallest one.
    let acting = patient.known.quotas.iter().min_by(|one, two| {
        let time = |known: &KnownQuota| std::cmp::Reverse(throttled(situation, known));
        let pcpus = |known: &KnownQuota| pcpus_of(known.quota);
        let by_time = time(one).cmp(&time(two));
        by_time.then(pcpus(one).total_cmp(&pcpus(two)))
    });
    let mut evidence = vec![format!(
        "LIM {}: throttled for {:.2} pCPUs while {:.2} pCPUs idled, for which VMs throttled for {:.2} pCPUs compete",
        percent(part),
        situation.pcpus(withheld),
        situation.pcpus(idle),
        situation.pcpus(all)
    )];
    evidence.extend(acting.map(|known| {
        let Quota {
            quota_us,
            period_us,
        } = known.quota;
        let throttled = throttled(situation, known).map_or_else(String::new, |time| {
            format!(" and throttled {:.2}", situation.pcpus(time))
        });
        format!(
            "the quota of {} is {:.2} pCPUs ({quota_us} of {period_us} µs){throttled}; the VM received {:.2}",
            known.cgroup,
            pcpus_of(known.quota),
            situation.pcpus(patient.known.received)
        )
    }));
    let severity = if part >= LIMITED_BAD { Severity::Bad } else { Severity::Notice };
    let cure = cure::lift_quota(situation, patient, acting.map(|known| &known.cgroup));
    let share = (idle.0 as f64 * ratio(withheld, all)).round() as u64;
    let lost = withheld.min(Nanos(share));
    Some(patient.finding(situation, Kind::Quota, severity, lost, evidence, cure))
}

pub(super) fn halt_polling(situation: &Situation<'_>, patient: &Patient<'_>) -> Option<Finding> {
    let poll = patient.times.get(State::Poll)?;
    let run = patient.times.get(State::Run)?;
    if patient.part(poll) < POLL || poll <= run {
        return None;
    }
    let mut evidence = vec![format!(
        "POLL {} against RUN {}: the host polled {:.2} pCPUs for a VM that ran {:.2}",
        percent(patient.part(poll)),
        percent(patient.part(run)),
        situation.pcpus(poll),
        situation.pcpus(run)
    )];
    let waited = waited_for(situation, patient);
    if waited > Nanos::ZERO {
        let ran: Nanos = patient.vm.vcpus.iter().map(|vcpu| vcpu.ran).sum();
        evidence.push(format!(
            "other VMs waited {:.2} pCPUs for it, {:.2} of that for its polling if they met it by chance",
            situation.pcpus(waited),
            situation.pcpus(waited) * ratio(poll, ran).min(1.0)
        ));
    }
    let cure = cure::poll_less();
    Some(patient.burner(situation, Kind::HaltPolling, poll, evidence, cure))
}

/// Returns the time that vCPUs of other VMs waited for vCPUs of this one.
fn waited_for(situation: &Situation<'_>, patient: &Patient<'_>) -> Nanos {
    let vm_of = |party: &Party| match party {
        Party::Vcpu { vm, .. } | Party::Vm(vm) => Some(*vm),
        _ => None,
    };
    let edges = situation.interval.edges.iter();
    let of_others = edges.filter(|edge| {
        edge.kind == EdgeKind::Pcpu
            && vm_of(edge.culprit) == Some(patient.id())
            && vm_of(edge.victim).is_some_and(|vm| vm != patient.id())
    });
    of_others.map(|edge| edge.time()).sum()
}

/// Finds yields without effect, if the source has such edges.
pub(super) fn useless_spinning(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
) -> Option<Finding> {
    let mut counts = [0u64; 2];
    let mut spun = Nanos::ZERO;
    for vcpu in &patient.vm.vcpus {
        let victim = Party::Vcpu { vm: patient.id(), vcpu: vcpu.vcpu };
        for (count, kind) in counts.iter_mut().zip([EdgeKind::YieldUseless, EdgeKind::YieldTaken]) {
            for edge in situation.interval.edges.of(&victim, kind) {
                *count += edge.amount.count.unwrap_or(0);
                if kind == EdgeKind::YieldUseless {
                    spun += edge.time();
                }
            }
        }
    }
    let [useless, taken] = counts;
    let per_second = useless as f64 / patient.times.wall().as_secs_f64().max(1e-9);
    if per_second < YIELDS || useless <= taken {
        return None;
    }
    let evidence = vec![format!(
        "{per_second:.0} useless yields per second and vCPU, {} of all",
        percent(useless as f64 / (useless + taken) as f64)
    )];
    let cure = cure::run_together();
    Some(patient.finding(situation, Kind::UselessSpinning, Severity::Notice, spun, evidence, cure))
}
