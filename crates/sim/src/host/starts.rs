//! Where vCPUs begin under Xen's credit scheduler.
//!
//! Source: Xen 4.0, xen/common/domctl.c (`default_vcpu0_location`, `XEN_DOMCTL_max_vcpus`) and sched_credit.c
//! (`_csched_cpu_pick`). A VM's first vCPU is put on the pCPU that has the fewest vCPUs, on the one with the highest number among
//! several, whether or not the VM may run there, as its pins are set later; each of its others on the pCPU after the one before,
//! going round the host. When pins are set, a vCPU that is not where it may be goes to the next pCPU on which it may be,
//! going round; an idle one that is no better is not looked for. So VMs that are confined to a part of the host begin unevenly there.
//!
//! Left out: hyper-threads, of which Xen takes the second of a core first, and the VM for administration.

use tandem_model::{PcpuId, PcpuSet};

/// The pCPU of each vCPU on a host with so many, where VMs are made in their order; `vm_of` and `allowed` are of each vCPU.
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
    fn vms_on_the_whole_host_begin_one_after_the_other_from_its_last_pcpu() {
        // The first on 3, 0 and 1; then 2 has none.
        let on = picked(4, &[0, 0, 0, 1, 1], &vec![set("0-3"); 5]);
        assert_eq!(on, [3, 0, 1, 2, 3]);
    }

    #[test]
    fn vms_on_a_part_of_the_host_begin_unevenly() {
        // Made on 15, 0, 1 and 2, and then on 15, 0 and 1: 15 is not theirs, and the next one that is, is 0.
        let on = picked(16, &[0, 0, 0, 0, 1, 1, 1], &vec![set("0-3"); 7]);
        assert_eq!(on, [0, 0, 1, 2, 0, 0, 1]);
    }

    #[test]
    fn who_is_where_it_may_be_stays() {
        let on = picked(4, &[0, 0], &[set("2"), set("0-1")]);
        assert_eq!(on, [2, 0]);
    }
}
