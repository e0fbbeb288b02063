//! Where a setting stands, and what is said when it is wrong.
//!
//! A scenario comes from several files and from the command line. Whatever is wrong is reported as
//! `FILE:LINE: what is wrong: what would be right`, or with `--set KEY=VALUE` (or `--vary`) in place of file
//! and line, so that nobody must guess which of them is meant.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

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
    /// Something is wrong at a place.
    pub fn at(place: &Place, message: impl Into<String>) -> LoadError {
        LoadError::Wrong {
            place: place.clone(),
            message: message.into(),
        }
    }
}

/// The candidate that a mistyped word was probably meant to be.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        letters.flat_map(char::to_lowercase).collect()
    };
    let word = plain(word);
    let most = (word.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|&(distance, candidate)| distance <= most && distance < candidate.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Damerau's distance: letters to insert, remove, replace or swap with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows = vec![(0..=right.len()).collect::<Vec<usize>>()];
    for (i, &l) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &r) in right.iter().enumerate() {
            let mut least = (rows[i][j + 1] + 1)
                .min(row[j] + 1)
                .min(rows[i][j] + usize::from(l != r));
            if i > 0 && j > 0 && l == right[j - 1] && left[i - 1] == r {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words_find_their_neighbour() {
        let keys = ["vcpus", "weight", "workload", "pins", "steal_clock"];
        assert_eq!(nearest("vcpu", keys), Some("vcpus"));
        assert_eq!(nearest("wieght", keys), Some("weight"));
        assert_eq!(nearest("stealclock", keys), Some("steal_clock"));
        assert_eq!(nearest("Pins", keys), Some("pins"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
    }

    #[test]
    fn places_read_as_compilers_write_them() {
        let place = Place::Line {
            file: "a.toml".into(),
            line: 7,
        };
        assert_eq!(LoadError::at(&place, "no").to_string(), "a.toml:7: no");
        let place = Place::Given {
            option: "--set",
            key: "vm.0.vcpus".into(),
            value: "x".into(),
        };
        assert_eq!(
            LoadError::at(&place, "no").to_string(),
            "--set vm.0.vcpus=x: no"
        );
    }
}
