//! Why VMs are slow: findings from one interval and from what is configured, and for each a cure.
//!
//! ```text
//! Interval ──┐
//!            ├─► find ──► findings, the costliest first, and what was not looked for
//! Situation ─┘
//! ```
//!
//! Pure: intervals of a live host, a record and a simulated host are judged alike. Nothing is read or changed here.
//!
//! - *A wait is explained once.* `waits.rs` holds what each vCPU waited for whom. Causes are looked for from the special to the
//!   general (`shape.rs`, then `others.rs`); each takes the waits that it explains, and the next sees what is left. So two computing VMs are not said to
//!   be neighbours where it is already said that turns would help them.
//! - *What a finding costs* is the time that its VM lost by it within the interval, summed over vCPUs: ns per second, and a part of what the VM ran.
//!   What burns the host's time without a loss of the VM's (halt polling) comes after all losses, by what it burns.
//! - *Thresholds* are constants with their reasons, in the module that uses them; those for RDY are in `waits.rs`.
//! - *What is not measured is not guessed*: such causes are in [`Findings::not_looked_for`], with for want of what.
//!
//! Source of the causes: what operators ask in trackers of KVM projects, esxtop's rules of thumb, and measurements on stock kernels
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

/// What is wrong with the VMs of `situation` for which `is_asked` says so. All others are looked at as culprits.
pub fn find(situation: &Situation<'_>, is_asked: impl Fn(VmId) -> bool) -> Findings {
    let interval = situation.interval;
    let mut waits = Waits::new(&interval.edges, Worth::Look);
    let patients = patients(situation);
    let mut findings = Vec::new();
    for patient in patients.iter().filter(|patient| is_asked(patient.id())) {
        findings.extend(knobs::quota(situation, patient, &patients, Worth::Look));
        findings.extend(knobs::halt_polling(situation, patient));
        findings.extend(knobs::useless_spinning(situation, patient));
        // From the special to the general: each takes the waits that it explains.
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

/// What a cause costs a VM, in ns per second, however little that is, and whatever else explains the same waits: the same figure in one interval and
/// in another, for whoever compares them. 0 where the cause is not there, and for causes whose cure is not a change of some setting
/// ([`Cure::changes`]), which nobody tries.
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

/// Causes whose inputs the interval lacks, of any VM.
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
        let of = match missing.vms < missing.of {
            true => format!("{} of {} VMs: ", missing.vms, missing.of),
            false => String::new(),
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
