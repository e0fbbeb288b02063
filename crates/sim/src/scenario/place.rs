//! Where a setting stands, and what is said when it is wrong.
//!
//! A scenario comes from several files and from the command line. Whatever is wrong is reported as
//! `FILE:LINE: what is wrong: what would be right`, or with `--set KEY=VALUE` (or `--vary`) in place of file
//! and line, so that nobody must guess which of them is meant.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// The longest scenario or workload, in bytes.
pub(super) const MOST_BYTES: u64 = 4 << 20;

/// The longest message about a place, in bytes.
const LONGEST_MESSAGE: usize = 1_000;

/// Where a setting stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    Line {
        /// The file, as it was named.
        file: Arc<str>,
        /// The line, from 1.
        line: u32,
    },
    /// On the command line.
    Given {
        /// The option, such as `--set`.
        option: &'static str,
        /// The key.
        key: Arc<str>,
        /// Its value, as it was given.
        value: Arc<str>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "{file}:{line}"),
            Place::Given { option, key, value } => write!(f, "{option} {key}={value}"),
        }
    }
}

/// Why a scenario or a workload cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is longer than any scenario.
    #[error(
        "{path} is longer than {most} MiB: no scenario and no workload is",
        path = path.display(),
        most = MOST_BYTES >> 20
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A `--set` is no setting.
    #[error("--set {0}: write KEY=VALUE, such as vm.0.vcpus=8")]
    Malformed(String),
    /// A file is no TOML, or something in it is wrong.
    #[error("{place}: {message}")]
    Wrong {
        /// Where.
        place: Place,
        /// What, and what would be right.
        message: String,
    },
}

impl LoadError {
    /// Something is wrong at a place. What the file holds may be part of the message: of that as much is said as fits some lines, and nothing that a
    /// terminal would obey.
    pub fn at(place: &Place, message: impl Into<String>) -> LoadError {
        let message: String = message.into();
        let is_plain = |c: char| !c.is_control();
        LoadError::Wrong {
            place: place.clone(),
            message: match message.len() <= LONGEST_MESSAGE && message.chars().all(is_plain) {
                true => message,
                false => shortened(&message),
            },
        }
    }
}

/// The first of a message, with control characters written out.
fn shortened(message: &str) -> String {
    let mut said = String::new();
    for c in message.chars() {
        if said.len() >= LONGEST_MESSAGE {
            said.push('…');
            break;
        }
        if c.is_control() { said.extend(c.escape_default()) } else { said.push(c) }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_what_is_as_long_as_a_file_stay_short() {
        let long = "wieght".repeat(200_000);
        let place = Place::Line { file: "a.toml".into(), line: 1 };
        let said = LoadError::at(&place, format!("`{long}\n\u{1b}[2J`")).to_string();
        assert!(said.len() < 1_100 && said.ends_with('…'), "{said}");
        let said = LoadError::at(&place, "`a\n\u{1b}[2J` is no key").to_string();
        assert_eq!(said, "a.toml:1: `a\\n\\u{1b}[2J` is no key");
    }

    #[test]
    fn places_read_as_compilers_write_them() {
        let place = Place::Line { file: "a.toml".into(), line: 7 };
        assert_eq!(LoadError::at(&place, "no").to_string(), "a.toml:7: no");
        let place = Place::Given { option: "--set", key: "vm.0.vcpus".into(), value: "x".into() };
        assert_eq!(LoadError::at(&place, "no").to_string(), "--set vm.0.vcpus=x: no");
    }
}
