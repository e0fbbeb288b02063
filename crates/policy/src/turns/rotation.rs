//! The rotation: the members, their pCPUs, and their parts of all rows.
//!
//! A VM with a fair share of x pCPUs on s of them has the part f = x ÷ s of all rows.
//! Parts are scaled until the pCPU most in demand is in use in every row.
//!
//! Fixed slots are too tight for some sets: one VM of two vCPUs and three of one on two pCPUs.
//! Then VMs of one vCPU roam (`super::roaming`) for as long as the members are the same.
//! Each set is tried out row by row; while a member would fall short by more than [`SHORT`], the VM with the fewest slots
//! becomes resident; if it is pinned, so do the VMs that share its pCPUs.
//! The rotation is empty if no two VMs, or none with two slots, remain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TurnsConfig;
pub use super::candidate::Candidate;
use super::demand::{add, most_demand, scale};
use super::member::Member;
use super::roaming::roam;
use super::rotor::Rotor;
use super::seats::{Demand, seat};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, VmId, Weight};

/// The part of its due that a rotation may leave a VM short of.
pub const SHORT: f64 = 0.03;

/// VMs that take turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// How long a turn is.
    pub turn: Nanos,
    /// The VMs, by their identities.
    pub members: Vec<Member>,
}

impl Rotation {
    /// Whether nobody takes turns.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member by its VM.
    pub fn member(&self, vm: VmId) -> Option<&Member> {
        self.members.iter().find(|member| member.vm == vm)
    }

    /// How much more all members weigh than those of a row do on average, by their configured weights: what a member has to weigh more
    /// in its rows, for the rotation to have of its pCPUs beside others what its members would have without turns. 1 without members.
    ///
    /// Four VMs of weight 1 that are in a quarter of all rows each: 4.
    pub fn raise(&self, weight: impl Fn(VmId) -> Option<Weight>) -> f64 {
        let (mut all, mut of_a_row) = (0.0, 0.0);
        for member in &self.members {
            let weight = weight(member.vm).map_or(0.0, Weight::value);
            all += weight;
            of_a_row += weight * member.due.min(1.0);
        }
        if of_a_row > 0.0 { (all / of_a_row).max(1.0) } else { 1.0 }
    }

    /// Whether anybody roams.
    fn roams(&self) -> bool {
        self.members.iter().any(|member| member.roams.is_some())
    }

    /// The same VMs on the same seats, due what these candidates are due now.
    pub fn renew(&mut self, candidates: &[Candidate]) {
        for member in &mut self.members {
            let now = candidates.iter().find(|candidate| candidate.vm == member.vm);
            if let Some(now) = now {
                member.due = now.due * now.correction / member.pcpus().len().max(1) as f64;
            }
        }
        let most = most_demand(&self.members);
        scale(&mut self.members, most);
    }

    /// The rotation of these VMs: as many of them as can have in rows what they are due.
    pub fn of(config: &TurnsConfig, candidates: &[Candidate]) -> Rotation {
        Rotation::after(&Rotation::default(), config, candidates)
    }

    /// The same after another rotation: who roamed in it goes on to, if the members are the same.
    pub fn after(before: &Rotation, config: &TurnsConfig, candidates: &[Candidate]) -> Rotation {
        let made = |members: Vec<Member>, longest_pause: u32| {
            let mut rotation = Rotation { turn: config.turn_for(longest_pause), members };
            rotation.renew(candidates);
            rotation
        };
        let mut left: Vec<&Candidate> = candidates.iter().collect();
        left.sort_by_key(|candidate| candidate.vm);
        loop {
            let (members, unseated) = seated(&left);
            if let Some(vm) = unseated {
                leave(&mut left, vm, true);
                continue;
            }
            if before.roams()
                && before.members.len() == members.len()
                && let Some((members, longest_pause)) = roaming(&members, &left)
                && before
                    .members
                    .iter()
                    .zip(&members)
                    .all(|(a, b)| a.vm == b.vm && a.roams == b.roams)
            {
                return made(members, longest_pause);
            }
            // Without a VM of two vCPUs nothing has to run together, and a VM that nobody competes with needs no turns.
            let competes = |a: &Member| {
                let others = members.iter().filter(|b| b.vm != a.vm);
                others.into_iter().any(|b| b.pcpus().overlaps(&a.pcpus()))
            };
            let is_of_use = members.iter().any(|m| m.pcpus().len() > 1 && competes(m));
            if !is_of_use {
                return Rotation::default();
            }
            let alone = members.iter().find(|member| !competes(member));
            let leaves = match alone {
                Some(member) => (member.vm, false),
                None => {
                    let trial = try_out(&members);
                    let Some(vm) = trial.too_tight else {
                        return made(members, trial.longest_pause);
                    };
                    if let Some((members, longest_pause)) = roaming(&members, &left) {
                        return made(members, longest_pause);
                    }
                    (vm, true)
                }
            };
            let (vm, stays_on) = leaves;
            leave(&mut left, vm, stays_on);
        }
    }
}

/// These members with those roaming that can, if all have their due so; and the most rows that any of them waits.
fn roaming(members: &[Member], candidates: &[&Candidate]) -> Option<(Vec<Member>, u32)> {
    let members = roam(members, candidates)?;
    let trial = try_out(&members);
    trial.too_tight.is_none().then_some((members, trial.longest_pause))
}

/// Takes a VM out. One that `stays_on`, never sleeps and is pinned takes from some rows more than from others, so all that it may run beside
/// stay on with it. One that may run wherever they do goes where there is room.
fn leave(candidates: &mut Vec<&Candidate>, vm: VmId, stays_on: bool) {
    let sets = |candidate: &Candidate| -> Vec<PcpuSet> {
        let sets = candidate.vcpus.iter();
        sets.map(|(_, pcpus)| pcpus.clone()).collect()
    };
    let own: Vec<PcpuSet> = candidates
        .iter()
        .filter(|candidate| candidate.vm == vm)
        .flat_map(|candidate| sets(candidate))
        .collect();
    let meets = |candidate: &Candidate| {
        let theirs = sets(candidate);
        own.iter().any(|pcpus| theirs.iter().any(|other| other.overlaps(pcpus)))
    };
    let mut all = PcpuSet::default();
    for pcpus in candidates.iter().filter(|c| meets(c)).flat_map(|c| sets(c)) {
        all.extend(&pcpus);
    }
    let roams = own.iter().all(|pcpus| *pcpus == all);
    candidates.retain(|candidate| candidate.vm != vm && !(stays_on && !roams && meets(candidate)));
}

/// Seats for all, the most demanding first, and how often each is due; and the first that has no seats.
fn seated(candidates: &[&Candidate]) -> (Vec<Member>, Option<VmId>) {
    let mut order: Vec<&Candidate> = candidates.to_vec();
    order.sort_by(|a, b| {
        let size = b.vcpus.len().cmp(&a.vcpus.len());
        size.then(b.due.total_cmp(&a.due)).then(a.vm.cmp(&b.vm))
    });
    let mut demand = Demand::new();
    let mut members = Vec::new();
    let mut unseated = None;
    for candidate in order {
        let Some(seats) = seat(&candidate.vcpus, &demand) else {
            unseated = unseated.or(Some(candidate.vm));
            continue;
        };
        let pcpus: PcpuSet = seats.values().copied().collect();
        let due = candidate.due / pcpus.len().max(1) as f64;
        add(&mut demand, &pcpus, due);
        members.push(Member { vm: candidate.vm, seats, roams: None, due });
    }
    // VMs that stay on take a part of every row: what is left of a pCPU's time is all of the rotation's. More than all of it cannot
    // be had.
    let most = most_demand(&members);
    scale(&mut members, most.min(1.0));
    members.sort_by_key(|member| member.vm);
    (members, unseated)
}

/// Rows for each member in which a set is tried out ...
const ROWS_EACH: usize = 64;
/// ... and in all, unless that is fewer than [`FEWEST_ROWS_EACH`]: a row costs the sorting of the members.
const MOST_ROWS: usize = 1024;
/// In so many rows for each member, one that is due as much as the others has enough of them to tell a turn from a shortfall.
const FEWEST_ROWS_EACH: usize = 8;

/// How many rows a set of so many members is tried out in.
fn rows_of_trial(members: usize) -> usize {
    let most = MOST_ROWS.max(FEWEST_ROWS_EACH * members);
    (ROWS_EACH * members.max(1)).min(most)
}

/// What comes out when members are tried out.
struct Trial {
    /// The VM that is to stay on because somebody would fall short.
    too_tight: Option<VmId>,
    /// The most rows that any member waits in between its own.
    longest_pause: u32,
}

/// Tries members out, row by row.
fn try_out(members: &[Member]) -> Trial {
    let rows = rows_of_trial(members.len());
    let mut rotor = Rotor::default();
    rotor.follow(members);
    // Of each: the rows that it had, and for how many it has waited.
    let mut had: BTreeMap<VmId, (usize, u32)> =
        members.iter().map(|member| (member.vm, (0, 0))).collect();
    let mut longest_pause = 0;
    for _ in 0..rows {
        // A row is in the order of the VMs' identities, as they are here.
        let mut row = rotor.next_row().iter().peekable();
        for (vm, (rows, wait)) in &mut had {
            match row.next_if_eq(&vm) {
                Some(_) => (*rows, *wait) = (*rows + 1, 0),
                None => *wait += 1,
            }
            longest_pause = longest_pause.max(*wait);
        }
    }
    let is_short = members.iter().any(|member| {
        let had = had.get(&member.vm).map_or(0, |(had, _)| *had) as f64;
        had < member.due * rows as f64 * (1.0 - SHORT) - 1.0
    });
    let narrowest = members.iter().min_by(|a, b| {
        let size = a.pcpus().len().cmp(&b.pcpus().len());
        size.then(b.due.total_cmp(&a.due)).then(a.vm.cmp(&b.vm))
    });
    Trial { too_tight: narrowest.filter(|_| is_short).map(|member| member.vm), longest_pause }
}
