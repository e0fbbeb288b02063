//! Exit statuses of `tandem-lab`, and messages about invalid arguments.

use std::process::{Command, Stdio};

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem-lab"))
}

/// Runs it with this standard output; returns its exit status and standard error.
fn run(arguments: &[&str], stdout: Stdio) -> (Option<i32>, String) {
    let mut command = tandem();
    command.args(arguments).stdout(stdout);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn invalid_arguments_end_with_2() {
    for wrong in [
        &["survey", "--pcpus", "5"][..],
        &["survey", "--overcommit", "3"],
        &["survey", "--policies", "foo"],
        &["reproduce", "--claims", "foo"],
        &["bench", "work", "--modes", "foo"],
        &["bench", "work", "--vcpus", "0"],
        &["bench", "fairness", "--mixes", "foo"],
        &["bench", "flexs", "--mixes", "foo"],
        &["bench", "guest", "--program", "foo"],
        &["bench", "flexs", "--placement", "keep"],
        &["bench", "flexs", "--policies", "fair,asymmetric"],
        &["bench", "guest", "--variants", "foo"],
        &["bench", "changes", "--runs", "0"],
        &["bench", "churn", "--starts", "0"],
        &["bench", "sim", "--runs", "0"],
    ] {
        let (code, said) = run(wrong, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    for unreadable in [&["bench", "sim", "/no/such.toml"][..], &["kernel", "/no/such.toml"]] {
        let (code, said) = run(unreadable, Stdio::null());
        assert_eq!(code, Some(1), "{unreadable:?}: {said}");
        assert!(said.contains("/no/such.toml") && said.contains("cannot read"), "{said}");
    }
}

fn fails(args: &[&str], needles: &[&str]) {
    let (code, message) = run(args, Stdio::null());
    assert!(matches!(code, Some(1 | 2)), "{args:?} ended with {code:?}:\n{message}");
    for needle in needles {
        assert!(message.contains(needle), "{args:?}: '{needle}' is not in:\n{message}");
    }
}

/// Runs the command with each of these arguments.
fn each_fails(command: &[&str], cases: &[(&[&str], &str)]) {
    for (args, needle) in cases {
        fails(&[command, *args].concat(), &[*needle]);
    }
}

#[test]
fn benches_name_the_option_and_the_valid_values() {
    each_fails(
        &["bench", "work"],
        &[
            (
                &["--workloads", "sleepy"],
                "--workloads sleepy: 'sleepy' is not known; it takes a list of barrier-spin",
            ),
            (&["--vcpus", "0"], "--vcpus 0: '0' is no number of vCPUs; a VM has 1 to 64"),
            (&["--vcpus", "1"], "needs 2 vCPUs or more"),
            (
                &["--placements", "x"],
                "--placements x: 'x' is not known; it takes a list of free,pinned",
            ),
            (
                &["--with", "burn3"],
                "--with burn3: 'burn3' is not known; it takes a list of burn1,burn2,pairs,itself",
            ),
            (&["--modes", "fair"], "'fair' is no mode"),
            (&["--modes", "stock,equal-weights"], "twice"),
            (&["--modes", "pinning", "--placements", "pinned"], "--placements free"),
            (&["--runs", "0"], "--runs 0 is not possible: 1 … 100"),
            (&["--seconds", "0"], "--seconds 0 is not possible: 0.5 … 3600"),
            (&["--settle-seconds", "-1"], "--settle-seconds -1 is not possible: 0 … 600"),
            (&["--alone-seconds", "0"], "--alone-seconds 0 is not possible: 0.5 … 60"),
        ],
    );
    each_fails(
        &["bench", "flexs"],
        &[
            (&["--mixes", "x"], "--mixes x: 'x' is not known; it takes a list of one-burner"),
            (&["--mixes", "even,even"], "names 'even' twice"),
            (&["--work", "0"], "--work 0 is not possible: 1 … 100000"),
            (&["--modes", "fair"], "'fair' is no mode"),
            (&["--runs", "0"], "--runs 0 is not possible: 1 … 100"),
            (&["--seconds", "0"], "--seconds 0 is not possible: 0.5 … 3600"),
        ],
    );
}
