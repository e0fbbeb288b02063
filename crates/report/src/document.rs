//! Documents whose figures come from files of data.
//!
//! A measured number in a Markdown document is written once, by whoever measured it, in
//! `docs/data/NAME.json`; the document says where it stands. A test renders every document and
//! fails where text and data differ. With `TANDEM_UPDATE_GOLDEN=1` it writes the documents anew.
//!
//! A figure in a sentence is the number and a comment behind it, which readers do not see:
//!
//! ```text
//! The agent is 1.53<!-- guest-bench#/[variant=agent]/ratio geomean .2 --> times as fast.
//! ```
//!
//! A table stands between two comments, and the first describes it ([`block`]):
//!
//! ```text
//! <!-- data: fairness#/mixes
//! mix = {mix}
//! mean = {stock/mean .1%} %
//! -->
//! …
//! <!-- end -->
//! ```
//!
//! What stands in such a comment is a reference: a path into the data, what to make of several
//! values, perhaps a second value to compare with, and how the number is written ([`mod@reference`]).
//! Code blocks between fences are left alone. A comment that touches a number must be a reference,
//! so that a slip of the pen is not taken for a remark.
//!
//! It does not know which numbers are measurements: settings, promised bounds, published figures
//! and conversions of units need no comment, and whether one is missing a reader must see.

pub mod block;
pub mod claims;
mod data;
mod format;
pub mod reference;

use std::fmt;

pub use data::Data;
pub use data::Error;
use reference::Reference;

const OPEN: &str = "<!--";
const CLOSE: &str = "-->";
const BLOCK: &str = "<!-- data:";
const END: &str = "<!-- end -->";

/// A place where a document is not what the data say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: What,
}

/// What is wrong at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The text says one thing and the data another; [`Rendered::text`] has it right.
    Differs {
        /// What the document says.
        text: String,
        /// What the data say.
        data: String,
        /// Where they say it.
        reference: String,
    },
    /// The data cannot be had.
    Broken(Error),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Differs {
                text,
                data,
                reference,
            } => write!(
                f,
                "{}: the text says {text:?}, the data say {data:?} ({reference})",
                self.line
            ),
            What::Broken(error) => write!(f, "{}: {error}", self.line),
        }
    }
}

/// A document as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// Its text with every figure from the data.
    pub text: String,
    /// Where it was another.
    pub problems: Vec<Problem>,
    /// How many figures and tables come from data.
    pub checked: usize,
}

impl Rendered {
    fn broken(&mut self, line: usize, error: Error) {
        let what = What::Broken(error);
        self.problems.push(Problem { line, what });
    }
}

/// Writes every figure and every table of a document anew.
pub fn render(document: &str, data: &Data) -> Rendered {
    let mut rendered = Rendered {
        text: String::with_capacity(document.len()),
        problems: Vec::new(),
        checked: 0,
    };
    let lines: Vec<&str> = document.split_inclusive('\n').collect();
    let mut at = 0;
    let mut fenced = false;
    while at < lines.len() {
        let line = lines[at];
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if !fenced && line.starts_with(BLOCK) {
            at = table(&lines, at, data, &mut rendered);
            continue;
        }
        if fenced {
            rendered.text.push_str(line);
        } else {
            sentence(line, at + 1, data, &mut rendered);
        }
        at += 1;
    }
    rendered
}

/// One line with its figures. Errors leave it as it is.
fn sentence(line: &str, number: usize, data: &Data, rendered: &mut Rendered) {
    let mut rest = line;
    while let Some((before, comment)) = rest.split_once(OPEN) {
        let touches = before.ends_with(|c: char| c.is_ascii_digit() || c == '%');
        let Some((inside, behind)) = comment.split_once(CLOSE) else {
            break;
        };
        rest = behind;
        let reference = inside.trim();
        if !touches && !reference.contains("#/") {
            rendered.text.push_str(before);
        } else {
            rendered.checked += 1;
            match Reference::parse(reference).and_then(|figure| figure.show(data, None)) {
                Ok(figure) => {
                    let kept = before.len() - written(before, &figure);
                    if before[kept..] != figure {
                        let what = What::Differs {
                            text: before[kept..].to_owned(),
                            data: figure.clone(),
                            reference: reference.to_owned(),
                        };
                        rendered.problems.push(Problem { line: number, what });
                    }
                    rendered.text.push_str(&before[..kept]);
                    rendered.text.push_str(&figure);
                }
                Err(error) => {
                    rendered.text.push_str(before);
                    rendered.broken(number, error);
                }
            }
        }
        rendered.text.push_str(OPEN);
        rendered.text.push_str(inside);
        rendered.text.push_str(CLOSE);
    }
    rendered.text.push_str(rest);
}

/// How many bytes at the end of `before` are the number that stands there now. A sign belongs to
/// it only where one is wanted, or the number would be another without: "10-20" has none.
fn written(before: &str, wanted: &str) -> usize {
    let digits = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let start = before.trim_end_matches(digits);
    let signed = start.ends_with(['+', '-']);
    let alone = !start[..start.len().saturating_sub(1)].ends_with(|c: char| c.is_alphanumeric());
    let sign = usize::from(signed && (wanted.starts_with(['+', '-']) || alone));
    before.len() - start.len() + sign
}

/// A table and its two comments; the line behind it.
fn table(lines: &[&str], from: usize, data: &Data, rendered: &mut Rendered) -> usize {
    let closes = |line: &&str| line.trim_end().ends_with(CLOSE);
    let head = lines[from..].iter().position(closes);
    let end = lines[from..].iter().position(|line| line.trim_end() == END);
    let (Some(head), Some(end)) = (head, end) else {
        let why = format!("a table ends with a line {END:?}");
        rendered.broken(from + 1, Error::syntax(lines[from].trim_end(), why));
        rendered.text.push_str(&lines[from..].concat());
        return lines.len();
    };
    let (body, end) = (from + head + 1, from + end);
    let marker = lines[from..body].concat();
    rendered.checked += 1;
    rendered.text.push_str(&marker);
    let description = marker.trim_end().trim_start_matches(BLOCK);
    match block::render(description.trim_end_matches(CLOSE), data) {
        Ok(table) => {
            // A table between blank lines is one in every reading of Markdown.
            let table = format!("\n{table}\n\n");
            let wanted: Vec<&str> = table.lines().collect();
            let there: Vec<&str> = lines[body..end]
                .iter()
                .map(|line| line.trim_end())
                .collect();
            let differs =
                (0..wanted.len().max(there.len())).find(|&row| wanted.get(row) != there.get(row));
            if let Some(row) = differs {
                let or_nothing = |line: Option<&&str>| (*line.unwrap_or(&"")).to_owned();
                let what = What::Differs {
                    text: or_nothing(there.get(row)),
                    data: or_nothing(wanted.get(row)),
                    reference: lines[from]
                        .trim_end()
                        .trim_start_matches("<!-- ")
                        .to_owned(),
                };
                let line = body + 1 + row.min(there.len());
                rendered.problems.push(Problem { line, what });
            }
            rendered.text.push_str(&table);
        }
        Err(error) => {
            rendered.text.push_str(&lines[body..end].concat());
            rendered.broken(from + 1, error);
        }
    }
    rendered.text.push_str(lines[end]);
    end + 1
}

#[cfg(test)]
mod tests;
