//! Who sits where in a row, as VMs join it one after the other.
//!
//! One that roams sits where it sat last, if that is free: so the fewest move. Else it takes the free pCPU that is least in demand by
//! those that cannot move. Where none is free, those that joined before and roam give way along an augmenting path, as in the matching
//! of [`super::seats`]; so nobody is left out whom another order of seats would have let in.

use std::collections::BTreeMap;

use super::seats::Demand;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VmId};

/// One that roams.
struct Roamer<'a> {
    vm: VmId,
    roams: &'a PcpuSet,
    /// Where it sat last: one pCPU.
    last: &'a PcpuSet,
}

/// A row that is being packed.
pub(super) struct Packing<'a> {
    demand: &'a Demand,
    /// What those have that cannot move.
    taken: PcpuSet,
    roamers: Vec<Roamer<'a>>,
    /// Which of these sits there.
    holders: BTreeMap<PcpuId, usize>,
    /// pCPUs whose holders can sit nowhere but on these and on `taken`: nobody else has a place there.
    full: PcpuSet,
}

impl<'a> Packing<'a> {
    /// Nobody has joined yet. `demand` is that of those that cannot move.
    pub(super) fn new(demand: &'a Demand) -> Packing<'a> {
        Packing {
            demand,
            taken: PcpuSet::default(),
            roamers: Vec::new(),
            holders: BTreeMap::new(),
            full: PcpuSet::default(),
        }
    }

    /// One joins that sits on these pCPUs and no others; false if it cannot.
    pub(super) fn seat(&mut self, pcpus: &PcpuSet) -> bool {
        if self.taken.overlaps(pcpus) || self.full.overlaps(pcpus) {
            return false;
        }
        let sit_there =
            |(pcpu, roamer): (&PcpuId, &usize)| pcpus.contains(*pcpu).then_some(*roamer);
        let give_way: Vec<usize> = self.holders.iter().filter_map(sit_there).collect();
        if !give_way.is_empty() {
            let before = self.holders.clone();
            self.holders.retain(|pcpu, _| !pcpus.contains(*pcpu));
            for roamer in give_way {
                if !self.place(roamer, &mut pcpus.clone()) {
                    self.holders = before;
                    return false;
                }
            }
        }
        self.taken.extend(pcpus);
        true
    }

    /// One joins that may sit on any of these pCPUs, and sat on `last`; false if it cannot.
    pub(super) fn roam(&mut self, vm: VmId, roams: &'a PcpuSet, last: &'a PcpuSet) -> bool {
        if roams.common(&self.taken) + roams.common(&self.full) == roams.len() {
            return false;
        }
        self.roamers.push(Roamer { vm, roams, last });
        let mut tried = PcpuSet::default();
        let is_placed = self.place(self.roamers.len() - 1, &mut tried);
        if !is_placed {
            self.roamers.pop();
            self.full.extend(&tried);
        }
        is_placed
    }

    /// Finds a pCPU for one that roams, but none of `barred`; others that roam may have to move for it. If there is none, nobody moves.
    fn place(&mut self, roamer: usize, barred: &mut PcpuSet) -> bool {
        let Roamer { roams, last, .. } = self.roamers[roamer];
        let could = |pcpu: &PcpuId| !self.taken.contains(*pcpu) && !barred.contains(*pcpu);
        let is_free = |pcpu: &PcpuId| could(pcpu) && !self.holders.contains_key(pcpu);
        let demand = |pcpu: &PcpuId| self.demand.get(pcpu).copied().unwrap_or(0.0);
        let least = || {
            let free = roams.iter().filter(is_free);
            free.min_by(|a, b| demand(a).total_cmp(&demand(b)))
        };
        if let Some(pcpu) = last.iter().find(is_free).or_else(least) {
            self.holders.insert(pcpu, roamer);
            return true;
        }
        for pcpu in roams.iter() {
            if self.taken.contains(pcpu) || barred.contains(pcpu) {
                continue;
            }
            barred.insert(pcpu);
            if let Some(&holder) = self.holders.get(&pcpu)
                && self.place(holder, barred)
            {
                self.holders.insert(pcpu, roamer);
                return true;
            }
        }
        false
    }

    /// Where those sit that roam.
    pub(super) fn seats(self) -> Vec<(VmId, PcpuId)> {
        let seats = self.holders.into_iter();
        seats.map(|(pcpu, roamer)| (self.roamers[roamer].vm, pcpu)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    /// VMs join in this order: (where it may sit, where it sat last, if it roams). Where each that roams sits then, and who joined.
    fn packed(vms: &[(&str, Option<u32>)], demand: &Demand) -> (Vec<(u64, u32)>, Vec<u64>) {
        let vms: Vec<(PcpuSet, Option<PcpuSet>)> = vms
            .iter()
            .map(|(list, last)| (set(list), last.map(|last| set(&last.to_string()))))
            .collect();
        let mut packing = Packing::new(demand);
        let mut joined = Vec::new();
        for (id, (pcpus, last)) in (0..).zip(&vms) {
            let joins = match last {
                None => packing.seat(pcpus),
                Some(last) => packing.roam(VmId(id), pcpus, last),
            };
            joined.extend(joins.then_some(id));
        }
        let seats = packing.seats().into_iter();
        let mut seats: Vec<(u64, u32)> = seats.map(|(vm, pcpu)| (vm.0, pcpu.0)).collect();
        seats.sort_unstable();
        (seats, joined)
    }

    fn seats(vms: &[(&str, Option<u32>)]) -> Vec<(u64, u32)> {
        packed(vms, &Demand::new()).0
    }

    #[test]
    fn whose_last_seat_is_free_sits_there() {
        assert_eq!(seats(&[("0-1", Some(1)), ("0-1", Some(0))]), [(0, 1), (1, 0)]);
        assert_eq!(seats(&[("0-1", Some(1)), ("0-1", Some(1))]), [(0, 1), (1, 0)]);
    }

    #[test]
    fn a_row_has_no_more_vms_than_pcpus() {
        let three = [("0-1", Some(0)), ("0-1", Some(0)), ("0-1", Some(1))];
        assert_eq!(packed(&three, &Demand::new()).1, [0, 1]);
    }

    #[test]
    fn who_has_a_choice_gives_way_to_who_has_none() {
        assert_eq!(seats(&[("0-1", Some(0)), ("0", None)]), [(0, 1)]);
        // Through two others that roam.
        let vms = [("0-1", Some(0)), ("1-2", Some(1)), ("0", None)];
        assert_eq!(packed(&vms, &Demand::new()), (vec![(0, 1), (1, 2)], vec![0, 1, 2]));
        // Two at once, for one of two vCPUs.
        let vms = [("0-3", Some(0)), ("0-3", Some(1)), ("0-1", None)];
        assert_eq!(seats(&vms), [(0, 2), (1, 3)]);
        let vms = [("0-1", Some(1)), ("0-1", Some(0)), ("0", Some(0))];
        assert_eq!(packed(&vms, &Demand::new()).1, [0, 1]);
    }

    #[test]
    fn where_one_found_no_place_others_do_not_look() {
        let one = ("0-1", Some(0));
        let vms = [one, one, one, one, ("1", None), ("1-2", Some(1)), ("0,2", Some(0))];
        let (seats, joined) = packed(&vms, &Demand::new());
        assert_eq!(seats, [(0, 0), (1, 1), (5, 2)]);
        assert_eq!(joined, [0, 1, 5]);
    }

    #[test]
    fn nobody_moves_for_one_that_cannot_sit_all_the_same() {
        let vms = [("0-2", Some(0)), ("0-1", Some(1)), ("0-1", None), ("2", None)];
        assert_eq!(packed(&vms, &Demand::new()), (vec![(0, 0), (1, 1)], vec![0, 1, 3]));
    }

    #[test]
    fn of_free_pcpus_the_one_is_taken_that_is_least_in_demand() {
        let demand = Demand::from([(PcpuId(1), 0.5), (PcpuId(3), 0.5)]);
        let vms = [("0", None), ("0-3", Some(0))];
        assert_eq!(packed(&vms, &demand).0, [(1, 2)]);
    }
}
