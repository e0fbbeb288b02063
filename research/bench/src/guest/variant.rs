//! Variants of running a program: stock, with the agent, and with fixed settings.
//!
//! `taskset`, `haltpoll` and `slack` are the peers: settings that an administrator would make by hand.
//! A fixed setting of the agent changes the same things as the agent, and journals and reverts them, but makes no decisions.
//! With all four, [`Variant::EXHAUSTIVE`], the best setting is known, and whether the agent chose it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// Error in a list of variants.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VariantError {
    /// Unknown name of a variant.
    #[error(
        "'{0}' is no variant; the variants are agent, taskset, haltpoll, slack, and exhaustive for the \
         agent with all fixed settings"
    )]
    Unknown(String),
    /// The list is empty.
    #[error("--variants names none")]
    Empty,
}

/// Retention if it is on: about ten halt-wake round trips, and the setting of haltpoll by hand.
const RETENTION: &str = "200us";

/// Timer slack by hand, in ns: half of the agent's bound on the delay.
pub const SLACK: u64 = 500_000;

/// A variant of running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The unchanged command.
    Stock,
    /// `tandem guest run`.
    Agent,
    /// `taskset` to one vCPU.
    Taskset,
    /// The kernel's haltpoll, tuned by hand to 200 µs, on all vCPUs.
    Haltpoll,
    /// Timer slack by hand, [`SLACK`].
    Slack,
    /// All vCPUs, without retention.
    AllOff,
    /// All vCPUs, which stay awake for 200 µs by the agent's default means.
    AllOn,
    /// One vCPU, without retention.
    OneOff,
    /// One vCPU, which stays awake for 200 µs.
    OneOn,
}

/// A fixed setting, one of those among which the agent chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fixed {
    /// Fewer vCPUs than all.
    pub fewer: bool,
    /// Retention on.
    pub retention: bool,
}

impl Variant {
    /// The agent, and all fixed settings.
    pub const EXHAUSTIVE: [Variant; 5] =
        [Variant::Agent, Variant::AllOff, Variant::AllOn, Variant::OneOff, Variant::OneOn];

    /// Name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Stock => "stock",
            Variant::Agent => "agent",
            Variant::Taskset => "taskset",
            Variant::Haltpoll => "haltpoll",
            Variant::Slack => "slack",
            Variant::AllOff => "all-off",
            Variant::AllOn => "all-on",
            Variant::OneOff => "one-off",
            Variant::OneOn => "one-on",
        }
    }

    /// Description for readers.
    pub fn what(self) -> &'static str {
        match self {
            Variant::Stock => "the program as it is",
            Variant::Agent => "tandem guest run: vCPUs and retention as the agent decides",
            Variant::Taskset => "taskset to one vCPU",
            Variant::Haltpoll => "the kernel's haltpoll, tuned by hand to 200 µs",
            Variant::Slack => "timer slack of 500 µs, by hand",
            Variant::AllOff => "all vCPUs, no retention, held fixed",
            Variant::AllOn => "all vCPUs, awake for 200 µs when idle, held fixed",
            Variant::OneOff => "one vCPU, no retention, held fixed",
            Variant::OneOn => "one vCPU, awake for 200 µs when idle, held fixed",
        }
    }

    /// Returns its fixed setting, if it has one.
    pub fn fixed(self) -> Option<Fixed> {
        let fixed = |fewer, retention| Some(Fixed { fewer, retention });
        match self {
            Variant::AllOff => fixed(false, false),
            Variant::AllOn => fixed(false, true),
            Variant::OneOff => fixed(true, false),
            Variant::OneOn => fixed(true, true),
            Variant::Stock
            | Variant::Agent
            | Variant::Taskset
            | Variant::Haltpoll
            | Variant::Slack => None,
        }
    }

    /// Wraps `command` for this variant; the agent writes its account to `report`.
    /// With `one_vcpu`, the agent runs on that vCPU too.
    pub fn command(self, command: &[String], with: &Agent, report: &Path) -> Vec<String> {
        let whole = self.on_all_vcpus(command, with, report);
        if with.one_vcpu && self != Variant::Taskset { taskset(with.vcpu, &whole) } else { whole }
    }

    fn on_all_vcpus(self, command: &[String], with: &Agent, report: &Path) -> Vec<String> {
        let (vcpus, retention) = match self {
            Variant::Stock => return command.to_vec(),
            Variant::Taskset => return taskset(with.vcpu, command),
            Variant::Slack => {
                // The shell sets its own slack, which exec keeps.
                let script = format!("echo {SLACK} >/proc/$$/timerslack_ns && exec \"$@\"");
                let shell = ["sh", "-c", &script, "sh"].map(str::to_owned);
                return shell.into_iter().chain(command.iter().cloned()).collect();
            }
            Variant::Agent => ("auto", "auto"),
            Variant::Haltpoll | Variant::AllOn => ("all", RETENTION),
            Variant::AllOff => ("all", "off"),
            Variant::OneOff => ("1", "off"),
            Variant::OneOn => ("1", RETENTION),
        };
        let mut argv: Vec<String> =
            [with.tandem, "guest", "run", "--quiet"].map(str::to_owned).to_vec();
        if let Some(dir) = with.state_dir {
            argv.extend(["--state-dir".to_owned(), dir.display().to_string()]);
        }
        if self != Variant::Agent {
            // Hold all settings: on one vCPU the agent would also delay wake-ups.
            let held = ["--vcpus", vcpus, "--retention", retention, "--delay", "off"];
            argv.extend(held.map(str::to_owned));
        }
        if self == Variant::Haltpoll {
            // Fails without haltpoll, so that the variant is skipped.
            argv.extend(["--means", "haltpoll"].map(str::to_owned));
        }
        argv.extend(["--json".to_owned(), report.display().to_string()]);
        argv.push("--".to_owned());
        argv.extend_from_slice(command);
        argv
    }
}

/// Parameters of a variant's command.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    /// Path of this program.
    pub tandem: &'a str,
    /// State directory of the agent; `None`: its default.
    pub state_dir: Option<&'a Path>,
    /// The vCPU for `taskset`.
    pub vcpu: u32,
    /// Whether everything runs on that vCPU.
    pub one_vcpu: bool,
}

fn taskset(vcpu: u32, command: &[String]) -> Vec<String> {
    let words = ["taskset".to_owned(), "-c".to_owned(), vcpu.to_string()];
    words.into_iter().chain(command.iter().cloned()).collect()
}

/// Returns the variants of these names, each once; `exhaustive` stands for several.
pub fn list(names: &[String]) -> Result<Vec<Variant>, VariantError> {
    let mut variants = Vec::new();
    for name in names {
        let more: &[Variant] = match name.as_str() {
            "agent" => &[Variant::Agent],
            "taskset" => &[Variant::Taskset],
            "haltpoll" => &[Variant::Haltpoll],
            "slack" => &[Variant::Slack],
            "exhaustive" => &Variant::EXHAUSTIVE,
            other => return Err(VariantError::Unknown(other.to_owned())),
        };
        for &variant in more {
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
    }
    if variants.is_empty() { Err(VariantError::Empty) } else { Ok(variants) }
}

/// The agent's own account of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Account {
    choice: Option<RawChoice>,
    /// Time from the start until its choice was applied, in ms.
    pub settled_ms: Option<f64>,
    /// CPU time of the agent itself.
    pub agent_cpu_ns: Option<f64>,
    /// CPU time spent on retention.
    pub retention_burnt_ns: Option<f64>,
    /// Delayed scheduling: the timer slack at the end, in ns.
    pub delay_slack_ns: Option<f64>,
    /// Delayed scheduling: whether wake-up preemption was off at the end.
    pub delay_batch: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawChoice {
    vcpus: Value,
    retention_ns: Value,
}

/// The agent's choice at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Choice {
    /// vCPUs.
    pub vcpus: u64,
    /// Time for which idle vCPUs stay awake, in ns; 0: off.
    pub retention_ns: u64,
}

impl Choice {
    /// Returns the corresponding fixed setting on a machine of `vcpus` vCPUs.
    pub fn fixed(self, vcpus: usize) -> Fixed {
        Fixed { fewer: self.vcpus < vcpus as u64, retention: self.retention_ns > 0 }
    }
}

impl Account {
    /// Reads the account from the agent's file.
    pub fn read(path: &Path) -> Option<Account> {
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    /// Returns its choice; a list of vCPUs counts as their number.
    pub fn choice(&self) -> Option<Choice> {
        let choice = self.choice.as_ref()?;
        let vcpus = match &choice.vcpus {
            Value::Array(list) => list.len() as u64,
            other => other.as_u64()?,
        };
        Some(Choice { vcpus, retention_ns: choice.retention_ns.as_u64().unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH: Agent = Agent { tandem: "tandem", state_dir: None, vcpu: 1, one_vcpu: false };

    #[test]
    fn commands_are_wrapped() {
        let line = |variant: Variant, with: &Agent| {
            let command = ["prog".to_owned(), "-x".to_owned()];
            variant.command(&command, with, Path::new("r")).join(" ")
        };
        assert_eq!(line(Variant::Stock, &WITH), "prog -x");
        assert_eq!(line(Variant::Taskset, &WITH), "taskset -c 1 prog -x");
        assert_eq!(line(Variant::Agent, &WITH), "tandem guest run --quiet --json r -- prog -x");
        let haltpoll = line(Variant::Haltpoll, &WITH);
        assert!(haltpoll.contains("--vcpus all --retention 200us --delay off --means haltpoll"));
        let one = Agent { one_vcpu: true, ..WITH };
        assert_eq!(line(Variant::Stock, &one), "taskset -c 1 prog -x");
        assert_eq!(line(Variant::Taskset, &one), "taskset -c 1 prog -x");
        assert_eq!(
            line(Variant::Slack, &one),
            "taskset -c 1 sh -c echo 500000 >/proc/$$/timerslack_ns && exec \"$@\" sh prog -x"
        );
        assert!(line(Variant::Agent, &one).starts_with("taskset -c 1 tandem guest run"));
        let with = Agent { state_dir: Some(Path::new("/s")), ..WITH };
        assert_eq!(
            line(Variant::OneOff, &with),
            "tandem guest run --quiet --state-dir /s --vcpus 1 --retention off --delay off --json r -- prog -x"
        );
    }

    #[test]
    fn variants_are_listed_once() {
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let list = |text: &str| super::list(&names(text));
        assert_eq!(list("taskset,agent").unwrap(), [Variant::Taskset, Variant::Agent]);
        let all = list("agent,haltpoll,exhaustive").unwrap();
        assert_eq!(all.len(), 6);
        let settings: std::collections::BTreeSet<_> =
            all.iter().filter_map(|variant| variant.fixed()).collect();
        assert_eq!(settings.len(), 4);
        assert!(list("x").unwrap_err().to_string().contains("exhaustive"));
    }

    #[test]
    fn account_fields_are_optional() {
        let account = |text: &str| serde_json::from_str::<Account>(text).unwrap();
        assert_eq!(account("{}"), Account::default());
        let full = account(
            r#"{"decisions":[{"at_ms":100,"vcpus":1,"retention_ns":0,"because":["x"]}],
                "choice":{"vcpus":1,"retention_ns":200000},"settled_ms":812.5,"periods":30}"#,
        );
        let choice = full.choice().unwrap();
        assert_eq!((choice.vcpus, choice.retention_ns), (1, 200_000));
        assert_eq!(full.settled_ms, Some(812.5));
        let fixed = choice.fixed(2);
        assert!(fixed.fewer && fixed.retention);
        let list = account(r#"{"choice":{"vcpus":[0,1],"retention_ns":null}}"#);
        assert!(!list.choice().unwrap().fixed(2).fewer);
        assert_eq!(account(r#"{"choice":{}}"#).choice(), None);
    }
}
