//! Every figure in the documents is what `docs/data` says.
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-report --test documents` writes the documents anew.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use tandem_report::document;
use tandem_report::document::Data;
use tandem_report::document::What;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files of the given folders, by their path from the root.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/decisions", "kernel", "crates/python"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                let path = Path::new(folder).join(name);
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn documents_say_what_the_data_say() {
    let data = Data::read(&root().join("docs/data")).unwrap();
    let update = std::env::var_os("TANDEM_UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for name in documents() {
        let path = root().join(&name);
        let text = fs::read_to_string(&path).unwrap();
        let rendered = document::render(&text, &data);
        checked += rendered.checked;
        let stays = |what: &What| !update || matches!(what, What::Broken(_));
        let problems = rendered
            .problems
            .iter()
            .filter(|problem| stays(&problem.what));
        wrong.extend(problems.map(|problem| format!("{name}:{problem}")));
        if update && rendered.text != text {
            fs::write(&path, &rendered.text).unwrap();
        }
    }
    assert!(
        wrong.is_empty(),
        "TANDEM_UPDATE_GOLDEN=1 writes the documents anew:\n{}",
        wrong.join("\n")
    );
    assert!(checked > 100, "only {checked} figures found");
}

#[test]
fn every_file_of_data_is_shown_somewhere() {
    let texts: Vec<String> = documents()
        .iter()
        .map(|name| fs::read_to_string(root().join(name)).unwrap())
        .collect();
    for entry in fs::read_dir(root().join("docs/data")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let shown = |text: &String| {
            text.contains(&format!("{name}#/")) || text.contains(&format!("data: {name} by"))
        };
        assert!(
            texts.iter().any(shown),
            "{}: no document shows it",
            path.display()
        );
    }
}

#[test]
fn the_readme_has_at_most_150_lines() {
    let lines = fs::read_to_string(root().join("README.md"))
        .unwrap()
        .lines()
        .count();
    assert!(
        lines <= 150,
        "README.md has {lines} lines; move details to docs/"
    );
}
