//! Causes that are settings: a quota, halt polling, spinning that no yield ends. None of them is a wait for a pCPU.

use tandem_linux::cgroup::Quota;
use tandem_policy::Nanos;
use tandem_policy::State;
use tandem_policy::states::edges::EdgeKind;
use tandem_policy::states::edges::Party;

use super::cure;
use super::finding::Finding;
use super::finding::Kind;
use super::finding::Severity;
use super::finding::percent;
use super::patient::Patient;
use super::situation::Situation;

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

pub(super) fn quota(situation: &Situation<'_>, patient: &Patient<'_>) -> Option<Finding> {
    let limited = patient.times.get(State::Limited)?;
    let idle = situation.interval.host.idle?;
    let part = patient.part(limited);
    if part < LIMITED || situation.pcpus(idle) < IDLE {
        return None;
    }
    // The tightest is the one that acts, where several are in force.
    let tightest = patient.known.quotas.iter().min_by_key(|known| {
        let Quota {
            quota_us,
            period_us,
        } = known.quota;
        quota_us.saturating_mul(1_000_000) / period_us.max(1)
    });
    let mut evidence = vec![format!(
        "LIM {}: throttled for {:.2} pCPUs while {:.2} pCPUs idled",
        percent(part),
        situation.pcpus(limited),
        situation.pcpus(idle)
    )];
    evidence.extend(tightest.map(|known| {
        let Quota {
            quota_us,
            period_us,
        } = known.quota;
        format!(
            "the quota of {} is {:.2} pCPUs ({quota_us} of {period_us} µs); the VM received {:.2}",
            known.cgroup,
            quota_us as f64 / period_us.max(1) as f64,
            situation.pcpus(patient.known.received)
        )
    }));
    let severity = match part >= LIMITED_BAD {
        true => Severity::Bad,
        false => Severity::Notice,
    };
    let cure = cure::lift_quota(situation, patient, tightest.map(|known| &known.cgroup));
    let lost = limited.min(idle);
    Some(patient.finding(situation, Kind::Quota, severity, lost, evidence, cure))
}

pub(super) fn halt_polling(situation: &Situation<'_>, patient: &Patient<'_>) -> Option<Finding> {
    let poll = patient.times.get(State::Poll)?;
    let run = patient.times.get(State::Run)?;
    if patient.part(poll) < POLL || poll <= run {
        return None;
    }
    let evidence = vec![format!(
        "POLL {} against RUN {}: the host polled {:.2} pCPUs for a VM that ran {:.2}",
        percent(patient.part(poll)),
        percent(patient.part(run)),
        situation.pcpus(poll),
        situation.pcpus(run)
    )];
    let cure = cure::poll_less();
    Some(patient.finding(
        situation,
        Kind::HaltPolling,
        Severity::Notice,
        poll,
        evidence,
        cure,
    ))
}

/// Edges of yields that did not help, where the source has them.
pub(super) fn useless_spinning(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
) -> Option<Finding> {
    let mut counts = [0u64; 2];
    let mut spun = Nanos::ZERO;
    for vcpu in &patient.vm.vcpus {
        let victim = Party::Vcpu {
            vm: patient.id(),
            vcpu: vcpu.vcpu,
        };
        for (count, kind) in counts
            .iter_mut()
            .zip([EdgeKind::YieldUseless, EdgeKind::YieldTaken])
        {
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
    Some(patient.finding(
        situation,
        Kind::UselessSpinning,
        Severity::Notice,
        spun,
        evidence,
        cure,
    ))
}
