//! The rotation: who takes turns, on which pCPUs, and how often each is due.
//!
//! A VM that is due x pCPUs and sits on s of them is due in the part f = x ÷ s of all rows. VMs that stay on take
//! their part of every row alike, so the parts are scaled until the pCPU most in demand is always in somebody's turn.
//!
//! Not every set of VMs can have what it is due in rows on fixed seats: one of two vCPUs and three of one, on two pCPUs, cannot, since two of the
//! three are left to share a pCPU. VMs of a single vCPU may then change seats from period to period ([`Cycle`]); a larger one would lose
//! caches by it. Others can in no way have it: one of a single vCPU that is due a whole pCPU and one of two, on two
//! pCPUs. Such a set is tried out, row by row; while anybody would fall short by more than [`SHORT`], the VM with
//! the fewest seats stays on instead, for it needs co-scheduling least. If it is pinned, all that it may run beside stay on too: such a VM takes
//! from some rows more than from others, and shares were off by up to a sixth. So they do beside one that has no seats. What is left if no two VMs, or none with two seats, remain:
//! nothing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use super::TurnsConfig;
use super::member::Member;
use super::rotor::Rotor;
use super::seats::Demand;
use super::seats::seat;
use crate::pcpu_set::PcpuSet;
use crate::units::Nanos;
use crate::units::VcpuId;
use crate::units::VmId;

/// The part of its due that a rotation may leave a VM short of.
pub const SHORT: f64 = 0.03;

/// A VM that never sleeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub vm: VmId,
    /// What it is due, in pCPUs.
    pub due: f64,
    /// By what its part of the rows is multiplied, because it receives more or less than that part gives.
    pub correction: f64,
    /// Its vCPUs that never sleep, and where each may run.
    pub vcpus: Vec<(VcpuId, PcpuSet)>,
}

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
}

/// Rotations of the same VMs on other seats, one after the other; mostly it is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cycle {
    turn: Nanos,
    /// Members of each, in the order of their VMs' identities.
    seatings: Vec<Vec<Member>>,
    /// Which comes next.
    next: usize,
}

/// So many rows are tried out on the same seats: the turns of a period.
const ROWS_OF_SEATING: usize = 5;
/// More seatings than this are not gone through: the lag of whoever waits for a better seat grows with them.
const MOST_SEATINGS: usize = 8;

impl Cycle {
    /// What goes on now, for one period.
    pub fn period(&mut self) -> Rotation {
        let Some(members) = self.seatings.get(self.next) else {
            return Rotation::default();
        };
        self.next = (self.next + 1) % self.seatings.len();
        Rotation {
            turn: self.turn,
            members: members.clone(),
        }
    }

    /// Goes on where another left off: one that is made anew again and again would never get beyond its first seats.
    pub fn after(mut self, other: &Cycle) -> Cycle {
        self.next = other.next % self.seatings.len().max(1);
        self
    }

    /// The same VMs on the same seats, due what these candidates are due now.
    pub fn renew(&mut self, candidates: &[Candidate]) {
        for member in self.seatings.iter_mut().flatten() {
            let now = candidates
                .iter()
                .find(|candidate| candidate.vm == member.vm);
            if let Some(now) = now {
                member.due = now.due * now.correction / member.pcpus().len().max(1) as f64;
            }
        }
        let most = most_demand(&self.seatings);
        scale(&mut self.seatings, most);
    }

    /// The rotations of these VMs: as many of them as can have in rows what they are due.
    pub fn of(config: &TurnsConfig, candidates: &[Candidate]) -> Cycle {
        let mut left: Vec<&Candidate> = candidates.iter().collect();
        left.sort_by_key(|candidate| candidate.vm);
        loop {
            let (members, unseated) = seated(&left, None);
            if let Some(vm) = unseated {
                leave(&mut left, vm, true);
                continue;
            }
            // Without a VM of two vCPUs nothing has to run together, and a VM that nobody competes with needs no turns.
            let competes = |a: &Member| {
                let others = members.iter().filter(|b| b.vm != a.vm);
                others.into_iter().any(|b| b.pcpus().overlaps(&a.pcpus()))
            };
            let is_of_use = members.iter().any(|m| m.pcpus().len() > 1 && competes(m));
            if !is_of_use {
                return Cycle::default();
            }
            if let Some(vm) = members.iter().find(|member| !competes(member)) {
                let vm = vm.vm;
                leave(&mut left, vm, false);
                continue;
            }
            let fits = try_out(vec![members]).or_else(|too_tight| {
                let others = other_seatings(&left).ok_or(too_tight)?;
                try_out(others).map_err(|_| too_tight)
            });
            match fits {
                Ok(fit) => {
                    let mut cycle = Cycle {
                        turn: config.turn_for(fit.longest_pause),
                        seatings: fit.seatings,
                        next: 0,
                    };
                    cycle.renew(candidates);
                    return cycle;
                }
                Err(too_tight) => leave(&mut left, too_tight, true),
            }
        }
    }
}

/// Seatings in which another VM that is movable has the first choice each time; `None` if fewer than two are.
fn other_seatings(candidates: &[&Candidate]) -> Option<Vec<Vec<Member>>> {
    let movable = candidates.iter().filter(|c| is_movable(c)).count();
    let shifts = 0..movable.min(MOST_SEATINGS);
    (movable > 1).then(|| {
        shifts
            .map(|shift| seated(candidates, Some(shift)).0)
            .collect()
    })
}

/// Whether a VM can have one seat now and another later.
fn is_movable(candidate: &Candidate) -> bool {
    matches!(candidate.vcpus.as_slice(), [(_, pcpus)] if pcpus.len() > 1)
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
        own.iter()
            .any(|pcpus| theirs.iter().any(|other| other.overlaps(pcpus)))
    };
    let mut all = PcpuSet::default();
    for pcpus in candidates.iter().filter(|c| meets(c)).flat_map(|c| sets(c)) {
        all.extend(&pcpus);
    }
    let roams = own.iter().all(|pcpus| *pcpus == all);
    candidates.retain(|candidate| candidate.vm != vm && !(stays_on && !roams && meets(candidate)));
}

/// Seats for all, the most demanding first, and how often each is due; and the first that has no seats. In a seating of several those that are
/// movable come in the order of their identities, from another one on in each, and count alike: what one is due changes with what it
/// received, and who sits well now would do so for long.
fn seated(candidates: &[&Candidate], seating: Option<usize>) -> (Vec<Member>, Option<VmId>) {
    let mut order: Vec<&Candidate> = candidates.to_vec();
    order.sort_by(|a, b| {
        let size = b.vcpus.len().cmp(&a.vcpus.len());
        size.then(b.due.total_cmp(&a.due)).then(a.vm.cmp(&b.vm))
    });
    let mut movable: Vec<&Candidate> = order.iter().copied().filter(|c| is_movable(c)).collect();
    let of_movable = movable.iter().map(|c| c.due).sum::<f64>() / movable.len().max(1) as f64;
    if let Some(first) = seating {
        movable.sort_by_key(|candidate| candidate.vm);
        let mut instead = movable.iter().cycle().skip(first);
        for place in order.iter_mut().filter(|place| is_movable(place)) {
            *place = instead.next().unwrap_or(place);
        }
    }
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
        let counts = match seating {
            Some(_) if is_movable(candidate) => of_movable,
            _ => due,
        };
        add(&mut demand, &pcpus, counts);
        members.push(Member {
            vm: candidate.vm,
            seats,
            due,
        });
    }
    members.sort_by_key(|member| member.vm);
    (members, unseated)
}

fn add(demand: &mut Demand, pcpus: &PcpuSet, due: f64) {
    for pcpu in pcpus.iter() {
        *demand.entry(pcpu).or_default() += due;
    }
}

/// How much of the pCPU most in demand is spoken for, over all seatings.
fn most_demand(seatings: &[Vec<Member>]) -> f64 {
    let mut demand = Demand::new();
    for member in seatings.iter().flatten() {
        add(&mut demand, &member.pcpus(), member.due);
    }
    let most = demand.values().copied().fold(f64::MIN_POSITIVE, f64::max);
    most / seatings.len().max(1) as f64
}

fn scale(seatings: &mut [Vec<Member>], by: f64) {
    for member in seatings.iter_mut().flatten() {
        member.due = (member.due / by).min(1.0);
    }
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

/// Seatings in which nobody falls short.
struct Fit {
    seatings: Vec<Vec<Member>>,
    /// The most rows that any member waits in between its own.
    longest_pause: u32,
}

/// Tries seatings of the same VMs out, row by row. The error: somebody would fall short, and this VM is to stay on.
fn try_out(mut seatings: Vec<Vec<Member>>) -> Result<Fit, VmId> {
    // VMs that stay on take a part of every row: what is left of a pCPU's time is all of the rotation's. More than all of it cannot
    // be had.
    let most = most_demand(&seatings);
    scale(&mut seatings, most.min(1.0));
    let members = seatings.first().map_or(&[][..], Vec::as_slice);
    let rows = rows_of_trial(members.len());
    let mut rotor = Rotor::default();
    // Of each: the rows that it had, and for how many it has waited.
    let mut had: BTreeMap<VmId, (usize, u32)> =
        members.iter().map(|member| (member.vm, (0, 0))).collect();
    let mut longest_pause = 0;
    for (at, seating) in (0..rows).zip(
        seatings
            .iter()
            .cycle()
            .flat_map(|seating| std::iter::repeat_n(seating, ROWS_OF_SEATING)),
    ) {
        if at % ROWS_OF_SEATING == 0 {
            rotor.follow(seating);
        }
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
    match narrowest.filter(|_| is_short) {
        Some(member) => Err(member.vm),
        None => Ok(Fit {
            seatings,
            longest_pause,
        }),
    }
}
