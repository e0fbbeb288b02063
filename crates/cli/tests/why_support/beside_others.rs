//! VMs that are slow because of neighbours or of their number of vCPUs: each finding with its cause, and without it.
//!
//! The vCPUs of each VM have their own cgroup, like those of libvirt, whose weight determines the VM's fair share.

use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::affinity;
use tandem_linux::thread::Tid;
use tandem_linux::{ProcFs, cgroup};

use super::harness::{Skip, Test};
use super::vm_support::{Guard, start_vm};
use super::{kinds, look, look_on, name, pcpu_and_another, pcpus, skip, tandem, vcpus};

/// The tests of this file.
pub const ALL: &[(&str, Test)] = &[
    ("more_vcpus_than_pcpus_are_found", more_vcpus_than_pcpus_are_found),
    ("neighbour_on_the_same_pcpu_is_found", neighbour_on_the_same_pcpu_is_found),
    ("unfair_pins_are_found", unfair_pins_are_found),
    ("stacked_hog_is_found", stacked_hog_is_found),
    ("slow_sibling_is_found", slow_sibling_is_found),
];

/// A VM with a cgroup for its vCPUs, with the kernel's default weight; the cgroup is dropped first.
struct InCgroup {
    _group: Actuator,
    _journal: tempfile::TempDir,
    _vm: Guard,
}

/// Starts a VM with these arguments of `tandem vm run`, in its own cgroup.
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

/// Starts a VM with this number of computing vCPUs, pinned in turn.
fn burner(name: &str, vcpus: &str, pins: &str) -> Result<InCgroup, Skip> {
    let args = ["--vcpus", vcpus, "--workload", "burn", "--pin", pins];
    start(name, &args)
}

fn more_vcpus_than_pcpus_are_found() -> Result<(), Skip> {
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
    assert!((0.7e9..=1.1e9).contains(&lost), "time lost per vCPU: {lost} ns/s");
    drop(many);
    let _enough = free(&name, room)?;
    let findings = look(&[&name])?;
    assert!(!kinds(&findings).contains(&"too-many-vcpus"), "{findings:#?}");
    Ok(())
}

fn neighbour_on_the_same_pcpu_is_found() -> Result<(), Skip> {
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
    assert!((0.4e9..=0.6e9).contains(&lost), "it should wait half of the time: {lost}");
    drop(beside);
    let _apart = burner(&b, "1", &two)?;
    let findings = look_on(&one.parse().unwrap(), &a)?;
    assert!(!kinds(&findings).contains(&"neighbour"), "{findings:#?}");
    Ok(())
}

fn unfair_pins_are_found() -> Result<(), Skip> {
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
    // It still waits, but the fair shares on that pCPU are feasible: weights can solve this.
    let findings = look(&[&a, &d])?;
    assert!(!kinds(&findings).contains(&"unfair-pins"), "{findings:#?}");
    assert!(!findings.is_empty(), "its lag compared with d is found");
    Ok(())
}

/// Returns the received part of a VM's fair share, from `host top`.
fn part_of_due(vm: &str) -> f64 {
    let output = tandem(&["host", "top", "--json", "--once", "--interval", "2s"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut vms = shown["vms"].as_array().unwrap().iter();
    let vm = vms.find(|one| one["name"] == vm).unwrap();
    vm["received"].as_f64().unwrap() / vm["due"].as_f64().unwrap()
}

fn stacked_hog_is_found() -> Result<(), Skip> {
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
            "on this kernel a VM with stacked vCPUs receives {part:.2} of its fair share: it has no pinned-hog defect"
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

fn slow_sibling_is_found() -> Result<(), Skip> {
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
    // vCPU 1 of the same VM still waits for vCPU 0, but vCPU 0 does not wait for another VM.
    let findings = look(&[&a])?;
    assert!(!kinds(&findings).contains(&"slow-sibling"), "{findings:#?}");
    Ok(())
}
