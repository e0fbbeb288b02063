//! Initial placement of vCPUs by Xen.
//!
//! Source: Xen 4.0, xen/common/domctl.c (`default_vcpu0_location`, `XEN_DOMCTL_max_vcpus`) and sched_credit.c (`_csched_cpu_pick`).
//! A VM's first vCPU starts on the pCPU with the fewest vCPUs, of several on the highest-numbered.
//! Its pins are set later, so it may start on a pCPU outside them.
//! Each further vCPU starts on the pCPU after the previous one's, wrapping around.
//! When pins are set, a vCPU on a forbidden pCPU moves to the next allowed one, wrapping around.
//! Xen does not search for an idle pCPU then, so VMs pinned to a part of the host start unevenly on it.
//!
//! Left out: hyper-threads, of which Xen takes the second of a core first, and dom0.

use tandem_model::{PcpuId, PcpuSet};

/// The pCPU of each vCPU if VMs are created in order; `vm_of` and `allowed` hold the VM and the affinity of each vCPU.
pub fn picked(pcpus: u32, vm_of: &[u32], allowed: &[PcpuSet]) -> Vec<u32> {
    let mut has = vec![0u32; pcpus as usize];
    let mut on = Vec::with_capacity(vm_of.len());
    let mut first = 0;
    while first < vm_of.len() {
        let size = vm_of[first..].iter().take_while(|&&vm| vm == vm_of[first]).count();
        let begin = (0..pcpus).rev().min_by_key(|&p| has[p as usize]).unwrap_or(0);
        for n in 0..size {
            let made_on = (u64::from(begin) + n as u64) % u64::from(pcpus.max(1));
            let may = &allowed[first + n];
            let place = (0..pcpus)
                .map(|step| ((made_on + u64::from(step)) % u64::from(pcpus.max(1))) as u32)
                .find(|&p| may.contains(PcpuId(p)));
            on.push(place.unwrap_or(made_on as u32));
        }
        for &p in &on[first..] {
            has[p as usize] += 1;
        }
        first += size;
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PcpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn unpinned_vms_fill_pcpus_from_the_last() {
        // VM 0 starts on 3, 0 and 1; then 2 is the only pCPU without a vCPU.
        let on = picked(4, &[0, 0, 0, 1, 1], &vec![set("0-3"); 5]);
        assert_eq!(on, [3, 0, 1, 2, 3]);
    }

    #[test]
    fn pinned_vms_start_unevenly() {
        // VM 0 is created on 15, 0, 1 and 2, VM 1 on 15, 0 and 1. 15 is forbidden; the next allowed pCPU is 0.
        let on = picked(16, &[0, 0, 0, 0, 1, 1, 1], &vec![set("0-3"); 7]);
        assert_eq!(on, [0, 0, 1, 2, 0, 0, 1]);
    }

    #[test]
    fn vcpu_on_allowed_pcpu_stays() {
        let on = picked(4, &[0, 0], &[set("2"), set("0-1")]);
        assert_eq!(on, [2, 0]);
    }
}
