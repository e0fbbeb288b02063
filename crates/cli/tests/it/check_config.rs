//! `--check-config` of daemon and agent: it changes nothing, and prints a valid settings file. Output with `-q` and `-v`.

use std::fs;
use std::process::Command;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem")).args(arguments).output();
    let output = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Checks that the printed settings, read as a file, are printed unchanged.
fn check_round_trip(role: &str, options: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let file = folder.path().join("settings.toml");
    let first = [&[role, "run", "--check-config", "--state-dir", state.to_str().unwrap()], options]
        .concat();
    let (status, printed, said) = run(&first);
    assert_eq!((status, said.as_str()), (Some(0), ""), "{first:?}");
    fs::write(&file, &printed).unwrap();
    let (status, again, said) =
        run(&[role, "run", "--check-config", "--config", file.to_str().unwrap()]);
    assert_eq!((status, said.as_str()), (Some(0), ""), "{printed}");
    assert_eq!(again, printed);
    assert!(!state.exists(), "the state directory was made");
    printed
}

#[test]
fn printed_daemon_settings_include_options() {
    let options = [
        "db-*",
        "--exclude",
        "db-9",
        "--weight",
        "db-*=2",
        "--vm-policies",
        "4711=none",
        "--placement",
        "keep",
        "--metrics-listen",
        "127.0.0.1:9464",
    ];
    let printed = check_round_trip("host", &options);
    for line in [
        "placement = \"keep\"",
        "exclude = [\"db-9\"]",
        "weight = 2.0",
        "policies = []",
        "metrics_listen = \"127.0.0.1:9464\"",
    ] {
        assert!(printed.contains(line), "{line} is not in:\n{printed}");
    }
}

#[test]
fn printed_agent_settings_include_options() {
    let printed =
        check_round_trip("guest", &["--retention", "200us", "--vcpus", "all", "--delay", "off"]);
    for line in ["retention = \"200us\"", "vcpus = \"all\""] {
        assert!(printed.contains(line), "{line} is not in:\n{printed}");
    }
    // The program is not started.
    let (status, _, _) = run(&["guest", "run", "--check-config", "--", "/no/such/program"]);
    assert_eq!(status, Some(0));
}

#[test]
fn ineffective_policies_cause_a_remark() {
    let (status, printed, said) =
        run(&["host", "run", "--check-config", "--select-all", "--policies", "fair,flexs"]);
    assert_eq!(status, Some(0));
    assert!(printed.contains("\"flexs\""), "{printed}");
    assert!(said.contains("swaps nobody"), "{said}");
}

#[test]
fn invalid_settings_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.toml");
    fs::write(&file, "[host]\nperiod_ms = 7\n[host.select]\nall = true\n").unwrap();
    let file = file.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["host", "run", "--config", file], "period_ms = 7"),
        (&["host", "run", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["host", "run"], "no VM is selected"),
        (&["host", "run", "--select-all", "--thread-pattern", "cpu"], "{n}"),
        (&["guest", "run", "--config", file], "unknown field `host`, expected `guest`"),
        (&["guest", "run", "--cgroup", "x"], "--cgroup 'x'"),
        (
            &["host", "run", "--select-all", "--metrics-file", "/no/x.prom"],
            "metrics_file = /no/x.prom is not possible: /no is no folder",
        ),
        (
            &["guest", "run", "--metrics-file", "/no/x.prom"],
            "metrics_file = /no/x.prom is not possible: /no is no folder",
        ),
    ];
    for (arguments, wanted) in cases {
        let (status, printed, said) = run(&[*arguments, &["--check-config"]].concat());
        assert_eq!((status, printed.as_str()), (Some(2), ""), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn quiet_keeps_results_and_verbose_adds() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().to_str().unwrap();
    let (_, _, normal) = run(&["man", pages]);
    assert!(normal.contains("pages in"), "{normal}");
    assert_eq!(run(&["-q", "man", pages]), (Some(0), String::new(), String::new()));
    let (_, _, verbose) = run(&["man", pages, "-v"]);
    assert!(verbose.contains("tandem: took "), "{verbose}");
    let (status, _, said) = run(&["-q", "host", "run"]);
    assert!(status == Some(2) && said.contains("no VM is selected"), "{said}");
}

#[test]
fn color_option_is_respected() {
    let coloured = |arguments: &[&str], no_colour: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        let output = command.args(arguments).env("NO_COLOR", no_colour).output().unwrap();
        [output.stdout, output.stderr].concat().contains(&0x1b)
    };
    for wrong in [["guest", "no-such"], ["host", "no-such"]] {
        assert!(!coloured(&wrong, ""));
        assert!(coloured(&[&["--color", "always"], wrong.as_slice()].concat(), ""));
        assert!(!coloured(&[&["--color", "never"], wrong.as_slice()].concat(), ""));
    }
}

#[test]
fn version_has_the_commit_of_a_checkout() {
    let (_, printed, _) = run(&["--version"]);
    let begin = format!("tandem {}", env!("CARGO_PKG_VERSION"));
    let rest = printed.trim_end().strip_prefix(&begin).expect("name and version");
    let (commit, day) = match rest {
        "" => return println!("skipped: built outside of a checkout"),
        rest => rest
            .strip_prefix(" (")
            .and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
            .expect("commit and day"),
    };
    assert!(commit.len() >= 7 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{commit}");
    assert_eq!(day.len(), "2026-11-24".len());
}
