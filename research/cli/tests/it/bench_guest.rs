//! Runs `tandem-lab bench guest` with the programs that need no package, and without the agent.
//!
//! Checks the form of the figures, the reasons for skipped programs, and that no state is left behind.

#[allow(dead_code, reason = "this bench changes no cgroups itself")]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use std::process::{Child, Command, Output, Stdio};

use tandem_testing::processes::processes_with;

/// Returns a command with these arguments.
fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-lab"));
    command.args(args);
    command
}

/// Runs the program; panics with its error output if it fails.
fn succeed(args: &[&str]) -> Output {
    tandem_testing::processes::succeed(&mut tandem(args))
}

/// Returns whether taskset, which needs neither root nor cgroups, is installed.
fn has_taskset() -> bool {
    let found = Command::new("taskset")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: no taskset; apt-get install util-linux");
    }
    found
}

/// Returns the temporary folders of measurements by process `pid`.
fn folders_of(pid: u32) -> Vec<String> {
    let name = format!("tandem-bench-guest-{pid}-");
    let tmp = std::env::temp_dir();
    [Path::new("/dev/shm"), &tmp]
        .iter()
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()))
        .filter(|found| found.starts_with(&name))
        .collect()
}

const QUICK: [&str; 8] =
    ["bench", "guest", "--runs", "1", "--seconds", "1", "--variants", "taskset"];

fn start(args: &[&str]) -> Child {
    let mut command = tandem(&QUICK);
    command.args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn pair_of_runs_yields_row_table_and_page() {
    if !has_taskset() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (json, page) = (dir.path().join("figures.json"), dir.path().join("page.html"));
    let child = start(&[
        "--program",
        "token-condvar",
        "--json",
        json.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("token-condvar") && table.contains("1 measured, 0 skipped, 0 failed"));
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((&row["program"], &row["variant"]), (&"token-condvar".into(), &"taskset".into()));
    assert_eq!(row["runs"], 1);
    let number = |key: &str| row[key].as_f64().unwrap();
    assert!(number("ci_low") <= number("ratio") && number("ratio") <= number("ci_high"));
    assert!(number("rate") > 0.0 && number("stock_rate") > 0.0 && number("cpu_ratio") > 0.0);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("token-condvar") && !html.contains("http:"));
    assert_eq!(folders_of(pid), Vec::<String>::new());
}

#[test]
fn add_keeps_figures_of_other_programs() {
    if !has_taskset() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("figures.json");
    let path = json.to_str().unwrap();
    for program in ["token-condvar", "token-futex"] {
        let output =
            start(&["--program", program, "--json", path, "--add"]).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["program"].as_str()).collect();
    assert_eq!(names, ["token-futex", "token-condvar"]);
}

#[test]
fn signal_ends_program_and_removes_folder() {
    if !has_taskset() {
        return;
    }
    for signal in [Signal::INT, Signal::TERM] {
        // No other test uses 17 s, so this time identifies the processes.
        let mut child = tandem(&["bench", "guest", "--variants", "taskset", "--seconds", "17"])
            .args(["--program", "token-futex"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let running = || !processes_with("guest-token --by futex --seconds 17").is_empty();
        while !running() {
            assert!(Instant::now() < deadline, "the program did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(folders_of(child.id()).len(), 1);
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success() && status.signal().is_none(), "{status}");
        assert!(!running(), "the program outlived the bench");
        assert_eq!(folders_of(child.id()), Vec::<String>::new());
    }
}

#[test]
fn missing_programs_are_skipped_with_a_reason() {
    let which = |name: &str| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    };
    let (Some(taskset), Some(truth)) = (which("taskset"), which("true")) else {
        println!("skipped: no taskset; apt-get install util-linux");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, place) in [("taskset", &taskset), ("true", &truth)] {
        std::os::unix::fs::symlink(place, dir.path().join(name)).unwrap();
    }
    let output = tandem(&QUICK)
        .args(["--program", "token-futex,pbzip2"])
        .env("PATH", dir.path())
        .output()
        .unwrap();
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(table.contains("1 measured, 1 skipped, 0 failed"), "{table}");
    assert!(table.contains("skipped: pbzip2: no pbzip2: apt-get install pbzip2"), "{table}");
}

#[test]
fn list_names_programs() {
    let list = text(&succeed(&["bench", "guest", "--list"]).stdout);
    for name in ["sched-pipe", "token-futex", "oltp-16", "make", "vm-burn"] {
        assert!(list.contains(name), "{name}: {list}");
    }
}

#[test]
fn errors_state_valid_values() {
    for (args, said) in [
        (&["--runs", "0"][..], "--runs 0 is not possible: 1 … 1000"),
        (&["--seconds", "61"], "--seconds 61 is not possible: 1 … 60"),
        (&["--program", "x"], "'x' is no program of the set"),
        (&["--variants", "x"], "'x' is no variant"),
        (&["--json", "/nowhere/x.json"], "/nowhere/x.json"),
        (&["--add"], "--json"),
    ] {
        let mut whole = vec!["bench", "guest"];
        whole.extend(args);
        let output = tandem(&whole).output().unwrap();
        let errors = text(&output.stderr);
        assert!(!output.status.success() && errors.contains(said), "{args:?}: {errors}");
    }
    let output = tandem(&QUICK).env("PATH", "/nowhere").output().unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("cannot start taskset"), "{errors}");
}
