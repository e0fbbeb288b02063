//! The script that has Slurm run a sweep: an array with a task for each shard, then a job that joins their files.
//!
//! The script is whole: it needs nothing but `sbatch`, the program and a folder that all nodes see. It finds out by itself
//! which shards are missing, so a failed sweep goes on by running it again (its own text says how). A task runs
//! `tandem-sim sweep --shard I/N`, whose file appears only once it is complete.
//!
//! Nothing here talks to Slurm. The grid's fingerprint is in the script, and whatever runs or joins shards is told to refuse another: a
//! scenario that was edited since is an error and not another result.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::division::Division;
use super::grid::{Grid, Shard};

/// What the script is made of.
const TEMPLATE: &str = include_str!("slurm.sh");

/// Letters of a job's name that come from the scenario's.
const NAME: usize = 40;

/// Why there is no script.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// No script can have such a path.
    #[error("{} cannot stand in a script: a path of UTF-8 without line breaks is needed", .0.display())]
    Path(PathBuf),
    /// A file is in its place.
    #[error("{} is there already and is no such script: name another file", .0.display())]
    Occupied(PathBuf),
    /// The system refused something.
    #[error("cannot {what} {}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

/// What the script's tasks are asked for, as it was given to `tandem-sim sweep`.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    /// The scenario's file.
    pub scenario: &'a Path,
    /// What is set in it, `KEY=VALUE`.
    pub settings: &'a [String],
    /// The seed, unless it is the scenario's.
    pub seed: Option<u64>,
    /// How long is simulated, unless it is as long as the scenario says.
    pub duration: Option<&'a str>,
    /// Policies of the grid.
    pub policies: &'a [String],
    /// What is varied, `KEY=VALUE,…`.
    pub vary: &'a [String],
    /// Runs of each combination.
    pub runs: u32,
    /// The merged file.
    pub out: &'a Path,
}

impl Script<'_> {
    /// Writes it, for this program, and makes the shards' folder. A script that is there already is replaced, another file is not.
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

    /// Its text, for this place and this program.
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

    /// What follows `tandem-sim sweep`.
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

/// Whether a text is that of such a script.
fn is_ours(text: &str) -> bool {
    text.contains("written by `tandem-sim sweep --slurm`")
}

fn cannot(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ScriptError {
    let path = path.to_owned();
    move |cause| ScriptError::System { what, path, cause }
}

/// Jobs run in other folders.
fn absolute(path: &Path) -> Result<PathBuf, ScriptError> {
    std::path::absolute(path).map_err(cannot("find", path))
}

/// A template with values in the place of their names; what stands in a value is no name.
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

/// A path as a word of a shell's command.
fn word(path: &Path) -> Result<String, ScriptError> {
    match path.to_str() {
        Some(text) if !text.contains(['\n', '\r']) => Ok(quoted(text)),
        _ => Err(ScriptError::Path(path.to_owned())),
    }
}

/// A word of a shell's command.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vary;
    use tandem_sim::scenario::load::Source;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("vm.0.vcpus=1..4"), "vm.0.vcpus=1..4");
        assert_eq!(quoted("vm.*.idle=poll"), "'vm.*.idle=poll'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn values_are_taken_as_they_are() {
        let values = [("@A@", "@B@".to_owned()), ("@B@", "b".to_owned())];
        assert_eq!(filled("@A@ @B@ @A@.", &values), "@B@ b @B@.");
    }

    #[test]
    fn nothing_of_the_template_is_left() {
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
