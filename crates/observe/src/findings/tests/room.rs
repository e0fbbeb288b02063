//! Targets of stacked vCPUs: pCPUs that the operator reserved are never used.

use super::*;

/// Two vCPUs stacked on pCPU 0 of four, with the other three idle.
fn crowd(change: impl FnOnce(&mut World)) -> Cure {
    let world = stacked("0", 3000).host(|world| {
        world.host.online = set("0-3");
        world.interval.host.pcpus = 4;
    });
    let findings = world.host(change).all().findings;
    let of_vm = findings.into_iter().find(|one| one.id == VmId(1)).unwrap();
    assert_eq!(of_vm.kind, Kind::Stacked);
    of_vm.cure
}

fn rooms(cure: &Cure) -> Vec<String> {
    let rooms = cure.changes.iter().filter_map(|change| match change {
        Change::Vcpu { pcpus, .. } => Some(pcpus.to_string()),
        _ => None,
    });
    rooms.collect()
}

#[test]
fn vcpus_stay_within_their_cpusets() {
    assert_eq!(rooms(&crowd(|_| {})), ["0-3", "0-3"]);
    let cpusets = |of: &'static [(u32, &'static str)]| {
        crowd(move |world| {
            let known = world.vms.get_mut(&VmId(1)).unwrap();
            known.cpusets = of.iter().map(|(vcpu, list)| (VcpuId(*vcpu), set(list))).collect();
        })
    };
    assert_eq!(rooms(&cpusets(&[(0, "0-2"), (1, "0,2-3")])), ["0,2", "0,2"]);
    let none = cpusets(&[(0, "0"), (1, "0")]);
    assert_eq!((none.commands.len(), none.changes.len()), (0, 0));
    assert!(none.remark.contains("cpuset"), "{none:?}");
}

#[test]
fn vcpus_are_not_sent_to_isolated_pcpus() {
    let cure = crowd(|world| world.host.isolated = set("2-3"));
    assert_eq!(rooms(&cure), ["0-1", "0-1"]);
    assert!(cure.commands[0].contains("taskset -cp 0-1 "), "{cure:?}");
    // They keep the isolated pCPU on which they already run.
    let cure = crowd(|world| world.host.isolated = set("0-2"));
    assert_eq!(rooms(&cure), ["0,3", "0,3"]);
}

#[test]
fn dedicated_pcpus_of_other_vms_are_excluded() {
    let with_neighbour = |pins: &'static [&'static str]| {
        let world = stacked("0", 2000).host(|world| {
            world.host.online = set("0-3");
            world.interval.host.pcpus = 4;
        });
        let vcpus: Vec<Second> = pins.iter().map(|on| vcpu(100, 0, on)).collect();
        let findings = world.vm(2, &vcpus).all().findings;
        let of_vm = findings.into_iter().find(|one| one.id == VmId(1)).unwrap();
        rooms(&of_vm.cure)
    };
    assert_eq!(with_neighbour(&["1"]), ["0,2-3", "0,2-3"]);
    assert_eq!(with_neighbour(&["1-2", "1-2"]), ["0,3", "0,3"]);
    // A set with more pCPUs than vCPUs has room, and so has an affinity to all pCPUs.
    assert_eq!(with_neighbour(&["1-3"]), ["0-3", "0-3"]);
    assert_eq!(with_neighbour(&["0-3", "0-3", "0-3", "0-3"]), ["0-3", "0-3"]);
    assert_eq!(with_neighbour(&["1", "2", "3"]), [""; 0]);
}

#[test]
fn near_pcpus_are_enough_if_they_are_free() {
    let near = |isolated: &'static str| {
        let cure = crowd(move |world| {
            world.host.caches = vec![set("0-1"), set("2-3")];
            world.host.isolated = set(isolated);
        });
        rooms(&cure)
    };
    assert_eq!(near(""), ["0-1", "0-1"]);
    assert_eq!(near("1"), ["0,2-3", "0,2-3"]);
}
