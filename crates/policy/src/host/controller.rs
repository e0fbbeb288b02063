//! The controller: once per accounting period, observe, decide, apply.
//!
//! ```text
//! Controller::begin ──► period ─► near a limit? ─► observe ─► policies decide ─► rounded and unchanged ones dropped ─► apply
//!                          ▲          │ no                                                                     │
//!                          └──────────┴────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A period in which every pCPU had idle time to spare needs no decision (see [`super::idle_watch`]).

use std::collections::{BTreeMap, BTreeSet};

use super::config::{ControllerConfig, Placement};
use super::idle_watch::IdleWatch;
use super::knobs::Knobs;
use super::observation::{HostObservation, IdleTimes};
use super::policy::{Policy, Registered, Scope, Sight};
use super::{configured, registry};
use crate::flexw::Round;
use crate::turns::Rotation;
use tandem_model::decision::{Decision, Knob};
use tandem_model::observation::VmObservation;
use tandem_model::policy_set::PolicyId;
use tandem_model::units::{Nanos, VmId};

/// Entry of a policy from outside the registry, which may use every sight and knob but not take turns.
static OUTSIDE: Registered = Registered {
    name: "outside",
    about: "a policy from outside the registry, such as a prototype",
    sees: &[Sight::RunAndWait, Sight::Runnable, Sight::Affinity, Sight::IdleTime],
    turns: &[Knob::Weight, Knob::Idle, Knob::Nice, Knob::Slice, Knob::Division, Knob::Affinity],
    excludes: &[],
    build: configured::ENTRY.build,
};

/// A host with VMs, live or simulated.
pub trait Host {
    /// Result of applying decisions.
    type Applied;

    /// Returns the time on a monotonic clock, and each pCPU's idle time since that clock began.
    fn idle(&mut self) -> (Nanos, IdleTimes);

    /// Returns the knobs of this host.
    fn knobs(&self) -> Knobs;

    /// Returns what each VM's vCPUs did since the last call, scaled from `elapsed` to `period`,
    /// and the current settings.
    ///
    /// `closely` requests whether quiet vCPUs are asleep or starved, which may cost a read for each.
    /// It matters only if pCPUs are used up.
    fn observe(&mut self, elapsed: Nanos, period: Nanos, closely: bool) -> Vec<VmObservation>;

    /// Makes the changes, in order, and replaces the rotation, if there is one.
    ///
    /// A change that fails is skipped; the next observation shows the current settings.
    /// The host keeps the rhythm of turns on its own ([`crate::turns::Sequence`]), and removes a VM that begins to sleep.
    fn apply(&mut self, decisions: &[Decision], rotation: Option<&Rotation>) -> Self::Applied;
}

/// A period with a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Period<A> {
    /// The observation.
    pub observation: HostObservation,
    /// The decisions.
    pub round: Round,
    /// Result of applying them; `None` in a dry run.
    pub applied: Option<A>,
}

/// The controller of one host.
#[derive(Debug)]
pub struct Controller {
    config: ControllerConfig,
    policies: Vec<(PolicyId, &'static Registered, Box<dyn Policy>)>,
    watch: IdleWatch,
    /// Whether any group was used up in the last period, or a policy has to go on for another reason.
    saturated: bool,
    /// Charges to VMs in this period.
    charges: BTreeMap<VmId, Nanos>,
}

impl Controller {
    /// Creates a controller without observations.
    pub fn new(config: ControllerConfig) -> Controller {
        let policies = registry::entries(config.policies)
            .map(|(id, entry)| (id, entry, (entry.build)(&config)))
            .collect();
        Controller {
            policies,
            watch: IdleWatch::new(IdleTimes::new(), Nanos::ZERO),
            saturated: true,
            charges: BTreeMap::new(),
            config,
        }
    }

    /// Replaces all policies by one from outside the registry. It acts on the VMs of the first of them.
    pub fn replace(&mut self, policy: Box<dyn Policy>) {
        let first = self.policies.first();
        let id = first.map_or(PolicyId(0), |(id, _, _)| *id);
        self.policies = vec![(id, &OUTSIDE, policy)];
    }

    /// The settings.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Makes the first observation, from which the first period counts.
    pub fn begin(&mut self, host: &mut impl Host) {
        let (now, idle) = host.idle();
        self.watch = IdleWatch::new(idle, now);
        host.observe(self.config.period, self.config.period, false);
    }

    /// Decides at the end of a period; returns `None` if it needs no decision.
    pub fn period<H: Host>(&mut self, host: &mut H) -> Option<Period<H::Applied>> {
        let (now, idle) = host.idle();
        self.watch.look(idle, now);
        if !self.saturated && !self.watch.is_decision_due() {
            return None;
        }
        let period = self.config.period;
        let (elapsed, idle) = self.watch.since_decision();
        let closely = self.saturated && self.needs(Sight::Runnable);
        let observation = HostObservation {
            period,
            elapsed: (elapsed != period).then_some(elapsed),
            idle,
            knobs: host.knobs(),
            vms: self.charge(host.observe(elapsed, period, closely)),
        };
        let round = self.decide(&observation);
        let applied =
            (!self.config.dry_run).then(|| host.apply(&round.decisions, round.rotation.as_ref()));
        Some(Period { observation, round, applied })
    }

    /// Adds the charges of the last decision to the VMs.
    fn charge(&mut self, mut vms: Vec<VmObservation>) -> Vec<VmObservation> {
        let mut charges = std::mem::take(&mut self.charges);
        for vm in &mut vms {
            vm.charged = charges.remove(&vm.vm).unwrap_or_default();
        }
        vms
    }

    /// Whether any policy needs this sight.
    fn needs(&self, sight: Sight) -> bool {
        let mut policies = self.policies.iter();
        policies.any(|(_, entry, _)| entry.sees.contains(&sight))
    }

    /// Decides on an observation.
    pub fn decide(&mut self, host: &HostObservation) -> Round {
        let mut round = Round::default();
        for (id, entry, policy) in &mut self.policies {
            let before = round.decisions.len();
            let scope = Scope(*id);
            policy.decide(host, scope, &mut round);
            let own = round.decisions.split_off(before);
            let may = |decision: &Decision| {
                entry.turns.contains(&decision.knob())
                    && host.vm(decision.vm()).is_some_and(|vm| scope.includes(vm))
            };
            round.decisions.extend(own.into_iter().filter(may));
        }
        self.saturated = round.contended || round.groups.iter().any(|group| group.saturated);
        round.decisions = self.settle(host, round.decisions);
        self.charges.clone_from(&round.charges);
        round
    }

    /// Returns the remaining decisions: rounded to the knobs, allowed, one for each setting, and no unchanged settings.
    fn settle(&self, host: &HostObservation, decisions: Vec<Decision>) -> Vec<Decision> {
        let may_move = self.config.placement != Placement::Keep;
        let mut settings = BTreeSet::new();
        let mut settled: Vec<Decision> = decisions
            .into_iter()
            .rev()
            .filter(|decision| may_move || decision.knob() != Knob::Affinity)
            .filter(|decision| settings.insert((decision.vm(), decision.vcpu(), decision.knob())))
            .filter_map(|decision| host.knobs.round(decision))
            .filter(|decision| !host.is_in_force(decision))
            .collect();
        settled.reverse();
        settled
    }
}
