//! Exit statuses of `tandem-sim`.

use std::process::{Command, Stdio};

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
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
fn invalid_arguments_exit_with_2() {
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
        &["run", scenario, "--window", "foo", "--picture", &inside("x.svg")],
        &["run", scenario, "--window", "4ms-5ms"],
        &["run", scenario, "--trace-from", "4ms"],
        &["scalability", scenario, "--timeslice", "0ms"],
        &["scalability", scenario, "--timeslice", "soon"],
        &["run", scenario, "--picture", &inside("x.pdf")],
        &["run", scenario, "--table", &inside("x.txt")],
    ] {
        let mut arguments = wrong.to_vec();
        arguments.extend(short);
        if wrong[0] == "compare" {
            let names = ["--json", "--html", "--table"].iter().zip(&files);
            arguments.extend(names.flat_map(|(option, file)| [*option, file.as_str()]));
        }
        let (code, said) = run(&arguments, Stdio::null());
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // An unreadable file is not an invalid argument.
    let (code, said) = run(&["run", "/no/such.toml"], Stdio::null());
    assert_eq!(code, Some(1), "{said}");
}
