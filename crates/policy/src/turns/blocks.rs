//! Rotations by wrap-around in blocks of pCPUs.
//!
//! A VM of n vCPUs with a fair share of x pCPUs runs on a block of n pCPUs for the part x ÷ n of each rotation.
//! Blocks have 2^k pCPUs, consecutive in an order that follows the topology: threads of a core, cores of a cache, caches
//! of a node (Feitelson & Rudolph, "Distributed Hierarchical Control for Parallel Processing", Computer 23(5), 1990).
//! The widest VMs come first.
//! VMs of one size are laid end to end along the time of a block; a VM that crosses the end of the rotation
//! continues at the beginning on the next block (McNaughton, "Scheduling with Deadlines and Loss Functions",
//! Management Science 6(1), 1959).
//! It thus changes its block once per rotation, and it is never on two blocks at a time.
//! On c blocks of one size, at most c − 1 VMs do so.
//! The rest of a block's time is left to the narrower VMs, on its halves, and to VMs without slots.
//!
//! The fullest block with sufficient time comes first, so that other VMs find pCPUs without slots.
//! A VM whose vCPUs are pinned has the same pCPUs throughout, in one slot.
//! A VM has its part exactly, or no slot.
//! Times are fractions of a rotation, in units of 2⁻³².

use std::collections::BTreeMap;

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VmId};

/// A whole rotation.
pub const WHOLE: u64 = 1 << 32;

/// Minimum remaining time of a block that is used: a 500th of a rotation.
const MIN_REST: u64 = WHOLE / 500;

/// The pCPUs for a VM.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// Any block of this many pCPUs, all of them in this set.
    Block(usize, PcpuSet),
    /// These pCPUs.
    Fixed(PcpuSet),
}

impl Place {
    /// Number of pCPUs at a time.
    pub fn width(&self) -> usize {
        match self {
            Place::Block(width, _) => *width,
            Place::Fixed(pcpus) => pcpus.len(),
        }
    }
}

/// A VM that is to have slots.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The VM.
    pub vm: VmId,
    /// Its pCPUs.
    pub place: Place,
    /// Its part of the rotation: at most [`WHOLE`].
    pub part: u64,
}

/// A time on some pCPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The VM.
    pub vm: VmId,
    /// Its pCPUs, in the topology's order.
    pub pcpus: Vec<PcpuId>,
    /// Begin in the rotation.
    pub from: u64,
    /// End in the rotation.
    pub to: u64,
}

/// Slots of all VMs that fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The slots, in the order in which they were given.
    pub slots: Vec<Slot>,
    /// VMs without slots.
    pub without: Vec<VmId>,
}

/// Lays out the requests on domains, such as nodes: lists of pCPUs in the order of the topology.
/// `reserved` is the part of a pCPU that is not for slots.
pub fn lay_out(
    domains: &[Vec<PcpuId>],
    reserved: &BTreeMap<PcpuId, u64>,
    requests: &[Request],
) -> Layout {
    let pcpus: Vec<PcpuId> = domains.iter().flatten().copied().collect();
    let used = pcpus.iter().map(|pcpu| reserved.get(pcpu).copied().unwrap_or(0)).collect();
    let mut blocks = Blocks { domains, pcpus: &pcpus, used };
    let mut order: Vec<&Request> = requests.iter().collect();
    let size = |request: &Request| request.place.width().next_power_of_two();
    let is_block = |request: &Request| matches!(request.place, Place::Block(..));
    order.sort_by_key(|r| (std::cmp::Reverse(size(r)), is_block(r), r.vm));
    let mut layout = Layout::default();
    for class in order.chunk_by(|a, b| size(a) == size(b)) {
        blocks.fill(class, &mut layout);
    }
    layout
}

struct Blocks<'a> {
    domains: &'a [Vec<PcpuId>],
    pcpus: &'a [PcpuId],
    /// Per pCPU: the end of its last slot. Earlier time is not used again.
    used: Vec<u64>,
}

impl Blocks<'_> {
    /// Gives slots to VMs whose blocks have the same size.
    fn fill(&mut self, class: &[&Request], layout: &mut Layout) {
        // The block that was filled last.
        let mut open: Option<Vec<usize>> = None;
        for request in class {
            let choices = self.choices(request);
            let last = open.take().filter(|last| choices.contains(last));
            let from = last.as_ref().map_or(WHOLE, |last| self.end(last));
            let whole = last.as_ref().filter(|_| from + request.part <= WHOLE);
            if let Some(block) = whole.or(self.fullest(&choices, request.part)).cloned() {
                // It continues on the block if the last one has no time left that is worth a slot.
                let is_split = whole.is_none() && from + MIN_REST <= WHOLE;
                let first = if is_split { WHOLE - from } else { 0 };
                if let Some(last) = last.filter(|_| is_split) {
                    layout.slots.push(self.take(request.vm, &last, first));
                }
                layout.slots.push(self.take(request.vm, &block, request.part - first));
                open = Some(block);
            } else {
                layout.without.push(request.vm);
                open = last;
            }
        }
    }

    /// The possible pCPUs of a request, as indices.
    fn choices(&self, request: &Request) -> Vec<Vec<usize>> {
        match &request.place {
            Place::Fixed(set) => {
                let all = (0..self.pcpus.len()).filter(|&at| set.contains(self.pcpus[at]));
                vec![all.collect()]
            }
            Place::Block(width, allowed) => {
                let size = width.next_power_of_two();
                let mut first = 0;
                let mut choices = Vec::new();
                for domain in self.domains {
                    let starts = (first..first + domain.len()).step_by(size);
                    let blocks = starts.map(|start| (start..start + width).collect::<Vec<_>>());
                    first += domain.len();
                    choices.extend(blocks.filter(|block| {
                        block.iter().all(|&at| at < first && allowed.contains(self.pcpus[at]))
                    }));
                }
                choices
            }
        }
    }

    /// The end of the last slot on a block.
    fn end(&self, block: &[usize]) -> u64 {
        block.iter().map(|&at| self.used[at]).max().unwrap_or(WHOLE)
    }

    /// The block with the least sufficient time.
    fn fullest<'b>(&self, choices: &'b [Vec<usize>], part: u64) -> Option<&'b Vec<usize>> {
        let fits = choices.iter().filter(|block| self.end(block) + part <= WHOLE);
        fits.min_by_key(|block| std::cmp::Reverse(self.end(block)))
    }

    /// Takes the next part of a block's time.
    fn take(&mut self, vm: VmId, block: &[usize], part: u64) -> Slot {
        let from = self.end(block);
        let to = from + part;
        block.iter().for_each(|&at| self.used[at] = to);
        Slot { vm, pcpus: block.iter().map(|&at| self.pcpus[at]).collect(), from, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = WHOLE / 12;

    /// Requests by (width, part in twelfths); VMs are numbered from 1.
    fn requests(vms: &[(usize, u64)], pcpus: u32) -> Vec<Request> {
        let allowed: PcpuSet = (0..pcpus).map(PcpuId).collect();
        let request = |(id, &(width, part)): (u64, &(usize, u64))| Request {
            vm: VmId(id),
            place: Place::Block(width, allowed.clone()),
            part: part * PART,
        };
        (1..).zip(vms).map(request).collect()
    }

    fn domain(pcpus: u32) -> Vec<PcpuId> {
        (0..pcpus).map(PcpuId).collect()
    }

    /// Slots as (VM, first pCPU, begin, end), with times in twelfths.
    fn slots(pcpus: u32, vms: &[(usize, u64)]) -> Vec<(u64, u32, u64, u64)> {
        let layout = lay_out(&[domain(pcpus)], &BTreeMap::new(), &requests(vms, pcpus));
        assert_eq!(layout.without, []);
        let twelfths = |time: u64| (time + PART / 2) / PART;
        let slot =
            |slot: &Slot| (slot.vm.0, slot.pcpus[0].0, twelfths(slot.from), twelfths(slot.to));
        layout.slots.iter().map(slot).collect()
    }

    #[test]
    fn three_vms_of_two_share_four_pcpus() {
        // Rows 1 to 3 are 4 twelfths each.
        let slots = slots(4, &[(2, 8), (2, 8), (2, 8)]);
        assert_eq!(slots, [(1, 0, 0, 8), (2, 0, 8, 12), (2, 2, 0, 4), (3, 2, 4, 12)]);
    }

    #[test]
    fn narrow_vms_use_the_rest_of_wide_blocks() {
        // 8, 4, 4, 2, 1, 1 vCPUs on 8 pCPUs with equal weights: 8/6 pCPUs each, the single vCPUs all of theirs.
        let slots = slots(8, &[(8, 2), (4, 4), (4, 4), (2, 8)]);
        assert_eq!(slots, [(1, 0, 0, 2), (2, 0, 2, 6), (3, 0, 6, 10), (4, 4, 2, 10)]);
    }

    #[test]
    fn weights_of_three_to_one_divide_a_block() {
        assert_eq!(slots(2, &[(2, 9), (2, 3)]), [(1, 0, 0, 9), (2, 0, 9, 12)]);
    }

    #[test]
    fn vm_without_room_has_no_slot() {
        let layout =
            lay_out(&[domain(4)], &BTreeMap::new(), &requests(&[(8, 1), (4, 6), (3, 7)], 4));
        assert_eq!(layout.without, [VmId(1), VmId(3)]);
        assert_eq!(layout.slots.len(), 1);
    }

    #[test]
    fn blocks_stay_within_domains_and_allowed_pcpus() {
        let domains = [domain(6), (6..12).map(PcpuId).collect()];
        let mut all = requests(&[(4, 12), (4, 12), (2, 12)], 12);
        all[2].place = Place::Block(2, "10-11".parse().unwrap());
        let layout = lay_out(&domains, &BTreeMap::new(), &all);
        let firsts: Vec<u32> = layout.slots.iter().map(|slot| slot.pcpus[0].0).collect();
        assert_eq!(firsts, [0, 6, 10]);
    }

    #[test]
    fn pinned_vms_share_their_pcpus_in_time() {
        let pinned = |vm: u64, list: &str, part: u64| Request {
            vm: VmId(vm),
            place: Place::Fixed(list.parse().unwrap()),
            part: part * PART,
        };
        let all = [pinned(1, "0,3", 6), pinned(2, "1,3", 6), pinned(3, "3", 1), pinned(4, "2", 9)];
        let reserved = BTreeMap::from([(PcpuId(2), 3 * PART)]);
        let layout = lay_out(&[domain(4)], &reserved, &all);
        let slots: Vec<(u64, u64)> = layout.slots.iter().map(|s| (s.vm.0, s.from / PART)).collect();
        assert_eq!((slots, layout.without), (vec![(1, 0), (2, 6), (4, 3)], vec![VmId(3)]));
    }

    proptest::proptest! {
        #[test]
        fn parts_are_exact_and_slots_disjoint(
            vms in proptest::collection::vec((1usize..=8, 1u64..=12), 1..40),
        ) {
            let all = requests(&vms, 32);
            let layout = lay_out(&[domain(16), (16..32).map(PcpuId).collect()], &BTreeMap::new(), &all);
            let mut had: BTreeMap<VmId, Vec<&Slot>> = BTreeMap::new();
            for slot in &layout.slots {
                had.entry(slot.vm).or_default().push(slot);
            }
            for request in &all {
                let own = had.remove(&request.vm).unwrap_or_default();
                let part: u64 = own.iter().map(|slot| slot.to - slot.from).sum();
                let is_without = layout.without.contains(&request.vm);
                proptest::prop_assert_eq!(part, if is_without { 0 } else { request.part });
                // Never twice at a time, and split at most once.
                proptest::prop_assert!(own.len() <= 2);
                if let [a, b] = own[..] {
                    proptest::prop_assert!(a.to <= b.from || b.to <= a.from);
                }
            }
            for (at, a) in layout.slots.iter().enumerate() {
                for b in &layout.slots[at + 1..] {
                    let meet = a.pcpus.iter().any(|pcpu| b.pcpus.contains(pcpu));
                    proptest::prop_assert!(!meet || a.to <= b.from || b.to <= a.from, "{:?} {:?}", a, b);
                }
            }
        }
    }
}
