//! Commands that moved to other programs in 0.2: `tandem sim`, `tandem bench` and `tandem lab`.
//!
//! For one release, `tandem` prints a hint and starts their new program, from its own directory or from `PATH`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use tandem_command::tell;

/// Commands of `tandem sim` that are part of the research program.
const RESEARCH: [&str; 4] = ["reproduce", "survey", "kernel", "calibrate"];

/// Returns the program and the leading arguments that replace the first words of a command line, and how many words they replace.
fn replacement(words: &[&str]) -> Option<(&'static str, Vec<String>, usize)> {
    match words {
        ["sim", command, ..] if RESEARCH.contains(command) => {
            Some(("tandem-lab", vec![(*command).to_owned()], 2))
        }
        ["sim", "bench", ..] => Some(("tandem-lab", vec!["bench".to_owned(), "sim".to_owned()], 2)),
        ["sim", ..] => Some(("tandem-sim", Vec::new(), 1)),
        ["bench", ..] => Some(("tandem-lab", vec!["bench".to_owned()], 1)),
        ["lab", ..] => Some(("tandem-lab", vec!["emulate".to_owned()], 1)),
        _ => None,
    }
}

/// Starts the new program of a moved command. Returns only if the command has not moved, or if the program cannot be started.
pub fn delegate() -> Option<ExitCode> {
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = given.iter().map_while(|word| word.to_str()).collect();
    let (program, leading, replaced) = replacement(&words)?;
    let new = [vec![program.to_owned()], leading.clone()].concat().join(" ");
    let old = words.get(..replaced).unwrap_or_default().join(" ");
    tell!("tandem: 'tandem {old}' is now '{new}'; the next release removes the old form");
    let rest = given.into_iter().skip(replaced);
    let error = Command::new(path(program)).args(leading).args(rest).exec();
    let package = if program == "tandem-sim" { "tandem-sim-cli" } else { "tandem-research" };
    tell!(
        "tandem: cannot start {program}: {error}; build it with 'cargo build --release -p {package}'"
    );
    Some(ExitCode::FAILURE)
}

/// Returns the path of a program next to this one, or its name, to be found in `PATH`.
fn path(program: &str) -> PathBuf {
    let own = std::env::current_exe().ok();
    let next = own.and_then(|own| Some(own.parent()?.join(program)));
    next.filter(|path| path.exists()).unwrap_or_else(|| program.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_commands_have_new_names() {
        let new = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            replacement(&words).map(|(program, leading, n)| (program, leading.join(" "), n))
        };
        assert_eq!(new("sim run a.toml"), Some(("tandem-sim", String::new(), 1)));
        assert_eq!(new("sim survey"), Some(("tandem-lab", "survey".to_owned(), 2)));
        assert_eq!(new("sim bench"), Some(("tandem-lab", "bench sim".to_owned(), 2)));
        assert_eq!(new("bench work"), Some(("tandem-lab", "bench".to_owned(), 1)));
        assert_eq!(new("lab list"), Some(("tandem-lab", "emulate".to_owned(), 1)));
        assert_eq!(new("host top"), None);
    }
}
