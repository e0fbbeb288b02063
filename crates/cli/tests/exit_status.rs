//! Exit statuses, and standard output that nobody reads or that has no room: an end in order, never a panic (101).

use std::fs::File;
use std::process::Command;
use std::process::Stdio;

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem"))
}

/// Its exit status with this as standard output, and what it said on standard error.
fn run(arguments: &[&str], stdout: Stdio) -> (Option<i32>, String) {
    let mut command = tandem();
    command.args(arguments).stdout(stdout);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// A pipe of which nobody holds the reading end.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Stdio::from(writer)
}

/// What prints something wherever it runs.
const COMMANDS: [&[&str]; 5] = [
    &["guest", "status"],
    &["guest", "status", "--json"],
    &["guest", "restore", "--state-dir", "/nonexistent"],
    &["--help"],
    &["sim", "list"],
];

#[test]
fn whoever_closed_standard_output_has_seen_enough() {
    for arguments in COMMANDS {
        let (code, said) = run(arguments, closed_pipe());
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert_ne!(code, Some(101), "{arguments:?}: {said}");
    }
    let (code, said) = run(&["guest", "status"], closed_pipe());
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: no /dev/full");
        return;
    };
    for arguments in COMMANDS {
        let (code, said) = run(arguments, full.try_clone().unwrap().into());
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert_ne!(code, Some(101), "{arguments:?}: {said}");
    }
    let (code, said) = run(&["guest", "status"], full.try_clone().unwrap().into());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    // And standard error with it.
    let status = tandem()
        .args(["guest", "status"])
        .stdout(full.try_clone().unwrap())
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn usage_failure_and_nothing_matched_differ() {
    let (code, _) = run(&["host", "run", "--no-such-option"], Stdio::null());
    assert_eq!(code, Some(2));
    let (code, said) = run(&["host", "run", "--config", "/no/such.toml"], Stdio::null());
    assert_eq!(code, Some(1), "{said}");
    let impossible: [&[&str]; 5] = [
        &["vm", "run", "--workload", "nosuch"],
        &["vm", "run", "--set", "colour=1"],
        &["vm", "run", "--name", "Data Base"],
        &["vm", "run", "--seconds", "0"],
        &["host", "run", "--dry-run"],
    ];
    for arguments in impossible {
        let (code, said) = run(arguments, Stdio::null());
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
    }
    let looks: [&[&str]; 3] = [
        &[
            "host",
            "scalability",
            "nobody-is-called-so",
            "--interval",
            "50ms",
        ],
        &[
            "host",
            "status",
            "--select-name",
            "nobody-is-called-so",
            "--interval",
            "50ms",
        ],
        &["host", "why", "nobody-is-called-so", "--interval", "50ms"],
    ];
    for arguments in looks {
        let (code, said) = run(arguments, Stdio::null());
        if code == Some(1) && !said.contains("nobody-is-called-so") {
            println!("skipped: {said}");
            continue;
        }
        assert_eq!(code, Some(3), "{arguments:?}: {said}");
    }
}

#[test]
fn arguments_that_cannot_be_end_with_2_and_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/pipeline.toml");
    let short = ["--set", "duration=20ms", "--set", "warmup=1ms"];
    let files = [inside("a.json"), inside("a.html"), inside("a.csv")];
    for wrong in [
        &["compare", scenario, "--runs", "0"][..],
        &["compare", scenario, "--workers", "0"],
        &["compare", scenario, "--policies", "foo"],
        &["compare", scenario, "--metrics", "foo", "--runs", "1"],
        &["compare", scenario, "--vary", "foo"],
        &["run", scenario, "--set", "foo"],
        &["run", scenario, "--duration", "5"],
        &[
            "run",
            scenario,
            "--window",
            "foo",
            "--picture",
            &inside("x.svg"),
        ],
        &["run", scenario, "--window", "4ms-5ms"],
        &["run", scenario, "--trace-from", "4ms"],
        &["scalability", scenario, "--timeslice", "0ms"],
        &["scalability", scenario, "--timeslice", "soon"],
        &["run", scenario, "--picture", &inside("x.pdf")],
        &["run", scenario, "--table", &inside("x.txt")],
        &["reproduce", "--claims", "foo"],
    ] {
        let mut arguments = [&["sim"], wrong].concat();
        if wrong[0] != "reproduce" {
            arguments.extend(short);
        }
        if wrong[0] == "compare" {
            let names = ["--json", "--html", "--table"].iter().zip(&files);
            arguments.extend(names.flat_map(|(option, file)| [*option, file.as_str()]));
        }
        let (code, said) = run(&arguments, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    for wrong in [
        &["sim", "survey", "--pcpus", "5"][..],
        &["sim", "survey", "--overcommit", "3"],
        &["sim", "survey", "--policies", "foo"],
        &["bench", "work", "--modes", "foo"],
        &["bench", "work", "--vcpus", "0"],
        &["bench", "fairness", "--mixes", "foo"],
        &["bench", "flexs", "--mixes", "foo"],
        &["bench", "guest", "--program", "foo"],
        &["bench", "flexs", "--placement", "keep"],
        &["bench", "flexs", "--policies", "fair,asymmetric"],
        &["guest", "run", "--vcpus", "1", "--per-thread", "--", "true"],
        &["guest", "run"],
        &["bench", "guest", "--variants", "foo"],
        &["bench", "changes", "--runs", "0"],
        &["bench", "churn", "--starts", "0"],
        &["demo", "--mix", "foo"],
    ] {
        let (code, said) = run(wrong, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // A file that cannot be read is no fault of an option.
    let (code, said) = run(&["sim", "run", "/no/such.toml"], Stdio::null());
    assert_eq!(code, Some(1), "{said}");
}

#[test]
fn times_have_units_wherever_they_stand() {
    for wrong in [
        ["host", "run", "--period-ms", "2s"],
        ["host", "run", "--turn-ms", "1s"],
        ["host", "run", "--fair-window-s", "2h"],
        ["host", "status", "--interval", "10ms"],
        ["host", "export", "--interval", "2h"],
    ] {
        let (code, said) = run(&wrong, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
        assert!(said.contains('…'), "it says what would be right: {said}");
    }
    // These are understood: what is wrong is something else.
    for right in [
        ["host", "run", "--period-ms", "200ms"],
        ["host", "run", "--seconds", "1m"],
        ["guest", "run", "--period-ms", "1s"],
        ["guest", "run", "--seconds", "200ms"],
    ] {
        let arguments = [&right[..], &["--config", "/no/such.toml", "--dry-run"]].concat();
        let (code, said) = run(&arguments, Stdio::null());
        let is_fraction = right[3] == "200ms" && right[2] == "--seconds";
        let wanted = if is_fraction { 2 } else { 1 };
        assert_eq!(code, Some(wanted), "{right:?}: {said}");
    }
}
