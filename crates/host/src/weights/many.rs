//! Cost of weighing many VMs, as the number of cgroup reads: 1,000 VMs cost ten times as many as 100.

use super::*;
use crate::fixtures::tree::{Tree, VmTree};
use crate::homes::KnownHomes;

const VCPUS: u32 = 8;

/// A host with `count` VMs of 8 vCPUs; `place` returns the cgroup of a VM's first thread (`None`) and of each vCPU.
fn host(count: u32, place: impl Fn(u32, Option<u32>) -> String) -> (Tree, Vec<Vm>) {
    let tree = Tree::default();
    let vms = (0..count).map(|n| tree.vm(n, VCPUS, |vcpu| place(n, vcpu)));
    let vms = vms.collect();
    (tree, vms)
}

/// The number of VMs with a cgroup of their own.
fn own(controller: &Tree, homes: &Homes, vms: &[Vm]) -> usize {
    let procfs = ProcFs::host();
    let mut occupants = Occupants::new(controller, &procfs);
    let own = vms.iter().filter(|vm| homes.own_cgroup(vm.id, &mut occupants).unwrap().is_some());
    own.count()
}

/// Returns the number of reads to weigh `count` VMs, and the number of these with a cgroup of their own.
fn reads(count: u32, place: &dyn Fn(u32, Option<u32>) -> String) -> (usize, usize) {
    let (controller, vms) = host(count, place);
    let homes = Homes::read(&controller, &vms);
    let weighed = weigh_at(&controller, &[], &vms, &homes);
    Weights::new(&controller, &weighed);
    let asked = controller.asked();
    let own = own(&controller, &homes, &vms);
    assert_eq!(asked.changes, 0, "reads change nothing");
    (asked.reads, own)
}

/// Below `above`, as libvirt has it: a cgroup for the emulator and one for each vCPU.
fn libvirts(above: &str, vcpu: Option<u32>) -> String {
    match vcpu {
        Some(vcpu) => format!("{above}/vcpu{vcpu}"),
        None => format!("{above}/emulator"),
    }
}

#[test]
fn reads_grow_linearly_with_vms() {
    type Place = fn(u32, Option<u32>) -> String;
    // With each layout: whether a VM has a cgroup of its own.
    let layouts: [(&str, bool, Place); 8] = [
        ("a folder each", true, |n, _| format!("/vms/{n}")),
        ("a folder each, and groups", true, |n, vcpu| libvirts(&format!("/vms/{n}"), vcpu)),
        ("libvirt without systemd", true, |n, vcpu| {
            libvirts(&format!("/machine/qemu-{n}-vm.libvirt-qemu"), vcpu)
        }),
        ("libvirt on v1", true, |n, vcpu| {
            let scope = format!("/machine.slice/machine-qemu\\x2d{n}\\x2dvm.scope");
            libvirts(&scope, vcpu)
        }),
        ("libvirt on v2", true, |n, vcpu| {
            let scope = format!("/machine.slice/machine-qemu\\x2d{n}\\x2dvm.scope/libvirt");
            libvirts(&scope, vcpu)
        }),
        ("a pod each", true, |n, vcpu| {
            libvirts(&format!("/kubepods.slice/pod{n}.slice/vm.scope/compute"), vcpu)
        }),
        ("one service", false, |_, _| "/system.slice/many.service".to_owned()),
        ("one service, and groups", false, |n, vcpu| {
            let vcpu = vcpu.map_or_else(|| "main".to_owned(), |vcpu| vcpu.to_string());
            format!("/system.slice/many.service/{n}-{vcpu}")
        }),
    ];
    for (name, has_own, place) in layouts {
        let (few, own) = reads(100, &place);
        assert_eq!(own, if has_own { 100 } else { 0 }, "{name}");
        let (many, own) = reads(1_000, &place);
        assert_eq!(own, if has_own { 1_000 } else { 0 }, "{name}");
        println!("{name}: {many} reads for 1,000 VMs");
        assert!(many <= 10 * few, "{name}: {few} reads for 100 VMs, {many} for 1,000");
        // The cgroups of nine threads, the settings of the VM's cgroup and those above, and the threads in ten cgroups and below.
        assert!(many <= 1_000 * 50, "{name}: {many} reads");
    }
}

#[test]
fn known_homes_are_reread_in_turn() {
    let (controller, mut vms) = host(80, |n, _| format!("/vms/{n}"));
    let mut known = KnownHomes::default();
    let mut reads = || {
        let before = controller.asked().reads;
        let homes = known.look(&controller, &vms);
        assert!(vms.iter().all(|vm| homes.get(vm.id).is_some()));
        controller.asked().reads - before
    };
    let all = 80 * (VCPUS as usize + 1);
    let first: Vec<usize> = (0..3).map(|_| reads()).collect();
    assert_eq!(first, [all; 3], "new VMs are often moved");
    let later: Vec<usize> = (0..16).map(|_| reads()).collect();
    assert_eq!(later.iter().sum::<usize>(), all, "each once: {later:?}");
    assert!(later.iter().all(|reads| *reads <= all / 8), "{later:?}");
    // A VM that moved is found within 16 reads, one with other threads at once.
    for vm in &vms {
        for thread in vm.vcpus.iter().map(|vcpu| vcpu.thread).chain([vm.process]) {
            controller.put(thread, &CgroupPath("/elsewhere".to_owned()));
        }
    }
    vms[0].vcpus.pop();
    let moved = |homes: &Homes, vm: &Vm| homes.get(vm.id).unwrap().main.0 == "/elsewhere";
    let homes = known.look(&controller, &vms);
    assert!(moved(&homes, &vms[0]) && !vms.iter().all(|vm| moved(&homes, vm)));
    (0..15).for_each(|_| drop(known.look(&controller, &vms)));
    let homes = known.look(&controller, &vms);
    assert!(vms.iter().all(|vm| moved(&homes, vm)));
    // A VM that is gone is forgotten.
    assert!(known.look(&controller, &vms[1..]).get(vms[0].id).is_none());
}

/// Returns whether a VM owns `/vms/0` with these cgroups below it, and the number of reads to find out.
fn owns_with(below: impl Fn(&Tree)) -> (bool, usize) {
    let (controller, vms) = host(1, |_, _| "/vms/0".to_owned());
    below(&controller);
    let before = controller.asked().reads;
    let homes = Homes::read(&controller, &vms);
    weigh_at(&controller, &[], &vms, &homes);
    let reads = controller.asked().reads - before;
    (own(&controller, &homes, &vms) == 1, reads)
}

#[test]
fn hostile_numbers_of_cgroups_are_not_read() {
    let wide =
        |count: u32| move |tree: &Tree| (0..count).for_each(|n| tree.make(&format!("/vms/0/{n}")));
    let deep = |count: u32| {
        move |tree: &Tree| {
            let chains = (0..count).map(|n| format!("/vms/0/{}", "d/".repeat(n as usize % 500)));
            chains.zip(0..).for_each(|(chain, n)| tree.make(&format!("{chain}{n}")));
        }
    };
    let (is_own, plain) = owns_with(|_| {});
    assert!(is_own);
    // As many cgroups as a VM can need are read: two per vCPU plus 256.
    let (is_own, some) = owns_with(wide(250));
    assert!(is_own && some > plain + 250, "{some} reads");
    for count in [300, 3_000] {
        let (is_own, wide) = owns_with(wide(count));
        assert!(!is_own, "{count} cgroups");
        assert!(wide <= plain + 10, "{wide} reads of {count} cgroups");
        let (is_own, deep) = owns_with(deep(count));
        assert!(!is_own, "{count} cgroups below each other");
        assert!(deep <= plain + 2 * 300, "{deep} reads of {count} cgroups");
    }
}
