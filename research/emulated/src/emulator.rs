//! An emulator as a child process, and the agent's answers from the file of its serial port.
//!
//! The child dies with this process.
//! It is killed as soon as the agent reports the end of the job, because shutting down an emulated machine takes long.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal};
use thiserror::Error;

use crate::job::{Facts, Failed, Line, MARK, Outcome};

/// Error of an emulator.
#[derive(Debug, Error)]
pub enum EmulatorError {
    /// A requirement is missing.
    #[error(
        "{what_for} is not installed; on Debian: apt-get install {packages} (scripts/setup lab does it)"
    )]
    Missing {
        /// Name of the emulator.
        what_for: String,
        /// Missing packages.
        packages: String,
    },
    /// The emulator did not start.
    #[error("cannot start {name}: {source}")]
    Start {
        /// Name of the emulator.
        name: &'static str,
        /// OS error.
        source: io::Error,
    },
    /// An answer of the agent is invalid.
    #[error("the machine answered something unknown: {start}: {source}")]
    Answer {
        /// Start of the answer.
        start: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// Waiting for the emulator failed.
    #[error("cannot wait for a child: {0}")]
    Wait(#[source] io::Error),
    /// The emulator ended before the job.
    #[error("{name} ended too early ({status}){last_words}")]
    EndedEarly {
        /// Name of the emulator.
        name: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// The ends of its logs.
        last_words: String,
    },
    /// The job timed out.
    #[error("no end after {seconds} s of this host's time; --patience gives it more{last_words}")]
    TooLong {
        /// The timeout.
        seconds: u64,
        /// The ends of its logs.
        last_words: String,
    },
    /// Sending a signal failed.
    #[error("cannot signal {name}: {source}")]
    Signal {
        /// Name of the emulator.
        name: &'static str,
        /// OS error.
        source: io::Error,
    },
    /// The emulator did not end in time.
    #[error("{name} did not end within {seconds} s")]
    NoEnd {
        /// Name of the emulator.
        name: &'static str,
        /// The timeout.
        seconds: u64,
    },
}

/// Interval between readings of the answers.
const PERIOD: Duration = Duration::from_millis(50);

/// Lines of a console that an error quotes.
const QUOTED: usize = 15;

/// Answers of the agent.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Whether the machine has booted and waits for its job.
    pub ready: bool,
    /// Facts about the machine.
    pub facts: Option<Facts>,
    /// Results of the runs.
    pub outcomes: Vec<Outcome>,
    /// Failures.
    pub failed: Vec<Failed>,
    /// Whether the job is done.
    pub ended: bool,
    /// Time of the job on the host in seconds, including the boot if there was one.
    pub host_seconds: f64,
    /// Whether the machine was restored instead of booted.
    pub restored: bool,
}

impl Answers {
    /// Parses the answers so far. Ignores an incomplete last line.
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
    /// File of the agent's answers.
    answers: PathBuf,
    /// Log files, for errors.
    logs: Vec<PathBuf>,
    begin: Instant,
}

impl Emulator {
    /// Starts the emulator.
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
        // Remove answers of an earlier machine in the same folder.
        let _ = fs::remove_file(&answers);
        // SAFETY: the closure makes one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(death) };
        let child = command.spawn().map_err(|source| EmulatorError::Start { name, source })?;
        Ok(Emulator { child, name, answers, logs, begin: Instant::now() })
    }

    /// Waits until the answers satisfy `enough`.
    pub fn wait_until(
        &mut self,
        patience: Duration,
        enough: impl Fn(&Answers) -> bool,
    ) -> Result<Answers, EmulatorError> {
        loop {
            // Check for the end first, so that the last answers are not missed.
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

    /// Sends a signal to the emulator.
    pub fn signal(&self, signal: Signal) -> Result<(), EmulatorError> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal)
            .map_err(|error| EmulatorError::Signal { name: self.name, source: error.into() })
    }

    /// Waits until the emulator exits.
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

/// Returns whether a program is in PATH.
pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Checks requirements, which are programs or files with their Debian packages; an error names the missing packages.
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
    fn parse_skips_noise_and_incomplete_lines() {
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
    fn wait_until_returns_at_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // An answer of an earlier machine must be ignored.
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
    fn early_end_and_timeout_are_errors() {
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
    fn missing_packages_are_named() {
        assert!(need("the shell", &[("sh", "dash"), ("/bin", "base-files")]).is_ok());
        let needs = [("no-such-program", "two"), ("/no/such/file", "one")];
        let error = need("the lab", &needs).unwrap_err().to_string();
        assert!(error.contains("apt-get install one two"), "{error}");
    }
}
