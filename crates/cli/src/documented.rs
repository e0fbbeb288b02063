//! Whatever `tandem` command a document, a unit of systemd or the Makefile shows is one that `tandem` takes. Nothing is run.

#[cfg(test)]
#[path = "../tests/documents/mod.rs"]
mod documents;

use std::fs;

use clap::Parser;
use clap::error::ErrorKind;

use crate::Cli;
use documents::Shown;
use documents::commands;
use documents::in_blocks;
use documents::in_plain_blocks;
use documents::in_sentences;
use documents::repository;

fn refusal(shown: &Shown) -> Option<clap::Error> {
    let error = Cli::try_parse_from(&shown.words).err()?;
    // Asked for help, and got it.
    (error.kind() != ErrorKind::DisplayHelp).then_some(error)
}

fn none_is_refused(wanted: usize, shown: &[Shown], is_wrong: impl Fn(&clap::Error) -> bool) {
    assert!(
        shown.len() >= wanted,
        "only {} commands were found",
        shown.len()
    );
    let wrong = |one: &Shown| {
        let error = refusal(one).filter(&is_wrong)?;
        Some(format!("{}: {}\n{error}", one.document, one.line()))
    };
    let wrong: Vec<String> = shown.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn of_tandem(shown: Vec<Shown>) -> Vec<Shown> {
    let is_ours = |one: &Shown| one.words[0] == "tandem";
    shown.into_iter().filter(is_ours).collect()
}

#[test]
fn commands_of_shell_blocks_are_taken_as_they_stand() {
    none_is_refused(40, &of_tandem(in_blocks()), |_| true);
}

#[test]
fn commands_of_other_blocks_are_taken_as_they_stand() {
    none_is_refused(30, &of_tandem(in_plain_blocks()), |_| true);
}

#[test]
fn commands_within_sentences_have_commands_and_options_that_there_are() {
    // A sentence may leave out what is beside its point, and say COMMAND, FILE and N for what the reader has.
    let mut shown = in_sentences();
    shown.retain(|one| one.words[1] != "COMMAND");
    none_is_refused(100, &shown, |error| {
        matches!(
            error.kind(),
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
        )
    });
}

#[test]
fn commands_of_units_and_of_the_makefile_are_taken_as_they_stand() {
    let mut shown = Vec::new();
    let folder = repository().join("packaging/systemd");
    let units = [
        "tandem-host.service",
        "tandem-export.service",
        "tandem-guest@.service",
        "tandem-export.service.d/bpf.conf",
    ];
    for unit in units {
        let text = fs::read_to_string(folder.join(unit)).unwrap();
        for line in text.lines().filter(|line| line.starts_with("Exec")) {
            let (_, command) = line.split_once('=').unwrap();
            let command = command
                .replace("/usr/bin/tandem", "tandem")
                .replace("%i", "x");
            let words = commands(&command).into_iter().next();
            shown.extend(words.map(|words| Shown {
                document: unit.to_owned(),
                words,
            }));
        }
    }
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let makefile = makefile
        .replace("$(TANDEM)", "tandem")
        .replace("$(ARGS)", "")
        .replace("$(TARGET)", "target");
    let all = commands(&makefile).into_iter();
    shown.extend(all.map(|words| Shown {
        document: "Makefile".to_owned(),
        words,
    }));
    none_is_refused(12, &of_tandem(shown), |_| true);
}

#[test]
fn words_are_found_as_a_shell_finds_them() {
    let words = |text: &str| commands(text);
    assert_eq!(
        words("sudo $tandem host run --weight 'db-*=2'  # why"),
        [["tandem", "host", "run", "--weight", "db-*=2"]]
    );
    assert_eq!(
        words("A=1 tandem top > out.txt & spin=$!\na \\\n  b|c"),
        [vec!["tandem", "top"], vec!["a", "b"], vec!["c"]]
    );
    assert_eq!(
        words("tandem --pid $(cat x) \"a b\""),
        [["tandem", "--pid", "1", "a b"]]
    );
}
