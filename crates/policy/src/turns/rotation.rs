//! The rotation: the VMs that take turns, and their slots.
//!
//! A VM with a fair share of x pCPUs on n of them has the part x ÷ n of each rotation, in which all of its vCPUs run.
//! Slots are laid out by wrap-around ([`super::blocks`]), so every member gets its part exactly.
//! Between its slots a member is in the idle class: on any of its pCPUs next to resident VMs, which leave some idle, and
//! otherwise on those of its slot, where it is when the next one begins.
//! The time that slots leave belongs to resident VMs, in proportion to their fair shares.
//! If tasks that no policy controls take that time, the parts are extended until they fill it.
//!
//! A VM for which no block has sufficient time is resident.
//! If slots leave it too little, as those of two vCPUs on two pCPUs do for a vCPU with a fair share of a whole pCPU, the
//! widest VM on its pCPUs has none.
//! The rotation is empty if no VM of two vCPUs shares its pCPUs with others.
//! Its length gives the smallest part a turn, within [`TurnsConfig::longest_wait`]; boundaries are whole ms.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TurnsConfig;
use super::blocks::{self, Place, Request, WHOLE, lay_out};
pub use super::candidate::Candidate;
use super::member::{Member, Slot};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, PcpuId, VmId};

/// Boundaries between slots are multiples of this.
const GRID: u64 = Nanos::from_millis(1).0;

/// Maximum part of a rotation that a member needs turns for: above it, the VM has its pCPUs nearly all the time.
const SHARES: f64 = 0.95;

/// Parts are cut to this fraction so that all VMs have slots.
const MAX_CUT: f64 = 0.97;

/// Maximum part of a pCPU that slots take from the fair share of a VM without slots.
const MAX_SHORT: f64 = 0.3;

/// Fraction of the pCPUs to which resident VMs are entitled, from which members make way for them.
const MIN_RESIDENTS: f64 = 0.05;

/// Demand of resident VMs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residents {
    /// Their fair shares in sum, in pCPUs.
    pub due: f64,
    /// The part of each pCPU that belongs to VMs that are pinned to it.
    pub pinned: BTreeMap<PcpuId, f64>,
}

/// A set of VMs that take turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// Its length.
    pub length: Nanos,
    /// The members, sorted by VM.
    pub members: Vec<Member>,
    /// Whether resident VMs have a considerable fair share of the pCPUs.
    /// Members then weigh more in their slots, and leave the pCPUs of these in between.
    #[serde(default)]
    pub next_to_residents: bool,
}

impl Rotation {
    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the member for a VM.
    pub fn member(&self, vm: VmId) -> Option<&Member> {
        self.members.iter().find(|member| member.vm == vm)
    }

    /// Part of the rotation in which a member's vCPUs run, 0…1.
    pub fn part(&self, member: &Member) -> f64 {
        member.length().0 as f64 / self.length.0.max(1) as f64
    }

    /// The pCPUs of all slots.
    pub fn pcpus(&self) -> PcpuSet {
        let mut pcpus = PcpuSet::default();
        self.members.iter().for_each(|member| pcpus.extend(&member.pcpus()));
        pcpus
    }

    /// Returns the first boundary between slots after a time of the rotation: at most its length.
    pub fn next_boundary(&self, time: Nanos) -> Nanos {
        let slots = self.members.iter().flat_map(|member| &member.slots);
        let ends = slots.flat_map(|slot| [slot.from, slot.to]);
        ends.filter(|end| *end > time).min().unwrap_or(self.length).min(self.length)
    }

    /// Lays out these VMs next to resident VMs.
    pub fn of(config: &TurnsConfig, candidates: &[Candidate], residents: &Residents) -> Rotation {
        let domain: Vec<PcpuId> = Candidate::all_pcpus(candidates).iter().collect();
        let places: Vec<Option<Place>> = candidates.iter().map(Candidate::place).collect();
        let reserved: BTreeMap<PcpuId, u64> =
            residents.pinned.iter().map(|(pcpu, part)| (*pcpu, units(*part))).collect();
        let of = |factor: f64| {
            let request = |(candidate, place): (&Candidate, &Option<Place>)| {
                let place = place.clone()?;
                let part = candidate.due * candidate.correction / place.width().max(1) as f64;
                Some(Request { vm: candidate.vm, part: units(part * factor), place })
            };
            let requests: Vec<Request> =
                candidates.iter().zip(&places).filter_map(request).collect();
            (lay_out(std::slice::from_ref(&domain), &reserved, &requests), requests)
        };
        let due: f64 =
            candidates.iter().map(|candidate| candidate.due * candidate.correction).sum();
        let rest = (domain.len() as f64 - residents.due) / due.max(f64::MIN_POSITIVE);
        // Fair shares are measured, so they may exceed the pCPUs by a little.
        let mut best = of(rest.max(MAX_CUT));
        if !best.0.without.is_empty() {
            best = of(1.0);
            let cut = of(MAX_CUT);
            if cut.0.without.len() < best.0.without.len() {
                best = cut;
            }
        }
        let (layout, mut requests) = best;
        if let Some(widest) = conflict(candidates, &layout) {
            let (gone, rest): (Vec<Candidate>, Vec<Candidate>) =
                candidates.iter().cloned().partition(|candidate| candidate.vm == widest);
            let due = residents.due + gone.iter().map(|candidate| candidate.due).sum::<f64>();
            let pinned = residents.pinned.clone();
            return Rotation::of(config, &rest, &Residents { due, pinned });
        }
        requests.retain(|request| !layout.without.contains(&request.vm));
        let is_of_use = |request: &Request| {
            request.place.width() > 1 && (request.part as f64) < SHARES * WHOLE as f64
        };
        if !requests.iter().any(is_of_use) {
            return Rotation::default();
        }
        let length = length(config, requests.iter().map(|request| request.part));
        let mut members: BTreeMap<VmId, Member> = BTreeMap::new();
        for slot in &layout.slots {
            let Some(candidate) = candidates.iter().find(|candidate| candidate.vm == slot.vm)
            else {
                continue;
            };
            let moves = candidate.vcpus.iter().any(|(_, pcpus)| pcpus.len() > 1);
            let member =
                members.entry(slot.vm).or_insert(Member { vm: slot.vm, slots: Vec::new(), moves });
            let at = |part: u64| {
                let time = u128::from(part) * u128::from(length.0) / u128::from(WHOLE);
                Nanos((time as u64 + GRID / 2) / GRID * GRID)
            };
            let (from, to) = (at(slot.from), at(slot.to));
            if from < to {
                member.slots.push(Slot { from, to, pcpus: candidate.pcpus_in(slot) });
            }
        }
        let members = members.into_values().filter(|member| !member.slots.is_empty()).collect();
        let next_to_residents = residents.due > MIN_RESIDENTS * domain.len() as f64;
        Rotation { length, members, next_to_residents }
    }
}

/// Returns the widest VM with a slot on the pCPUs of a VM without one that has too little time.
fn conflict(candidates: &[Candidate], layout: &blocks::Layout) -> Option<VmId> {
    let mut used: BTreeMap<PcpuId, f64> = BTreeMap::new();
    for slot in &layout.slots {
        for pcpu in &slot.pcpus {
            *used.entry(*pcpu).or_default() += (slot.to - slot.from) as f64 / WHOLE as f64;
        }
    }
    let is_short = |candidate: &&Candidate| {
        // The pCPU with the most time of those that it would have at a time.
        let mut loads: Vec<f64> =
            candidate.pcpus().iter().map(|p| used.get(&p).copied().unwrap_or(0.0)).collect();
        loads.sort_by(f64::total_cmp);
        let width = candidate.vcpus.len().min(loads.len());
        let part = candidate.due / width.max(1) as f64;
        loads.get(width.saturating_sub(1)).is_some_and(|load| part + load - 1.0 > MAX_SHORT)
    };
    let without = candidates.iter().filter(|candidate| layout.without.contains(&candidate.vm));
    let short = without.filter(is_short).map(Candidate::pcpus).next()?;
    let meets = |slot: &&blocks::Slot| slot.pcpus.iter().any(|pcpu| short.contains(*pcpu));
    let widest =
        layout.slots.iter().filter(meets).max_by_key(|slot| (slot.pcpus.len(), slot.vm))?;
    Some(widest.vm)
}

/// A fraction of a rotation in units of [`blocks`].
fn units(part: f64) -> u64 {
    (part.clamp(0.0, 1.0) * WHOLE as f64) as u64
}

/// Length of a rotation with members of these parts.
fn length(config: &TurnsConfig, parts: impl Iterator<Item = u64>) -> Nanos {
    let least = parts.filter(|part| *part > 0).min().unwrap_or(WHOLE);
    let for_turn = |turn: u64| turn as f64 * WHOLE as f64 / least as f64;
    let most = (config.longest_wait + config.turn).0 as f64;
    let length = for_turn(config.turn.0).min(most).max(for_turn(config.turn.0 / 2));
    Nanos((length / GRID as f64).round() as u64 * GRID)
}
