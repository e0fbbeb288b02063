//! `tandem host top` and `tandem host status` from outside, beside a VM of plain threads.

mod vm_support;

use std::process::Command;
use std::process::Output;

use serde_json::Value;
use tandem_linux::ProcFs;
use tandem_linux::cgroup;

use vm_support::Guard;
use vm_support::start_vm;

/// A name that no other VM has; at most 8 characters.
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

/// A VM of three vCPUs that compute, once they do.
fn computing_vm(name: &str) -> Guard {
    let args = ["--vcpus", "3", "--workload", "burn", "--backend", "threads"];
    start_vm(name, &args)
}

/// VMs of plain threads hold no KVM vCPUs: they are named.
fn named(vm: &Guard) -> [String; 2] {
    ["--without-kvm".to_owned(), vm.0.id().to_string()]
}

/// Whether this machine lets weights be read; if not, says why.
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
fn top_shows_where_the_time_of_a_vm_goes() {
    if !runs_here("top_shows_where_the_time_of_a_vm_goes") {
        return;
    }
    let name = name('t');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let select = [
        option,
        pid,
        "--select-name",
        &name,
        "--once",
        "--interval",
        "0.5",
    ];
    let output = tandem(&[["host", "top", "--json"].as_slice(), &select].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout).lines().count(),
        1,
        "a document is a line"
    );
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
    assert!(
        output.status.success() && !shown.contains('\x1b'),
        "{shown}"
    );
    assert!(
        shown.starts_with("POLL not measured"),
        "notes come first: {shown}"
    );
    let of_vm = shown.lines().filter(|line| line.starts_with(&name)).count();
    let of_vcpus = shown.lines().filter(|line| line.starts_with("  ")).count();
    assert_eq!((of_vm, of_vcpus), (1, 3), "{shown}");
    assert!(shown.contains(" pCPUs over "), "{shown}");
}

#[test]
fn status_has_a_line_per_vm_and_with_vcpus_one_per_vcpu() {
    if !runs_here("status_has_a_line_per_vm_and_with_vcpus_one_per_vcpu") {
        return;
    }
    let name = name('s');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let select = [
        "host",
        "status",
        option,
        pid,
        "--interval",
        "0.1",
        "--select-name",
        &name,
    ];
    let lines = |more: &[&str]| {
        let output = tandem(&[select.as_slice(), more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().count()
    };
    assert_eq!(lines(&[]), 3, "headings, the VM, what is idle");
    assert_eq!(lines(&["--vcpus"]), 6);
}

#[test]
fn a_selection_that_matches_nothing_is_an_error() {
    if !runs_here("a_selection_that_matches_nothing_is_an_error") {
        return;
    }
    for command in ["top", "status"] {
        let args = ["host", command, "--interval", "0.05", "--select-name"];
        let output =
            tandem(&[args.as_slice(), &["nosuch*", "--select-cgroup", "/nosuch"]].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{command}");
        assert!(said.contains(" VMs match 'nosuch*' or '/nosuch'"), "{said}");
        assert!(output.stdout.is_empty(), "{command}");
    }
}

#[test]
fn bpf_measures_the_same_vm_or_says_what_would_do() {
    let test = "bpf_measures_the_same_vm_or_says_what_would_do";
    if !runs_here(test) {
        return;
    }
    let name = name('b');
    let vm = computing_vm(&name);
    let [option, pid] = &named(&vm);
    let select = [
        option,
        pid,
        "--select-name",
        &name,
        "--once",
        "--interval",
        "0.5",
    ];
    let bpf = ["host", "top", "--source", "bpf", "--json"];
    let output = tandem(&[bpf.as_slice(), &select].concat());
    let said = text(&output.stderr);
    if !output.status.success() {
        assert!(
            said.contains("--source plain measures without BPF"),
            "{said}"
        );
        println!("skipped: {test}: {said}");
        return;
    }
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(top["source"], "bpf");
    let vm = &top["vms"][0];
    assert_eq!(vm["name"], name.as_str());
    let times = &vm["times"];
    let wall = times["wall"].as_u64().unwrap();
    // Three vCPUs that compute are always on a pCPU or wait for one.
    let part = |state: &str| times[state].as_u64().unwrap_or(0) as f64 / wall as f64;
    let busy = part("run") + part("vmm") + part("ready");
    assert!(busy > 0.99, "{busy} of {times}");
}
