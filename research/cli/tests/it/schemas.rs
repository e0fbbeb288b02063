//! Validates the JSON of `tandem-lab` against its schemas in `research/schemas`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tandem_testing::schema::schema;

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/schemas")
}

fn scenario(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

fn check(name: &str, output: &Value) {
    tandem_testing::schema::check(&schemas(), name, output);
}

/// Returns the JSON of a command.
fn output(args: &[&str]) -> Value {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tandem-lab")).args(args).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn commands_match_their_schemas() {
    let folder = scenario("papers");
    let survey = [
        "survey",
        "--policies",
        "aple",
        "--workloads",
        "ebizzy",
        "--overcommit",
        "1",
        "--runs",
        "1",
        "--scenarios",
        &folder,
    ];
    check("sim-survey-1", &output(&survey));
    let claims = ["reproduce", "--claims", "gleaner.t2.A", "--runs", "1", "--scenarios", &folder];
    check("sim-reproduce-1", &output(&claims));
    let path = scenario("../../scenarios/single-vcpu.toml");
    let vary = "vm.*.vcpus=1,2";
    let bench = ["bench", "sim", &path, "--runs", "1", "--vary", vary];
    check("sim-bench-1", &output(&bench));
}

#[test]
fn stored_figures_match_their_schemas() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data");
    for (file, name) in [
        ("reproduction.json", "sim-reproduce-1"),
        ("survey.json", "sim-survey-1"),
        ("survey-64.json", "sim-survey-1"),
    ] {
        let text = std::fs::read_to_string(data.join(file)).unwrap();
        check(name, &serde_json::from_str(&text).unwrap());
    }
}

/// The schemas in the tests above and in research/schemas/README.md are complete.
#[test]
fn every_schema_is_listed_and_tested() {
    let readme = std::fs::read_to_string(schemas().join("README.md")).unwrap();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(schemas()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(readme.contains(&format!("({name}.json)")), "{name} is not in README.md");
            schema(&schemas(), &name);
            names.insert(name);
        }
    }
    let tested = ["sim-bench-1", "sim-reproduce-1", "sim-survey-1"];
    assert_eq!(names, tested.map(str::to_owned).into());
}
