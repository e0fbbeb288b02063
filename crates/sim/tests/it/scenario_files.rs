//! Every scenario and workload of the repository is valid.

use std::path::{Path, PathBuf};

use tandem_sim::scenario::load;
use tandem_sim::workload::parse;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_scenario_parses_with_description() {
    let (own, papers) = (files("scenarios"), files("research/scenarios/papers"));
    assert!(own.len() >= 20, "{}", own.len());
    assert!(papers.len() >= 10, "{}", papers.len());
    for file in own.into_iter().chain(papers) {
        let scenario = load::read(&file).unwrap_or_else(|error| panic!("{error}"));
        assert!(!scenario.about.is_empty(), "{}: about", file.display());
        assert_eq!(
            Some(scenario.name.as_str()),
            file.file_stem().and_then(|stem| stem.to_str()),
            "a scenario has the name of its file"
        );
    }
}

#[test]
fn every_workload_parses_alone() {
    let files = files("workloads");
    assert!(files.len() >= 20, "{}", files.len());
    for file in files {
        let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("about = "), "{}", file.display());
        let workload = parse::from_text(&file.to_string_lossy(), &text)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(workload.name, stem);
    }
}
