//! Lists and error messages of `tandem-lab emulate`.
//!
//! `make lab-smoke` tests the inside of an emulated machine.

use std::path::{Path, PathBuf};
use std::process::Command;

fn lab() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../research/lab")
}

/// Returns success, stdout and stderr.
fn tandem_with(path: Option<&str>, words: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-lab"));
    command.arg("emulate").args(words);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("tandem runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Returns the stderr of a failing `tandem-lab emulate run WORDS`.
fn error(words: &[&str]) -> String {
    let folder = lab().display().to_string();
    let mut line = vec!["run", "--lab", folder.as_str()];
    line.extend(words);
    let (succeeded, stdout, stderr) = tandem_with(None, &line);
    assert!(!succeeded && stdout.is_empty(), "{words:?}: {stdout}{stderr}");
    stderr
}

#[test]
fn list_has_all_experiments_and_machines() {
    let folder = lab().display().to_string();
    let (succeeded, text, errors) = tandem_with(None, &["list", "--lab", &folder]);
    assert!(succeeded, "{errors}");
    for kind in ["experiments", "machines"] {
        let mut found = 0;
        for entry in std::fs::read_dir(lab().join(kind)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(text.contains(&format!("| {name} ")), "{name} in {text}");
                found += 1;
            }
        }
        assert!(found >= 2, "{kind}: {found}");
    }
}

#[test]
fn unknown_names_list_known_names() {
    let text = error(&["aples"]);
    assert!(text.contains("aples") && text.contains("apples, "), "{text}");
    let text = error(&["smoke", "--machine", "vax"]);
    assert!(text.contains("vax") && text.contains("bochs, qemu"), "{text}");
    let text = error(&["apples", "--variant", "ALPE"]);
    assert!(text.contains("'ALPE'") && text.contains("CPTH-R"), "{text}");
}

#[test]
fn missing_lab_folder_is_named() {
    let (succeeded, _, text) = tandem_with(None, &["list", "--lab", "/nowhere/lab"]);
    assert!(!succeeded && text.contains("/nowhere/lab") && text.contains("--lab"), "{text}");
}

#[test]
fn invalid_values_are_refused_before_boot() {
    let text = error(&["smoke", "--set", "aple=1"]);
    assert!(text.contains("MODULE.NAME=VALUE"), "{text}");
    let text = error(&["smoke", "--seconds", "0"]);
    assert!(text.contains("above 0"), "{text}");
    let text = error(&["smoke", "--machine", "bochs", "--mhz", "1"]);
    assert!(text.contains("50 to 10000"), "{text}");
    let text = error(&["smoke", "--machine", "qemu", "--mhz", "200"]);
    assert!(text.contains("--mhz is for bochs"), "{text}");
    let text = error(&["smoke", "--repeat", "0"]);
    assert!(text.contains("1..=1000000"), "{text}");
    let text = error(&["smoke", "--json", "/nowhere/out.json"]);
    assert!(text.contains("/nowhere"), "{text}");
}

#[test]
fn missing_programs_are_named_with_their_packages() {
    let folder = lab().display().to_string();
    for (machine, package) in [("qemu", "qemu-system-x86"), ("bochs", "genisoimage")] {
        let words = ["run", "smoke", "--lab", &folder, "--machine", machine];
        let (succeeded, _, text) = tandem_with(Some("/nowhere"), &words);
        assert!(!succeeded && text.contains(package), "{text}");
        assert!(text.contains("apt-get install"), "{text}");
    }
}

#[test]
fn agent_names_the_port_it_cannot_open() {
    let words = ["guest", "--answers", "/nowhere/port"];
    let (succeeded, _, text) = tandem_with(None, &words);
    assert!(!succeeded && text.contains("/nowhere/port"), "{text}");
}
