//! `tandem host why` beside real KVM VMs that have what it should find, and one that has nothing; and what it says of cures that it tries.
//!
//! Each look counts only if the rest of the host is calm in it: otherwise what it finds first may truly be somebody else. On a host that is not
//! calm for long the tests are skipped. A program of its own like the live tests of `tandem-linux`: what could not be judged to
//! its end is skipped with its reason, and not counted as passed.

#[path = "why_support/beside_others.rs"]
mod beside_others;
#[path = "../../linux/tests/live/harness.rs"]
mod harness;
#[path = "why_support/own_doing.rs"]
mod own_doing;
#[path = "why_support/try_cures.rs"]
mod try_cures;
mod vm_support;

use std::path::Path;
use std::process::Command;
use std::process::ExitCode;
use std::process::Output;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::Quota;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;

use harness::Skip;
use harness::Test;
use vm_support::Guard;
use vm_support::start_vm;

/// How long a look takes.
const SECONDS: f64 = 1.5;

/// How many looks are tried for a calm one.
const LOOKS: usize = 25;

/// Long enough for what must happen, however loaded the host is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What others may take of the host while it is calm, in pCPUs.
const CALM: f64 = 0.15;

const ALL: &[(&str, Test)] = &[
    (
        "stacked_vcpus_are_found_and_nothing_is_once_they_are_apart",
        stacked_vcpus_are_found_and_nothing_is_once_they_are_apart,
    ),
    ("a_quota_is_found", a_quota_is_found),
    (
        "a_spinning_vm_beside_one_that_computes_is_told_of_turns",
        a_spinning_vm_beside_one_that_computes_is_told_of_turns,
    ),
    (
        "a_host_process_that_burns_is_named",
        a_host_process_that_burns_is_named,
    ),
    ("a_quiet_host_has_no_findings", a_quiet_host_has_no_findings),
    (
        "an_unknown_vm_is_an_error_that_names_what_there_is",
        an_unknown_vm_is_an_error_that_names_what_there_is,
    ),
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

/// A name that no other VM has; at most 8 characters.
fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

fn skip<T>(why: impl ToString) -> Result<T, Skip> {
    Err(Skip(why.to_string()))
}

/// The first two pCPUs that this machine lets tests use with KVM and cgroups.
fn pcpus() -> Result<[String; 2], Skip> {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return skip(error);
    }
    let kvm = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    if let Err(error) = kvm {
        return skip(format!("/dev/kvm: {error}"));
    }
    let allowed = affinity(Tid(std::process::id())).unwrap();
    let mut pcpus = allowed.iter().map(|pcpu| pcpu.to_string());
    match (pcpus.next(), pcpus.next()) {
        (Some(one), Some(two)) => Ok([one, two]),
        _ => skip("it takes two pCPUs"),
    }
}

/// What a look finds.
fn why() -> Value {
    let interval = SECONDS.to_string();
    let output = tandem(&["host", "why", "--json", "--interval", &interval]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn pcpus_used(time: &Value) -> f64 {
    time.as_f64().unwrap_or_default() / (SECONDS * 1e9)
}

/// What may take time in a calm look beside its VMs.
#[derive(Default)]
struct Allowed {
    /// This process.
    burner: Option<u32>,
    /// Whatever is in no account.
    unseen: bool,
}

/// Whether nobody but these VMs and what is allowed took much.
fn is_calm(found: &Value, vms: &[&str], allowed: &Allowed) -> bool {
    let only_ours = found["vms"]
        .as_array()
        .unwrap()
        .iter()
        .all(|vm| vms.contains(&vm.as_str().unwrap()));
    let host = &found["host"];
    let tasks = host["top_tasks"].as_array().unwrap();
    let of_burner: f64 = tasks
        .iter()
        .filter(|task| allowed.burner.is_some_and(|pid| task["pid"] == pid))
        .map(|task| pcpus_used(&task["time"]))
        .sum();
    let all = ["vcpus", "vm_threads", "tasks", "kernel", "idle"];
    let seen: f64 = all.iter().map(|what| pcpus_used(&host[what])).sum();
    // Tasks that ended within the look, and what a hypervisor below took, are in no account.
    let unseen = match allowed.unseen {
        true => 0.0,
        false => (host["pcpus"].as_f64().unwrap() - seen).max(0.0),
    };
    let others = pcpus_used(&host["tasks"]) - of_burner + pcpus_used(&host["kernel"]) + unseen;
    only_ours && others < CALM
}

/// The findings of the first of these VMs in a look that is calm but for a process.
fn look(vms: &[&str], burner: Option<u32>) -> Result<Vec<Value>, Skip> {
    let allowed = Allowed {
        burner,
        ..Allowed::default()
    };
    look_allowing(vms, &allowed)
}

/// The findings of the first of these VMs in a calm look.
fn look_allowing(vms: &[&str], allowed: &Allowed) -> Result<Vec<Value>, Skip> {
    for _ in 0..LOOKS {
        let found = why();
        assert_eq!(found["schema"], 1);
        if is_calm(&found, vms, allowed) {
            let findings = found["findings"].as_array().unwrap();
            let of_vm = findings.iter().filter(|finding| finding["vm"] == vms[0]);
            return Ok(of_vm.cloned().collect());
        }
    }
    skip("others use this host all the time")
}

fn kinds(findings: &[Value]) -> Vec<&str> {
    findings
        .iter()
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect()
}

fn stacked_vcpus_are_found_and_nothing_is_once_they_are_apart() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let name = name('s');
    let burn = ["--vcpus", "2", "--workload", "burn", "--pin"];
    let vm = start_vm(&name, &[burn.as_slice(), &[&one]].concat());
    let findings = look(&[&name], None)?;
    assert_eq!(kinds(&findings), ["stacked"], "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!(
        (0.8e9..=1.05e9).contains(&lost),
        "each waits half of the time: {lost}"
    );
    // The cure is what it says: with it, nothing is found.
    for command in findings[0]["cure"]["commands"].as_array().unwrap() {
        let command = command.as_str().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let ["sudo", program, rest @ ..] = &words[..] else {
            panic!("{command}")
        };
        match Command::new(program).args(rest).output() {
            Ok(output) => assert!(output.status.success(), "{command}"),
            Err(error) => return skip(format!("{program}: {error}")),
        }
    }
    // Where both may go the balancer moves one, and takes its time.
    let begin = Instant::now();
    while ran_on(&vcpus(&vm)[0]) == ran_on(&vcpus(&vm)[1]) {
        assert!(begin.elapsed() < PATIENCE, "they stay stacked");
        sleep(Duration::from_millis(10));
    }
    let findings = look(&[&name], None)?;
    assert!(findings.is_empty(), "{findings:#?}");
    drop(vm);
    let _apart = start_vm(
        &name,
        &[burn.as_slice(), &[&format!("{one},{two}")]].concat(),
    );
    let findings = look(&[&name], None)?;
    assert!(findings.is_empty(), "{findings:#?}");
    Ok(())
}

/// The pCPU on which a thread ran last, field 39 of its `stat`.
fn ran_on(thread: &ThreadRef) -> String {
    let stat = ProcFs::host().task(thread.pid, thread.tid).join("stat");
    let stat = std::fs::read_to_string(stat).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    after_name.split_whitespace().nth(36).unwrap().to_owned()
}

/// The threads of a VM's vCPUs.
fn vcpus(vm: &Guard) -> Vec<ThreadRef> {
    let pid = Pid(vm.0.id());
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut vcpus: Vec<ThreadRef> = tasks
        .filter_map(|task| {
            let path = task.unwrap().path();
            let is_vcpu = std::fs::read_to_string(path.join("comm"))
                .unwrap()
                .contains("/vcpu");
            let tid = path.file_name()?.to_str()?.parse().ok()?;
            is_vcpu.then(|| ThreadRef::read(&ProcFs::host(), pid, Tid(tid)).unwrap())
        })
        .collect();
    vcpus.sort_unstable();
    vcpus
}

/// A fifth of a pCPU.
const FIFTH: Quota = Quota {
    quota_us: 20_000,
    period_us: 100_000,
};

/// Cgroups for the vCPUs of a VM, each within the one before and with a quota. All goes when the actuator does.
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
        // So the outer one is seen to be the VM's, too.
        let main = ThreadRef::of_process(&ProcFs::host(), Pid(vm.0.id()))?;
        actuator.move_thread(&main, &groups[0])?;
    }
    Ok((actuator, groups))
}

fn a_quota_is_found() -> Result<(), Skip> {
    let [one, _] = pcpus()?;
    let name = name('q');
    let vm = start_vm(&name, &["--workload", "burn", "--pin", &one]);
    let state = tempfile::tempdir().unwrap();
    let (mut actuator, groups) = match limit(&vm, &[format!("why-{name}")], state.path()) {
        Ok(limited) => limited,
        Err(error) => return skip(error),
    };
    let findings = look(&[&name], None)?;
    assert_eq!(kinds(&findings).first(), Some(&"quota"), "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.6e9..=0.9e9).contains(&lost), "80 % are withheld: {lost}");
    actuator.set_quota(&groups[0], None).unwrap();
    let findings = look(&[&name], None)?;
    assert!(!kinds(&findings).contains(&"quota"), "{findings:#?}");
    Ok(())
}

fn a_spinning_vm_beside_one_that_computes_is_told_of_turns() -> Result<(), Skip> {
    let [one, two] = pcpus()?;
    let (spin, burn) = (name('p'), name('b'));
    let both = format!("{one},{two}");
    let pinned = ["--vcpus", "2", "--pin", &both, "--workload"];
    let barrier = ["barrier", "--set", "wait=spin"];
    let _spin = start_vm(&spin, &[pinned.as_slice(), &barrier].concat());
    let burner = start_vm(&burn, &[pinned.as_slice(), &["burn"]].concat());
    let findings = look(&[&spin, &burn], None)?;
    assert_eq!(kinds(&findings), ["turns"], "{findings:#?}");
    let command = findings[0]["cure"]["commands"][0].as_str().unwrap();
    assert!(
        command.contains(&format!("--select-name {spin} --select-name {burn}")),
        "{command}"
    );
    drop(burner);
    let findings = look(&[&spin], None)?;
    // What else takes time on this host may be found besides.
    let turns = kinds(&findings).contains(&"turns");
    assert!(!turns, "alone it gains nothing: {findings:#?}");
    Ok(())
}

fn a_host_process_that_burns_is_named() -> Result<(), Skip> {
    let [one, _] = pcpus()?;
    let name = name('h');
    let _vm = start_vm(&name, &["--workload", "burn", "--pin", &one]);
    let burner = Command::new("taskset")
        .args(["-c", &one, "sh", "-c", "while :; do :; done"])
        .spawn();
    let burner = match burner {
        Ok(child) => Guard(child),
        Err(error) => return skip(format!("taskset: {error}")),
    };
    let pid = burner.0.id();
    let findings = look(&[&name], Some(pid))?;
    assert_eq!(kinds(&findings), ["host-process"], "{findings:#?}");
    let evidence = findings[0]["evidence"].to_string();
    assert!(evidence.contains(&format!("process {pid}")), "{evidence}");
    Ok(())
}

fn a_quiet_host_has_no_findings() -> Result<(), Skip> {
    pcpus()?;
    let name = name('i');
    let _vm = start_vm(&name, &["--vcpus", "2", "--workload", "bursty"]);
    let findings = look(&[&name], None)?;
    assert!(findings.is_empty(), "{findings:#?}");
    let output = tandem(&["host", "why", &name, "--interval", "0.5"]);
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
    Ok(())
}

/// Whether there are so many VMs that only some are named.
fn names_some(said: &str) -> bool {
    said.trim_end().ends_with(" more")
}

fn an_unknown_vm_is_an_error_that_names_what_there_is() -> Result<(), Skip> {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return skip(error);
    }
    let name = name('k');
    let vm = start_vm(&name, &["--workload", "bursty", "--backend", "threads"]);
    let pid = vm.0.id().to_string();
    let output = tandem(&[
        "host",
        "why",
        "nosuch",
        "--interval",
        "0.05",
        "--without-kvm",
        &pid,
    ]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = text(&output.stderr);
    assert!(
        said.contains("no VM is called 'nosuch'") && (said.contains(&name) || names_some(said)),
        "{said}"
    );
    Ok(())
}
