//! The lab's descriptions of experiments and machines: TOML files in a folder for each kind.
//!
//! The file name is the name of the experiment or machine.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::de::{DeserializeOwned, Error as _};
use tandem_model::nesting::{TOO_DEEP, too_deep};
use thiserror::Error;

use crate::file::FileError;

/// Error of a description.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// Unknown name.
    #[error("there is no {kind} {name} ({path}); the {kind}s are {known}")]
    Missing {
        /// `experiment` or `machine`.
        kind: &'static str,
        /// The name.
        name: String,
        /// Path of the missing file.
        path: PathBuf,
        /// Known names.
        known: String,
    },
    /// The folder of descriptions does not exist.
    #[error(
        "there is no lab in {folder}; run from the top of Tandem's source, or give --lab: {source}"
    )]
    NoLab {
        /// Path of the folder.
        folder: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Reading the file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Invalid TOML or an unknown key.
    #[error("in {path}: {source}")]
    Toml {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        source: Box<toml::de::Error>,
    },
}

/// Reads the description of `name` from `path`; `folder` has all descriptions of its kind.
pub fn read<T: DeserializeOwned>(
    kind: &'static str,
    name: &str,
    path: &Path,
    folder: &Path,
) -> Result<T, DescriptionError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(DescriptionError::Missing {
                kind,
                name: name.to_owned(),
                path: path.to_owned(),
                known: names(folder)?.join(", "),
            });
        }
        Err(error) => return Err(FileError::of("read", path)(error).into()),
    };
    let parsed = match too_deep(&text) {
        Some(_) => Err(toml::de::Error::custom(TOO_DEEP)),
        None => toml::from_str(&text),
    };
    parsed.map_err(|source| DescriptionError::Toml {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Returns the sorted names of all descriptions in a folder.
pub fn names(folder: &Path) -> Result<Vec<String>, DescriptionError> {
    let entries = fs::read_dir(folder)
        .map_err(|source| DescriptionError::NoLab { folder: folder.to_owned(), source })?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(FileError::of("read", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "toml")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
