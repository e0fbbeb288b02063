//! Refilling private caches: what kernels and threads miss of their working sets on a pCPU.
//!
//! A kernel's comes from the last-level cache, where its text always is; a thread's from there too,
//! or from farther if the thread ran beneath another one last. Who spins, or holds a lock, needs
//! neither: both are fetched when a thread works on outside of its critical sections. What a vCPU
//! had no time to fetch before it was taken off its pCPU is missing the next time.

use crate::machine::cache::Owner;

use super::simulation::World;
use super::state::{CACHE, Doing, NONE};

impl World {
    /// A vCPU has come onto a pCPU: the host's kernel has worked there, and somebody else before.
    pub(crate) fn refill_host(&mut self, v: u32) {
        self.vcpus[v as usize].cold = true;
        if !self.native {
            self.fetch_kernel(v, Owner::Host);
        }
        if self.vcpus[v as usize].thread == NONE {
            self.refill(v);
        }
    }

    /// A vCPU's kernel and its thread, if it has one, work on after somebody else: what they miss is owed.
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
        let far = was_at != NONE && self.llc(was_at) != self.llc(p);
        self.vcpus[v as usize].fetches_far = far;
        for (_, kib, per_kib) in self.missing(v) {
            self.owe(v, CACHE, kib * per_kib);
        }
    }

    /// Whether the vCPU's thread uses its data now: it neither waits nor is in a critical section.
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

    /// What a vCPU's kernel and the thread that it fetches for miss on its pCPU: owner, KiB, ns a KiB. The
    /// thread's data is fetched last.
    fn missing(&self, v: u32) -> [(Owner, u64, u64); 2] {
        let vcpu = &self.vcpus[v as usize];
        let cache = &self.pcpus[vcpu.ran_on as usize].cache;
        let costs = &self.costs;
        let missing =
            |owner: Owner, kib: u64| kib.min(costs.cache_kib).saturating_sub(cache.holds(owner));
        let kernel = Owner::Kernel(vcpu.vm);
        let thread = Owner::Thread(vcpu.fetches);
        let working_set = self.threads[vcpu.fetches as usize].working_set;
        let per_kib =
            if vcpu.fetches_far { costs.refill_far_per_kib } else { costs.refill_per_kib };
        [
            (kernel, missing(kernel, costs.kernel_kib), costs.refill_kernel_per_kib),
            (thread, missing(thread, working_set), per_kib),
        ]
    }

    /// A kernel's own work: what it misses is in the cache at once.
    fn fetch_kernel(&mut self, v: u32, kernel: Owner) {
        let (p, costs) = (self.vcpus[v as usize].pcpu as usize, &self.costs);
        let missing = self.pcpus[p].cache.bring(kernel, costs.kernel_kib, costs);
        let time = missing * costs.refill_kernel_per_kib;
        self.owe(v, CACHE, time);
    }

    /// Somebody else comes to the pCPU that a vCPU ran on, or to a vCPU: what was fetched is in the cache,
    /// what is still owed was not fetched.
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
