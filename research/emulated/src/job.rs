//! What an emulated machine is told to do, and what it answers: the one language of `tandem-lab emulate run`
//! on the host and of the agent inside.
//!
//! A job is a list of runs; the agent answers with one line of JSON for itself, one for each run,
//! and one for the end, so that what was finished is known whatever happens later. Lines are short
//! because the machine's serial port is slow: counters that stayed at zero are left out.
//!
//! Times are seconds or milliseconds of the emulated machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_microvm::{Ring, Workload};

use crate::trace::Traced;

/// What starts a line for the host on the machine's second serial port.
pub const MARK: &str = "tandem-lab: ";

/// Runs, one after the other in one boot of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// KHZ:STEPS of the machine, where it is known without measuring.
    #[serde(default)]
    pub calibration: Option<String>,
}

/// Some VMs that run side by side for a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which variant of the experiment it is.
    pub variant: String,
    /// Which of several runs of the variant: its VMs' seeds are theirs, moved on by this.
    #[serde(default = "one")]
    pub seed: u64,
    /// Parameters of the machine's kernel, set before the VMs start: MODULE.NAME or sched.NAME.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// How long the VMs run before anything is counted.
    pub warm_up: f64,
    /// How long is counted.
    pub seconds: f64,
    /// How often the timeline is read; zero: never.
    pub sample_ms: u64,
    /// Whether the kernel traces pause-loop exits and wake-ups, which costs each some time.
    #[serde(default)]
    pub trace: bool,
    /// Arguments of the daemon (`tandem host run`) beside the VMs; none: there is no daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub daemon: Vec<String>,
    /// The VMs.
    pub vms: Vec<Vm>,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name, as `tandem vm run --name`.
    pub name: String,
    /// How many vCPUs.
    pub vcpus: u32,
    /// What they do.
    pub workload: Workload,
    /// At which privilege level.
    #[serde(default)]
    pub ring: Ring,
    /// Where random sizes start.
    #[serde(default = "one")]
    pub seed: u64,
    /// pCPUs that its vCPUs are pinned to in turn; none: not pinned.
    #[serde(default)]
    pub pins: Vec<u32>,
    /// Parameters of the workload.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// Values for the VM's files in KVM's debug file system, such as `aple_threshold`.
    #[serde(default)]
    pub kvm: BTreeMap<String, Value>,
}

fn one() -> u64 {
    1
}

/// A value, written as a number, a word or a truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` and `false`: 1 and 0.
    Truth(bool),
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
}

impl Value {
    /// The value as the kernel and the command line read it.
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
    /// What the machine is.
    Machine(Facts),
    /// What came out of a run.
    Run(Box<Outcome>),
    /// A run, or the job, failed.
    Failed(Failed),
    /// The job is done.
    End,
}

/// What the agent finds the machine to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname -r`, with the build's version.
    pub release: String,
    /// Its pCPUs.
    pub pcpus: u32,
    /// KVM's module: kvm_intel or kvm_amd.
    pub kvm: String,
    /// The TSC against the kernel's clock, in kHz.
    pub tsc_khz: u64,
    /// What the VMs' sizes are reckoned with.
    pub calibration: String,
}

/// A failure, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The variant, or nothing for the whole job.
    pub variant: Option<String>,
    /// What went wrong.
    pub error: String,
}

/// What came out of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which variant.
    pub variant: String,
    /// Which of its runs.
    #[serde(default = "one")]
    pub seed: u64,
    /// The kernel parameters that matter, as the kernel gave them while the VMs ran.
    pub parameters: BTreeMap<String, String>,
    /// How long was counted.
    pub seconds: f64,
    /// Each VM.
    pub vms: Vec<VmOutcome>,
    /// What the kernel's trace said, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traced: Option<Traced>,
}

/// What a VM did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmOutcome {
    /// Its name.
    pub name: String,
    /// What it ran.
    pub workload: Workload,
    /// Items of work finished in the time.
    pub work: u64,
    /// The same per second.
    pub work_per_second: f64,
    /// The items of each vCPU.
    pub vcpu_work: Vec<u64>,
    /// Time of all vCPUs on pCPUs, in milliseconds.
    pub cpu_ms: f64,
    /// Time of all vCPUs runnable but not on a pCPU, in milliseconds.
    pub wait_ms: f64,
    /// Times vCPUs halted.
    pub halts: u64,
    /// Interrupts that vCPUs sent each other.
    pub ipis: u64,
    /// Broken invariants: other than zero only by a bug.
    pub violations: u64,
    /// How much KVM's counters of this VM grew; those that did not are left out.
    pub counters: BTreeMap<String, u64>,
    /// Levels of this VM in KVM at the end, such as its threshold.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub levels: BTreeMap<String, u64>,
    /// What it was meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Sample>,
}

/// A VM at a moment of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since counting began.
    pub ms: f64,
    /// Items of work until then.
    pub work: u64,
    /// Levels then.
    #[serde(flatten)]
    pub levels: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_kernel_reads_them() {
        let text = |json: &str| serde_json::from_str::<Value>(json).unwrap().text();
        assert_eq!(text("true"), "1");
        assert_eq!(text("-3"), "-3");
        assert_eq!(text("\"20k\""), "20k");
    }

    #[test]
    fn a_vm_of_a_job_needs_no_more_than_what_it_runs() {
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
