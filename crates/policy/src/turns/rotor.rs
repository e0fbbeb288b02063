//! The next row of a rotation.
//!
//! Each row adds the part f of a row to what a member is owed, and takes one row from the members that had it.
//! The VM that is owed most opens the next row; the others join in that order if their pCPUs are free.
//! Two equal VMs alternate, weights of 3:1 give A A B A, and no pCPU is left over that a member could use.
//! A member that roams ([`Member::roams`]) takes a free pCPU, its last one if possible, and may move for later members.
//!
//! A stride scheduler of rows (Waldspurger & Weihl, "Stride Scheduling", MIT/LCS/TM-528, 1995).
//! Cost per turn: sorting the members.

use std::collections::BTreeMap;

use super::member::Member;
use super::packing::Packing;
use super::seats::Demand;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VmId};

/// One row in units of credit: an integer, so that equal credits compare equal.
const ROW: i64 = 1 << 32;

/// Maximum credit or debt of a VM: 4 rows. It could not have used a larger credit.
const MAX_OWED: i64 = 4 * ROW;

/// Rows after which a VM that left is forgotten: 10 s of turns of 20 ms.
const REMEMBERED: u64 = 500;

/// State of a member.
#[derive(Clone, Debug)]
struct Seat {
    /// Its pCPUs; for a roaming member its last slot.
    pcpus: PcpuSet,
    roams: Option<PcpuSet>,
    due: i64,
    owed: i64,
    /// Number of the last row that it was in.
    last: u64,
}

/// Picks rows.
#[derive(Clone, Debug, Default)]
pub struct Rotor {
    members: BTreeMap<VmId, Seat>,
    /// Former members that were in one of the last [`REMEMBERED`] rows.
    gone: BTreeMap<VmId, Seat>,
    /// The VMs of the current row, sorted.
    row: Vec<VmId>,
    rows: u64,
    /// Demand of fixed members for each pCPU, if any member roams.
    demand: Demand,
}

impl Rotor {
    /// Replaces the members. Current and remembered VMs keep their credit.
    pub fn follow(&mut self, members: &[Member]) {
        self.gone.append(&mut self.members);
        for member in members {
            let known = self.gone.remove(&member.vm);
            let (owed, last) = known.as_ref().map_or((0, self.rows), |seat| (seat.owed, seat.last));
            // It keeps its last slot, if that is allowed.
            let sat = known.map(|seat| seat.pcpus).filter(|pcpus| {
                let roams = member.roams.as_ref();
                pcpus.len() == 1 && roams.is_some_and(|roams| roams.overlaps(pcpus))
            });
            let seat = Seat {
                pcpus: sat.unwrap_or_else(|| member.pcpus()),
                roams: member.roams.clone(),
                due: (member.due * ROW as f64) as i64,
                owed,
                last,
            };
            self.members.insert(member.vm, seat);
        }
        self.row.retain(|vm| self.members.contains_key(vm));
        self.demand.clear();
        if members.iter().any(|member| member.roams.is_some()) {
            for member in members.iter().filter(|member| member.roams.is_none()) {
                for pcpu in member.pcpus().iter() {
                    *self.demand.entry(pcpu).or_default() += member.due;
                }
            }
        }
    }

    /// Removes a VM that has begun to sleep.
    pub fn leave(&mut self, vm: VmId) {
        self.gone.extend(self.members.remove_entry(&vm));
        self.row.retain(|other| *other != vm);
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The VMs of the current row.
    pub fn row(&self) -> &[VmId] {
        &self.row
    }

    /// Returns the current or last slot of a roaming member.
    pub fn seat(&self, vm: VmId) -> Option<PcpuId> {
        let seat = self.members.get(&vm)?;
        seat.roams.as_ref()?;
        seat.pcpus.iter().next()
    }

    /// Begins the next turn and returns its VMs.
    pub fn next_row(&mut self) -> &[VmId] {
        self.rows += 1;
        let rows = self.rows;
        self.gone.retain(|_, seat| seat.last + REMEMBERED >= rows);
        for seat in self.members.values_mut() {
            seat.owed = (seat.owed + seat.due).min(MAX_OWED);
        }
        let mut order: Vec<(&VmId, &Seat)> = self.members.iter().collect();
        // On a tie, the VM that waited longest comes first.
        order.sort_by(|(_, a), (_, b)| b.owed.cmp(&a.owed).then(a.last.cmp(&b.last)));
        let mut packing = Packing::new(&self.demand);
        let mut row = Vec::new();
        for (vm, seat) in order {
            let joins = match &seat.roams {
                None => packing.seat(&seat.pcpus),
                Some(roams) => packing.roam(*vm, roams, &seat.pcpus),
            };
            if joins {
                row.push(*vm);
            }
        }
        for (vm, pcpu) in packing.seats() {
            if let Some(seat) = self.members.get_mut(&vm) {
                seat.pcpus = [pcpu].into_iter().collect();
            }
        }
        row.sort_unstable();
        for vm in &row {
            if let Some(seat) = self.members.get_mut(vm) {
                seat.owed = (seat.owed - ROW).max(-MAX_OWED);
                seat.last = self.rows;
            }
        }
        self.row = row;
        &self.row
    }
}
