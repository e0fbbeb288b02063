//! An emulator as a child process, and the agent's answers from the file that its serial port is.
//!
//! The child dies with us, whatever ends us. It is ended as soon as the agent says that all is done:
//! nothing of the machine is needed any more, and shutting down an emulated machine takes long.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal};
use thiserror::Error;

use crate::job::{Facts, Failed, Line, MARK, Outcome};

/// Why an emulator brought no answers.
#[derive(Debug, Error)]
pub enum EmulatorError {
    /// Something that it needs is missing.
    #[error(
        "{what_for} is not installed; on Debian: apt-get install {packages} (scripts/setup lab does it)"
    )]
    Missing {
        /// What cannot run.
        what_for: String,
        /// The packages that have what is missing.
        packages: String,
    },
    /// It did not start.
    #[error("cannot start {name}: {source}")]
    Start {
        /// Which.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The agent said something that is not in the language of jobs.
    #[error("the machine answered something unknown: {start}: {source}")]
    Answer {
        /// How it begins.
        start: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Whether it still runs cannot be found out.
    #[error("cannot wait for a child: {0}")]
    Wait(#[source] io::Error),
    /// It ended before all was said.
    #[error("{name} ended too early ({status}){last_words}")]
    EndedEarly {
        /// Which.
        name: &'static str,
        /// How.
        status: ExitStatus,
        /// The ends of its logs.
        last_words: String,
    },
    /// It takes too long.
    #[error("no end after {seconds} s of this host's time; --patience gives it more{last_words}")]
    TooLong {
        /// How long was waited.
        seconds: u64,
        /// The ends of its logs.
        last_words: String,
    },
    /// It could not be told something.
    #[error("cannot signal {name}: {source}")]
    Signal {
        /// Which.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It was told to end and did not.
    #[error("{name} did not end within {seconds} s")]
    NoEnd {
        /// Which.
        name: &'static str,
        /// How long was waited.
        seconds: u64,
    },
}

/// How often the answers are looked at.
const PERIOD: Duration = Duration::from_millis(50);

/// Lines of a console that an error quotes.
const QUOTED: usize = 15;

/// What the agent said.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// It has booted and waits for its job.
    pub ready: bool,
    /// What the machine is.
    pub facts: Option<Facts>,
    /// What came out of the runs.
    pub outcomes: Vec<Outcome>,
    /// What failed.
    pub failed: Vec<Failed>,
    /// The job is done.
    pub ended: bool,
    /// Seconds of the host that the job took, the boot included where there was one.
    pub host_seconds: f64,
    /// Whether the machine was restored instead of booted.
    pub restored: bool,
}

impl Answers {
    /// Reads what has been said so far. A line that is not whole yet is left for later.
    pub fn parse(text: &str) -> Result<Answers, EmulatorError> {
        let mut answers = Answers::default();
        for line in text.split_inclusive('\n') {
            let Some((_, json)) = line.split_once(MARK) else {
                continue;
            };
            if !line.ends_with('\n') {
                break;
            }
            let json = json.trim_end();
            let line: Line = serde_json::from_str(json).map_err(|source| {
                EmulatorError::Answer { start: json.chars().take(200).collect(), source }
            })?;
            match line {
                Line::Ready => answers.ready = true,
                Line::Machine(facts) => answers.facts = Some(facts),
                Line::Run(outcome) => answers.outcomes.push(*outcome),
                Line::Failed(failed) => answers.failed.push(failed),
                Line::End => answers.ended = true,
            }
        }
        Ok(answers)
    }
}

/// A running emulator.
pub struct Emulator {
    child: Child,
    name: &'static str,
    /// Where the agent's answers appear.
    answers: PathBuf,
    /// Files that say what went wrong.
    logs: Vec<PathBuf>,
    begin: Instant,
}

impl Emulator {
    /// Starts it.
    pub fn start(
        name: &'static str,
        mut command: Command,
        answers: PathBuf,
        logs: Vec<PathBuf>,
    ) -> Result<Emulator, EmulatorError> {
        let death = || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(io::Error::from)
        };
        // What an earlier machine said in the same folder is none of this one's; there may be none.
        let _ = fs::remove_file(&answers);
        // SAFETY: one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(death) };
        let child = command.spawn().map_err(|source| EmulatorError::Start { name, source })?;
        Ok(Emulator { child, name, answers, logs, begin: Instant::now() })
    }

    /// Waits until `enough`.
    pub fn wait_until(
        &mut self,
        patience: Duration,
        enough: impl Fn(&Answers) -> bool,
    ) -> Result<Answers, EmulatorError> {
        loop {
            // Before the look, so that what was said before the end is seen.
            let ended = self.child.try_wait().map_err(EmulatorError::Wait)?;
            let text = fs::read(&self.answers).unwrap_or_default();
            let mut answers = Answers::parse(&String::from_utf8_lossy(&text))?;
            answers.host_seconds = self.begin.elapsed().as_secs_f64();
            if enough(&answers) {
                return Ok(answers);
            }
            if let Some(status) = ended {
                return Err(EmulatorError::EndedEarly {
                    name: self.name,
                    status,
                    last_words: self.last_words(),
                });
            }
            if self.begin.elapsed() > patience {
                return Err(EmulatorError::TooLong {
                    seconds: patience.as_secs(),
                    last_words: self.last_words(),
                });
            }
            thread::sleep(PERIOD);
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), EmulatorError> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal)
            .map_err(|error| EmulatorError::Signal { name: self.name, source: error.into() })
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self, patience: Duration) -> Result<ExitStatus, EmulatorError> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().map_err(EmulatorError::Wait)? {
                return Ok(status);
            }
            if begin.elapsed() > patience {
                return Err(EmulatorError::NoEnd { name: self.name, seconds: patience.as_secs() });
            }
            thread::sleep(PERIOD);
        }
    }

    fn last_words(&self) -> String {
        let words = self.logs.iter().map(|path| {
            let bytes = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            let last = lines[lines.len().saturating_sub(QUOTED)..].join("\n  ");
            format!("\n{}, at its end:\n  {last}", path.display())
        });
        words.collect()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a program is in PATH.
pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Fails with the Debian packages of what is missing: each a program, or a file, and its package.
pub fn need(what_for: &str, needs: &[(&str, &str)]) -> Result<(), EmulatorError> {
    let there =
        |name: &str| if name.starts_with('/') { Path::new(name).exists() } else { in_path(name) };
    let missing: Vec<&str> =
        needs.iter().filter(|(name, _)| !there(name)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        let mut packages = missing;
        packages.sort_unstable();
        packages.dedup();
        return Err(EmulatorError::Missing {
            what_for: what_for.to_owned(),
            packages: packages.join(" "),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str, answers: &Path) -> Emulator {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let logs = vec![answers.to_owned()];
        Emulator::start("the shell", command, answers.to_owned(), logs).unwrap()
    }

    #[test]
    fn answers_are_read_between_other_text_and_half_a_line_waits() {
        let answers = Answers::parse(
            "boot noise\r\ntandem-lab: \"ready\"\r\ntandem-lab: {\"failed\":{\"variant\":\"x\",\
             \"error\":\"no\"}}\ntandem-lab: \"en",
        )
        .unwrap();
        assert!(answers.ready && !answers.ended);
        assert_eq!(answers.failed[0].error, "no");
        let error = Answers::parse("tandem-lab: {\"what\":1}\n").unwrap_err();
        assert!(error.to_string().contains("{\"what\":1}"));
    }

    #[test]
    fn an_emulator_is_followed_to_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Of an earlier machine: were it read, the end would be seen without an answer.
        fs::write(file.path(), "tandem-lab: \"end\"\n").unwrap();
        let script = format!(
            "sleep 0.2; echo 'tandem-lab: \"ready\"\ntandem-lab: \"end\"' >{}; sleep 60",
            file.path().display()
        );
        let mut emulator = shell(&script, file.path());
        let answers = emulator.wait_until(Duration::from_secs(30), |a| a.ended);
        assert!(answers.unwrap().ready);
    }

    #[test]
    fn one_that_ends_too_early_or_never_is_an_error_with_its_last_words() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("echo 'Kernel panic' >{}; exit 3", file.path().display());
        let error = shell(&script, file.path())
            .wait_until(Duration::from_secs(30), |a| a.ended)
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3") && error.contains("Kernel panic"), "{error}");
        let error = shell("sleep 60", file.path())
            .wait_until(Duration::from_millis(1), |a| a.ended)
            .unwrap_err();
        assert!(error.to_string().contains("--patience"));
    }

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert!(need("the shell", &[("sh", "dash"), ("/bin", "base-files")]).is_ok());
        let needs = [("no-such-program", "two"), ("/no/such/file", "one")];
        let error = need("the lab", &needs).unwrap_err().to_string();
        assert!(error.contains("apt-get install one two"), "{error}");
    }
}
