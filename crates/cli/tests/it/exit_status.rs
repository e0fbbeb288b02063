//! Exit statuses, and a closed or full standard output: a clean exit, never a panic (101).

use std::fs::File;
use std::process::{Command, Stdio};

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem"))
}

/// Runs it with this standard output; returns its exit status and standard error.
fn run(arguments: &[&str], stdout: Stdio) -> (Option<i32>, String) {
    let mut command = tandem();
    command.args(arguments).stdout(stdout);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Returns a pipe with a closed reading end.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Stdio::from(writer)
}

/// Commands that print something on any machine.
const COMMANDS: [&[&str]; 4] = [
    &["guest", "status"],
    &["guest", "status", "--json"],
    &["guest", "restore", "--state-dir", "/nonexistent"],
    &["--help"],
];

#[test]
fn closed_standard_output_is_no_error() {
    for arguments in COMMANDS {
        let (code, said) = run(arguments, closed_pipe());
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert_ne!(code, Some(101), "{arguments:?}: {said}");
    }
    let (code, said) = run(&["guest", "status"], closed_pipe());
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn full_disk_is_an_error_without_panic() {
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
    // With standard error full as well.
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
        &["host", "scalability", "no-such-vm", "--duration", "50ms"],
        &["host", "list", "no-such-vm"],
        &["host", "why", "no-such-vm", "--duration", "50ms"],
    ];
    for arguments in looks {
        let (code, said) = run(arguments, Stdio::null());
        if code == Some(1) && !said.contains("no-such-vm") {
            println!("skipped: {said}");
            continue;
        }
        assert_eq!(code, Some(3), "{arguments:?}: {said}");
    }
}

#[test]
fn invalid_arguments_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [
        &["guest", "run", "--vcpus", "1", "--per-thread", "--", "true"][..],
        &["guest", "run"],
        &["demo", "--mix", "foo"],
    ] {
        let (code, said) = run(wrong, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn times_have_units_in_all_options() {
    for wrong in [
        ["host", "run", "--period-ms", "2s"],
        ["host", "run", "--turn-ms", "1s"],
        ["host", "run", "--fair-window-s", "2h"],
        ["host", "status", "--interval", "10ms"],
        ["host", "export", "--interval", "2h"],
    ] {
        let (code, said) = run(&wrong, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
        assert!(said.contains('…'), "the error has the range: {said}");
    }
    // These times are valid; the failure has another cause.
    for right in [
        ["host", "run", "--period-ms", "200ms"],
        ["host", "run", "--duration", "1m"],
        ["guest", "run", "--interval", "1s"],
        ["guest", "run", "--duration", "200ms"],
    ] {
        let arguments = [&right[..], &["--config", "/no/such.toml", "--dry-run"]].concat();
        let (code, said) = run(&arguments, Stdio::null());
        assert_eq!(code, Some(1), "{right:?}: {said}");
    }
}

#[test]
fn old_options_print_one_hint() {
    let missing = ["--config", "/no/such.toml", "--dry-run"];
    for (old, hint) in [
        (
            &["host", "run", "--select-name", "db-*", "--seconds", "10"][..],
            "write 'db-*' --duration 10s instead of",
        ),
        (&["guest", "run", "--period-ms", "20"], "write --interval 20ms instead of --period-ms 20"),
    ] {
        let arguments = [old, &missing].concat();
        let (code, said) = run(&arguments, Stdio::null());
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(said.lines().filter(|line| line.contains(hint)).count(), 1, "{said}");
        let (_, quiet) = run(&[&["-q"], arguments.as_slice()].concat(), Stdio::null());
        assert!(!quiet.contains("instead of"), "{quiet}");
    }
    let expert = ["host", "run", "db", "--gain", "0.5", "--turn-ms", "30", "--check-config"];
    let (code, said) = run(&expert, Stdio::null());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("set fair.gain, turns.turn in the section [host]"), "{said}");
}

#[test]
fn status_pause_and_resume_need_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    for command in [&["host", "status"][..], &["host", "pause", "db"], &["host", "resume", "db"]] {
        let (code, said) = run(&[command, &["--state-dir", state]].concat(), Stdio::null());
        assert_eq!(code, Some(3), "{command:?}: {said}");
    }
}
