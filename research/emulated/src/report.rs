//! Report of a run of an experiment in its JSON form: figures of every variant, machine and kernel.

use serde::Serialize;
use thiserror::Error;

use crate::job::{Failed, Outcome};

/// Version of the report.
pub const FORMAT: &str = "tandem-lab/1";

/// Reason why a report is incomplete or unreliable. The report contains the successful runs nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Verdict {
    /// Some runs failed.
    #[error("{count} of the runs failed; the first: {whose}: {error}")]
    Failed {
        /// Number of failures.
        count: usize,
        /// Variant of the first failure, or `the job`.
        whose: String,
        /// The first error.
        error: String,
    },
    /// The workloads detected broken invariants.
    #[error("the workloads saw {0} broken invariants: a bug of Tandem or of that kernel")]
    Broken(u64),
    /// The kernel supports no variant.
    #[error("no variant of {0} runs with this kernel")]
    Nothing(String),
}

/// The report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the report.
    pub format: &'static str,
    /// Name of the experiment.
    pub experiment: String,
    /// Title of the experiment.
    pub title: String,
    /// Question of the experiment.
    pub question: String,
    /// The machine.
    pub machine: MachineReport,
    /// The kernel.
    pub kernel: KernelReport,
    /// Measured seconds of each run.
    pub seconds: f64,
    /// Seconds of warm-up before that.
    pub warm_up: f64,
    /// Seed of the first run of each variant.
    pub seed: u64,
    /// Runs of each variant.
    pub repeat: u64,
    /// Results, by seed and then in the experiment's order.
    pub runs: Vec<Outcome>,
    /// Failures.
    pub failed: Vec<Failed>,
    /// Variants that this kernel does not support.
    pub passed_over: Vec<String>,
    /// Total time on the host, in seconds.
    pub host_seconds: f64,
}

/// The machine, in a report.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// Name of the machine.
    pub name: String,
    /// Purpose of the machine.
    pub title: String,
    /// Its pCPUs.
    pub pcpus: u32,
    /// Its configured clock, if it has one.
    pub mhz: Option<u32>,
    /// TSC frequency measured by its kernel.
    pub tsc_khz: Option<u64>,
    /// KVM's module in it.
    pub kvm: Option<String>,
    /// Boots that were replaced by a restored snapshot.
    pub restored: usize,
    /// Number of boots, including restored ones.
    pub boots: usize,
}

/// The kernel, in a report.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// The requested kernel.
    pub asked: String,
    /// Its own release string.
    pub release: Option<String>,
}

impl Report {
    /// Returns an error if the report is incomplete or unreliable.
    pub fn verdict(&self) -> Result<(), Verdict> {
        if let Some(failed) = self.failed.first() {
            let whose = failed.variant.as_deref().unwrap_or("the job");
            return Err(Verdict::Failed {
                count: self.failed.len(),
                whose: whose.to_owned(),
                error: failed.error.clone(),
            });
        }
        let vms = self.runs.iter().flat_map(|run| &run.vms);
        let broken: u64 = vms.map(|vm| vm.violations).sum();
        if broken > 0 {
            return Err(Verdict::Broken(broken));
        }
        if self.runs.is_empty() {
            return Err(Verdict::Nothing(self.experiment.clone()));
        }
        Ok(())
    }
}
