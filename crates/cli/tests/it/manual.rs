//! The manual and completions: a page for each command in `--help` with all of its options, in roff that formatters accept;
//! completions that shells accept.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn tandem(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem")).args(arguments).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    output
}

fn help(command: &[String]) -> String {
    let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
    arguments.push("--help");
    String::from_utf8(tandem(&arguments).stdout).unwrap()
}

/// Returns the command and all of its subcommands from `--help`.
fn commands(above: Vec<String>) -> Vec<Vec<String>> {
    let text = help(&above);
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.is_empty() || line.starts_with("  "));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    let mut all = vec![above.clone()];
    for name in names {
        all.extend(commands([above.as_slice(), &[name.to_owned()]].concat()));
    }
    all
}

/// Writes the pages to a new folder.
fn pages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tandem(&["man", folder.path().join("new").to_str().unwrap()]);
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn each_command_has_a_page_with_its_options() {
    let folder = pages();
    let folder = folder.path().join("new");
    let all = commands(Vec::new());
    assert!(all.len() > 20, "{all:?}");
    let mut wanted = BTreeSet::new();
    for command in all {
        let file = format!("{}.1", [&["tandem".to_owned()], command.as_slice()].concat().join("-"));
        let page = fs::read_to_string(folder.join(&file))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        // Undo the escapes of hyphens in roff.
        let page = page.replace("\\-", "-");
        for line in help(&command).lines() {
            let line = line.trim_start();
            let option = line.split([' ', ',', '=', '[']).find(|word| word.starts_with("--"));
            if let Some(option) = option.filter(|_| line.starts_with('-')) {
                assert!(page.contains(option), "{file} has no {option}");
            }
        }
        assert!(
            page.contains("EXIT STATUS") && page.contains("SEE ALSO") && !page.contains('\u{1b}'),
            "{file}"
        );
        wanted.insert(file);
    }
    assert_eq!(names(&folder), wanted);
}

#[test]
fn formatters_accept_the_pages() {
    let folder = pages();
    let folder = folder.path().join("new");
    let mut judged = false;
    for name in names(&folder) {
        let page = folder.join(&name);
        for (program, arguments) in [
            ("mandoc", ["-Tlint", "-Werror"].as_slice()),
            ("groff", &["-man", "-Kutf8", "-Tutf8", "-ww", "-z"]),
        ] {
            let Ok(output) = Command::new(program).args(arguments).arg(&page).output() else {
                continue;
            };
            judged = true;
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            // Warnings about line breaks are harmless.
            let wrong: Vec<&str> = said
                .lines()
                .filter(|line| !line.contains("adjust line") && !line.contains("break"))
                .collect();
            assert!(output.status.success() && wrong.is_empty(), "{program}: {name}: {wrong:#?}");
        }
    }
    if !judged {
        println!("skipped: neither mandoc nor groff is installed");
    }
}

#[test]
fn shells_accept_the_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = String::from_utf8(tandem(&["completions", shell]).stdout).unwrap();
        assert!(text.contains("check-config"), "{shell}");
        if shell == "bash" {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("tandem");
            fs::write(&file, text).unwrap();
            let script = "source \"$1\"; COMP_WORDS=(tandem ho); COMP_CWORD=1; _tandem tandem ho tandem; echo \"${COMPREPLY[@]}\"";
            let output = Command::new("bash").args(["-ec", script, "bash"]).arg(&file).output();
            let Ok(output) = output else {
                println!("skipped: no bash");
                continue;
            };
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.trim(), "host", "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
