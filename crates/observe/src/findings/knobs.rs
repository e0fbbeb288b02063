//! Causes that are settings: a quota, halt polling, spinning that no yield ends. None of them is a wait for a pCPU.
//!
//! What quotas cost: a cgroup's throttled time counts once, however many of its vCPUs a source saw waiting meanwhile, and is divided among its
//! VMs as LIM is. It is a loss as far as pCPUs idled, and what idled is divided among all that were throttled: the costs of all
//! quotas together are never more than what idled.
//!
//! Halt polling takes no time from its VM. What it costs is what it burns, for the host and for those who wait.

use std::collections::BTreeMap;

use tandem_linux::cgroup::{CgroupPath, Quota};
use tandem_model::states::edges::{EdgeKind, Party};
use tandem_model::{Nanos, State, VmId};

use super::cure;
use super::finding::{Finding, Kind, Severity, percent, ratio};
use super::patient::Patient;
use super::situation::{KnownQuota, Situation};
use super::waits::Worth;

/// LIM from which a quota is felt. esxtop's users take any %MLMTD as a limit that acts; clocks here are read one after the
/// other, which makes up to about 1 %.
const LIMITED: f64 = 0.01;

/// LIM that is bad: as much as a wait that is bad.
const LIMITED_BAD: f64 = 0.10;

/// Idle time, in pCPUs, below which lifting a quota gains little.
const IDLE: f64 = 0.10;

/// POLL from which it is worth a look: a tenth of a pCPU for each vCPU. KVM's default polls for 200 µs at most at each halt, which
/// is less than that for a vCPU that halts up to 500 times a second.
const POLL: f64 = 0.10;

/// Useless yields per second and vCPU from which spinning is worth a look. A pause-loop exit costs its 4096 cycles of spinning and
/// as much again to leave and yield: a thousand are some 0.3 % of a pCPU, and nobody yields so often who gets on.
const YIELDS: f64 = 1000.0;

/// Throttling is counted when it is over. In an interval of so many periods what is not over does not matter.
const PERIODS: u64 = 4;

/// How much a quota is, in pCPUs.
fn pcpus_of(quota: Quota) -> f64 {
    quota.quota_us as f64 / quota.period_us.max(1) as f64
}

/// For how long a quota throttled its cgroup, where that is known of an interval of this length.
fn throttled(situation: &Situation<'_>, known: &KnownQuota) -> Option<Nanos> {
    let periods = Nanos(known.quota.period_us.saturating_mul(1000 * PERIODS));
    known.throttled.filter(|_| periods <= situation.interval.length)
}

/// What quotas kept each VM off pCPUs: LIM, at most the throttled time of its cgroups.
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
        // A quota of which that is not known may be the one that acted.
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
    // The one that throttled most acts; where that is not known, the tightest does.
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

/// What the vCPUs of other VMs waited for those of this one.
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

/// Edges of yields that did not help, where the source has them.
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
