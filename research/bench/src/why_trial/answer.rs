//! Runs `tandem host why --json` and parses its stdout, as other programs would.
//!
//! A failure, invalid output or a timeout yields an [`AskError`], which counts as a wrong answer.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use serde::Deserialize;
use tandem_model::Nanos;
use tandem_model::states::interval::HostTotals;
use tandem_observe::findings::Kind;
use thiserror::Error;

/// Interval between checks whether it has ended.
const POLL: Duration = Duration::from_millis(20);

/// The relevant part of a finding.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Found {
    /// The VM's process.
    pub pid: u32,
    /// Kind of the finding.
    pub kind: Kind,
    /// Time that the VM loses, in ns per second.
    pub lost_per_second: Nanos,
    /// Time of the host that it burns, in ns per second, if the VM loses none.
    pub burned_per_second: Option<Nanos>,
}

/// The relevant part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Answer {
    /// Length of the interval, in s.
    pub seconds: f64,
    /// Names of the covered VMs.
    pub vms: Vec<String>,
    /// Findings, in the order of the answer.
    pub findings: Vec<Found>,
    /// States of the host's pCPUs.
    pub host: HostTotals,
}

impl Answer {
    /// Returns the CPU time of tasks of the host and of the kernel, except the processes `but`, in pCPUs.
    pub fn others(&self, but: &[u32]) -> f64 {
        let known = self.host.top_tasks.iter();
        let known = known.filter(|task| but.contains(&task.pid));
        let known: Nanos = known.map(|task| task.time).sum();
        let others = (self.host.tasks + self.host.kernel).saturating_sub(known);
        others.as_secs_f64() / self.seconds.max(1e-9)
    }
}

/// Reason for a missing answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// Starting or waiting failed.
    #[error("cannot run it: {0}")]
    Run(#[from] io::Error),
    /// The command failed.
    #[error("{status}: {said}")]
    Failed {
        /// Exit status.
        status: ExitStatus,
        /// Its stderr.
        said: String,
    },
    /// The command timed out.
    #[error("no answer within {} s", .0.as_secs())]
    TooLong(Duration),
    /// The output is invalid.
    #[error("its answer is none: {0}")]
    Form(#[from] serde_json::Error),
}

/// Runs a command that answers in JSON on stdout, for no longer than `limit`.
pub fn ask(command: &mut Command, limit: Duration) -> Result<Answer, AskError> {
    let begin = Instant::now();
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut asked = Asked(child);
    let (out, err) = (read(asked.0.stdout.take()), read(asked.0.stderr.take()));
    let status = loop {
        match asked.0.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > limit => return Err(AskError::TooLong(limit)),
            None => thread::sleep(POLL),
        }
    };
    let (out, err) = (all(out), all(err));
    if status.success() {
        Ok(serde_json::from_slice(&out)?)
    } else {
        Err(AskError::Failed { status, said: String::from_utf8_lossy(&err).trim().to_owned() })
    }
}

/// A child that is killed on drop.
struct Asked(Child);

impl Drop for Asked {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads a pipe in its own thread, so that no pipe fills up.
fn read(pipe: Option<impl Read + Send + 'static>) -> Option<JoinHandle<Vec<u8>>> {
    let mut pipe = pipe?;
    Some(thread::spawn(move || {
        let mut text = Vec::new();
        // On an error, use the text read so far.
        let _ = pipe.read_to_end(&mut text);
        text
    }))
}

fn all(reader: Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    let text = reader.and_then(|reader| reader.join().ok());
    text.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Answer, AskError> {
        ask(Command::new("sh").args(["-c", script]), limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn failures_and_invalid_output_are_errors() {
        let error = shell("echo broken >&2; exit 3", LONG).unwrap_err();
        let said = error.to_string();
        assert!(said.contains('3') && said.contains("broken"), "{said}");
        // Killed, as by a panic that aborts.
        let error = shell("kill -9 $$", LONG).unwrap_err();
        assert!(matches!(error, AskError::Failed { .. }), "{error}");
        for text in ["echo", "echo '{}'", "echo '{\"findings\": []}'"] {
            let error = shell(text, LONG).unwrap_err();
            assert!(matches!(error, AskError::Form(_)), "{text}: {error}");
        }
        let begin = Instant::now();
        let error = shell("exec sleep 60", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, AskError::TooLong(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn answer_has_vms_findings_and_others() {
        let finding = r#"{ "vm": "w1-a", "pid": 7, "kind": "quota", "severity": "bad", "lost_per_second": 5, "burned_per_second": null }"#;
        let task = r#"{ "name": "x", "pid": 9, "cgroup": null, "time": 1000000000 }"#;
        let text = format!(
            r#"{{ "schema": 1, "seconds": 2.0, "vms": ["w1-a"], "findings": [{finding}], "host": {{ "pcpus": 2, "idle": 0, "vcpus": 0,
            "vm_threads": 0, "tasks": 3000000000, "top_tasks": [{task}], "kernel": 0 }} }}"#
        );
        let answer = shell(&format!("cat <<'E'\n{text}\nE"), LONG).unwrap();
        assert_eq!(answer.vms, ["w1-a"]);
        assert_eq!((answer.findings[0].pid, answer.findings[0].kind), (7, Kind::Quota));
        assert!((answer.others(&[]) - 1.5).abs() < 1e-9);
        assert!((answer.others(&[9]) - 1.0).abs() < 1e-9);
    }
}
