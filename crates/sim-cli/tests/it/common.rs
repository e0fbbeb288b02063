//! A temporary folder in which tests run `tandem-sim`.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Returns the path of a scenario of the repository.
pub fn scenario(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Returns whether a program succeeded, and its output.
pub fn said(output: Output) -> (bool, String) {
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    (output.status.success(), said)
}

/// A folder outside of the repository, with a scenario `s.toml`.
pub struct Folder {
    pub root: TempDir,
    /// First arguments of every command.
    command: &'static [&'static str],
}

impl Folder {
    pub fn new(scenario: &str, command: &'static [&'static str]) -> Folder {
        let folder = Folder { root: tempfile::tempdir().unwrap(), command };
        std::fs::write(folder.path("s.toml"), scenario).unwrap();
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    /// Returns the names of all files below a folder in it, including hidden ones.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-sim"));
        command.current_dir(self.root.path()).args(self.command).args(args);
        command
    }

    /// Runs a command, checks that it succeeds, and returns its output.
    pub fn succeeds(&self, args: &[&str]) -> String {
        let (success, said) = said(self.command(args).output().unwrap());
        assert!(success, "{args:?}: {said}");
        said
    }

    /// Checks that a command fails with all of these texts in its output.
    pub fn fails(&self, args: &[&str], needles: &[&str]) {
        let (success, said) = said(self.command(args).output().unwrap());
        assert!(!success, "{args:?} was accepted:\n{said}");
        for needle in needles {
            assert!(said.contains(needle), "{args:?}: no '{needle}' in:\n{said}");
        }
    }
}
