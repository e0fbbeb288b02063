//! Assignment of slots in a row, as VMs join it one by one.
//!
//! A roaming VM keeps its last slot if that is free, to minimize migrations.
//! Otherwise it takes the free pCPU with the least demand from fixed VMs.
//! If none is free, roaming VMs that joined earlier move along an augmenting path, as in the
//! matching of [`super::seats`].
//! So no VM is left out that another assignment of slots would have admitted.

use std::collections::BTreeMap;

use super::seats::Demand;
use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VmId};

/// A roaming VM.
struct Roamer<'a> {
    vm: VmId,
    roams: &'a PcpuSet,
    /// Its last slot: one pCPU.
    last: &'a PcpuSet,
}

/// A row that is being packed.
pub(super) struct Packing<'a> {
    demand: &'a Demand,
    /// The pCPUs of fixed VMs.
    taken: PcpuSet,
    roamers: Vec<Roamer<'a>>,
    /// The roaming VM on each pCPU, as an index into `roamers`.
    holders: BTreeMap<PcpuId, usize>,
    /// pCPUs whose holders can move only among these and to `taken`, so that no other VM fits.
    full: PcpuSet,
}

impl<'a> Packing<'a> {
    /// Creates an empty row. `demand` is that of fixed VMs.
    pub(super) fn new(demand: &'a Demand) -> Packing<'a> {
        Packing {
            demand,
            taken: PcpuSet::default(),
            roamers: Vec::new(),
            holders: BTreeMap::new(),
            full: PcpuSet::default(),
        }
    }

    /// Adds a VM that is fixed on these pCPUs; returns false if it does not fit.
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

    /// Adds a roaming VM with these possible pCPUs and last slot; returns false if it does not fit.
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

    /// Finds a pCPU outside `barred` for a roaming VM, moving other roaming VMs if necessary. If
    /// there is none, no VM moves.
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

    /// Returns the slots of the roaming VMs.
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

    /// VMs join in this order: (its pCPUs, its last slot if it roams). Returns the slots of
    /// roaming VMs, and the VMs that joined.
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
    fn free_last_slot_is_kept() {
        assert_eq!(seats(&[("0-1", Some(1)), ("0-1", Some(0))]), [(0, 1), (1, 0)]);
        assert_eq!(seats(&[("0-1", Some(1)), ("0-1", Some(1))]), [(0, 1), (1, 0)]);
    }

    #[test]
    fn row_has_at_most_one_vm_per_pcpu() {
        let three = [("0-1", Some(0)), ("0-1", Some(0)), ("0-1", Some(1))];
        assert_eq!(packed(&three, &Demand::new()).1, [0, 1]);
    }

    #[test]
    fn roaming_vm_yields_to_fixed_vm() {
        assert_eq!(seats(&[("0-1", Some(0)), ("0", None)]), [(0, 1)]);
        // In a chain of two roaming VMs.
        let vms = [("0-1", Some(0)), ("1-2", Some(1)), ("0", None)];
        assert_eq!(packed(&vms, &Demand::new()), (vec![(0, 1), (1, 2)], vec![0, 1, 2]));
        // Two at once, for a VM of two vCPUs.
        let vms = [("0-3", Some(0)), ("0-3", Some(1)), ("0-1", None)];
        assert_eq!(seats(&vms), [(0, 2), (1, 3)]);
        let vms = [("0-1", Some(1)), ("0-1", Some(0)), ("0", Some(0))];
        assert_eq!(packed(&vms, &Demand::new()).1, [0, 1]);
    }

    #[test]
    fn full_pcpus_are_not_searched_again() {
        let one = ("0-1", Some(0));
        let vms = [one, one, one, one, ("1", None), ("1-2", Some(1)), ("0,2", Some(0))];
        let (seats, joined) = packed(&vms, &Demand::new());
        assert_eq!(seats, [(0, 0), (1, 1), (5, 2)]);
        assert_eq!(joined, [0, 1, 5]);
    }

    #[test]
    fn failed_join_moves_no_vm() {
        let vms = [("0-2", Some(0)), ("0-1", Some(1)), ("0-1", None), ("2", None)];
        assert_eq!(packed(&vms, &Demand::new()), (vec![(0, 0), (1, 1)], vec![0, 1, 3]));
    }

    #[test]
    fn least_demanded_free_pcpu_is_taken() {
        let demand = Demand::from([(PcpuId(1), 0.5), (PcpuId(3), 0.5)]);
        let vms = [("0", None), ("0-3", Some(0))];
        assert_eq!(packed(&vms, &demand).0, [(1, 2)]);
    }
}
