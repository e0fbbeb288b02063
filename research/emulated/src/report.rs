//! What a run of an experiment gave: the figures of every variant with what they were measured on, as
//! they are written as JSON.

use serde::Serialize;
use thiserror::Error;

use crate::job::{Failed, Outcome};

/// Version of the report.
pub const FORMAT: &str = "tandem-lab/1";

/// Why a report is not one to rely on. What did not fail is in it all the same.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Verdict {
    /// Some of it failed.
    #[error("{count} of the runs failed; the first: {whose}: {error}")]
    Failed {
        /// How many.
        count: usize,
        /// The variant of the first, or `the job`.
        whose: String,
        /// What went wrong.
        error: String,
    },
    /// The workloads saw what may not happen.
    #[error("the workloads saw {0} broken invariants: a bug of Tandem or of that kernel")]
    Broken(u64),
    /// Nothing was run.
    #[error("no variant of {0} runs with this kernel")]
    Nothing(String),
}

/// What is written as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    pub format: &'static str,
    /// Which experiment.
    pub experiment: String,
    /// What it is about.
    pub title: String,
    /// What it is to answer.
    pub question: String,
    /// The machine.
    pub machine: MachineReport,
    /// The kernel.
    pub kernel: KernelReport,
    /// Seconds of the machine that were counted in each run.
    pub seconds: f64,
    /// Seconds of the machine before.
    pub warm_up: f64,
    /// Seed of the first run of each variant.
    pub seed: u64,
    /// How often each variant was run.
    pub repeat: u64,
    /// What came out, by seed and then in the experiment's order.
    pub runs: Vec<Outcome>,
    /// What failed.
    pub failed: Vec<Failed>,
    /// Variants that this kernel cannot serve.
    pub passed_over: Vec<String>,
    /// Seconds of the host in all.
    pub host_seconds: f64,
}

/// The machine, in a report.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// What it is good for.
    pub title: String,
    /// Its pCPUs.
    pub pcpus: u32,
    /// The clock it was given, where it has one.
    pub mhz: Option<u32>,
    /// What its kernel found the TSC to be.
    pub tsc_khz: Option<u64>,
    /// KVM's module in it.
    pub kvm: Option<String>,
    /// Boots that were restored instead.
    pub restored: usize,
    /// Boots in all.
    pub boots: usize,
}

/// The kernel, in a report.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// As asked for.
    pub asked: String,
    /// As it names itself.
    pub release: Option<String>,
}

impl Report {
    /// An error if something failed.
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
