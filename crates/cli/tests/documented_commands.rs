//! A reader who pastes the commands of the documents gets what they promise: those of shell blocks are run, in a folder of their own, except
//! those of [`NOT_RUN`], each with its reason. A command that is in no list is run.
//!
//! For `tandem host …` a VM called `db-1` is there, as in the documents, and a record of it. It needs `/dev/kvm` and root.

mod documents;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use documents::in_blocks;
use documents::repository;

/// Beginnings of commands that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("make", "builds and tests everything, this test among it"),
    ("cargo", "builds in release mode, and measures for minutes"),
    (
        "tandem demo",
        "takes a minute for each; tests/demo.rs runs it, shorter",
    ),
    (
        "tandem bench",
        "takes minutes to hours; tests/demo_bench.rs and tests/bench_guest.rs run benches, shorter",
    ),
    (
        "tandem sim kernel",
        "runs threads for minutes on a machine that must be quiet",
    ),
    (
        "tandem sim calibrate",
        "runs VMs for minutes on a machine that must be quiet",
    ),
    (
        "tandem sim compare scenarios/papers/apples.toml",
        "ten runs of a large scenario: minutes in a debug build",
    ),
    (
        "tandem guest run",
        "its program is the reader's; tests/guest.rs runs others",
    ),
    (
        "tandem host check",
        "measures for seconds on pCPUs that must be free; tests/host_check.rs runs it",
    ),
    (
        "tandem host run --select-all --dry-run",
        "looks at every VM of this machine, those of other tests among them",
    ),
    (
        "tandem host run --select-all",
        "changes every VM of this machine",
    ),
    (
        "tandem host run --select-pid",
        "one piece with the VMs that the lines before it start; tests/host_why.rs runs such",
    ),
    (
        "tandem host why db-1 --try",
        "measures for a quarter of a minute or more; tests/host_why.rs tries cures",
    ),
    (
        "tandem host why --try",
        "tries cures on every VM of this machine",
    ),
    (
        "tandem host restore",
        "would end what another test has in force; tests/vm_cgroup_v2.rs runs it",
    ),
    ("tandem host record -o /var/tmp/night", "takes 12 hours"),
    (
        "tandem host record --trace",
        "needs BPF; tests/trace_perfetto.rs runs it",
    ),
    (
        "tandem host replay /var/tmp/night --at",
        "asks for a night that is over",
    ),
    (
        "tandem host replay /var/tmp/night --why",
        "asks for a night that is over",
    ),
    (
        "tandem host scalability db-1 --from",
        "a record of two seconds has no scalability worth a test; tests/host_scalability.rs",
    ),
    ("tandem vm run --name", "started beside the lines behind it"),
    (
        "apt",
        "installs on this machine; scripts/test-deb installs in a Debian 12",
    ),
    ("systemctl", "starts a service of this machine"),
    (
        "tandem host run --config /etc/tandem.toml",
        "the settings that the package brings; scripts/test-deb checks them",
    ),
    ("jq", "no command of ours"),
    ("sleep", "no command of ours"),
    ("wait", "no command of ours"),
    ("cat", "no command of ours"),
];

/// Beginnings of commands that go on until they are stopped. By SIGTERM: a shell may have had SIGINT ignored.
const ENDLESS: &[&str] = &[
    "tandem host export",
    "tandem host record -o FOLDER",
    "tandem host run --select-name",
    "tandem host top --batch",
];

/// Where a pipe takes what a terminal would show, `host top` goes on for ever.
fn is_endless(line: &str) -> bool {
    let is_top = line.starts_with("tandem host top") && !line.contains("--once");
    is_top || ENDLESS.iter().any(|begin| line.starts_with(begin))
}

fn tandem(folder: &Path, words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    let there = |word: &String| word.replace("/var/tmp/night", "FOLDER");
    command
        .args(words.iter().map(there))
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

fn stop(child: &Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        stop(&self.0);
        let _ = self.0.wait();
    }
}

/// Runs a command; what went wrong, if anything.
fn run(folder: &Path, words: &[String]) -> Option<String> {
    let line = words.join(" ");
    let (out, said) = (folder.join("out"), folder.join("said"));
    let mut command = tandem(folder, &words[1..]);
    command
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    if is_endless(&line) {
        sleep(Duration::from_secs(2));
        stop(&child);
    }
    let began = Instant::now();
    let status = child.wait().unwrap();
    println!("{line}: {status}, {:.1} s", began.elapsed().as_secs_f64());
    // Who is stopped while nothing is in force may end by the signal.
    let is_right = status.success() || (is_endless(&line) && status.code().is_none());
    (!is_right).then(|| {
        format!(
            "{line}: {status}: {}",
            std::fs::read_to_string(said).unwrap()
        )
    })
}

/// A VM called db-1, which is there once this returns.
fn vm(folder: &Path) -> Option<Running> {
    if !rustix::process::geteuid().is_root() || File::open("/dev/kvm").is_err() {
        return None;
    }
    let words = [
        "vm",
        "run",
        "--name",
        "db-1",
        "--vcpus",
        "2",
        "--workload",
        "burn",
        "--seconds",
        "300",
    ];
    let mut command = tandem(folder, &words.map(str::to_owned));
    let vm = Running(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let end = Instant::now() + Duration::from_secs(60);
    let status = [
        "host",
        "status",
        "--select-name",
        "db-1",
        "--interval",
        "50ms",
    ];
    while Instant::now() < end {
        let mut command = tandem(folder, &status.map(str::to_owned));
        if command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
        {
            return Some(vm);
        }
        sleep(Duration::from_millis(100));
    }
    None
}

#[test]
fn commands_of_documents_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    symlink(
        repository().join("scenarios").canonicalize().unwrap(),
        folder.join("scenarios"),
    )
    .unwrap();
    let vm = vm(folder);
    let (mut wrong, mut ran, mut unused) = (
        Vec::new(),
        0,
        NOT_RUN
            .iter()
            .map(|(begin, _)| *begin)
            .collect::<BTreeSet<_>>(),
    );
    let mut done = BTreeSet::new();
    for shown in in_blocks() {
        let line = shown.line();
        if !done.insert(line.clone()) {
            continue;
        }
        if let Some((begin, _)) = NOT_RUN.iter().find(|(begin, _)| line.starts_with(begin)) {
            unused.remove(begin);
            continue;
        }
        assert_eq!(
            shown.words[0], "tandem",
            "{}: {line}: not of ours, and in no list",
            shown.document
        );
        if line.starts_with("tandem host") && vm.is_none() {
            println!("not run without root and /dev/kvm: {line}");
            continue;
        }
        ran += 1;
        wrong.extend(run(folder, &shown.words).map(|error| format!("{}: {error}", shown.document)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran >= 5, "only {ran} commands were run");
    assert!(
        unused.is_empty(),
        "in the list of what is not run, and in no document: {unused:?}"
    );
    if vm.is_none() {
        println!("skipped: commands of documents about hosts: needs root and /dev/kvm");
    }
}
