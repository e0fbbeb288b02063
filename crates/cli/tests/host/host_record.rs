//! `tandem host record` and `tandem host replay` through the real binary, with a microVM, or plain threads without KVM.

use tandem_testing::{browser, vm as vm_support};

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tandem_linux::{ProcFs, cgroup};
use tandem_report::perfetto::message;
use tempfile::TempDir;

use vm_support::{Guard, start_vm};

fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    tandem(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command, checks that it succeeds, and returns its JSON.
fn json(args: &[&str]) -> Value {
    let output = output(args);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command, checks that it fails, and returns its error.
fn error(args: &[&str]) -> String {
    let output = output(args);
    assert!(!output.status.success(), "{args:?}: {output:?}");
    let said = text(&output.stderr).to_owned();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    said
}

/// Sends a signal, and waits for the exit.
fn end(guard: &mut Guard, signal: Signal) -> std::process::ExitStatus {
    kill_process(Pid::from_child(&guard.0), signal).unwrap();
    guard.0.wait().unwrap()
}

/// Starts a VM with two computing vCPUs, and waits until they run.
fn computing_vm(name: &str) -> Guard {
    let backend = if Path::new("/dev/kvm").exists() { "kvm" } else { "threads" };
    println!("the VM's backend: {backend}");
    let args = ["--vcpus", "2", "--backend", backend, "--workload", "burn"];
    start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &args)
}

/// Starts a recorder of short intervals, and waits until it has written some.
fn start_recorder(record: &str) -> Guard {
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let interval = ["--interval", "0.1", "--without-kvm", &user];
    let args = [["host", "record", "-o", record].as_slice(), &interval].concat();
    let child = tandem(&args).stderr(Stdio::null()).spawn().unwrap();
    let guard = Guard(child);
    let deadline = Instant::now() + Duration::from_secs(60);
    while journal_lines(record) < 5 {
        assert!(Instant::now() < deadline, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(20));
    }
    guard
}

fn journal(record: &str) -> PathBuf {
    Path::new(record).join("0000000000.jsonl")
}

fn journal_lines(record: &str) -> usize {
    std::fs::read_to_string(journal(record)).map_or(0, |text| text.matches('\n').count())
}

/// Returns whether this machine permits measuring VMs; if not, prints the reason.
fn runs_here(test: &str) -> bool {
    match cgroup::open(&ProcFs::host()) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {test}: {error}");
            false
        }
    }
}

fn place(dir: &TempDir) -> String {
    dir.path().join("record").to_str().unwrap().to_owned()
}

/// Checks that the sum of each VM's times is its wall time.
fn assert_whole(top: &Value) {
    for vm in top["vms"].as_array().unwrap() {
        let times = vm["times"].as_object().unwrap();
        let states = ["run", "poll", "vmm", "ready", "limited", "costop", "halted"];
        let measured: u64 = states.iter().filter_map(|state| times[*state].as_u64()).sum();
        assert_eq!(Some(measured), times["wall"].as_u64(), "{vm:#}");
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn replay_shows_the_recorded_vm() {
    if !runs_here("replay_shows_the_recorded_vm") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (record, name) = (place(&dir), format!("r{}", std::process::id()));
    let _vm = computing_vm(&name);
    let length = ["--duration", "2s", "--interval", "250ms"];
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let named = ["--without-kvm", &user];
    let recorded = ["host", "record", "-o", &record];
    let recorded = output(&[recorded.as_slice(), &length, &named].concat());
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let listing = json(&["host", "replay", &record, "--list", "--json"]);
    let intervals = listing["intervals"].as_u64().unwrap();
    assert!((2..=9).contains(&intervals), "{listing:#}");
    assert_eq!(listing["complete"], true);
    assert_eq!((&listing["failed"], &listing["damaged"]), (&0.into(), &serde_json::json!([])));
    let vms = listing["vms"].as_array().unwrap();
    assert!(vms.iter().any(|vm| vm["name"] == *name), "{listing:#}");

    let select = ["--json", &name];
    let replay = |more: &[&str]| {
        let args = ["host", "replay", &record];
        json(&[args.as_slice(), &select, more].concat())
    };
    let whole = replay(&[]);
    assert_whole(&whole);
    let vm = &whole["vms"][0];
    assert_eq!(vm["vcpus"].as_array().unwrap().len(), 2);
    assert!(vm["times"]["run"].as_u64() > Some(0), "it computes: {vm:#}");
    let seconds = whole["seconds"].as_f64().unwrap();
    assert!((1.5..20.0).contains(&seconds), "{seconds}");
    // The sum of the parts is the whole.
    let run = |top: &Value| top["vms"][0]["times"]["run"].as_u64().unwrap();
    let first = replay(&["--at", "+0s"]);
    assert_whole(&first);
    assert!(run(&first) < run(&whole));
    let last = replay(&["--at=-0s"]);
    assert!(last["start"].as_u64() > first["start"].as_u64());

    let shown = output(&["host", "replay", &record, "--vcpus", &name]);
    let shown = text(&shown.stdout);
    let of_vm = shown.lines().filter(|line| line.starts_with(&name));
    assert_eq!(of_vm.count(), 1, "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("  ")).count(), 2);
    // `why`, from the same record, with the settings at that time.
    let why = replay(&["--why"]);
    assert_eq!(why["vms"], serde_json::json!([name]));
    let not: Vec<&str> = why["not_looked_for"]
        .as_array()
        .unwrap()
        .iter()
        .map(|not| not["want"].as_str().unwrap())
        .collect();
    assert!(not.iter().all(|want| !want.contains("has no settings")), "{not:?}");
    let said = output(&["host", "replay", &record, "--why"]);
    assert!(text(&said.stdout).starts_with("recorded from 2"), "{said:?}");
    // The page.
    let page = dir.path().join("page.html");
    let args = ["host", "replay", &record, "--html", page.to_str().unwrap()];
    assert!(output(&args).status.success());
    browser::check_if_there(&page);
    let page = std::fs::read_to_string(page).unwrap();
    for expected in [&format!("{name}: states over time"), "All the time, by VM", "RDY"] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains("http"), "it refers to nothing outside itself");
    assert!(error(&["host", "replay", &record, "no*"]).contains("matches 'no*'"));
    let past = error(&["host", "replay", &record, "--at", "2001-01-01T00:00:00Z"]);
    assert!(past.contains("no interval at that time"), "{past}");
}

#[test]
#[ignore = "needs root and KVM"]
fn killed_recorder_leaves_a_readable_record() {
    if !runs_here("killed_recorder_leaves_a_readable_record") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let record = place(&dir);
    let mut recorder = start_recorder(&record);
    let written = journal_lines(&record) as u64;
    let busy = error(&["host", "record", "-o", &record]);
    assert!(busy.contains("another recorder writes"), "{busy}");
    end(&mut recorder, Signal::KILL);
    let listing = json(&["host", "replay", &record, "--list", "--json"]);
    assert!(listing["intervals"].as_u64() >= Some(written), "{listing:#}");
    assert_eq!(listing["complete"], false);
    assert_eq!(listing["written"], false);
    assert_whole(&json(&["host", "replay", &record, "--json"]));
    let again = error(&["host", "record", "-o", &record]);
    assert!(again.contains("holds a record already"), "{again}");
}

#[test]
#[ignore = "needs root and KVM"]
fn stopped_recorder_leaves_a_complete_record() {
    if !runs_here("stopped_recorder_leaves_a_complete_record") {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let record = place(&dir);
        let mut recorder = start_recorder(&record);
        assert!(end(&mut recorder, signal).success());
        assert!(!journal(&record).exists(), "all is in a segment");
        let listing = json(&["host", "replay", &record, "--list", "--json"]);
        assert_eq!(listing["complete"], true);
        assert!(listing["intervals"].as_u64() >= Some(5));
    }
}

#[test]
#[ignore = "needs root and KVM"]
fn damaged_record_is_shown_in_part() {
    if !runs_here("damaged_record_is_shown_in_part") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let record = place(&dir);
    let mut recorder = start_recorder(&record);
    end(&mut recorder, Signal::KILL);
    let lines = std::fs::read_to_string(journal(&record)).unwrap();
    let broken = lines.replacen("\"number\":1,", "\"number\":x,", 1);
    assert_ne!(lines, broken);
    std::fs::write(journal(&record), broken).unwrap();
    let replayed = output(&["host", "replay", &record, "--json"]);
    let said = text(&replayed.stderr);
    assert_eq!(replayed.status.code(), Some(4), "{said}");
    assert!(said.contains("0000000000.jsonl is damaged: line 2: "), "{said}");
    assert!(said.contains("1 interval is lost, number 1"), "{said}");
    assert_whole(&serde_json::from_slice(&replayed.stdout).unwrap());
    let listing = output(&["host", "replay", &record, "--list"]);
    assert_eq!(listing.status.code(), Some(4));
    let listing = text(&listing.stdout);
    assert!(listing.contains("cut off") && listing.contains("cannot be read: "), "{listing}");
    assert!(listing.contains("gap from "), "{listing}");
}

#[test]
#[ignore = "needs root and KVM"]
fn trace_is_written_or_requirements_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (trace, page) = (file("host.perfetto"), file("page.html"));
    let name = format!("t{}", std::process::id());
    let _vm = computing_vm(&name);
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let args = ["host", "record", "--trace", "0.5", "-o", &trace, "--html", &page];
    let traced = output(&[args.as_slice(), &["--without-kvm", &user]].concat());
    let said = text(&traced.stderr);
    if !traced.status.success() {
        assert!(said.contains("a trace needs BPF programs: "), "{said}");
        println!("skipped: the rest: {said}");
        return;
    }
    let bytes = std::fs::read(&trace).unwrap();
    let read = message::Trace::decode(&bytes[..]).unwrap();
    let tracks: Vec<String> = read
        .packet
        .into_iter()
        .filter_map(|packet| match packet.data {
            Some(message::Data::TrackDescriptor(track)) => track.name,
            _ => None,
        })
        .collect();
    for expected in ["Host", "pCPU 0", &format!("VM {name}"), "vCPU 1"] {
        assert!(tracks.iter().any(|track| track == expected), "{expected}: {tracks:?}");
    }
    browser::check_if_there(page.as_ref());
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains(&format!("{name}: states over time")));
    let both = error(&["host", "record", "--trace", "1", "-o", &trace, "--for", "1s"]);
    assert!(both.contains("--trace") && both.contains("--for"), "{both}");
}

/// Records to a file system with 24 KiB left, in its own mount namespace.
#[test]
#[ignore = "needs root and KVM"]
fn record_on_a_full_disk_is_readable() {
    let test = "record_on_a_full_disk_is_readable";
    if !runs_here(test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=200k none \"$1\" || exit 77
        head -c 176k /dev/zero >\"$1/rest\" || exit 77
        timeout 60 \"$2\" host record -o \"$1/record\" --interval 0.05 2>&1 && exit 1
        \"$2\" host replay \"$1/record\" --list";
    let command = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([dir.path().as_os_str(), env!("CARGO_BIN_EXE_tandem").as_ref()])
        .output();
    let output = match command {
        Ok(output)
            if output.status.code() == Some(77) || text(&output.stderr).contains("unshare") =>
        {
            println!("skipped: {test}: {}", text(&output.stderr));
            return;
        }
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {test}: unshare: {error}");
            return;
        }
    };
    let said = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("stays readable"), "{said}");
    assert!(said.contains("intervals,"), "and it is read: {said}");
}

#[test]
#[ignore = "needs root and KVM"]
fn invalid_requests_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    let folder = dir.path().to_str().unwrap();
    for (args, needles) in [
        (&["replay", file][..], &["file is not a record", "no folder"][..]),
        (&["replay", folder], &["has no record.json", "tandem host record"]),
        (&["replay", "/nowhere/x"], &["cannot read /nowhere/x"]),
        (&["replay", file, "--at", "noon"], &["noon", "--at", "+90s"]),
        (&["replay", file, "--list", "--at", "+1s"], &["--list", "--at"]),
        (&["replay", file, "--at", "+1s", "--from", "+2s"], &["--at", "--from"]),
        (&["record", "-o", file, "--max-size", "3K"], &["--max-size", "1M at least"]),
        (&["record", "-o", file, "--duration", "soon"], &["--duration", "90s"]),
        (&["record", "-o", file, "--interval", "0"], &["--interval", "50ms"]),
        (&["record"], &["--output <FOLDER>"]),
    ] {
        let said = error(&[&["host"], args].concat());
        for needle in needles {
            assert!(said.contains(needle), "{args:?}: '{needle}' is not in: {said}");
        }
    }
    if runs_here("invalid_requests_are_rejected") {
        let said = error(&["host", "record", "-o", file]);
        assert!(said.contains("is no empty folder"), "{said}");
        assert_eq!(std::fs::read(file).unwrap(), b"text");
    }
}
