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
//! - *Thresholds* are constants with their reasons, in the module that uses them; those for RDY are in `waits.rs`.
//! - *What is not measured is not guessed*: such causes are in [`Findings::not_looked_for`], with for want of what.
//!
//! Source of the causes: what operators ask in trackers of KVM projects, esxtop's rules of thumb, and measurements on stock kernels
//! (decisions 004, 015, 018).

mod cure;
mod knobs;
mod others;
mod shape;
mod situation;
mod waits;

use serde::Serialize;
use tandem_policy::Nanos;
use tandem_policy::State;
use tandem_policy::VcpuTimes;
use tandem_policy::VmId;
use tandem_policy::states::edges::EdgeKind;
use tandem_policy::states::interval::Column;
use tandem_policy::states::interval::HostColumn;
use tandem_policy::states::interval::Interval;
use tandem_policy::states::interval::VmInterval;

pub use cure::Cure;
pub use situation::KnownHost;
pub use situation::KnownQuota;
pub use situation::KnownVm;
pub use situation::Situation;

use waits::Waits;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A quota holds the VM back while pCPUs idle.
    Quota,
    /// Several busy vCPUs of the VM are confined to fewer pCPUs while others idle.
    Stacked,
    /// The VM has more busy vCPUs than pCPUs where they may run, and waits for itself.
    TooManyVcpus,
    /// A VM that is pinned and stacked takes more than its due from this one.
    PinnedHog,
    /// The VMs pinned to the same pCPUs are due more than these have.
    UnfairPins,
    /// One vCPU is always runnable and waits, and its siblings wait for it.
    SlowSibling,
    /// The VM never sleeps, beside others that never sleep: if its vCPUs wait for each other by spinning, they should run together.
    Turns,
    /// vCPUs spin and yield, and nobody is helped.
    UselessSpinning,
    /// The host polls for halted vCPUs for longer than these run.
    HaltPolling,
    /// The VM's other threads take its vCPUs' pCPUs.
    OwnThreads,
    /// Processes of the host take the time.
    HostProcess,
    /// Other VMs take the time.
    Neighbour,
    /// The VM waits, and for whom is not known.
    Unexplained,
}

impl Kind {
    /// What is wrong, in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Quota => "a quota holds it back while pCPUs idle",
            Kind::Stacked => "its vCPUs are stacked while pCPUs idle",
            Kind::TooManyVcpus => "it has more vCPUs than can run at once",
            Kind::PinnedHog => "a VM with stacked, pinned vCPUs takes its part",
            Kind::UnfairPins => "pins leave no fair division",
            Kind::SlowSibling => "it waits for a slow vCPU of its own",
            Kind::Turns => "it never sleeps beside others that never sleep: turns",
            Kind::UselessSpinning => "its vCPUs spin without progress",
            Kind::HaltPolling => "halt polling burns more than it runs",
            Kind::OwnThreads => "its other threads take its vCPUs' time",
            Kind::HostProcess => "processes of the host take its time",
            Kind::Neighbour => "other VMs take its time",
            Kind::Unexplained => "it waits, and for whom is not seen",
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth a look.
    Notice,
    /// Users feel it.
    Bad,
}

/// One thing that is wrong with one VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The VM's name.
    pub vm: String,
    /// Its process.
    pub pid: u32,
    /// The VM's number while it is looked at.
    #[serde(skip)]
    pub id: VmId,
    /// What is wrong.
    pub kind: Kind,
    /// How bad it is.
    pub severity: Severity,
    /// What the VM loses by it, in ns per second, summed over its vCPUs.
    pub lost_per_second: Nanos,
    /// That as a part of what its vCPUs ran; `None` if they did not run.
    pub lost_of_run: Option<f64>,
    /// What shows it: columns and edges, in words with figures.
    pub evidence: Vec<String>,
    /// What to do.
    pub cure: Cure,
}

/// A cause that was not looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotLookedFor {
    /// Which.
    pub what: &'static str,
    /// For want of what.
    pub want: String,
}

/// What [`find`] answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// What is wrong, the costliest first.
    pub findings: Vec<Finding>,
    /// Causes that may be there and cannot be seen.
    pub not_looked_for: Vec<NotLookedFor>,
}

/// A VM in the interval, and what is known of it.
struct Patient<'a> {
    vm: &'a VmInterval,
    known: &'a KnownVm,
    times: VcpuTimes,
}

impl Patient<'_> {
    fn id(&self) -> VmId {
        self.vm.vm
    }

    /// A part of the vCPUs' wall time.
    fn part(&self, time: Nanos) -> f64 {
        ratio(time, self.times.wall())
    }

    fn finding(
        &self,
        situation: &Situation<'_>,
        kind: Kind,
        severity: Severity,
        lost: Nanos,
        evidence: Vec<String>,
        cure: Cure,
    ) -> Finding {
        let ran: Nanos = self.vm.vcpus.iter().map(|vcpu| vcpu.ran).sum();
        let length = situation.interval.length.0.max(1);
        let per_second = u128::from(lost.0) * 1_000_000_000 / u128::from(length);
        Finding {
            vm: self.known.name.clone(),
            pid: self.known.pid,
            id: self.id(),
            kind,
            severity,
            lost_per_second: Nanos(u64::try_from(per_second).unwrap_or(u64::MAX)),
            lost_of_run: (ran > Nanos::ZERO).then(|| ratio(lost, ran)),
            evidence,
            cure,
        }
    }
}

fn ratio(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

/// `37 %`, and with a decimal below 10.
fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// What is wrong with the VMs of `situation` for which `is_asked` says so. All others are looked at as culprits.
pub fn find(situation: &Situation<'_>, is_asked: impl Fn(VmId) -> bool) -> Findings {
    let interval = situation.interval;
    let mut waits = Waits::new(&interval.edges);
    let patients: Vec<Patient<'_>> = interval
        .vms
        .iter()
        .filter_map(|vm| {
            Some(Patient {
                vm,
                known: situation.vms.get(&vm.vm)?,
                times: vm.times()?,
            })
        })
        .collect();
    let mut findings = Vec::new();
    for patient in patients.iter().filter(|patient| is_asked(patient.id())) {
        findings.extend(knobs::quota(situation, patient));
        findings.extend(knobs::halt_polling(situation, patient));
        findings.extend(knobs::useless_spinning(situation, patient));
        // From the special to the general: each takes the waits that it explains.
        findings.extend(shape::stacked(situation, patient, &mut waits));
        findings.extend(shape::too_many_vcpus(situation, patient, &mut waits));
        findings.extend(shape::pinned_hog(situation, patient, &patients, &mut waits));
        findings.extend(shape::unfair_pins(
            situation, patient, &patients, &mut waits,
        ));
        findings.extend(shape::slow_sibling(situation, patient, &mut waits));
        findings.extend(others::turns(situation, patient, &patients, &mut waits));
        findings.extend(others::own_threads(situation, patient, &mut waits));
        findings.extend(others::host_process(situation, patient, &mut waits));
        findings.extend(others::neighbour(situation, patient, &mut waits));
        findings.extend(others::unexplained(situation, patient, &mut waits));
    }
    findings.sort_by(|one, two| {
        let order = |finding: &Finding| std::cmp::Reverse(finding.lost_per_second);
        (order(one), &one.vm, one.pid, one.kind).cmp(&(order(two), &two.vm, two.pid, two.kind))
    });
    Findings {
        findings,
        not_looked_for: not_looked_for(interval),
    }
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
        (
            Column::Edges(EdgeKind::YieldUseless),
            "spinning without progress (pause-loop exits)",
        ),
        (
            Column::Host(HostColumn::VmThreads),
            "emulator and vhost threads that take vCPUs' time",
        ),
        (
            Column::Host(HostColumn::Processes),
            "host processes that take VMs' time",
        ),
    ];
    let missing = needs.into_iter().filter_map(|(column, what)| {
        let missing = interval.missing.iter().find(|one| one.what == column)?;
        let of = match missing.vms < missing.of {
            true => format!("{} of {} VMs: ", missing.vms, missing.of),
            false => String::new(),
        };
        Some(NotLookedFor {
            what,
            want: format!("{of}{}", missing.want),
        })
    });
    let never = [
        (
            "interrupts to vCPUs that do not run",
            "no source records which vCPU an interrupt is for",
        ),
        (
            "memory on another NUMA node, crossing of last-level caches",
            "no source records where a VM's memory is and what misses cost",
        ),
    ];
    let never = never.map(|(what, want)| NotLookedFor {
        what,
        want: want.to_owned(),
    });
    let mut all: Vec<NotLookedFor> = missing.collect();
    let has_yields = interval.edges.total(EdgeKind::YieldUseless) > Nanos::ZERO;
    let said = |what: &str| all.iter().any(|one| one.what.starts_with(what));
    if interval.source == tandem_policy::states::interval::SourceName::Plain
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
