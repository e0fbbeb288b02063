//! `tandem-sim new NAME`: creates a folder with a commented scenario, a workload and the first commands, for editing.
//!
//! The folder must not exist, so existing files are never overwritten.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Placeholder of the folder's name in the files.
const NAME: &str = "NAME";

/// Paths and texts of the files.
const FILES: [(&str, &str); 3] = [
    ("scenario.toml", include_str!("../starter/scenario.toml")),
    ("workloads/app.toml", include_str!("../starter/app.toml")),
    ("README.md", include_str!("../starter/README.md")),
];

/// Error in creating a project.
#[derive(Debug, Error)]
pub enum StarterError {
    /// The folder exists.
    #[error("{} is there already: name a folder that is not", .0.display())]
    There(PathBuf),
    /// The name needs quotes in a shell.
    #[error(
        "{0:?} cannot be a project's name: write letters, digits, - and _, such as my-host; a path of such names is possible"
    )]
    Name(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// Creates the folder and its files, and returns the paths of the files.
pub fn create(folder: &Path) -> Result<Vec<PathBuf>, StarterError> {
    let name = name(folder).ok_or_else(|| StarterError::Name(folder.to_owned()))?;
    if folder.symlink_metadata().is_ok() {
        return Err(StarterError::There(folder.to_owned()));
    }
    let mut paths = Vec::new();
    for (file, text) in FILES {
        let path = folder.join(file);
        let written = std::fs::create_dir_all(path.parent().unwrap_or(folder))
            .and_then(|()| std::fs::write(&path, text.replace(NAME, &name)));
        written.map_err(|cause| StarterError::Write { path: path.clone(), cause })?;
        paths.push(path);
    }
    Ok(paths)
}

/// Returns the folder's name if its path needs no quotes in a shell.
fn name(folder: &Path) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let name = folder.file_name()?.to_str()?;
    let plain = folder.to_str()?.chars().all(is_plain) && !name.starts_with(['-', '.']);
    plain.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_sim::scenario::load;

    #[test]
    fn project_loads_and_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("my-host");
        let paths = create(&folder).unwrap();
        assert_eq!(paths.len(), 3);
        let scenario = load::read(&paths[0]).unwrap();
        assert_eq!(scenario.vms[0].workload.unit, "requests");
        for path in &paths {
            let text = std::fs::read_to_string(path).unwrap();
            assert!(!text.contains(NAME), "{}", path.display());
        }
        let error = create(&folder).unwrap_err().to_string();
        assert!(error.contains("there already"), "{error}");
    }

    #[test]
    fn names_that_need_quotes_are_rejected() {
        for name in ["a b", "", "..", "-x", "it's", ".hidden", "/"] {
            let error = create(Path::new(name)).unwrap_err();
            assert!(matches!(error, StarterError::Name(_)), "{name}: {error}");
        }
    }
}
