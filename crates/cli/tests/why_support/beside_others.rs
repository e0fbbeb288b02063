//! VMs that are slow beside others, or by how many vCPUs they have: each finding on VMs that have its cause, and on VMs that nearly have it.
//!
//! Each VM's vCPUs have a cgroup of their own, as libvirt makes them: what is due to a VM is told by the weights of these.

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::affinity;
use tandem_linux::thread::Tid;
use tandem_linux::{ProcFs, cgroup};

use super::harness::{Skip, Test};
use super::vm_support::{Guard, start_vm};
use super::{kinds, look, look_on, name, pcpu_and_another, pcpus, skip, tandem, vcpus};

/// All that is here.
pub const ALL: &[(&str, Test)] = &[
    (
        "more_vcpus_than_pcpus_are_found_and_as_many_are_not",
        more_vcpus_than_pcpus_are_found_and_as_many_are_not,
    ),
    (
        "a_neighbour_on_the_same_pcpu_is_found_and_on_another_is_not",
        a_neighbour_on_the_same_pcpu_is_found_and_on_another_is_not,
    ),
    (
        "pins_are_unfair_to_three_on_a_pcpu_and_not_to_one",
        pins_are_unfair_to_three_on_a_pcpu_and_not_to_one,
    ),
    (
        "a_stacked_hog_is_found_and_one_whose_vcpus_are_apart_is_not",
        a_stacked_hog_is_found_and_one_whose_vcpus_are_apart_is_not,
    ),
    (
        "a_slow_sibling_is_found_while_another_vm_has_its_pcpu",
        a_slow_sibling_is_found_while_another_vm_has_its_pcpu,
    ),
];

/// A VM with a cgroup of its own for its vCPUs, of the kernel's default weight. The cgroup goes first.
struct InCgroup {
    _group: Actuator,
    _journal: tempfile::TempDir,
    _vm: Guard,
}

/// A VM with these arguments of `tandem vm run`, in a cgroup of its own.
fn start(name: &str, args: &[&str]) -> Result<InCgroup, Skip> {
    let vm = start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, args);
    let journal = tempfile::tempdir().unwrap();
    let confined = || -> Result<Actuator, Box<dyn std::error::Error>> {
        let controller = cgroup::open(&ProcFs::host())?;
        let (mut actuator, _) = Actuator::open(controller, journal.path())?;
        let vcpus = vcpus(&vm);
        let above = actuator.controller().cgroup_of(&vcpus[0])?;
        let group = actuator.create_group(&above, &format!("why-{name}"))?;
        for thread in &vcpus {
            actuator.move_thread(thread, &group)?;
        }
        Ok(actuator)
    };
    match confined() {
        Ok(group) => Ok(InCgroup { _group: group, _journal: journal, _vm: vm }),
        Err(error) => skip(error),
    }
}

/// A VM of this many vCPUs that compute, pinned in turn.
fn burner(name: &str, vcpus: &str, pins: &str) -> Result<InCgroup, Skip> {
    let args = ["--vcpus", vcpus, "--workload", "burn", "--pin", pins];
    start(name, &args)
}

fn more_vcpus_than_pcpus_are_found_and_as_many_are_not() -> Result<(), Skip> {
    pcpus()?;
    let room = affinity(Tid(std::process::id())).unwrap().len();
    let free = |name: &str, vcpus: usize| {
        let vcpus = vcpus.to_string();
        start(name, &["--vcpus", &vcpus, "--workload", "burn"])
    };
    let name = name('m');
    let many = free(&name, room * 2 + 1)?;
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings).first(), Some(&"too-many-vcpus"), "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap() / (room as f64 + 1.0);
    assert!(
        (0.7e9..=1.1e9).contains(&lost),
        "so many more than there is room for wait: {lost} ns/s each"
    );
    drop(many);
    let _enough = free(&name, room)?;
    let findings = look(&[&name])?;
    assert!(!kinds(&findings).contains(&"too-many-vcpus"), "{findings:#?}");
    Ok(())
}

fn a_neighbour_on_the_same_pcpu_is_found_and_on_another_is_not() -> Result<(), Skip> {
    let [one, two] = pcpu_and_another()?;
    let (a, b) = (name('a'), name('b'));
    let _vm = burner(&a, "1", &one)?;
    let beside = burner(&b, "1", &one)?;
    let findings = look(&[&a, &b])?;
    assert_eq!(kinds(&findings), ["neighbour"], "{findings:#?}");
    let evidence = findings[0]["evidence"].to_string();
    assert!(
        evidence.contains(&format!("it waits for {b} (")) && evidence.contains("what it is due"),
        "{evidence}"
    );
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.4e9..=0.6e9).contains(&lost), "it waits half of the time: {lost}");
    drop(beside);
    let _apart = burner(&b, "1", &two)?;
    let findings = look_on(&one.parse().unwrap(), &a)?;
    assert!(!kinds(&findings).contains(&"neighbour"), "{findings:#?}");
    Ok(())
}

fn pins_are_unfair_to_three_on_a_pcpu_and_not_to_one() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(name);
    let _vm = burner(&a, "1", &one)?;
    let others = [burner(&b, "1", &one)?, burner(&c, "1", &one)?];
    let _on_both = burner(&d, "2", &format!("{one},{two}"))?;
    let findings = look(&[&a, &b, &c, &d])?;
    assert_eq!(kinds(&findings).first(), Some(&"unfair-pins"), "{findings:#?}");
    let command = findings[0]["cure"]["commands"][0].as_str().unwrap();
    assert!(command.contains("--placement rebalance"), "{command}");
    drop(others);
    // It waits no less often, but what is due on that pCPU is what the pCPU has: weights can mend this.
    let findings = look(&[&a, &d])?;
    assert!(!kinds(&findings).contains(&"unfair-pins"), "{findings:#?}");
    assert!(!findings.is_empty(), "it is behind d on this pCPU");
    Ok(())
}

/// What a VM received of its due, by `host top`.
fn part_of_due(vm: &str) -> f64 {
    let output = tandem(&["host", "top", "--json", "--once", "--interval", "2s"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut vms = shown["vms"].as_array().unwrap().iter();
    let vm = vms.find(|one| one["name"] == vm).unwrap();
    vm["received"].as_f64().unwrap() / vm["due"].as_f64().unwrap()
}

fn a_stacked_hog_is_found_and_one_whose_vcpus_are_apart_is_not() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let (hog, victim) = (name('g'), name('b'));
    let both = format!("{one},{two}");
    let blocks = |vcpus: &str| {
        let args = ["--vcpus", vcpus, "--workload", "barrier", "--pin", &both];
        start(&hog, &args)
    };
    let _victim = burner(&victim, "2", &both)?;
    let stacked = blocks("4")?;
    let part = part_of_due(&hog);
    if part < 1.3 {
        return skip(format!(
            "on this kernel a VM with stacked vCPUs receives {part:.2} of its due: it has no pinned-hog defect"
        ));
    }
    let findings = look(&[&victim, &hog])?;
    assert_eq!(kinds(&findings).first(), Some(&"pinned-hog"), "{findings:#?}");
    let evidence = findings[0]["evidence"][0].as_str().unwrap();
    assert!(evidence.starts_with(&format!("{hog} has several vCPUs pinned")), "{evidence}");
    drop(stacked);
    let _apart = blocks("2")?;
    let findings = look(&[&victim, &hog])?;
    assert!(!kinds(&findings).contains(&"pinned-hog"), "{findings:#?}");
    Ok(())
}

fn a_slow_sibling_is_found_while_another_vm_has_its_pcpu() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let (a, b) = (name('a'), name('b'));
    let both = format!("{one},{two}");
    let serial = ["--set", "serial=4000000", "--set", "parallel=400000"];
    let forkjoin = ["--vcpus", "2", "--workload", "forkjoin", "--pin", &both];
    let _vm = start(&a, &[forkjoin.as_slice(), &serial].concat())?;
    let beside = burner(&b, "1", &one)?;
    let findings = look(&[&a, &b])?;
    assert_eq!(kinds(&findings).first(), Some(&"slow-sibling"), "{findings:#?}");
    let evidence = findings[0]["evidence"][0].as_str().unwrap();
    assert!(evidence.starts_with("vCPU 0 always has work"), "{evidence}");
    drop(beside);
    // The same VM, and its vCPU 1 waits for vCPU 0 as before: but that one waits for nobody.
    let findings = look(&[&a])?;
    assert!(!kinds(&findings).contains(&"slow-sibling"), "{findings:#?}");
    Ok(())
}
