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
use super::demand::{add, max_demand, scale};
use super::member::Member;
use super::roaming::roam;
use super::rotor::Rotor;
use super::seats::{Demand, seat};
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{Nanos, VmId, Weight};

/// Tolerated shortfall of a VM in a rotation, relative to its fair share.
pub const SHORT: f64 = 0.03;

/// A set of VMs that take turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    /// Length of a turn.
    pub turn: Nanos,
    /// The members, sorted by VM.
    pub members: Vec<Member>,
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

    /// Returns the total configured weight of the members relative to the average weight of a row; 1 without members.
    /// A member's weight is raised by this factor in its rows.
    /// Next to other VMs, the rotation then gets as much of its pCPUs as its members would without turns.
    ///
    /// Example: 4 for four VMs of weight 1 that have a quarter of all rows each.
    pub fn raise(&self, weight: impl Fn(VmId) -> Option<Weight>) -> f64 {
        let (mut all, mut of_a_row) = (0.0, 0.0);
        for member in &self.members {
            let weight = weight(member.vm).map_or(0.0, Weight::value);
            all += weight;
            of_a_row += weight * member.due.min(1.0);
        }
        if of_a_row > 0.0 { (all / of_a_row).max(1.0) } else { 1.0 }
    }

    /// Whether any member roams.
    fn roams(&self) -> bool {
        self.members.iter().any(|member| member.roams.is_some())
    }

    /// Updates the members' shares from these candidates; VMs and slots stay.
    pub fn renew(&mut self, candidates: &[Candidate]) {
        for member in &mut self.members {
            let now = candidates.iter().find(|candidate| candidate.vm == member.vm);
            if let Some(now) = now {
                member.due = now.due * now.correction / member.pcpus().len().max(1) as f64;
            }
        }
        let most = max_demand(&self.members);
        scale(&mut self.members, most);
    }

    /// Builds the rotation of as many of these VMs as can get their fair shares in rows.
    pub fn of(config: &TurnsConfig, candidates: &[Candidate]) -> Rotation {
        Rotation::after(&Rotation::default(), config, candidates)
    }

    /// Builds the rotation that follows another; VMs that roamed in it continue to roam if the members are the same.
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
            // Co-scheduling needs a VM of two vCPUs, and a VM without competitors needs no turns.
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
            let (vm, resident) = leaves;
            leave(&mut left, vm, resident);
        }
    }
}

/// Returns these members with every VM roaming that can, and the longest pause in rows, if all get their fair shares.
fn roaming(members: &[Member], candidates: &[&Candidate]) -> Option<(Vec<Member>, u32)> {
    let members = roam(members, candidates)?;
    let trial = try_out(&members);
    trial.too_tight.is_none().then_some((members, trial.longest_pause))
}

/// Removes a VM.
/// A VM that becomes resident, never sleeps and is pinned takes from some rows more than from others.
/// All candidates that share its pCPUs then become resident with it.
/// If it may run on all of their pCPUs, it moves where there is room, and they stay.
fn leave(candidates: &mut Vec<&Candidate>, vm: VmId, resident: bool) {
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
    candidates.retain(|candidate| candidate.vm != vm && !(resident && !roams && meets(candidate)));
}

/// Assigns slots and shares of rows, the largest VM first; also returns the first candidate without slots.
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
    // Resident VMs take a part of every row, so the rotation has all of the remaining time of a pCPU.
    // Demand above that is not scaled down, so that the trial finds the shortfall.
    let most = max_demand(&members);
    scale(&mut members, most.min(1.0));
    members.sort_by_key(|member| member.vm);
    (members, unseated)
}

/// Trial rows per member ...
const ROWS_EACH: usize = 64;
/// ... and in total, unless that is fewer than [`MIN_ROWS_EACH`] each, as each row sorts the members.
const MAX_ROWS: usize = 1024;
/// Minimum trial rows per member: for VMs with equal shares enough to tell a turn from a shortfall.
const MIN_ROWS_EACH: usize = 8;

/// Number of trial rows for a set of members.
fn rows_of_trial(members: usize) -> usize {
    let most = MAX_ROWS.max(MIN_ROWS_EACH * members);
    (ROWS_EACH * members.max(1)).min(most)
}

/// Result of a trial.
struct Trial {
    /// The VM that is to become resident because a member would fall short.
    too_tight: Option<VmId>,
    /// Maximum number of rows that a member waits between its own.
    longest_pause: u32,
}

/// Simulates the rotation of these members, row by row.
fn try_out(members: &[Member]) -> Trial {
    let rows = rows_of_trial(members.len());
    let mut rotor = Rotor::default();
    rotor.follow(members);
    // Per member: the rows it had, and the rows it has waited.
    let mut had: BTreeMap<VmId, (usize, u32)> =
        members.iter().map(|member| (member.vm, (0, 0))).collect();
    let mut longest_pause = 0;
    for _ in 0..rows {
        // Rows and `had` are both sorted by VM.
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
