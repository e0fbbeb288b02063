//! The commands that documents show: those of shell blocks (`sh`, `console`), and `tandem …` within sentences.
//!
//! Enough of a shell's grammar for that: quotes, comments, `\` at the end of a line, `;` `&&` `|` `&`, redirections, assignments, `sudo`. A
//! variable or `$(…)` is taken for the number 1, and `$tandem` for the program.

// Each test that shares this uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::Path;
use std::path::PathBuf;

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// The document, from the root of the repository.
    pub document: String,
    /// The words of the command, without `sudo`.
    pub words: Vec<String>,
}

impl Shown {
    /// As one line, to be read and compared.
    pub fn line(&self) -> String {
        self.words.join(" ")
    }
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document that has commands, by its path in the repository.
pub fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/decisions",
        "docs/schemas",
        "kernel",
        "lab",
        "crates/python",
    ] {
        let entries = fs::read_dir(repository().join(folder)).expect("a folder of the repository");
        for entry in entries {
            let name = entry.expect("an entry").file_name().into_string().unwrap();
            // What a version has changed is history.
            if name.ends_with(".md") && name != "CHANGELOG.md" {
                found.push(Path::new(folder).join(name).to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The commands of all documents' shell blocks, in their order.
pub fn in_blocks() -> Vec<Shown> {
    shown_in(blocks)
}

/// Those of blocks that are not said to be of a shell: `tandem …` at the beginning of a line.
pub fn in_plain_blocks() -> Vec<Shown> {
    shown_in(plain_blocks)
}

fn shown_in(blocks: fn(&str) -> Vec<String>) -> Vec<Shown> {
    let commands = |document: String| {
        let text = fs::read_to_string(repository().join(&document)).unwrap();
        let blocks = blocks(&text).join("\n");
        let shown = move |words| Shown {
            document: document.clone(),
            words,
        };
        commands(&blocks).into_iter().map(shown).collect::<Vec<_>>()
    };
    documents().into_iter().flat_map(commands).collect()
}

/// `tandem …` between backquotes, in all documents.
pub fn in_sentences() -> Vec<Shown> {
    let mut found = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(repository().join(&document)).unwrap();
        let mut is_block = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_block = !is_block;
            }
            if is_block {
                continue;
            }
            for span in line.split('`').skip(1).step_by(2) {
                let words = commands(span).into_iter().next().unwrap_or_default();
                if words.first().is_some_and(|word| word == "tandem") && words.len() > 1 {
                    let document = document.clone();
                    found.push(Shown { document, words });
                }
            }
        }
    }
    found
}

/// The shell blocks of a document. In `console` blocks only lines after a prompt are commands.
fn blocks(text: &str) -> Vec<String> {
    let lines = in_fences(text)
        .into_iter()
        .filter_map(|(kind, line)| match kind {
            "sh" => Some(line.to_owned()),
            "console" => line.strip_prefix("$ ").map(str::to_owned),
            _ => None,
        });
    lines.collect()
}

/// The commands of blocks without a kind.
fn plain_blocks(text: &str) -> Vec<String> {
    let lines = in_fences(text).into_iter();
    let commands = lines.filter(|(kind, line)| kind.is_empty() && line.starts_with("tandem "));
    commands.map(|(_, line)| line.to_owned()).collect()
}

/// Each line within a block, and of what kind that is.
fn in_fences(text: &str) -> Vec<(&str, &str)> {
    let (mut found, mut kind) = (Vec::new(), None);
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), kind) {
            (Some(opened), None) => kind = Some(opened.trim()),
            (Some(_), Some(_)) => kind = None,
            (None, Some(kind)) => found.push((kind, line)),
            (None, None) => {}
        }
    }
    found
}

/// The commands of a piece of shell, each as its words.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for token in tokens(text) {
        match token {
            Token::End => all.push(Vec::new()),
            Token::Word(word) => all.last_mut().expect("there is one").push(word),
        }
    }
    all.into_iter()
        .map(command)
        .filter(|words| !words.is_empty())
        .collect()
}

/// Without assignments before it, `sudo`, and redirections.
fn command(words: Vec<String>) -> Vec<String> {
    let is_before = |word: &String| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        word == "sudo"
            || word
                .split_once('=')
                .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(is_name))
    };
    let mut kept: Vec<String> = Vec::new();
    let mut words = words.into_iter().skip_while(is_before);
    while let Some(word) = words.next() {
        match word.trim_start_matches(|c: char| c.is_ascii_digit()) {
            ">" | ">>" | "<" => drop(words.next()),
            _ => kept.push(word),
        }
    }
    kept
}

enum Token {
    Word(String),
    End,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let slot = |word: &mut Option<String>| word.take().map(Token::Word);
        match c {
            '\\' if rest.peek() == Some(&'\n') => drop(rest.next()),
            ' ' | '\t' => found.extend(slot(&mut word)),
            '\n' | ';' | '|' | '&' => {
                found.extend(slot(&mut word));
                found.push(Token::End);
            }
            '#' if word.is_none() => while rest.next_if(|c| *c != '\n').is_some() {},
            '\'' | '"' => {
                let quoted: String = std::iter::from_fn(|| rest.next_if(|one| *one != c)).collect();
                rest.next();
                word.get_or_insert_default().push_str(&quoted);
            }
            '$' => {
                let is_call = rest.next_if_eq(&'(').is_some();
                let is_name = |one: &char| {
                    if is_call {
                        *one != ')'
                    } else {
                        one.is_ascii_alphanumeric() || *one == '_'
                    }
                };
                let name: String = std::iter::from_fn(|| rest.next_if(is_name)).collect();
                if is_call {
                    rest.next();
                }
                let value = if name == "tandem" { "tandem" } else { "1" };
                word.get_or_insert_default().push_str(value);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word.map(Token::Word));
    found
}
