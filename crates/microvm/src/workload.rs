//! The workloads and their parameters: the single table for command line, help text, checks and the guest's parameter block.
//!
//! Sizes of computation are TSC cycles' worth of work on an undisturbed pCPU (see [`crate::calibrate`]).
//! Times (a bursty VM's period, how long to spin) are TSC cycles on the clock.
//! The server, whose phases last for seconds, uses microseconds for both.
//! The order of the workloads and parameters is that of the enumerations in `guest/shared.h` and next to each workload's C function.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Workload of a microVM's vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Compute continuously.
    Burn,
    /// Compute, then compute again under a ticket lock that spins with PAUSE.
    Spinlock,
    /// Compute, then compute again under a mutex that spins briefly and then halts.
    Mutex,
    /// Compute, then wait for all vCPUs, by spinning or by halting.
    Barrier,
    /// One vCPU computes the serial part, then all compute the parallel part.
    Forkjoin,
    /// Each vCPU is a stage; bounded queues between them block.
    Pipeline,
    /// vCPU 0 interrupts all others and waits for every acknowledgement; the others compute.
    Shootdown,
    /// Compute, then halt until the next period.
    Bursty,
    /// Alternate between computing continuously and serving requests, halting until each is due.
    Server,
}

/// Unit of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// TSC cycles.
    Cycles,
    /// Microseconds.
    Micros,
    /// A count.
    Items,
    /// Percent.
    Percent,
    /// One of these words; the value is its index.
    Choice(&'static [&'static str]),
}

/// One parameter of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Default value.
    pub default: u64,
    /// Minimum value.
    pub least: u64,
    /// Maximum value.
    pub most: u64,
    /// Its meaning.
    pub help: &'static str,
}

/// Reason why a workload or a parameter is invalid.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParameterError {
    /// No workload of that name.
    #[error("there is no workload '{0}'; the workloads are {names}", names = workload_names())]
    UnknownWorkload(String),
    /// The workload has no such parameter.
    #[error("workload {workload} has no parameter '{name}'; it has {valid}")]
    UnknownParameter {
        /// The workload.
        workload: Workload,
        /// Requested name.
        name: String,
        /// Valid names.
        valid: String,
    },
    /// The text is not `key=value`.
    #[error("'{0}' is not a setting; write key=value, such as work=100000")]
    NotASetting(String),
    /// The value is not a number, or not a word of the choice.
    #[error("{workload}: '{value}' is not a value for {name}; write {right}")]
    NotAValue {
        /// The workload.
        workload: Workload,
        /// The parameter.
        name: &'static str,
        /// Given value.
        value: String,
        /// Valid values.
        right: String,
    },
    /// The value is outside the range.
    #[error("{workload}: {name}={value} is out of range; {right}")]
    OutOfRange {
        /// The workload.
        workload: Workload,
        /// The parameter.
        name: &'static str,
        /// Given value.
        value: u64,
        /// Valid range.
        right: String,
    },
}

/// Maximum amount of work: some minutes on any machine.
const MAX_CYCLES: u64 = 1_000_000_000_000;

const fn cycles(name: &'static str, default: u64, least: u64, help: &'static str) -> Parameter {
    Parameter { name, unit: Unit::Cycles, default, least, most: MAX_CYCLES, help }
}

const fn jitter(default: u64) -> Parameter {
    Parameter {
        name: "jitter",
        unit: Unit::Percent,
        default,
        least: 0,
        most: 100,
        help: "every size varies by up to this much either way, from the seed",
    }
}

const fn choice(
    name: &'static str,
    words: &'static [&'static str],
    default: u64,
    help: &'static str,
) -> Parameter {
    Parameter {
        name,
        unit: Unit::Choice(words),
        default,
        least: 0,
        most: words.len() as u64 - 1,
        help,
    }
}

const fn spin() -> Parameter {
    cycles("spin", 10_000, 0, "how long to spin before halting")
}

static BURN: [Parameter; 2] = [cycles("work", 100_000, 100, "computation per item"), jitter(0)];

static SPINLOCK: [Parameter; 3] = [
    cycles("outside", 20_000, 0, "computation outside the lock"),
    cycles("inside", 2_000, 0, "computation inside the lock"),
    jitter(50),
];

static MUTEX: [Parameter; 4] = [
    cycles("outside", 20_000, 0, "computation outside the mutex"),
    cycles("inside", 5_000, 0, "computation inside the mutex"),
    spin(),
    jitter(50),
];

static BARRIER: [Parameter; 4] = [
    cycles("work", 200_000, 100, "computation per vCPU and phase"),
    choice("wait", &["spin", "block"], 1, "how to wait for the others"),
    spin(),
    jitter(20),
];

static FORKJOIN: [Parameter; 5] = [
    cycles("serial", 100_000, 0, "computation of the serial part"),
    cycles("parallel", 200_000, 100, "computation per vCPU in the parallel part"),
    choice("rotate", &["no", "yes"], 0, "whether each round has another vCPU do the serial part"),
    spin(),
    jitter(20),
];

static PIPELINE: [Parameter; 5] = [
    cycles("work", 50_000, 0, "computation per item and stage"),
    Parameter {
        name: "capacity",
        unit: Unit::Items,
        default: 8,
        least: 1,
        most: 64,
        help: "room of each queue",
    },
    spin(),
    jitter(50),
    Parameter {
        name: "step",
        unit: Unit::Percent,
        default: 0,
        least: 0,
        most: 10_000,
        help: "each stage computes so much of the first one's work more than the one before; 200: 1 to 3 to 5",
    },
];

static SHOOTDOWN: [Parameter; 3] = [
    cycles("gap", 200_000, 0, "computation of vCPU 0 between two shootdowns"),
    cycles("work", 100_000, 100, "computation per item of the others"),
    jitter(20),
];

static BURSTY: [Parameter; 4] = [
    cycles("work", 2_000_000, 100, "computation per burst"),
    cycles("period", 20_000_000, 10_000, "time from one burst to the next, whatever the service"),
    Parameter {
        name: "backlog",
        unit: Unit::Items,
        default: 3,
        least: 0,
        most: 1_000_000,
        help: "bursts that may be late; beyond, the oldest are given up and counted as dropped",
    },
    jitter(0),
];

/// Maximum time of a server: an hour.
const MAX_MICROS: u64 = 3_600_000_000;

const fn micros(name: &'static str, default: u64, least: u64, help: &'static str) -> Parameter {
    Parameter { name, unit: Unit::Micros, default, least, most: MAX_MICROS, help }
}

static SERVER: [Parameter; 5] = [
    micros("busy", 3_000_000, 0, "how long to compute without a pause"),
    micros("serve", 1_500_000, 100, "how long to serve requests after that"),
    micros("every", 5_000, 100, "time from one request to the next"),
    micros("request", 200, 1, "computation per request, on an undisturbed pCPU"),
    Parameter {
        name: "jitter",
        unit: Unit::Percent,
        default: 50,
        least: 0,
        most: 100,
        help: "each request is due later by up to this part of the time between two, from the seed",
    },
];

impl Workload {
    /// Every workload, in the guest's order.
    pub const ALL: [Workload; 9] = [
        Workload::Burn,
        Workload::Spinlock,
        Workload::Mutex,
        Workload::Barrier,
        Workload::Forkjoin,
        Workload::Pipeline,
        Workload::Shootdown,
        Workload::Bursty,
        Workload::Server,
    ];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Burn => "burn",
            Workload::Spinlock => "spinlock",
            Workload::Mutex => "mutex",
            Workload::Barrier => "barrier",
            Workload::Forkjoin => "forkjoin",
            Workload::Pipeline => "pipeline",
            Workload::Shootdown => "shootdown",
            Workload::Bursty => "bursty",
            Workload::Server => "server",
        }
    }

    /// Returns the meaning of an item of its `work` counter.
    pub fn item(self) -> &'static str {
        match self {
            Workload::Burn => "computations",
            Workload::Spinlock | Workload::Mutex => "critical sections",
            Workload::Barrier => "phases",
            Workload::Forkjoin => "parallel parts",
            Workload::Pipeline => "items through a stage",
            Workload::Shootdown => "shootdowns (vCPU 0) and computations (the others)",
            Workload::Bursty => "bursts",
            Workload::Server => "requests, and as large pieces of the busy time",
        }
    }

    /// Returns true if it has scheduled bursts or requests, and therefore completion times ([`crate::completion`]).
    pub fn is_timed(self) -> bool {
        matches!(self, Workload::Bursty | Workload::Server)
    }

    /// Returns the minimum number of vCPUs.
    pub fn least_vcpus(self) -> u32 {
        match self {
            Workload::Shootdown => 2,
            _ => 1,
        }
    }

    /// Returns its parameters, in the guest's order.
    pub fn parameters(self) -> &'static [Parameter] {
        match self {
            Workload::Burn => &BURN,
            Workload::Spinlock => &SPINLOCK,
            Workload::Mutex => &MUTEX,
            Workload::Barrier => &BARRIER,
            Workload::Forkjoin => &FORKJOIN,
            Workload::Pipeline => &PIPELINE,
            Workload::Shootdown => &SHOOTDOWN,
            Workload::Bursty => &BURSTY,
            Workload::Server => &SERVER,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = ParameterError;

    fn from_str(name: &str) -> Result<Workload, ParameterError> {
        Workload::ALL
            .into_iter()
            .find(|workload| workload.name() == name)
            .ok_or_else(|| ParameterError::UnknownWorkload(name.to_owned()))
    }
}

fn workload_names() -> String {
    Workload::ALL.map(Workload::name).join(", ")
}

impl Parameter {
    /// Describes the range of its values.
    pub fn range(&self) -> String {
        match self.unit {
            Unit::Cycles => format!("{} to {} TSC cycles", self.least, self.most),
            Unit::Micros => format!("{} to {} microseconds", self.least, self.most),
            Unit::Items => format!("{} to {}", self.least, self.most),
            Unit::Percent => format!("{} to {} percent", self.least, self.most),
            Unit::Choice(words) => words.join(" or "),
        }
    }

    /// Formats a value as on the command line.
    pub fn show(&self, value: u64) -> String {
        let word = match self.unit {
            Unit::Choice(words) => usize::try_from(value).ok().and_then(|i| words.get(i)),
            _ => None,
        };
        word.map_or_else(|| value.to_string(), |word| (*word).to_owned())
    }

    fn parse(&self, workload: Workload, text: &str) -> Result<u64, ParameterError> {
        let value = match self.unit {
            Unit::Choice(words) => words.iter().position(|word| *word == text).map(|i| i as u64),
            _ => number(text),
        };
        value.ok_or_else(|| ParameterError::NotAValue {
            workload,
            name: self.name,
            value: text.to_owned(),
            right: self.range(),
        })
    }
}

/// Parses a whole number; `k`, `M` and `G` multiply by 10^3, 10^6 and 10^9.
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['k', 'M', 'G']) {
        Some(digits) if text.ends_with('k') => (digits, 1_000),
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (text, 1),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.replace('_', "").parse().ok()?;
    value.checked_mul(unit)
}

/// Valid values of a workload's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    workload: Workload,
    values: Vec<u64>,
}

impl Parameters {
    /// Returns the defaults of `workload`.
    pub fn defaults(workload: Workload) -> Parameters {
        Parameters { workload, values: workload.parameters().iter().map(|p| p.default).collect() }
    }

    /// Returns the workload.
    pub fn workload(&self) -> Workload {
        self.workload
    }

    /// Sets one parameter from its name and value on a command line.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ParameterError> {
        let (place, parameter) = self.find(name)?;
        let value = parameter.parse(self.workload, text)?;
        self.put(place, parameter, value)
    }

    /// Sets one parameter from a `key=value` text.
    pub fn set_from(&mut self, setting: &str) -> Result<(), ParameterError> {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| ParameterError::NotASetting(setting.to_owned()))?;
        self.set(name.trim(), value.trim())
    }

    /// Returns the value of one parameter; `None` if the workload does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        let (place, _) = self.find(name).ok()?;
        self.values.get(place).copied()
    }

    /// Returns the period of the workload, if it is long enough to affect measurements.
    pub fn round(&self) -> Option<Duration> {
        match self.workload {
            Workload::Server => Some(Duration::from_micros(self.get("busy")? + self.get("serve")?)),
            _ => None,
        }
    }

    /// Returns the values, in the guest's order.
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// Iterates over the parameters with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Parameter, u64)> + '_ {
        self.workload.parameters().iter().zip(self.values.iter().copied())
    }

    fn find(&self, name: &str) -> Result<(usize, &'static Parameter), ParameterError> {
        let table = self.workload.parameters();
        table.iter().enumerate().find(|(_, parameter)| parameter.name == name).ok_or_else(|| {
            ParameterError::UnknownParameter {
                workload: self.workload,
                name: name.to_owned(),
                valid: table.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
            }
        })
    }

    fn put(
        &mut self,
        place: usize,
        parameter: &'static Parameter,
        value: u64,
    ) -> Result<(), ParameterError> {
        if value < parameter.least || value > parameter.most {
            return Err(ParameterError::OutOfRange {
                workload: self.workload,
                name: parameter.name,
                value,
                right: parameter.range(),
            });
        }
        self.values[place] = value;
        Ok(())
    }
}

/// Formats the table of workloads and parameters, for the help text.
pub fn describe() -> String {
    let mut text = String::from("Workloads and their parameters (--set KEY=VALUE):\n");
    for workload in Workload::ALL {
        text.push_str(&format!("\n  {workload}: counts {}\n", workload.item()));
        for p in workload.parameters() {
            text.push_str(&format!(
                "    {:<9} {}: {} (default {})\n",
                p.name,
                p.help,
                p.range(),
                p.show(p.default),
            ));
        }
    }
    text.push_str("\nNumbers may end in k, M or G.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_have_names_and_valid_defaults() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse::<Workload>(), Ok(workload));
            for p in workload.parameters() {
                assert!((p.least..=p.most).contains(&p.default), "{workload} {}", p.name);
            }
        }
        let error = "sleep".parse::<Workload>().unwrap_err().to_string();
        assert!(error.contains("'sleep'") && error.contains("burn, spinlock"), "{error}");
    }

    #[test]
    fn values_accept_suffixes_and_words() {
        let mut p = Parameters::defaults(Workload::Barrier);
        p.set_from("work=2M").unwrap();
        p.set_from("wait=spin").unwrap();
        p.set_from("spin=1_500").unwrap();
        assert_eq!(p.values(), [2_000_000, 0, 1_500, 20]);
    }

    #[test]
    fn server_period_is_busy_plus_serve() {
        let mut p = Parameters::defaults(Workload::Server);
        assert_eq!(p.round(), Some(Duration::from_millis(4500)));
        p.set("busy", "250k").unwrap();
        assert_eq!(p.round(), Some(Duration::from_millis(1750)));
        assert_eq!(p.get("request"), Some(200));
        assert_eq!(p.get("work"), None);
        assert_eq!(Parameters::defaults(Workload::Bursty).round(), None);
        let error = p.set("every", "99").unwrap_err().to_string();
        assert!(error.contains("100 to 3600000000 microseconds"), "{error}");
    }

    #[test]
    fn errors_state_valid_settings() {
        let error = |setting: &str| {
            Parameters::defaults(Workload::Barrier).set_from(setting).unwrap_err().to_string()
        };
        assert!(error("speed=3").contains("it has work, wait, spin, jitter"));
        assert!(error("work").contains("key=value"));
        assert!(error("work=-1").contains("100 to 1000000000000 TSC cycles"));
        assert!(error("work=99").contains("work=99 is out of range"));
        assert!(error("work=20000000000000G").contains("not a value"));
        assert!(error("wait=sleep").contains("spin or block"));
        assert!(error("jitter=101").contains("0 to 100 percent"));
    }
}
