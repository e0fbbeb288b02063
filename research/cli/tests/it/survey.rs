//! `tandem-lab survey --from`: shows saved figures as text, document and page; refuses invalid files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FIGURES: &str = "research/data/survey.json";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn survey(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem-lab"))
        .args(["survey"])
        .args(args)
        .current_dir(root())
        .output()
        .unwrap()
}

/// Returns the standard output of a command that succeeds.
fn stdout(args: &[&str]) -> String {
    let output = survey(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the standard error of a command that fails.
fn refusal(args: &[&str]) -> String {
    let output = survey(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn file(name: &str, text: &str) -> String {
    let folder = std::env::temp_dir().join(format!("tandem-survey-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn rewriting_keeps_the_head_of_the_document() {
    let document = file("survey.md", "");
    let write = || {
        stdout(&["--from", FIGURES, "--markdown", &document]);
        std::fs::read_to_string(&document).unwrap()
    };
    let once = write();
    assert!(once.contains("\n## ") && once.contains("| "), "{once:.300}");
    let own = format!("Our own words.\n\n{once}");
    std::fs::write(&document, &own).unwrap();
    assert_eq!(write(), own);
}

#[test]
fn every_cell_of_the_figures_is_printed() {
    let entries: Vec<serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(root().join(FIGURES)).unwrap()).unwrap();
    let args = ["--from", FIGURES, "--policies", "aple,gang", "--overcommit", "2"];
    let text = stdout(&args);
    let table = |title: &str| {
        let from = text.split(title).nth(1).unwrap_or_else(|| panic!("{title}: {text}"));
        let rows = from.lines().skip_while(|line| !line.starts_with('|'));
        rows.take_while(|line| line.starts_with('|')).skip(2).collect::<Vec<_>>()
    };
    let (throughput, unfairness, worst) = (
        table("Throughput relative to stock, 2×"),
        table("Unfairness, 2×"),
        table("Worst victim: its work relative to stock, 2×"),
    );
    let mut cells = 0;
    let asked = entries.iter().filter(|e| {
        e["overcommit"] == 2 && ["aple", "gang"].contains(&e["policy"].as_str().unwrap())
    });
    for entry in asked {
        let workload = entry["workload"].as_str().unwrap();
        let place = if entry["policy"] == "aple" { 0 } else { 1 };
        for (rows, key, column) in [
            (&throughput, "throughput", place),
            // Stock comes first.
            (&unfairness, "unfairness", place + 1),
            (&worst, "worst", place),
        ] {
            let row = rows.iter().find(|row| row.starts_with(&format!("| {workload} ")));
            let row = row.unwrap_or_else(|| panic!("{workload} in {rows:?}"));
            let cell = row.split('|').nth(2 + column).unwrap().trim();
            let expected = match entry[key].as_f64() {
                Some(value) => format!("{value:.2}"),
                None => "–".to_owned(),
            };
            assert_eq!(cell.split(' ').next(), Some(expected.as_str()), "{key} of {entry}");
            cells += 1;
        }
    }
    assert_eq!(cells, 56 * 2 * 3);
}

#[test]
fn saved_figures_round_trip() {
    let args = ["--from", FIGURES, "--workloads", "ebizzy", "--json"];
    let first = stdout(&args);
    let kept = file("kept.json", &first);
    assert_eq!(first, stdout(&["--from", &kept, "--json"]));
}

#[test]
fn invalid_files_are_refused() {
    let error = refusal(&["--from", "no/such.json"]);
    assert!(error.contains("no/such.json"), "{error}");
    let error = refusal(&["--from", &file("else.json", "{\"a\": 1}")]);
    assert!(error.contains("no figures of a survey"), "{error}");
    let entry = "{\"workload\":\"a\",\"overcommit\":2,\"policy\":\"stock\",\"throughput\":1.0,\
                 \"unfairness\":1.0,\"worst\":1.0,\"victim\":null}";
    let error = refusal(&["--from", &file("twice.json", &format!("[{entry},{entry}]"))]);
    assert!(error.contains("a 2× stock is there twice"), "{error}");
    let error = refusal(&["--from", FIGURES, "--policies", "no-such"]);
    assert!(error.contains("--policies no-such") && error.contains("cpth-r"), "{error}");
    let error = refusal(&["--from", FIGURES, "--runs", "2"]);
    assert!(error.contains("--runs"), "simulates nothing: {error}");
}

#[test]
fn foreign_documents_are_left_alone() {
    let own = file("own.md", "# Mine\n");
    let error = refusal(&["--from", FIGURES, "--markdown", &own]);
    assert!(error.contains("holds something else"), "{error}");
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "# Mine\n");
}
