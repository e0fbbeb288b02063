//! Findings without other VMs: halt polling, the VM's own other threads, useless spinning, and unexplained waits.
//! Each is tested with its cause and without it.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;
use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Tid;
use tandem_model::PcpuSet;

use super::harness::{Skip, Test};
use super::vm_support::{Guard, start_vm};
use super::{DURATION, kinds, least_busy, look, name, pcpu, pcpus, skip, tandem, text, why};

/// The tests of this file.
pub const ALL: &[(&str, Test)] = &[
    ("halt_polling_of_naps_is_found", halt_polling_of_naps_is_found),
    ("own_thread_on_the_pcpu_is_found", own_thread_on_the_pcpu_is_found),
    ("short_processes_leave_unexplained_waits", short_processes_leave_unexplained_waits),
    ("useless_spinning_is_found_by_pause_exits", useless_spinning_is_found_by_pause_exits),
];

fn set(pcpu: &str) -> PcpuSet {
    pcpu.parse().unwrap()
}

fn halt_polling_of_naps_is_found() -> Result<(), Skip> {
    let one = pcpu()?;
    let most = std::fs::read_to_string("/sys/module/kvm/parameters/halt_poll_ns");
    match most.as_deref().map(str::trim) {
        Ok("0") => return skip("KVM does not poll here: its halt_poll_ns is 0"),
        Ok(_) => {}
        Err(error) => return skip(format!("KVM's halt_poll_ns: {error}")),
    }
    let name = name('l');
    let bursty = |work: &str, period: &str| {
        let (work, period) = (format!("work={work}"), format!("period={period}"));
        let bursty = ["--workload", "bursty", "--set", &work, "--set", &period];
        start_vm(
            env!("CARGO_BIN_EXE_tandem").as_ref(),
            &name,
            &[bursty.as_slice(), &["--pin", &one]].concat(),
        )
    };
    let naps = bursty("20000", "500000");
    let findings = look(&[&name])?;
    if findings.is_empty() && vms_take_a_pcpu() {
        return skip(
            "exits are so expensive here that a VM with naps of half a millisecond runs all the time",
        );
    }
    assert_eq!(kinds(&findings), ["halt-polling"], "{findings:#?}");
    let burned = findings[0]["burned_per_second"].as_f64().unwrap();
    assert!((0.1e9..1e9).contains(&burned), "{burned}");
    assert_eq!(findings[0]["lost_per_second"], 0, "the VM itself loses nothing");
    drop(naps);
    // Sleeps of some ms are longer than KVM polls, so KVM soon stops polling.
    let _sleeps = bursty("2000000", "25000000");
    let findings = look(&[&name])?;
    assert!(findings.is_empty(), "{findings:#?}");
    Ok(())
}

/// Returns whether the VMs take a whole pCPU; a napping VM with halt polling should take half of one.
fn vms_take_a_pcpu() -> bool {
    let found = why();
    let vcpus = found["host"]["vcpus"].as_f64().unwrap();
    vcpus > 0.95e9 * found["seconds"].as_f64().unwrap()
}

/// Writes lines to a VM's stdin and reads its answers, on one pCPU, until dropped.
/// The VM's main thread makes a report for each line, so it computes nearly all of the time.
struct Asking {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Asking {
    fn of(vm: &mut Guard, pcpu: &PcpuSet) -> Asking {
        let stop = Arc::new(AtomicBool::new(false));
        let mut input = vm.0.stdin.take().unwrap();
        let mut output = vm.0.stdout.take().unwrap();
        let here = |pcpu: &PcpuSet| {
            let me = std::fs::read_link("/proc/thread-self").unwrap();
            let tid = me.file_name().and_then(|name| name.to_str()).unwrap();
            set_affinity(Tid(tid.parse().unwrap()), pcpu).unwrap();
        };
        let (asks, place) = (Arc::clone(&stop), pcpu.clone());
        let ask = std::thread::spawn(move || {
            here(&place);
            let lines = [b'\n'; 512];
            while !asks.load(Ordering::Relaxed) && input.write_all(&lines).is_ok() {}
        });
        let place = pcpu.clone();
        let hear = std::thread::spawn(move || {
            here(&place);
            let mut answers = vec![0; 1 << 16];
            while output.read(&mut answers).is_ok_and(|read| read > 0) {}
        });
        Asking { stop, threads: vec![ask, hear] }
    }
}

impl Drop for Asking {
    /// The VM ends with its stdin, so all written lines are read, and both threads end.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn own_thread_on_the_pcpu_is_found() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let name = name('o');
    let mut vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
    let main = Tid(vm.0.id());
    set_affinity(main, &set(&one)).unwrap();
    let _asking = Asking::of(&mut vm, &set(&two));
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings).first(), Some(&"own-threads"), "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.1e9..=0.7e9).contains(&lost), "{lost}");
    let commands = findings[0]["cure"]["commands"].as_array().unwrap();
    assert!(!commands.is_empty(), "{findings:#?}");
    // The thread is still busy, but on another pCPU than the vCPU.
    set_affinity(main, &set(&two)).unwrap();
    let findings = look(&[&name])?;
    assert!(!kinds(&findings).contains(&"own-threads"), "{findings:#?}");
    Ok(())
}

fn short_processes_leave_unexplained_waits() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('n');
    let _vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
    // Each process computes for some ms and ends; their parent is nearly idle.
    let script = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
    let storm = Command::new("taskset").args(["-c", &one, "sh", "-c", script]).spawn();
    let storm = match storm {
        Ok(child) => Guard(child),
        Err(error) => return skip(format!("taskset: {error}")),
    };
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings).first(), Some(&"unexplained"), "{findings:#?}");
    let evidence = findings[0]["evidence"].to_string();
    assert!(
        evidence.contains("nobody that was seen") && evidence.contains("tasks that ended"),
        "{evidence}"
    );
    drop(storm);
    let findings = look(&[&name])?;
    assert!(!kinds(&findings).contains(&"unexplained"), "{findings:#?}");
    Ok(())
}

/// Measures with BPF; skips the test if pause exits are not visible.
fn look_at_pause_exits(vm: &str) -> Result<Vec<Value>, Skip> {
    let arguments = ["host", "why", "--json", "--source", "bpf", "--duration"];
    let output = tandem(&[arguments.as_slice(), &[DURATION]].concat());
    if !output.status.success() {
        return skip(text(&output.stderr).trim());
    }
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut not = found["not_looked_for"].as_array().unwrap().iter();
    let spinning = |one: &&Value| one["what"].as_str().unwrap().starts_with("spinning");
    if let Some(not) = not.find(spinning) {
        return skip(format!("{}: {}", not["what"], not["want"]));
    }
    let findings = found["findings"].as_array().unwrap().iter();
    Ok(findings.filter(|one| one["vm"] == vm).cloned().collect())
}

fn useless_spinning_is_found_by_pause_exits() -> Result<(), Skip> {
    let [one, two] = least_busy()?;
    let name = name('z');
    let both = format!("{one},{two}");
    // At CPL 0, because processors detect pause loops there.
    let pinned = ["--vcpus", "2", "--ring", "0", "--pin", &both, "--workload"];
    let spin = ["barrier", "--set", "wait=spin"];
    let spins = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &[pinned.as_slice(), &spin].concat(),
    );
    let hog = |pcpu: &str| {
        let hog =
            Command::new("taskset").args(["-c", pcpu, "sh", "-c", "while :; do :; done"]).spawn();
        hog.map(Guard)
    };
    let Ok(_hogs) = [hog(&one), hog(&two)].into_iter().collect::<Result<Vec<_>, _>>() else {
        return skip("cannot start taskset");
    };
    let findings = look_at_pause_exits(&name)?;
    if !kinds(&findings).contains(&"useless-spinning") {
        return skip(
            "this processor makes too few pause exits for two vCPUs that spin for each other",
        );
    }
    drop(spins);
    let _burns = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &[pinned.as_slice(), &["burn"]].concat(),
    );
    let findings = look_at_pause_exits(&name)?;
    assert!(!kinds(&findings).contains(&"useless-spinning"), "{findings:#?}");
    Ok(())
}
