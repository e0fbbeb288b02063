//! The protocol between `tandem-lab emulate run` on the host and the agent in an emulated machine.
//!
//! A job is a list of runs.
//! The agent answers with a line of JSON for the machine, one for each run, and one for the end, so that a later failure loses no finished run.
//! Lines are short because the machine's serial port is slow: counters that remain zero are omitted.
//!
//! Times are seconds or milliseconds of the emulated machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_microvm::{Ring, Workload};

use crate::trace::Traced;

/// Prefix of a line for the host on the machine's second serial port.
pub const MARK: &str = "tandem-lab: ";

/// Sequential runs in one boot of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// Calibration of the machine (KHZ:STEPS), if it is known without measurement.
    #[serde(default)]
    pub calibration: Option<String>,
}

/// Concurrent VMs that run for a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the variant.
    pub variant: String,
    /// Number of the variant's run, from which its VMs' seeds derive.
    #[serde(default = "one")]
    pub seed: u64,
    /// Parameters of the machine's kernel, set before the VMs start: MODULE.NAME or sched.NAME.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Warm-up of the VMs before the measured time, in seconds.
    pub warm_up: f64,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Interval of the timeline in ms; 0: no timeline.
    pub sample_ms: u64,
    /// Whether the kernel traces pause-loop exits and wake-ups, which slows them down.
    #[serde(default)]
    pub trace: bool,
    /// Arguments of the daemon (`tandem host run`); empty: no daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub daemon: Vec<String>,
    /// The VMs.
    pub vms: Vec<Vm>,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Name, as in `tandem vm run --name`.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The workload.
    pub workload: Workload,
    /// Privilege level.
    #[serde(default)]
    pub ring: Ring,
    /// Seed of random sizes.
    #[serde(default = "one")]
    pub seed: u64,
    /// pCPUs to which its vCPUs are pinned in turn; empty: not pinned.
    #[serde(default)]
    pub pins: Vec<u32>,
    /// Parameters of the workload.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// Values for the VM's files in debugfs, such as `aple_threshold`.
    #[serde(default)]
    pub kvm: BTreeMap<String, Value>,
}

fn one() -> u64 {
    1
}

/// A value, written as a number, text or Boolean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` and `false`, for 1 and 0.
    Truth(bool),
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
}

impl Value {
    /// Formats the value for the kernel and the command line.
    pub fn text(&self) -> String {
        match self {
            Value::Truth(truth) => u8::from(*truth).to_string(),
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
        }
    }
}

/// A line of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The machine has booted and waits for its job.
    Ready,
    /// Facts about the machine.
    Machine(Facts),
    /// Result of a run.
    Run(Box<Outcome>),
    /// A run, or the job, failed.
    Failed(Failed),
    /// The job is done.
    End,
}

/// Facts about the machine, as seen by the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname -r`, with the build's version.
    pub release: String,
    /// Its pCPUs.
    pub pcpus: u32,
    /// KVM's module: kvm_intel or kvm_amd.
    pub kvm: String,
    /// TSC frequency by the kernel's clock, in kHz.
    pub tsc_khz: u64,
    /// Calibration from which the VMs' sizes are computed.
    pub calibration: String,
}

/// A failure of a variant or of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The variant; `None` for the whole job.
    pub variant: Option<String>,
    /// The error.
    pub error: String,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the variant.
    pub variant: String,
    /// Number of its run.
    #[serde(default = "one")]
    pub seed: u64,
    /// Relevant kernel parameters, read while the VMs ran.
    pub parameters: BTreeMap<String, String>,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// The VMs.
    pub vms: Vec<VmOutcome>,
    /// Figures of the kernel's trace, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<Traced>,
}

/// Result of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmOutcome {
    /// Name of the VM.
    pub name: String,
    /// Its workload.
    pub workload: Workload,
    /// Work items finished in the measured time.
    pub work: u64,
    /// Work items per second.
    pub work_per_second: f64,
    /// Work items of each vCPU.
    pub vcpu_work: Vec<u64>,
    /// Time of all vCPUs on pCPUs, in milliseconds.
    pub cpu_ms: f64,
    /// Time of all vCPUs runnable but not on a pCPU, in milliseconds.
    pub wait_ms: f64,
    /// Halts of vCPUs.
    pub halts: u64,
    /// IPIs between vCPUs.
    pub ipis: u64,
    /// Broken invariants; non-zero only by a bug.
    pub violations: u64,
    /// Growth of KVM's counters of this VM, without zeros.
    pub counters: BTreeMap<String, u64>,
    /// Levels of this VM in KVM at the end, such as its threshold.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub levels: BTreeMap<String, u64>,
    /// Samples during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Sample>,
}

/// A sample of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since the start of the measured time.
    pub ms: f64,
    /// Work items so far.
    pub work: u64,
    /// Current levels.
    #[serde(flatten)]
    pub levels: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_format_for_the_kernel() {
        let text = |json: &str| serde_json::from_str::<Value>(json).unwrap().text();
        assert_eq!(text("true"), "1");
        assert_eq!(text("-3"), "-3");
        assert_eq!(text("\"20k\""), "20k");
    }

    #[test]
    fn vm_fields_have_defaults() {
        let vm: Vm = serde_json::from_str(r#"{"name":"a","vcpus":2,"workload":"burn"}"#).unwrap();
        assert_eq!((vm.ring, vm.seed), (Ring::User, 1));
        let error = serde_json::from_str::<Vm>(r#"{"name":"a","vcpu":2,"workload":"burn"}"#);
        assert!(error.unwrap_err().to_string().contains("unknown field"));
    }

    #[test]
    fn lines_survive_the_serial_port() {
        let line = Line::Failed(Failed { variant: None, error: "no".into() });
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        assert_eq!(serde_json::to_string(&Line::End).unwrap(), "\"end\"");
    }
}
