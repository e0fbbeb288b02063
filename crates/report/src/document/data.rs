//! The files of data that documents refer to, and why a figure cannot be had from them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use serde_json::Value;

/// What can be made of several values.
pub const AGGREGATES: [&str; 8] = [
    "count", "sum", "mean", "geomean", "median", "min", "max", "agreeing",
];

/// Why a figure cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// docs/data has no {0}.json
    #[error("docs/data has no {0}.json")]
    File(String),
    /// nothing is at a path
    #[error("{path}: nothing is at {segment:?}")]
    Missing {
        /// The whole path.
        path: String,
        /// Its first part that leads nowhere.
        segment: String,
    },
    /// a path leads to several values
    #[error(
        "{path}: {count} values, where one is wanted: say which, as in [name=…], or what to make \
         of them ({})", AGGREGATES.join(", ")
    )]
    Several {
        /// The whole path.
        path: String,
        /// How many values there are.
        count: usize,
    },
    /// a value that is no number
    #[error("{path}: {value} is not a number")]
    NoNumber {
        /// The whole path.
        path: String,
        /// What is there.
        value: String,
    },
    /// a reference that cannot be read
    #[error("{text:?}: {why}")]
    Syntax {
        /// What stands there.
        text: String,
        /// What would be right.
        why: String,
    },
}

impl Error {
    pub(super) fn syntax(text: &str, why: impl Into<String>) -> Error {
        Error::Syntax {
            text: text.to_owned(),
            why: why.into(),
        }
    }
}

/// The files of data, by name.
#[derive(Clone, Debug, Default)]
pub struct Data(BTreeMap<String, Value>);

impl Data {
    /// Every `NAME.json` of a folder.
    pub fn read(folder: &Path) -> io::Result<Data> {
        let mut data = Data::default();
        for entry in fs::read_dir(folder)? {
            let path: PathBuf = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            let (Some(name), true) = (name, path.extension().is_some_and(|end| end == "json"))
            else {
                continue;
            };
            let told = |what: &dyn fmt::Display| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{}: {what}", path.display()),
                )
            };
            let text = fs::read_to_string(&path).map_err(|error| told(&error))?;
            let value = serde_json::from_str(&text).map_err(|error| told(&error))?;
            data.insert(name, value);
        }
        Ok(data)
    }

    /// Adds a file.
    pub fn insert(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// A file's contents.
    pub fn file(&self, name: &str) -> Result<&Value, Error> {
        self.0.get(name).ok_or_else(|| Error::File(name.to_owned()))
    }
}
