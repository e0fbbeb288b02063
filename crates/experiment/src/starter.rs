//! `tandem-sim new NAME`: a folder with a commented scenario, a workload and the first commands, to be changed.
//!
//! The folder must not be there yet: nothing is ever replaced.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What stands for the folder's name in the files.
const NAME: &str = "NAME";

/// Files and their texts.
const FILES: [(&str, &str); 3] = [
    ("scenario.toml", include_str!("../starter/scenario.toml")),
    ("workloads/app.toml", include_str!("../starter/app.toml")),
    ("README.md", include_str!("../starter/README.md")),
];

/// Why there is no project.
#[derive(Debug, Error)]
pub enum StarterError {
    /// It is there.
    #[error("{} is there already: name a folder that is not", .0.display())]
    There(PathBuf),
    /// It cannot stand in a command.
    #[error(
        "{0:?} cannot be a project's name: write letters, digits, - and _, such as my-host; a path of such names is possible"
    )]
    Name(PathBuf),
    /// The system refused it.
    #[error("cannot write {}", path.display())]
    Write {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// Makes the folder and its files, whose paths it gives.
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

/// The folder's name, if a shell takes its path as it is.
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
    fn a_project_is_made_once_and_its_scenario_runs() {
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
    fn names_that_a_shell_would_change_are_refused() {
        for name in ["a b", "", "..", "-x", "it's", ".hidden", "/"] {
            let error = create(Path::new(name)).unwrap_err();
            assert!(matches!(error, StarterError::Name(_)), "{name}: {error}");
        }
    }
}
