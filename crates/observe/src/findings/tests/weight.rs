//! The remedy for host processes names the current weight and the command to restore it.

use super::*;

/// Returns the remedy for a cgroup that has this weight and takes half of a VM's time.
fn of(version: Version, cgroup: &str, weight: Option<u32>) -> Cure {
    let world = build(cgroup, 500).host(|world| {
        world.host.version = version;
        let weights = weight.map(|weight| (CgroupPath(cgroup.to_owned()), weight));
        world.weights.extend(weights);
    });
    world.only().cure
}

#[test]
fn weight_remedy_names_the_current_weight() {
    let on_v1 = of(Version::V1, "/build", Some(2048));
    assert_eq!(on_v1.commands, ["echo 102 | sudo tee /cg/build/cpu.shares"]);
    assert_eq!(on_v1.undo, ["echo 2048 | sudo tee /cg/build/cpu.shares"]);
    assert!(on_v1.remark.contains("instead of 2048"), "{on_v1:?}");
    let on_v2 = of(Version::V2, "/build", Some(100));
    assert_eq!(on_v2.commands, ["echo 10 | sudo tee /cg/build/cpu.weight"]);
    assert_eq!(on_v2.undo, ["echo 100 | sudo tee /cg/build/cpu.weight"]);
    let unit = of(Version::V2, "/build.service", Some(300));
    let set = "sudo systemctl set-property --runtime build.service CPUWeight=";
    assert_eq!(unit.commands, [format!("{set}10")]);
    assert_eq!(unit.undo, [format!("{set}300")]);
}

#[test]
fn unknown_weight_is_reported() {
    let cure = of(Version::V2, "/build", None);
    assert_eq!((cure.commands.len(), cure.undo.len()), (1, 0));
    assert!(cure.remark.contains("is not known"), "{cure:?}");
}

#[test]
fn low_weights_are_not_raised() {
    for (weight, said) in [
        (10, "has weight 10 already"),
        (3, "has weight 3 already"),
        (0, "is in the idle class already"),
    ] {
        let cure = of(Version::V2, "/build", Some(weight));
        assert_eq!((cure.commands.len(), cure.changes.len()), (0, 0), "{weight}");
        assert!(cure.remark.contains(said), "{cure:?}");
    }
    assert_eq!(of(Version::V2, "/build", Some(11)).commands.len(), 1);
}
