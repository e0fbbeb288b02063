//! `tandem host why` beside real KVM VMs that have what it should find, and one that has nothing.
//!
//! Each look counts only if the rest of the host is calm in it: otherwise what it finds first may truly be somebody else. On a host that is not
//! calm for long the tests are skipped.

mod vm_support;

use std::process::Command;
use std::process::Output;

use serde_json::Value;
use tandem_linux::ProcFs;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::Quota;
use tandem_linux::thread::Tid;

use vm_support::Guard;
use vm_support::start_vm;

/// How long a look takes.
const SECONDS: f64 = 1.5;

/// How many looks are tried for a calm one.
const LOOKS: usize = 25;

/// What others may take of the host while it is calm, in pCPUs.
const CALM: f64 = 0.15;

/// Tests that use all of this machine run one after the other.
static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());

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

/// The first two pCPUs that this machine lets tests use with KVM and cgroups; says why not.
fn pcpus(test: &str) -> Option<[String; 2]> {
    let skip = |why: String| {
        println!("skipped: {test}: {why}");
        None
    };
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return skip(error.to_string());
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
        (Some(one), Some(two)) => Some([one, two]),
        _ => skip("it takes two pCPUs".to_owned()),
    }
}

fn pcpus_used(time: &Value) -> f64 {
    time.as_f64().unwrap() / (SECONDS * 1e9)
}

/// Whether nobody but these VMs and this process took much.
fn is_calm(found: &Value, vms: &[&str], burner: Option<u32>) -> bool {
    let only_ours = found["vms"]
        .as_array()
        .unwrap()
        .iter()
        .all(|vm| vms.contains(&vm.as_str().unwrap()));
    let host = &found["host"];
    let tasks = host["top_tasks"].as_array().unwrap();
    let of_burner: f64 = tasks
        .iter()
        .filter(|task| burner.is_some_and(|pid| task["pid"] == pid))
        .map(|task| pcpus_used(&task["time"]))
        .sum();
    let others = pcpus_used(&host["tasks"]) - of_burner + pcpus_used(&host["kernel"]);
    only_ours && others < CALM
}

/// The findings of one VM in a calm look; says why not.
fn look(test: &str, vms: &[&str], burner: Option<u32>) -> Option<Vec<Value>> {
    for _ in 0..LOOKS {
        let interval = SECONDS.to_string();
        let output = tandem(&["host", "why", "--json", "--interval", &interval]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["schema"], 1);
        if is_calm(&found, vms, burner) {
            println!("{test}: {found:#}");
            let findings = found["findings"].as_array().unwrap();
            let of_vm = findings.iter().filter(|finding| finding["vm"] == vms[0]);
            return Some(of_vm.cloned().collect());
        }
    }
    println!("skipped: {test}: others use this host all the time");
    None
}

fn kinds(findings: &[Value]) -> Vec<&str> {
    findings
        .iter()
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect()
}

#[test]
fn stacked_vcpus_are_found_and_nothing_is_once_they_are_apart() {
    let _machine = MACHINE.lock().unwrap_or_else(|error| error.into_inner());
    let test = "stacked_vcpus_are_found_and_nothing_is_once_they_are_apart";
    let Some([one, two]) = pcpus(test) else {
        return;
    };
    let name = name('s');
    let burn = ["--vcpus", "2", "--workload", "burn", "--pin"];
    let vm = start_vm(&name, &[burn.as_slice(), &[&one]].concat());
    let Some(findings) = look(test, &[&name], None) else {
        return;
    };
    assert_eq!(kinds(&findings), ["stacked"]);
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
            Err(error) => {
                println!("skipped: {test}: {program}: {error}");
                return;
            }
        }
    }
    if let Some(findings) = look(test, &[&name], None) {
        assert!(findings.is_empty(), "{findings:#?}");
    }
    drop(vm);
    let _apart = start_vm(
        &name,
        &[burn.as_slice(), &[&format!("{one},{two}")]].concat(),
    );
    if let Some(findings) = look(test, &[&name], None) {
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

/// A cgroup for the vCPUs of a VM, removed at the end.
struct Group {
    controller: Box<dyn CpuController>,
    cgroup: CgroupPath,
    above: CgroupPath,
}

impl Drop for Group {
    fn drop(&mut self) {
        for tid in self.controller.threads(&self.cgroup).unwrap_or_default() {
            let _ = self.controller.move_thread(tid, &self.above);
        }
        let _ = self.controller.remove(&self.cgroup);
    }
}

/// Puts the vCPUs of a VM into a cgroup with a quota.
fn limit(pid: u32, name: &str) -> Result<Group, Box<dyn std::error::Error>> {
    let controller = cgroup::open(&ProcFs::host())?;
    let process = tandem_linux::thread::ThreadRef::of_process(
        &ProcFs::host(),
        tandem_linux::thread::Pid(pid),
    )?;
    let above = controller.cgroup_of(&process)?;
    controller.check_parent(&above)?;
    let cgroup = controller.create_child(&above, &format!("why-{name}"))?;
    let group = Group {
        controller,
        cgroup,
        above,
    };
    let quota = Quota {
        quota_us: 20_000,
        period_us: 100_000,
    };
    group.controller.set_quota(&group.cgroup, Some(quota))?;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.contains("/vcpu") {
            let tid = path.file_name().unwrap_or_default().to_string_lossy();
            group
                .controller
                .move_thread(Tid(tid.parse()?), &group.cgroup)?;
        }
    }
    Ok(group)
}

#[test]
fn a_quota_is_found() {
    let _machine = MACHINE.lock().unwrap_or_else(|error| error.into_inner());
    let test = "a_quota_is_found";
    let Some([one, _]) = pcpus(test) else { return };
    let name = name('q');
    let vm = start_vm(&name, &["--workload", "burn", "--pin", &one]);
    let group = match limit(vm.0.id(), &name) {
        Ok(group) => group,
        Err(error) => return println!("skipped: {test}: {error}"),
    };
    let Some(findings) = look(test, &[&name], None) else {
        return;
    };
    assert_eq!(kinds(&findings).first(), Some(&"quota"), "{findings:#?}");
    let lost = findings[0]["lost_per_second"].as_f64().unwrap();
    assert!((0.6e9..=0.9e9).contains(&lost), "80 % are withheld: {lost}");
    group.controller.set_quota(&group.cgroup, None).unwrap();
    if let Some(findings) = look(test, &[&name], None) {
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

#[test]
fn a_spinning_vm_beside_one_that_computes_is_told_of_turns() {
    let _machine = MACHINE.lock().unwrap_or_else(|error| error.into_inner());
    let test = "a_spinning_vm_beside_one_that_computes_is_told_of_turns";
    let Some([one, two]) = pcpus(test) else {
        return;
    };
    let (spin, burn) = (name('p'), name('b'));
    let both = format!("{one},{two}");
    let pinned = ["--vcpus", "2", "--pin", &both, "--workload"];
    let barrier = ["barrier", "--set", "wait=spin"];
    let _spin = start_vm(&spin, &[pinned.as_slice(), &barrier].concat());
    let burner = start_vm(&burn, &[pinned.as_slice(), &["burn"]].concat());
    let Some(findings) = look(test, &[&spin, &burn], None) else {
        return;
    };
    assert_eq!(kinds(&findings), ["turns"]);
    let command = findings[0]["cure"]["commands"][0].as_str().unwrap();
    assert!(
        command.contains(&format!("--select-name {spin} --select-name {burn}")),
        "{command}"
    );
    drop(burner);
    if let Some(findings) = look(test, &[&spin], None) {
        assert!(findings.is_empty(), "alone it gains nothing: {findings:#?}");
    }
}

#[test]
fn a_host_process_that_burns_is_named() {
    let _machine = MACHINE.lock().unwrap_or_else(|error| error.into_inner());
    let test = "a_host_process_that_burns_is_named";
    let Some([one, _]) = pcpus(test) else { return };
    let name = name('h');
    let _vm = start_vm(&name, &["--workload", "burn", "--pin", &one]);
    let burner = Command::new("taskset")
        .args(["-c", &one, "sh", "-c", "while :; do :; done"])
        .spawn();
    let burner = match burner {
        Ok(child) => Guard(child),
        Err(error) => return println!("skipped: {test}: taskset: {error}"),
    };
    let pid = burner.0.id();
    let Some(findings) = look(test, &[&name], Some(pid)) else {
        return;
    };
    assert_eq!(kinds(&findings), ["host-process"]);
    let evidence = findings[0]["evidence"].to_string();
    assert!(evidence.contains(&format!("process {pid}")), "{evidence}");
}

#[test]
fn a_quiet_host_has_no_findings() {
    let _machine = MACHINE.lock().unwrap_or_else(|error| error.into_inner());
    let test = "a_quiet_host_has_no_findings";
    if pcpus(test).is_none() {
        return;
    }
    let name = name('i');
    let _vm = start_vm(&name, &["--vcpus", "2", "--workload", "bursty"]);
    let Some(findings) = look(test, &[&name], None) else {
        return;
    };
    assert!(findings.is_empty(), "{findings:#?}");
    let output = tandem(&["host", "why", &name, "--interval", "0.5"]);
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
}

#[test]
fn an_unknown_vm_is_an_error_that_names_what_there_is() {
    if let Err(error) = cgroup::open(&ProcFs::host()) {
        return println!("skipped: an_unknown_vm_is_an_error_that_names_what_there_is: {error}");
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
        said.contains("no VM is called 'nosuch'") && said.contains(&name),
        "{said}"
    );
}
