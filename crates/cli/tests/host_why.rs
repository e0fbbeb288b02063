//! `tandem host why` with real KVM VMs: VMs with each cause of waits, a VM without any, and trials of remedies.
//!
//! A measurement counts only without other load on the VMs' pCPUs: otherwise its first finding may correctly be another process.
//! Tests use the least busy pCPUs and repeat disturbed measurements.
//! They are skipped if the machine is never quiet (`tandem_testing::quiet`); tests of a single pCPU still run with one busy pCPU.
//! Like the live tests of `tandem-linux`, this is a separate program.

#[path = "why_support/beside_others.rs"]
mod beside_others;
use tandem_testing::{harness, quiet};
#[path = "why_support/own_doing.rs"]
mod own_doing;
#[path = "why_support/try_cures.rs"]
mod try_cures;
use tandem_testing::vm as vm_support;

use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CgroupPath, Quota};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::PcpuSet;

use harness::{Skip, Test};
use vm_support::{Guard, start_vm};

/// Length of a measurement.
const DURATION: &str = "1500ms";

/// Timeout of expected events, even on a heavily loaded host.
const TIMEOUT: Duration = Duration::from_secs(60);

const ALL: &[(&str, Test)] = &[
    ("stacked_vcpus_are_found_and_remedied", stacked_vcpus_are_found_and_remedied),
    ("quota_is_found", quota_is_found),
    ("turns_are_suggested_to_spinning_vms", turns_are_suggested_to_spinning_vms),
    ("busy_host_process_is_named", busy_host_process_is_named),
    ("quiet_host_has_no_findings", quiet_host_has_no_findings),
    ("unknown_vm_lists_the_existing_ones", unknown_vm_lists_the_existing_ones),
];

fn main() -> ExitCode {
    harness::run(&[ALL, beside_others::ALL, own_doing::ALL, try_cures::ALL].concat())
}

fn tandem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns a unique name of a VM, with at most 8 characters.
fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

fn skip<T>(why: impl ToString) -> Result<T, Skip> {
    Err(Skip(why.to_string()))
}

/// Checks that KVM and cgroups are usable.
fn usable() -> Result<(), Skip> {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return skip(error);
    }
    let kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    kvm.map(drop).or_else(|error| skip(format!("/dev/kvm: {error}")))
}

/// Returns a quiet pCPU.
fn pcpu() -> Result<String, Skip> {
    usable()?;
    Ok(quiet::quiet_pcpus(1)?[0].to_string())
}

/// Returns the least busy pCPUs, for tests without measurements or with load on them.
fn least_busy() -> Result<[String; 2], Skip> {
    usable()?;
    match &quiet::by_load()[..] {
        [one, two, ..] => Ok([one.0.to_string(), two.0.to_string()]),
        _ => skip("needs two pCPUs"),
    }
}

/// Returns two quiet pCPUs.
fn pcpus() -> Result<[String; 2], Skip> {
    usable()?;
    let quiet = quiet::quiet_pcpus(2)?;
    Ok([quiet[0].to_string(), quiet[1].to_string()])
}

/// Returns a quiet pCPU and another one, which may be busy.
fn pcpu_and_another() -> Result<[String; 2], Skip> {
    let one = pcpu()?;
    let mut others = least_busy()?.into_iter().filter(|pcpu| *pcpu != one);
    Ok([one.clone(), others.next().expect("two differ")])
}

/// Runs `why` once and returns its JSON.
fn why() -> Value {
    let output = tandem(&["host", "why", "--json", "--duration", DURATION]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the process id of a VM.
fn process_of(vm: &str) -> u32 {
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        let is_vm = words.windows(2).any(|pair| pair == ["--name", vm]);
        entry.file_name().to_str().filter(|_| is_vm)?.parse().ok()
    });
    processes.next().unwrap_or_else(|| panic!("{vm} runs"))
}

/// Returns the pCPUs on which the vCPUs of these VMs may run.
fn places_of(vms: &[&str]) -> PcpuSet {
    let mut places = PcpuSet::default();
    for thread in vms.iter().flat_map(|vm| vcpu_threads(Pid(process_of(vm)))) {
        places.extend(&affinity(thread.tid).unwrap());
    }
    places
}

/// Returns the findings of the first VM, from a measurement without other load on the VMs' pCPUs.
fn look(vms: &[&str]) -> Result<Vec<Value>, Skip> {
    look_on(&places_of(vms), vms[0])
}

/// Returns the findings of a VM, from a measurement without other load on these pCPUs; others may be busy.
fn look_on(pcpus: &PcpuSet, vm: &str) -> Result<Vec<Value>, Skip> {
    let found = quiet::measure(pcpus, why)?;
    assert_eq!(found["schema"], 1);
    let findings = found["findings"].as_array().unwrap();
    let of_vm = findings.iter().filter(|finding| finding["vm"] == vm);
    Ok(of_vm.cloned().collect())
}

fn kinds(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect()
}

fn stacked_vcpus_are_found_and_remedied() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let name = name('s');
    let burn = ["--vcpus", "2", "--workload", "burn", "--pin"];
    let vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &[burn.as_slice(), &[&one]].concat(),
    );
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings), ["stacked"], "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.8e9..=1.05e9).contains(&lost), "each vCPU waits half of the time: {lost}");
    // With the remedy there are no findings.
    for command in findings[0]["cure"]["commands"].as_array().unwrap() {
        let command = command.as_str().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let ["sudo", program, rest @ ..] = &words[..] else { panic!("{command}") };
        match Command::new(program).args(rest).output() {
            Ok(output) => assert!(output.status.success(), "{command}"),
            Err(error) => return skip(format!("{program}: {error}")),
        }
    }
    // Wait until the load balancer of the kernel moves one of them.
    let begin = Instant::now();
    while ran_on(&vcpus(&vm)[0]) == ran_on(&vcpus(&vm)[1]) {
        assert!(begin.elapsed() < TIMEOUT, "the vCPUs stay stacked");
        sleep(Duration::from_millis(10));
    }
    let findings = look(&[&name])?;
    assert!(findings.is_empty(), "{findings:#?}");
    drop(vm);
    let _apart = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &[burn.as_slice(), &[&format!("{one},{two}")]].concat(),
    );
    let findings = look(&[&name])?;
    assert!(findings.is_empty(), "{findings:#?}");
    Ok(())
}

/// Returns the pCPU on which a thread ran last, field 39 of its `stat`.
fn ran_on(thread: &ThreadRef) -> String {
    let stat = ProcFs::host().task(thread.pid, thread.tid).join("stat");
    let stat = std::fs::read_to_string(stat).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    after_name.split_whitespace().nth(36).unwrap().to_owned()
}

/// Returns the threads of a VM's vCPUs.
fn vcpus(vm: &Guard) -> Vec<ThreadRef> {
    vcpu_threads(Pid(vm.0.id()))
}

/// Returns the threads of vCPUs in a process.
fn vcpu_threads(pid: Pid) -> Vec<ThreadRef> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut vcpus: Vec<ThreadRef> = tasks
        .filter_map(|task| {
            let path = task.unwrap().path();
            let is_vcpu = std::fs::read_to_string(path.join("comm")).unwrap().contains("/vcpu");
            let tid = path.file_name()?.to_str()?.parse().ok()?;
            is_vcpu.then(|| ThreadRef::read(&ProcFs::host(), pid, Tid(tid)).unwrap())
        })
        .collect();
    vcpus.sort_unstable();
    vcpus
}

/// A quota of a fifth of a pCPU.
const FIFTH: Quota = Quota { quota_us: 20_000, period_us: 100_000 };

/// Makes nested cgroups with a quota for the vCPUs of a VM; dropping the actuator removes them.
fn limit(
    vm: &Guard,
    names: &[String],
    state: &Path,
) -> Result<(Actuator, Vec<CgroupPath>), Box<dyn std::error::Error>> {
    let controller = cgroup::open(&ProcFs::host())?;
    let (mut actuator, _) = Actuator::open(controller, state)?;
    let vcpus = vcpus(vm);
    let mut at = actuator.controller().cgroup_of(&vcpus[0])?;
    let mut groups = Vec::new();
    for name in names {
        at = actuator.create_group(&at, name)?;
        groups.push(at.clone());
    }
    for group in &groups {
        actuator.set_quota(group, Some(FIFTH))?;
    }
    for thread in &vcpus {
        actuator.move_thread(thread, &at)?;
    }
    if groups.len() > 1 {
        // With the main thread in it, the outer cgroup also counts as the VM's.
        let main = ThreadRef::of_process(&ProcFs::host(), Pid(vm.0.id()))?;
        actuator.move_thread(&main, &groups[0])?;
    }
    Ok((actuator, groups))
}

fn quota_is_found() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('q');
    let vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
    let state = tempfile::tempdir().unwrap();
    let (mut actuator, groups) = match limit(&vm, &[format!("why-{name}")], state.path()) {
        Ok(limited) => limited,
        Err(error) => return skip(error),
    };
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings).first(), Some(&"quota"), "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.6e9..=0.9e9).contains(&lost), "80 % are withheld: {lost}");
    actuator.set_quota(&groups[0], None).unwrap();
    let findings = look(&[&name])?;
    assert!(!kinds(&findings).contains(&"quota"), "{findings:#?}");
    Ok(())
}

fn turns_are_suggested_to_spinning_vms() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let (spin, burn) = (name('p'), name('b'));
    let both = format!("{one},{two}");
    let pinned = ["--vcpus", "2", "--pin", &both, "--workload"];
    let barrier = ["barrier", "--set", "wait=spin"];
    let _spin = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &spin,
        &[pinned.as_slice(), &barrier].concat(),
    );
    let burner = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &burn,
        &[pinned.as_slice(), &["burn"]].concat(),
    );
    let findings = look(&[&spin, &burn])?;
    assert_eq!(kinds(&findings), ["turns"], "{findings:#?}");
    let command = findings[0]["cure"]["commands"][0].as_str().unwrap();
    assert!(command.contains(&format!("host run {spin} {burn}")), "{command}");
    drop(burner);
    let findings = look(&[&spin])?;
    // Other load of this host may cause other findings.
    let turns = kinds(&findings).contains(&"turns");
    assert!(!turns, "turns are useless without another VM: {findings:#?}");
    Ok(())
}

fn busy_host_process_is_named() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('h');
    let _vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "burn", "--pin", &one],
    );
    let burner =
        Command::new("taskset").args(["-c", &one, "sh", "-c", "while :; do :; done"]).spawn();
    let burner = match burner {
        Ok(child) => Guard(child),
        Err(error) => return skip(format!("taskset: {error}")),
    };
    let pid = burner.0.id();
    let findings = look(&[&name])?;
    assert_eq!(kinds(&findings), ["host-process"], "{findings:#?}");
    let evidence = findings[0]["evidence"].to_string();
    assert!(evidence.contains(&format!("process {pid}")), "{evidence}");
    Ok(())
}

fn quiet_host_has_no_findings() -> Result<(), Skip> {
    let one = pcpu()?;
    let name = name('i');
    let _vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "bursty", "--pin", &one],
    );
    let findings = look(&[&name])?;
    assert!(findings.is_empty(), "{findings:#?}");
    let output = tandem(&["host", "why", &name, "--duration", "0.5s"]);
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
    Ok(())
}

/// Returns whether the message lists only some of many VMs.
fn names_some(said: &str) -> bool {
    said.trim_end().ends_with(" more")
}

fn unknown_vm_lists_the_existing_ones() -> Result<(), Skip> {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return skip(error);
    }
    let name = name('k');
    let vm = start_vm(
        env!("CARGO_BIN_EXE_tandem").as_ref(),
        &name,
        &["--workload", "bursty", "--backend", "threads"],
    );
    let pid = vm.0.id().to_string();
    let output = tandem(&["host", "why", "nosuch", "--duration", "50ms", "--without-kvm", &pid]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = text(&output.stderr);
    assert!(
        said.contains("no VM matches 'nosuch'") && (said.contains(&name) || names_some(said)),
        "{said}"
    );
    Ok(())
}
