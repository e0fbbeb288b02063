//! Refills of private caches: the working sets that kernels and threads lose on a pCPU.
//!
//! A kernel's working set comes from the last-level cache, which always holds its text.
//! A thread's comes from there too, or from memory or a remote cache if the thread last ran beneath another last-level cache.
//! Memory of another NUMA node costs more; a thread's memory is on the node where it first ran, and stays there (first touch, mm/mempolicy.c).
//! Non-goals: memory traffic of a thread whose data is in its last-level cache, automatic NUMA balancing.
//! A thread that spins or holds a lock needs neither, so both are fetched when it next works outside critical sections.
//! Data that a vCPU had no time to fetch before it lost its pCPU is missing the next time.

use crate::machine::cache::Owner;

use super::simulation::World;
use super::state::{CACHE, Doing, NONE};

impl World {
    /// A vCPU was switched in: the host's kernel, and perhaps another vCPU, have used the cache since.
    pub(crate) fn refill_host(&mut self, v: u32) {
        self.vcpus[v as usize].cold = true;
        if !self.native {
            self.fetch_kernel(v, Owner::Host);
        }
        if self.vcpus[v as usize].thread == NONE {
            self.refill(v);
        }
    }

    /// Charges the vCPU for the data that its kernel and its thread, if it has one, miss after others used the cache.
    pub(crate) fn refill(&mut self, v: u32) {
        self.settle_cache(v);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.cold = false;
        let (p, t, vm) = (vcpu.pcpu, vcpu.thread, vcpu.vm);
        if t == NONE {
            self.fetch_kernel(v, Owner::Kernel(vm));
            return;
        }
        vcpu.fetches = t;
        let thread = &mut self.threads[t as usize];
        let was_at = std::mem::replace(&mut thread.data_at, p);
        let (costs, pcpu) = (&self.costs, &self.pcpus[p as usize]);
        let is_local = *thread.home.get_or_insert(pcpu.node) == pcpu.node;
        let per_kib = if was_at == NONE || self.pcpus[was_at as usize].llc == pcpu.llc {
            costs.refill_per_kib
        } else if is_local {
            costs.refill_far_per_kib
        } else {
            costs.refill_far_per_kib * costs.remote_memory_percent / 100
        };
        self.vcpus[v as usize].fetch_per_kib = per_kib;
        for (_, kib, per_kib) in self.missing(v) {
            self.owe(v, CACHE, kib * per_kib);
        }
    }

    /// Whether the vCPU's thread uses its data now, neither waiting nor in a critical section.
    pub(crate) fn works(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.search != NONE || vcpu.thread == NONE {
            return false;
        }
        let thread = &self.threads[vcpu.thread as usize];
        matches!(thread.doing, Doing::Compute | Doing::Hold)
            && thread.no_preempt == 0
            && thread.held_count == 0
    }

    /// Missing data of the vCPU's kernel and of the thread it fetches for: owner, KiB, ns per KiB.
    /// The thread's data is fetched last.
    fn missing(&self, v: u32) -> [(Owner, u64, u64); 2] {
        let vcpu = &self.vcpus[v as usize];
        let cache = &self.pcpus[vcpu.ran_on as usize].cache;
        let costs = &self.costs;
        let missing =
            |owner: Owner, kib: u64| kib.min(costs.cache_kib).saturating_sub(cache.holds(owner));
        let kernel = Owner::Kernel(vcpu.vm);
        let thread = Owner::Thread(vcpu.fetches);
        let working_set = self.threads[vcpu.fetches as usize].working_set;
        [
            (kernel, missing(kernel, costs.kernel_kib), costs.refill_kernel_per_kib),
            (thread, missing(thread, working_set), vcpu.fetch_per_kib),
        ]
    }

    /// Charges the vCPU for the missing data of a kernel, which is in the cache at once.
    fn fetch_kernel(&mut self, v: u32, kernel: Owner) {
        let (p, costs) = (self.vcpus[v as usize].pcpu as usize, &self.costs);
        let missing = self.pcpus[p].cache.bring(kernel, costs.kernel_kib, costs);
        let time = missing * costs.refill_kernel_per_kib;
        self.owe(v, CACHE, time);
    }

    /// Ends a vCPU's fetching, as its pCPU or its thread changes: paid data is in the cache, unpaid data is missing.
    pub(crate) fn settle_cache(&mut self, v: u32) {
        let t = self.vcpus[v as usize].fetches;
        if t == NONE {
            return;
        }
        let missing = self.missing(v);
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.fetches = NONE;
        let mut unpaid = std::mem::take(&mut vcpu.owed[CACHE]);
        vcpu.cold |= unpaid > 0;
        let p = vcpu.ran_on as usize;
        let mut fetched = [0; 2];
        for (at, (_, kib, per_kib)) in missing.iter().enumerate().rev() {
            let lacks = unpaid.checked_div(*per_kib).unwrap_or(0).min(*kib);
            unpaid -= lacks * per_kib;
            fetched[at] = kib - lacks;
        }
        for ((owner, _, _), fetched) in missing.iter().zip(fetched) {
            let cache = &mut self.pcpus[p].cache;
            let kib = cache.holds(*owner) + fetched;
            cache.bring(*owner, kib, &self.costs);
        }
    }
}
