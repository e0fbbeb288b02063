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
//! The rest of a block's time is left to the narrower VMs, on its halves.
//!
//! A VM has its part exactly, or no slot.
//! Times are fractions of a rotation, in units of 2⁻³².

use tandem_model::pcpu_set::PcpuSet;
use tandem_model::units::{PcpuId, VmId};

/// A whole rotation.
pub const WHOLE: u64 = 1 << 32;

/// Minimum remaining time of a block that is used: a 500th of a rotation.
const MIN_REST: u64 = WHOLE / 500;

/// A VM that is to have slots.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The VM.
    pub vm: VmId,
    /// Number of pCPUs that it needs at a time.
    pub width: usize,
    /// Its part of the rotation: at most [`WHOLE`].
    pub part: u64,
    /// The pCPUs where its vCPUs may run.
    pub allowed: PcpuSet,
}

/// A time on a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The VM.
    pub vm: VmId,
    /// First of its pCPUs in the topology's order.
    pub first: usize,
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

/// A block with the time that is left of it, from `from` to the end of the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    first: usize,
    size: usize,
    from: u64,
}

/// Lays out the requests on domains, such as nodes: lists of pCPUs in the order of the topology.
pub fn lay_out(domains: &[Vec<PcpuId>], requests: &[Request]) -> Layout {
    let pcpus: Vec<PcpuId> = domains.iter().flatten().copied().collect();
    let mut blocks = Blocks { pcpus: &pcpus, free: whole_blocks(domains) };
    let mut order: Vec<&Request> = requests.iter().collect();
    let size = |request: &Request| request.width.next_power_of_two();
    order.sort_by(|a, b| size(b).cmp(&size(a)).then(b.part.cmp(&a.part)).then(a.vm.cmp(&b.vm)));
    let mut layout = Layout::default();
    for class in order.chunk_by(|a, b| size(a) == size(b)) {
        blocks.fill(class, &mut layout);
    }
    layout
}

/// Divides domains into blocks of 2^k pCPUs, the largest first.
fn whole_blocks(domains: &[Vec<PcpuId>]) -> Vec<Block> {
    let mut free = Vec::new();
    let mut first = 0;
    for domain in domains {
        let mut left = domain.len();
        while left > 0 {
            let size = 1 << left.ilog2();
            free.push(Block { first, size, from: 0 });
            first += size;
            left -= size;
        }
    }
    free
}

struct Blocks<'a> {
    pcpus: &'a [PcpuId],
    free: Vec<Block>,
}

impl Blocks<'_> {
    /// Gives slots to VMs whose blocks have the same size.
    fn fill(&mut self, class: &[&Request], layout: &mut Layout) {
        let mut open: Option<Block> = None;
        for request in class {
            let fits = |block: &Block| self.may_run(request, block.first);
            let mut block = match open.take() {
                Some(block) if fits(&block) => block,
                other => {
                    self.free.extend(other);
                    match self.take(request) {
                        Some(block) => block,
                        None => {
                            layout.without.push(request.vm);
                            continue;
                        }
                    }
                }
            };
            let mut slot = |first, from, to| {
                layout.slots.push(Slot { vm: request.vm, first, from, to });
            };
            let end = block.from + request.part;
            if end <= WHOLE {
                slot(block.first, block.from, end);
                block.from = end;
            } else if let Some(mut next) = self.take(request) {
                slot(block.first, block.from, WHOLE);
                let end = next.from + (end - WHOLE);
                slot(next.first, next.from, end);
                next.from = end;
                block = next;
            } else {
                layout.without.push(request.vm);
            }
            open = Some(block).filter(|block| block.from + MIN_REST <= WHOLE);
        }
        self.free.extend(open);
    }

    fn may_run(&self, request: &Request, first: usize) -> bool {
        self.pcpus[first..first + request.width].iter().all(|pcpu| request.allowed.contains(*pcpu))
    }

    /// Takes a block for a request: the one with the least sufficient time, of these the smallest, and of these the first.
    /// A larger block is divided.
    fn take(&mut self, request: &Request) -> Option<Block> {
        let size = request.width.next_power_of_two();
        let halves = |block: &Block| (block.first..block.first + block.size).step_by(size);
        let best = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, block)| block.size >= size && block.from + request.part <= WHOLE)
            .filter_map(|(at, block)| {
                let first = halves(block).find(|&first| self.may_run(request, first))?;
                Some((block.from, std::cmp::Reverse((block.size, block.first)), at, first))
            })
            .max()?;
        let (_, _, at, first) = best;
        let mut block = self.free.swap_remove(at);
        while block.size > size {
            block.size /= 2;
            let mut other = Block { first: block.first + block.size, ..block };
            if first >= other.first {
                std::mem::swap(&mut block, &mut other);
            }
            self.free.push(other);
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PART: u64 = WHOLE / 12;

    /// Requests by (width, part in twelfths); VMs are numbered from 1.
    fn requests(vms: &[(usize, u64)], pcpus: u32) -> Vec<Request> {
        let allowed: PcpuSet = (0..pcpus).map(PcpuId).collect();
        let request = |(id, &(width, part)): (u64, &(usize, u64))| Request {
            vm: VmId(id),
            width,
            part: part * PART,
            allowed: allowed.clone(),
        };
        (1..).zip(vms).map(request).collect()
    }

    fn domain(pcpus: u32) -> Vec<PcpuId> {
        (0..pcpus).map(PcpuId).collect()
    }

    /// Slots as (VM, first pCPU, begin, end), with times in twelfths.
    fn slots(pcpus: u32, vms: &[(usize, u64)]) -> Vec<(u64, usize, u64, u64)> {
        let layout = lay_out(&[domain(pcpus)], &requests(vms, pcpus));
        assert_eq!(layout.without, []);
        let twelfths = |time: u64| (time + PART / 2) / PART;
        let slot = |slot: &Slot| (slot.vm.0, slot.first, twelfths(slot.from), twelfths(slot.to));
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
        let layout = lay_out(&[domain(4)], &requests(&[(8, 1), (4, 6), (3, 7)], 4));
        assert_eq!(layout.without, [VmId(1), VmId(2)]);
        assert_eq!(layout.slots.len(), 1);
    }

    #[test]
    fn blocks_stay_within_domains_and_allowed_pcpus() {
        let domains = [domain(6), (6..12).map(PcpuId).collect()];
        let mut all = requests(&[(4, 12), (4, 12), (2, 12)], 12);
        all[2].allowed = "10-11".parse().unwrap();
        let layout = lay_out(&domains, &all);
        let firsts: Vec<usize> = layout.slots.iter().map(|slot| slot.first).collect();
        assert_eq!(firsts, [0, 6, 10]);
    }

    proptest::proptest! {
        #[test]
        fn parts_are_exact_and_slots_disjoint(
            vms in proptest::collection::vec((1usize..=8, 1u64..=12), 1..40),
        ) {
            let all = requests(&vms, 32);
            let layout = lay_out(&[domain(16), (16..32).map(PcpuId).collect()], &all);
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
            let width = |vm: VmId| all.iter().find(|request| request.vm == vm).map_or(0, |r| r.width);
            for (at, a) in layout.slots.iter().enumerate() {
                for b in &layout.slots[at + 1..] {
                    let meet = a.first < b.first + width(b.vm) && b.first < a.first + width(a.vm);
                    proptest::prop_assert!(!meet || a.to <= b.from || b.to <= a.from, "{:?} {:?}", a, b);
                }
            }
        }
    }
}
