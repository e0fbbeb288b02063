//! The ways in which a program is run: stock, with the agent, and with settings that are held fixed.
//!
//! `taskset` and `haltpoll` are the peers: what an administrator would do by hand. A fixed setting of
//! the agent changes the same things as the agent would, journals and restores them, and decides
//! nothing; with all four of them, [`Variant::EXHAUSTIVE`], the best setting is known, and with it
//! whether the agent chose it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// Why a list of variants is not one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VariantError {
    /// No variant has the name.
    #[error(
        "'{0}' is no variant; the variants are agent, taskset, haltpoll, slack, and exhaustive for the \
         agent with all fixed settings"
    )]
    Unknown(String),
    /// The list is empty.
    #[error("--variants names none")]
    Empty,
}

/// Retention where it is on: some ten halt-wake round trips, and what haltpoll is tuned to by hand.
const RETENTION: &str = "200us";

/// Timer slack by hand, ns: half of the agent's bound on the delay.
pub const SLACK: u64 = 500_000;

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The command as it is.
    Stock,
    /// `tandem guest run`.
    Agent,
    /// `taskset` to one vCPU.
    Taskset,
    /// The kernel's haltpoll, tuned by hand to 200 µs, on all vCPUs.
    Haltpoll,
    /// Timer slack by hand, [`SLACK`].
    Slack,
    /// All vCPUs, and they halt at once.
    AllOff,
    /// All vCPUs, and they stay awake for 200 µs, by whatever means the agent would take.
    AllOn,
    /// One vCPU, and it halts at once.
    OneOff,
    /// One vCPU, and it stays awake for 200 µs.
    OneOn,
}

/// A fixed setting: what the agent chooses among.
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

    /// Its name in arguments and reports.
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

    /// What it is, for readers who see the names for the first time.
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

    /// The fixed setting that it holds, if it does.
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

    /// The command that runs `command` so; the agent writes its account to `report`. On one vCPU the agent is there too.
    pub fn command(self, command: &[String], with: &Agent, report: &Path) -> Vec<String> {
        let whole = self.on_all_vcpus(command, with, report);
        if with.one_vcpu && self != Variant::Taskset { taskset(with.vcpu, &whole) } else { whole }
    }

    fn on_all_vcpus(self, command: &[String], with: &Agent, report: &Path) -> Vec<String> {
        let (vcpus, retention) = match self {
            Variant::Stock => return command.to_vec(),
            Variant::Taskset => return taskset(with.vcpu, command),
            Variant::Slack => {
                // The shell may set its own, and what it becomes keeps it.
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
            // Held, all of it: on one vCPU wake-ups would be delayed, too.
            let held = ["--vcpus", vcpus, "--retention", retention, "--delay", "off"];
            argv.extend(held.map(str::to_owned));
        }
        if self == Variant::Haltpoll {
            // Without it there is nothing to tune, and this variant is left out.
            argv.extend(["--means", "haltpoll"].map(str::to_owned));
        }
        argv.extend(["--json".to_owned(), report.display().to_string()]);
        argv.push("--".to_owned());
        argv.extend_from_slice(command);
        argv
    }
}

/// What a variant's command is made with.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    /// This program.
    pub tandem: &'a str,
    /// Where the agent keeps its journal, unless where it does by itself.
    pub state_dir: Option<&'a Path>,
    /// The vCPU that `taskset` takes.
    pub vcpu: u32,
    /// Whether everything is to run on that one.
    pub one_vcpu: bool,
}

fn taskset(vcpu: u32, command: &[String]) -> Vec<String> {
    let words = ["taskset".to_owned(), "-c".to_owned(), vcpu.to_string()];
    words.into_iter().chain(command.iter().cloned()).collect()
}

/// The variants of these names, each once; `exhaustive` is several.
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

/// The agent's own account of a run. What it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Account {
    choice: Option<RawChoice>,
    /// When what it chose was first in force, in ms after the start.
    pub settled_ms: Option<f64>,
    /// CPU time of the agent itself.
    pub agent_cpu_ns: Option<f64>,
    /// CPU time that retention took.
    pub retention_burnt_ns: Option<f64>,
    /// Delayed scheduling: the timer slack in the end.
    pub delay_slack_ns: Option<f64>,
    /// Delayed scheduling: whether woken threads did not preempt in the end.
    pub delay_batch: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RawChoice {
    vcpus: Value,
    retention_ns: Value,
}

/// What the agent chose in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Choice {
    /// vCPUs.
    pub vcpus: u64,
    /// How long they stay awake, 0: they halt at once.
    pub retention_ns: u64,
}

impl Choice {
    /// The fixed setting that it is one of, on a machine of so many vCPUs.
    pub fn fixed(self, vcpus: usize) -> Fixed {
        Fixed { fewer: self.vcpus < vcpus as u64, retention: self.retention_ns > 0 }
    }
}

impl Account {
    /// Reads it from the file that the agent wrote.
    pub fn read(path: &Path) -> Option<Account> {
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    /// What it chose; a list of vCPUs counts as their number.
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
    fn names_become_variants_each_once() {
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
    fn an_account_may_say_little() {
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
