//! Diagnoses slow VMs: derives findings with remedies from one interval and the configuration of the host.
//!
//! ```text
//! Interval ──┐
//!            ├─► find ──► findings by cost in descending order, and causes that were not checked
//! Situation ─┘
//! ```
//!
//! The functions are pure: intervals of a live host, a record and a simulated host are judged alike.
//! They read nothing from the host and change nothing on it.
//!
//! - *Each wait is explained once.* `waits.rs` holds the time that each vCPU waited for each culprit. Causes are checked from the specific to
//!   the general (`shape.rs`, then `others.rs`). Each takes the waits that it explains, and the next sees the rest. So two computing VMs are
//!   not reported as neighbours if a finding already recommends turns.
//! - *The cost of a finding* is the time that its VM lost by it within the interval, summed over vCPUs: in ns per second, and relative to the
//!   run time of the VM.
//!   Causes that waste host time without a loss for the VM (halt polling) sort after all losses, by the wasted time.
//! - *Thresholds* are constants with their reasons, in the module that uses them; those for RDY are in `waits.rs`.
//! - *No guesses without measurement*: causes whose inputs are missing are in [`Findings::not_looked_for`], with the missing input.
//!
//! The causes come from questions in the trackers of KVM projects, esxtop's rules of thumb, and measurements on stock kernels
//! (decisions 004, 015, 018).

mod cure;
mod finding;
mod knobs;
mod others;
mod patient;
mod shape;
mod situation;
mod waits;

use tandem_model::states::edges::EdgeKind;
use tandem_model::states::interval::{Column, HostColumn, Interval};
use tandem_model::{Nanos, State, VmId};

pub use finding::{Change, Cure, Finding, Findings, Kind, NotLookedFor, Severity};
pub use situation::{KnownHost, KnownQuota, KnownVm, Situation};

use patient::Patient;
use waits::{Waits, Worth};

/// Returns the findings for the VMs that `is_asked` selects. All other VMs of `situation` count as culprits only.
pub fn find(situation: &Situation<'_>, is_asked: impl Fn(VmId) -> bool) -> Findings {
    let interval = situation.interval;
    let mut waits = Waits::new(&interval.edges, Worth::Look);
    let patients = patients(situation);
    let mut findings = Vec::new();
    for patient in patients.iter().filter(|patient| is_asked(patient.id())) {
        findings.extend(knobs::quota(situation, patient, &patients, Worth::Look));
        findings.extend(knobs::halt_polling(situation, patient));
        findings.extend(knobs::useless_spinning(situation, patient));
        // From the specific to the general: each takes the waits that it explains.
        findings.extend(shape::stacked(situation, patient, &mut waits));
        findings.extend(shape::too_many_vcpus(situation, patient, &mut waits));
        findings.extend(shape::pinned_hog(situation, patient, &patients, &mut waits));
        findings.extend(shape::unfair_pins(situation, patient, &patients, &mut waits));
        findings.extend(shape::slow_sibling(situation, patient, &mut waits));
        findings.extend(others::turns(situation, patient, &patients, &mut waits));
        findings.extend(others::own_threads(situation, patient, &mut waits));
        findings.extend(others::host_process(situation, patient, &mut waits));
        findings.extend(others::neighbour(situation, patient, &mut waits));
        findings.extend(others::unexplained(situation, patient, &mut waits));
    }
    findings.sort_by(|one, two| {
        let order = |finding: &Finding| {
            let burned = finding.burned_per_second;
            std::cmp::Reverse((finding.lost_per_second, burned))
        };
        (order(one), &one.vm, one.pid, one.kind).cmp(&(order(two), &two.vm, two.pid, two.kind))
    });
    Findings { findings, not_looked_for: not_looked_for(interval) }
}

fn patients<'a>(situation: &'a Situation<'a>) -> Vec<Patient<'a>> {
    let vms = situation.interval.vms.iter();
    let patients = vms.filter_map(|vm| {
        Some(Patient { vm, known: situation.vms.get(&vm.vm)?, times: vm.times()? })
    });
    patients.collect()
}

/// Returns the cost of a cause for a VM, in ns per second, without thresholds and independent of other causes of the same waits.
/// The figure is comparable between intervals.
/// It is 0 if the cause is absent, and for causes whose remedy changes no setting ([`Cure::changes`]) and so cannot be tried.
pub fn cost(situation: &Situation<'_>, vm: VmId, kind: Kind) -> Nanos {
    let mut waits = Waits::new(&situation.interval.edges, Worth::Anything);
    let patients = patients(situation);
    let Some(patient) = patients.iter().find(|patient| patient.id() == vm) else {
        return Nanos::ZERO;
    };
    let found = match kind {
        Kind::Quota => knobs::quota(situation, patient, &patients, Worth::Anything),
        Kind::Stacked => shape::stacked(situation, patient, &mut waits),
        Kind::OwnThreads => others::own_threads(situation, patient, &mut waits),
        Kind::HostProcess => others::host_process(situation, patient, &mut waits),
        Kind::Neighbour => others::neighbour(situation, patient, &mut waits),
        _ => None,
    };
    found.map_or(Nanos::ZERO, |found| found.lost_per_second)
}

/// Returns the causes whose inputs the interval lacks for some VM.
fn not_looked_for(interval: &Interval) -> Vec<NotLookedFor> {
    let needs = [
        (Column::State(State::Limited), "quotas that throttle"),
        (Column::State(State::Poll), "halt polling"),
        (
            Column::State(State::Costop),
            "vCPUs that idle only because a sibling does not run (co-stop)",
        ),
        (Column::Edges(EdgeKind::YieldUseless), "spinning without progress (pause-loop exits)"),
        (Column::Host(HostColumn::VmThreads), "emulator and vhost threads that take vCPUs' time"),
        (Column::Host(HostColumn::Processes), "host processes that take VMs' time"),
    ];
    let missing = needs.into_iter().filter_map(|(column, what)| {
        let missing = interval.missing.iter().find(|one| one.what == column)?;
        let of = if missing.vms < missing.of {
            format!("{} of {} VMs: ", missing.vms, missing.of)
        } else {
            String::new()
        };
        Some(NotLookedFor { what, want: format!("{of}{}", missing.want) })
    });
    let never = [
        ("interrupts to vCPUs that do not run", "no source records which vCPU an interrupt is for"),
        (
            "memory on another NUMA node, crossing of last-level caches",
            "no source records where a VM's memory is and what misses cost",
        ),
    ];
    let never = never.map(|(what, want)| NotLookedFor { what, want: want.to_owned() });
    let mut all: Vec<NotLookedFor> = missing.collect();
    let has_yields = interval.edges.total(EdgeKind::YieldUseless) > Nanos::ZERO;
    let said = |what: &str| all.iter().any(|one| one.what.starts_with(what));
    if interval.source == tandem_model::states::interval::SourceName::Plain
        && !has_yields
        && !said("spinning")
    {
        all.push(NotLookedFor {
            what: "spinning without progress (pause-loop exits)",
            want: "accounts without BPF do not count yields".to_owned(),
        });
    }
    all.extend(never);
    all
}

#[cfg(test)]
mod tests;
