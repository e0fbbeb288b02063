//! Commands shown in documents: those of shell blocks (`sh`, `console`), and `tandem …` within sentences.
//!
//! The parser supports a part of the shell's grammar: quotes, comments, `\` at the end of a line, `;` `&&` `|` `&`,
//! redirections, assignments, `sudo`.
//! It replaces a variable or `$(…)` by the number 1.
//! systemd units and the Makefile count as documents.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// The document, relative to the root of the repository.
    pub document: String,
    /// The words of the command, without `sudo`.
    pub words: Vec<String>,
    /// Whether it is within a sentence, which may omit arguments.
    pub in_sentence: bool,
}

impl Shown {
    /// Returns the command as one line.
    pub fn line(&self) -> String {
        self.words.join(" ")
    }
}

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folders with documents.
const FOLDERS: [&str; 10] = [
    "",
    "docs",
    "docs/decisions",
    "docs/reference",
    "crates/experiment/starter",
    "crates/python",
    "kernel",
    "research",
    "research/docs",
    "research/schemas",
];
/// The changelog describes other versions too, and the command reference consists of help texts.
const OMITTED: [&str; 2] = ["CHANGELOG.md", "docs/reference/cli.md"];
const UNITS: &str = "packaging/systemd";

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(repository().join(folder)).expect("a folder of the repository");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
        Path::new(folder).join(name).to_str().expect("a path in UTF-8").to_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the commands of shell blocks of all documents, in their order.
pub fn in_blocks() -> Vec<Shown> {
    let documents = FOLDERS.iter().flat_map(|folder| names(folder));
    let is_shown = |name: &String| name.ends_with(".md") && !OMITTED.contains(&name.as_str());
    let commands = |document: String| {
        let text = blocks(&read(&document)).join("\n");
        let shown = move |words| Shown { document: document.clone(), words, in_sentence: false };
        commands(&text).into_iter().map(shown).collect::<Vec<_>>()
    };
    documents.filter(is_shown).flat_map(commands).collect()
}

/// Returns the commands of a program in blocks and sentences of documents, in units and in the Makefile.
pub fn of_program(program: &str) -> Vec<Shown> {
    let mut found = in_blocks();
    let documents = FOLDERS.iter().flat_map(|folder| names(folder));
    for document in documents.filter(|name| name.ends_with(".md")) {
        if OMITTED.contains(&document.as_str()) {
            continue;
        }
        for span in spans(&read(&document)) {
            let words = commands(&span).into_iter().next().unwrap_or_default();
            let document = document.clone();
            found.push(Shown { document, words, in_sentence: true });
        }
    }
    let units = names(UNITS).into_iter().chain(names(&format!("{UNITS}/tandem-export.service.d")));
    for document in units.filter(|name| repository().join(name).is_file()) {
        for line in read(&document).lines().filter(|line| line.starts_with("Exec")) {
            let (_, command) = line.split_once('=').expect("a setting");
            let command = command.replace("/usr/bin/", "").replace("%i", "x");
            let words = commands(&command).into_iter().next().unwrap_or_default();
            found.push(Shown { document: document.clone(), words, in_sentence: false });
        }
    }
    let makefile = read("Makefile")
        .replace("$(TANDEM)", "tandem")
        .replace("$(TANDEM_LAB)", "tandem-lab")
        .replace("$(ARGS)", "");
    for words in commands(&makefile) {
        found.push(Shown { document: "Makefile".to_owned(), words, in_sentence: false });
    }
    found.retain(|shown| shown.words.first().is_some_and(|word| word == program));
    // The name alone or a placeholder is not a command.
    found.retain(|shown| !shown.in_sentence || shown.words.len() > 1);
    found.retain(|shown| shown.words.get(1).is_none_or(|word| word != "COMMAND"));
    found
}

/// Panics if documents show fewer than `min` commands of a program, or one that its parser `C` rejects.
pub fn check<C: Parser>(program: &str, min: usize) {
    let refused = |shown: &Shown| {
        let error = C::try_parse_from(&shown.words).err()?;
        let is_wrong = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
            // A sentence may omit arguments, and use FILE or N as a value.
            _ => !shown.in_sentence,
        };
        is_wrong.then(|| error.to_string())
    };
    let shown = of_program(program);
    assert!(shown.len() >= min, "only {} commands of {program} were found", shown.len());
    let wrong = |one: &Shown| {
        let error = refused(one)?;
        Some(format!("{}: {}\n{error}", one.document, one.line()))
    };
    let wrong: Vec<String> = shown.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the code within sentences: text between backquotes, outside of blocks.
fn spans(text: &str) -> Vec<String> {
    let mut is_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// Returns the shell blocks of a document; in `console` blocks only lines after a prompt are commands.
fn blocks(text: &str) -> Vec<String> {
    let lines = in_fences(text).into_iter().filter_map(|(kind, line)| match kind {
        "sh" => Some(line.to_owned()),
        "console" => line.strip_prefix("$ ").map(str::to_owned),
        _ => None,
    });
    lines.collect()
}

/// Returns each line within a block, with the kind of the block.
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

/// Splits shell text into commands, each as its words.
pub fn commands(text: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for token in tokens(text) {
        match token {
            Token::End => all.push(Vec::new()),
            Token::Word(word) => all.last_mut().expect("there is one").push(word),
        }
    }
    all.into_iter().map(command).filter(|words| !words.is_empty()).collect()
}

/// Removes leading assignments, `sudo`, and redirections.
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
                    if is_call { *one != ')' } else { one.is_ascii_alphanumeric() || *one == '_' }
                };
                let name: String = std::iter::from_fn(|| rest.next_if(is_name)).collect();
                if is_call {
                    rest.next();
                }
                let value = if name.starts_with("tandem") { name.as_str() } else { "1" };
                word.get_or_insert_default().push_str(value);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word.map(Token::Word));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_in_a_shell() {
        assert_eq!(
            commands("sudo $tandem host run --weight 'db-*=2'  # why"),
            [["tandem", "host", "run", "--weight", "db-*=2"]]
        );
        assert_eq!(
            commands("A=1 tandem top > out.txt & spin=$!\na \\\n  b|c"),
            [vec!["tandem", "top"], vec!["a", "b"], vec!["c"]]
        );
        assert_eq!(commands("tandem --pid $(cat x) \"a b\""), [["tandem", "--pid", "1", "a b"]]);
    }
}
