//! Script that runs a sweep with Slurm: an array with a task for each shard, and a job that joins their files.
//!
//! The script needs only `sbatch`, the program and a folder that all nodes share.
//! It determines the missing shards, so running it again resumes a failed sweep; its header documents the commands.
//! A task runs `tandem-sim sweep --shard I/N`, whose file appears only when it is complete.
//!
//! This module does not call Slurm.
//! The script passes the grid's fingerprint to every command that runs or joins shards, so a scenario edited since is an error.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::division::Division;
use super::grid::{Grid, Shard};

/// Template of the script.
const TEMPLATE: &str = include_str!("slurm.sh");

/// Maximum number of letters of the scenario's name in a job's name.
const NAME: usize = 40;

/// Error in writing a script.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The path cannot be quoted in a script.
    #[error("{} cannot stand in a script: a path of UTF-8 without line breaks is needed", .0.display())]
    Path(PathBuf),
    /// Another file exists at the script's path.
    #[error("{} is there already and is no such script: name another file", .0.display())]
    Occupied(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    System {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
}

/// Arguments of `tandem-sim sweep` for the script's tasks.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    /// The scenario's file.
    pub scenario: &'a Path,
    /// Settings, `KEY=VALUE`.
    pub settings: &'a [String],
    /// Seed that replaces the scenario's.
    pub seed: Option<u64>,
    /// Duration that replaces the scenario's.
    pub duration: Option<&'a str>,
    /// Policies of the grid.
    pub policies: &'a [String],
    /// Varied parameters, `KEY=VALUE,…`.
    pub vary: &'a [String],
    /// Runs of each combination.
    pub runs: u32,
    /// The merged file.
    pub out: &'a Path,
}

impl Script<'_> {
    /// Writes the script for this program, and creates the shards' folder.
    ///
    /// An existing script is replaced; any other existing file is an error.
    pub fn write(
        &self,
        script: &Path,
        grid: &Grid,
        division: &Division,
    ) -> Result<(), ScriptError> {
        if std::fs::read_to_string(script).map_or(script.exists(), |text| !is_ours(&text)) {
            return Err(ScriptError::Occupied(script.to_owned()));
        }
        let program = std::env::current_exe().map_err(cannot("find", Path::new("tandem")))?;
        let text = self.text(&absolute(script)?, &program, grid, division)?;
        let folder = &division.folder;
        std::fs::create_dir_all(folder).map_err(cannot("make the folder", folder))?;
        std::fs::write(script, text).map_err(cannot("write", script))
    }

    /// Returns the text for this path and program.
    fn text(
        &self,
        script: &Path,
        program: &Path,
        grid: &Grid,
        division: &Division,
    ) -> Result<String, ScriptError> {
        let safe = |letter: char| {
            if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' }
        };
        let identity = grid.identity(Shard::WHOLE);
        let name: String = identity.scenario.chars().take(NAME).map(safe).collect();
        let values = [
            ("@NAME@", format!("tandem-{name}")),
            ("@OF@", division.of.to_string()),
            ("@FINGERPRINT@", identity.fingerprint),
            ("@CELLS@", grid.cells().to_string()),
            ("@SCRIPT@", word(script)?),
            ("@PROGRAM@", word(program)?),
            ("@FOLDER@", word(&absolute(&division.folder)?)?),
            ("@OUT@", word(&absolute(self.out)?)?),
            ("@ARGUMENTS@", self.arguments()?),
        ];
        Ok(filled(TEMPLATE, &values))
    }

    /// Returns the arguments of `tandem-sim sweep` in shell syntax.
    fn arguments(&self) -> Result<String, ScriptError> {
        let mut words = vec![word(&absolute(self.scenario)?)?];
        let mut option = |name: &str, value: &str| words.push(quoted(&format!("--{name}={value}")));
        for setting in self.settings {
            option("set", setting);
        }
        if let Some(seed) = self.seed {
            option("seed", &seed.to_string());
        }
        if let Some(duration) = self.duration {
            option("duration", duration);
        }
        for policies in self.policies {
            option("policies", policies);
        }
        for vary in self.vary {
            option("vary", vary);
        }
        option("runs", &self.runs.to_string());
        Ok(words.join(" "))
    }
}

/// Returns whether a text is that of a generated script.
fn is_ours(text: &str) -> bool {
    text.contains("written by `tandem-sim sweep --slurm`")
}

fn cannot(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ScriptError {
    let path = path.to_owned();
    move |cause| ScriptError::System { what, path, cause }
}

/// Returns the absolute path, because jobs run in other folders.
fn absolute(path: &Path) -> Result<PathBuf, ScriptError> {
    std::path::absolute(path).map_err(cannot("find", path))
}

/// Replaces names by values in a template; names inside values are not replaced.
fn filled(template: &str, values: &[(&str, String)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((at, name, value)) = values
        .iter()
        .filter_map(|(name, value)| Some((rest.find(name)?, *name, value)))
        .min_by_key(|(at, _, _)| *at)
    {
        text += &rest[..at];
        text += value;
        rest = &rest[at + name.len()..];
    }
    text + rest
}

/// Quotes a path as a word of a shell command.
fn word(path: &Path) -> Result<String, ScriptError> {
    match path.to_str() {
        Some(text) if !text.contains(['\n', '\r']) => Ok(quoted(text)),
        _ => Err(ScriptError::Path(path.to_owned())),
    }
}

/// Quotes a text as a word of a shell command.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vary;
    use tandem_sim::scenario::load::Source;

    #[test]
    fn words_are_quoted_if_needed() {
        assert_eq!(quoted("vm.0.vcpus=1..4"), "vm.0.vcpus=1..4");
        assert_eq!(quoted("vm.*.idle=poll"), "'vm.*.idle=poll'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn values_are_not_expanded() {
        let values = [("@A@", "@B@".to_owned()), ("@B@", "b".to_owned())];
        assert_eq!(filled("@A@ @B@ @A@.", &values), "@B@ b @B@.");
    }

    #[test]
    fn template_is_filled_completely() {
        let text = "duration = \"1ms\"\nname = \"a/b c\"\n[machine]\npcpus = 1\n[[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"burn\"\n";
        let source = Source::from_text("s.toml", text).unwrap();
        let vary = ["vm.*.vcpus=1,2".to_owned()];
        let combinations = vary::combinations(Vec::new(), &vary).unwrap();
        let grid = Grid::read(&source, &combinations, 50).unwrap();
        let division = Division {
            folder: PathBuf::from("/data/all.parquet.shards"),
            of: 12,
            done: Vec::new(),
        };
        let mut script = Script {
            scenario: Path::new("/data/my host.toml"),
            settings: &[],
            seed: Some(7),
            duration: None,
            policies: &["stock".to_owned(), "aple".to_owned()],
            vary: &vary,
            runs: 50,
            out: Path::new("/data/all.parquet"),
        };
        let (place, program) = (Path::new("/data/sweep.sh"), Path::new("/usr/bin/tandem"));
        let text = script.text(place, program, &grid, &division).unwrap();
        assert!(is_ours(&text));
        let is_name = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
        let left: Vec<&str> = text.split('@').filter(|part| is_name(part)).collect();
        assert!(left.is_empty(), "{left:?}");
        for line in [
            "#SBATCH --job-name=tandem-a_b_c",
            "#SBATCH --array=1-12",
            "# A sweep of 100 cells in 12 shards, written by `tandem-sim sweep --slurm`.",
            "arguments=('/data/my host.toml' --seed=7 --policies=stock --policies=aple '--vary=vm.*.vcpus=1,2' --runs=50)",
            "folder=/data/all.parquet.shards",
            &format!("fingerprint={}", grid.identity(Shard::WHOLE).fingerprint),
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        script.out = Path::new("/data/a\nb");
        assert!(script.text(place, program, &grid, &division).is_err());
    }
}
