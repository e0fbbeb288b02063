//! Source locations of settings, and errors about them.
//!
//! A scenario comes from several files and from the command line.
//! Errors have the form `FILE:LINE: error: valid form`, with `--set KEY=VALUE` (or `--vary`) in place of file and line.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// Maximum size of a scenario or workload in bytes.
pub(crate) const MAX_BYTES: u64 = 4 << 20;

/// Maximum length of an error message in bytes.
const MAX_MESSAGE_BYTES: usize = 1_000;

/// Location of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    Line {
        /// The file, as given.
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
        /// Its value, as given.
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

/// Error in a scenario or workload.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file exceeds the maximum size.
    #[error(
        "{path} is longer than {most} MiB: no scenario and no workload is",
        path = path.display(),
        most = MAX_BYTES >> 20
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A malformed `--set`.
    #[error("--set {0}: write KEY=VALUE, such as vm.0.vcpus=8")]
    Malformed(String),
    /// Invalid TOML, or an invalid setting.
    #[error("{place}: {message}")]
    Wrong {
        /// Location.
        place: Place,
        /// The error and the valid form.
        message: String,
    },
}

impl LoadError {
    /// An error at a place.
    /// The message may quote the file, so it is truncated, and control characters are escaped.
    pub fn at(place: &Place, message: impl Into<String>) -> LoadError {
        let message: String = message.into();
        let is_plain = |c: char| !c.is_control();
        LoadError::Wrong {
            place: place.clone(),
            message: if message.len() <= MAX_MESSAGE_BYTES && message.chars().all(is_plain) {
                message
            } else {
                shortened(&message)
            },
        }
    }
}

/// Truncates a message and escapes its control characters.
fn shortened(message: &str) -> String {
    let mut said = String::new();
    for c in message.chars() {
        if said.len() >= MAX_MESSAGE_BYTES {
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
    fn long_messages_are_truncated() {
        let long = "wieght".repeat(200_000);
        let place = Place::Line { file: "a.toml".into(), line: 1 };
        let said = LoadError::at(&place, format!("`{long}\n\u{1b}[2J`")).to_string();
        assert!(said.len() < 1_100 && said.ends_with('…'), "{said}");
        let said = LoadError::at(&place, "`a\n\u{1b}[2J` is no key").to_string();
        assert_eq!(said, "a.toml:1: `a\\n\\u{1b}[2J` is no key");
    }

    #[test]
    fn places_use_compiler_format() {
        let place = Place::Line { file: "a.toml".into(), line: 7 };
        assert_eq!(LoadError::at(&place, "no").to_string(), "a.toml:7: no");
        let place = Place::Given { option: "--set", key: "vm.0.vcpus".into(), value: "x".into() };
        assert_eq!(LoadError::at(&place, "no").to_string(), "--set vm.0.vcpus=x: no");
    }
}
