//! `tandem host top` and `tandem host list` through the real binary, with a VM of plain threads.

use tandem_testing::vm as vm_support;

use std::process::{Command, Output};

use serde_json::Value;
use tandem_linux::{ProcFs, cgroup};

use vm_support::{Guard, start_vm};

/// Returns a unique name of a VM, with at most 8 characters.
fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

fn tandem(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Starts a VM with three computing vCPUs, and waits until they run.
fn computing_vm(name: &str) -> Guard {
    let args = ["--vcpus", "3", "--workload", "burn", "--backend", "threads"];
    start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &args)
}

/// Returns the option that identifies the vCPUs of a VM of plain threads.
fn named(vm: &Guard) -> [String; 2] {
    ["--without-kvm".to_owned(), vm.0.id().to_string()]
}

/// Returns whether this machine permits reading weights; if not, prints the reason.
fn runs_here(test: &str) -> bool {
    match cgroup::open(&ProcFs::host()) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {test}: {error}");
            false
        }
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn top_shows_the_states_of_a_vm() {
    if !runs_here("top_shows_the_states_of_a_vm") {
        return;
    }
    let name = name('t');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let select = [option, pid, &name, "--once", "--interval", "0.5s"];
    let output = tandem(&[["host", "top", "--json"].as_slice(), &select].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1, "a document is one line");
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(top["schema"], 2);
    let vm = &top["vms"][0];
    assert_eq!(vm["name"], *name);
    assert_eq!(vm["vcpus"].as_array().unwrap().len(), 3);
    let times = vm["times"].as_object().unwrap();
    let of = |state: &str| times[state].as_u64();
    let states = ["run", "poll", "vmm", "ready", "limited", "costop", "halted"];
    let measured: u64 = states.iter().filter_map(|state| of(state)).sum();
    assert_eq!(Some(measured), of("wall"), "{vm:#}");
    assert!(of("run") > Some(0), "it computes: {vm:#}");
    assert_eq!(of("costop"), None);
    let missing = top["missing"].as_array().unwrap();
    assert!(missing.iter().any(|missing| missing["what"] == "costop"));

    let output = tandem(&[["host", "top", "--vcpus"].as_slice(), &select].concat());
    let shown = text(&output.stdout);
    assert!(output.status.success() && !shown.contains('\x1b'), "{shown}");
    assert!(shown.starts_with("POLL not measured"), "notes come first: {shown}");
    let of_vm = shown.lines().filter(|line| line.starts_with(&name)).count();
    let of_vcpus = shown.lines().filter(|line| line.starts_with("  ")).count();
    assert_eq!((of_vm, of_vcpus), (1, 3), "{shown}");
    assert!(shown.contains(" pCPUs over "), "{shown}");
}

#[test]
#[ignore = "needs root and KVM"]
fn list_has_a_line_per_vm() {
    if !runs_here("list_has_a_line_per_vm") {
        return;
    }
    let name = name('s');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let output = tandem(&["host", "list", option, pid, &name]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let line: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..3], [name.as_str(), pid.as_str(), "3"], "{shown}");
    let output = tandem(&["host", "list", "--json", option, pid, pid]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["vms"][0]["uid"], rustix::process::getuid().as_raw());
    let excluded = tandem(&["host", "list", "--json", option, pid, &name, "--exclude", pid]);
    assert_eq!(excluded.status.code(), Some(3), "{}", text(&excluded.stdout));
}

#[test]
#[ignore = "needs root and KVM"]
fn selection_without_a_match_is_an_error() {
    if !runs_here("selection_without_a_match_is_an_error") {
        return;
    }
    for command in [&["top", "--interval", "50ms"][..], &["list"]] {
        let output = tandem(&[&["host"], command, &["nosuch*", "/nosuch"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {said}");
        assert!(said.contains(" VMs match 'nosuch*' or '/nosuch'"), "{said}");
        assert!(output.stdout.is_empty(), "{command:?}");
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn bpf_measures_or_names_plain() {
    let test = "bpf_measures_or_names_plain";
    if !runs_here(test) {
        return;
    }
    let name = name('b');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let select = [option, pid, &name, "--once", "--interval", "0.5s"];
    let bpf = ["host", "top", "--source", "bpf", "--json"];
    let output = tandem(&[bpf.as_slice(), &select].concat());
    let said = text(&output.stderr);
    if !output.status.success() {
        assert!(said.contains("--source plain measures without BPF"), "{said}");
        println!("skipped: {test}: {said}");
        return;
    }
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(top["source"], "bpf");
    let vm = &top["vms"][0];
    assert_eq!(vm["name"], name.as_str());
    let times = &vm["times"];
    let wall = times["wall"].as_u64().unwrap();
    // Three computing vCPUs are always on a pCPU or ready.
    let part = |state: &str| times[state].as_u64().unwrap_or(0) as f64 / wall as f64;
    let busy = part("run") + part("vmm") + part("ready");
    assert!(busy > 0.99, "{busy} of {times}");
}
