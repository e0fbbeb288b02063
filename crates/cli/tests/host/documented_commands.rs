//! Runs the `tandem` commands of shell blocks in documents, each in a temporary folder, except those of [`NOT_RUN`].
//!
//! The test provides a VM called `db-1`, as in the documents, and a record of it.
//! Commands of `tandem host` need `/dev/kvm` and root.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tandem_testing::documents::in_blocks;

/// Prefixes of commands that the test does not run, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("tandem guest", "needs the reader's program; tests/guest.rs and tests/host/guest_record.rs"),
    ("tandem host check", "measures on pCPUs that must be free; tests/host/host_check.rs"),
    ("tandem host run --select-all", "selects all VMs of this machine"),
    ("tandem host run --config", "uses installed settings; scripts/test-deb"),
    ("tandem host run '/", "selects cgroups of other platforms"),
    ("tandem host top '/kubepods.slice/*'", "selects cgroups of Kubernetes"),
    ("tandem host why '$(cat", "names a process of Proxmox"),
    ("tandem host why db-1 --try", "measures for 15 s or more; tests/host_why.rs"),
    ("tandem host pause", "needs a running service"),
    ("tandem host resume", "needs a running service"),
    ("tandem host status", "needs a running service"),
    ("tandem host restore", "reverts changes of other tests; tests/vm_cgroup_v2.rs"),
    ("tandem host record --trace", "needs BPF; tests/trace_perfetto.rs"),
    ("tandem host record -o night", "the same as the one to /var/tmp/night"),
    ("tandem host replay /var/tmp/night --at", "names a time of another record"),
    ("tandem host replay /var/tmp/night --from", "names a time span of another record"),
];

/// Prefixes of commands that run until a signal. The test sends SIGTERM, because SIGINT may be ignored.
const ENDLESS: &[&str] = &["tandem host export", "tandem host record", "tandem host run"];

/// `host top` without a terminal runs until a signal.
fn is_endless(line: &str) -> bool {
    let is_top = line.starts_with("tandem host top") && !line.contains("--once");
    is_top || ENDLESS.iter().any(|begin| line.starts_with(begin))
}

/// Returns the words of a command as in a shell, with quoted globs.
fn quoted(words: &[String]) -> String {
    let word = |word: &String| {
        if word.contains(['*', '?', ' ']) { format!("'{word}'") } else { word.clone() }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn tandem(folder: &Path, words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    let there = |word: &String| word.replace("/var/tmp/night", "FOLDER");
    command.args(words.iter().map(there)).current_dir(folder).stdin(Stdio::null());
    command
}

fn stop(child: &Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        stop(&self.0);
        let _ = self.0.wait();
    }
}

/// Runs a command and returns the error, if there is one.
fn run(folder: &Path, words: &[String]) -> Option<String> {
    let line = words.join(" ");
    let (out, said) = (folder.join("out"), folder.join("said"));
    let mut command = tandem(folder, &words[1..]);
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    if is_endless(&line) {
        sleep(Duration::from_secs(2));
        stop(&child);
    }
    let began = Instant::now();
    let status = child.wait().unwrap();
    println!("{line}: {status}, {:.1} s", began.elapsed().as_secs_f64());
    // The signal may terminate a command without changes to revert.
    let is_right = status.success() || (is_endless(&line) && status.code().is_none());
    (!is_right).then(|| format!("{line}: {status}: {}", std::fs::read_to_string(said).unwrap()))
}

/// Starts a VM called db-1 and waits until Tandem finds it.
fn vm(folder: &Path) -> Option<Running> {
    if !rustix::process::geteuid().is_root() || File::open("/dev/kvm").is_err() {
        return None;
    }
    let words =
        ["vm", "run", "--name", "db-1", "--vcpus", "2", "--workload", "burn", "--seconds", "300"];
    let mut command = tandem(folder, &words.map(str::to_owned));
    let vm = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    let list = ["host", "list", "db-1"];
    while Instant::now() < end {
        let mut command = tandem(folder, &list.map(str::to_owned));
        if command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success() {
            return Some(vm);
        }
        sleep(Duration::from_millis(100));
    }
    None
}

#[test]
#[ignore = "needs root and KVM"]
fn documented_commands_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some(_vm) = vm(folder) else {
        println!("skipped: commands of documents: needs root and /dev/kvm");
        return;
    };
    let (mut wrong, mut ran) = (Vec::new(), BTreeSet::new());
    let mut unused: BTreeSet<&str> = NOT_RUN.iter().map(|(begin, _)| *begin).collect();
    for shown in in_blocks().into_iter().filter(|shown| shown.words[0] == "tandem") {
        let line = quoted(&shown.words);
        if let Some((begin, _)) = NOT_RUN.iter().find(|(begin, _)| line.starts_with(begin)) {
            unused.remove(begin);
        } else if ran.insert(line) {
            let error = run(folder, &shown.words);
            wrong.extend(error.map(|error| format!("{}: {error}", shown.document)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran.len() >= 5, "only {} commands were run", ran.len());
    assert!(unused.is_empty(), "no document shows these entries of NOT_RUN: {unused:?}");
}
