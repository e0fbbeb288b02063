//! Experiments (`research/lab/experiments/NAME.toml`): a question, VMs, and variants of kernel parameters to compare.
//!
//! Each variant runs the same VMs with the same seeds, and optionally with further seeds.
//! A variant may require the patched kernel; with the stock kernel the run skips and reports it.
//! Times are seconds of the emulated machine.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tandem_microvm::{ConfigError, MicrovmConfig, ParameterError, Parameters};
use thiserror::Error;

use crate::description::DescriptionError;
use crate::job::{Run, Value, Vm};
use crate::kernel::Kind;
use crate::settings::SettingError;
use crate::{description, settings};

/// Error of an experiment.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// Reading the description failed.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// The description is invalid.
    #[error("in {path}: {source}")]
    Impossible {
        /// Path of the description.
        path: PathBuf,
        /// The invalid part.
        source: Box<Impossible>,
    },
}

/// An invalid part of a description.
#[derive(Debug, Error)]
pub enum Impossible {
    /// A time below zero, or of more than an hour.
    #[error("{0} s is no time to run; give seconds and warm_up from 0 to 3600")]
    Time(f64),
    /// There are no seconds, VMs or variants.
    #[error("an experiment needs seconds above 0, at least one [[vm]] and one [[variant]]")]
    Nothing,
    /// A VM is invalid.
    #[error(transparent)]
    Vm(#[from] ConfigError),
    /// A kernel parameter is invalid.
    #[error("variant '{variant}': {source}")]
    Setting {
        /// Name of the variant.
        variant: String,
        /// The error.
        source: SettingError,
    },
    /// A parameter of the workload, or its value, is invalid.
    #[error("variant '{variant}', VM {vm}: {source}")]
    Parameter {
        /// Name of the variant.
        variant: String,
        /// Name of the VM.
        vm: String,
        /// The error.
        source: ParameterError,
    },
}

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Title in one line.
    pub title: String,
    /// The question, and how to read the answer.
    pub question: String,
    /// Default machine.
    #[serde(default = "bochs")]
    pub machine: String,
    /// Clock of an emulated pCPU in MHz; `None`: the machine's own.
    pub mhz: Option<u32>,
    /// Warm-up of the VMs before the measured time, in seconds.
    #[serde(default = "tenth")]
    pub warm_up: f64,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Interval of the timeline in ms; 0: no timeline.
    #[serde(default)]
    pub sample_ms: u64,
    /// Whether pause-loop exits are traced.
    #[serde(default)]
    pub trace: bool,
    /// The VMs, which run concurrently.
    #[serde(rename = "vm")]
    pub vms: Vec<Vm>,
    /// The variants to compare.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
}

/// A variant of an experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in tables.
    pub name: String,
    /// The required kernel.
    #[serde(default)]
    pub kernel: Need,
    /// Parameters of the kernel.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// Values for every VM's files in debugfs.
    #[serde(default)]
    pub kvm: BTreeMap<String, Value>,
    /// Parameters of every VM's workload.
    #[serde(default)]
    pub workload: BTreeMap<String, Value>,
    /// Arguments of the daemon (`tandem host run`); empty: no daemon.
    #[serde(default)]
    pub daemon: Vec<String>,
    /// vCPUs of every VM, instead of the experiment's.
    pub vcpus: Option<u32>,
}

/// The kernel that a variant requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Any kernel.
    #[default]
    Any,
    /// A kernel with Tandem's patches.
    Patched,
}

/// Step of a VM's seed from one run to the next.
/// It exceeds the number of VMs in an experiment, so that no VM gets the seed of another.
const BETWEEN_SEEDS: u64 = 1000;

fn bochs() -> String {
    "bochs".to_owned()
}

fn tenth() -> f64 {
    0.1
}

impl Experiment {
    /// Reads the experiment `name` of the lab in `lab`, or the file `name` if it ends in `.toml`.
    pub fn read(lab: &Path, name: &str) -> Result<Experiment, ExperimentError> {
        let path = if name.ends_with(".toml") {
            PathBuf::from(name)
        } else {
            folder(lab).join(name).with_extension("toml")
        };
        let experiment: Experiment = description::read("experiment", name, &path, &folder(lab))?;
        match experiment.check() {
            Ok(()) => Ok(experiment),
            Err(impossible) => {
                Err(ExperimentError::Impossible { path, source: Box::new(impossible) })
            }
        }
    }

    fn check(&self) -> Result<(), Impossible> {
        for time in [self.seconds, self.warm_up] {
            if !(0.0..=3600.0).contains(&time) {
                return Err(Impossible::Time(time));
            }
        }
        if self.seconds == 0.0 || self.vms.is_empty() || self.variants.is_empty() {
            return Err(Impossible::Nothing);
        }
        for vm in &self.vms {
            let mut config = MicrovmConfig::new(vm.name.parse()?, vm.workload);
            config.vcpus = vm.vcpus;
            config.check()?;
        }
        for variant in &self.variants {
            for (name, value) in &variant.set {
                settings::parse(&format!("{name}={}", value.text())).map_err(|source| {
                    Impossible::Setting { variant: variant.name.clone(), source }
                })?;
            }
            for vm in self.vms_of(variant) {
                let mut parameters = Parameters::defaults(vm.workload);
                for (name, value) in &vm.set {
                    let set = parameters.set(name, &value.text());
                    set.map_err(|source| Impossible::Parameter {
                        variant: variant.name.clone(),
                        vm: vm.name.clone(),
                        source,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Returns the VMs with the changes of `variant`.
    pub fn vms_of(&self, variant: &Variant) -> Vec<Vm> {
        let change = |vm: &Vm| {
            let mut vm = vm.clone();
            vm.vcpus = variant.vcpus.unwrap_or(vm.vcpus);
            vm.set.extend(variant.workload.clone());
            vm.kvm.extend(variant.kvm.clone());
            vm
        };
        self.vms.iter().map(change).collect()
    }

    /// Plans the runs of the variants that `kernel` supports, with their boot parameters, and names the unsupported variants.
    /// Each variant runs once per seed.
    /// All variants run with one seed before the next, so that side effects of earlier runs affect all variants alike.
    pub fn plan(
        &self,
        kernel: &Kind,
        extra: &[(String, String)],
        seeds: RangeInclusive<u64>,
    ) -> Plan {
        let serves = |variant: &&Variant| variant.kernel == Need::Any || *kernel != Kind::Stock;
        let (served, not): (Vec<&Variant>, Vec<&Variant>) = self.variants.iter().partition(serves);
        let mut plan = Plan {
            boots: Vec::new(),
            passed_over: not.iter().map(|variant| variant.name.clone()).collect(),
        };
        for (seed, variant) in seeds.flat_map(|seed| served.iter().map(move |v| (seed, v))) {
            let own = variant.set.iter().map(|(name, value)| (name.clone(), value.text()));
            let all: BTreeMap<String, String> = own.chain(extra.iter().cloned()).collect();
            let (boot, settings) = all.into_iter().partition(|(name, _)| settings::boot_only(name));
            let run = Run {
                variant: variant.name.clone(),
                seed,
                settings,
                warm_up: self.warm_up,
                seconds: self.seconds,
                sample_ms: self.sample_ms,
                trace: self.trace,
                daemon: variant.daemon.clone(),
                vms: self.vms_of(variant).into_iter().map(|vm| with_seed(vm, seed)).collect(),
            };
            plan.add(boot, run);
        }
        plan
    }
}

/// Returns the VM for the run with this seed; seed 1 leaves it unchanged.
fn with_seed(mut vm: Vm, seed: u64) -> Vm {
    vm.seed = vm.seed.wrapping_add(seed.wrapping_sub(1).wrapping_mul(BETWEEN_SEEDS));
    vm
}

/// The runs of an experiment, by boot.
#[derive(Debug, Default)]
pub struct Plan {
    /// Boots of the machine: parameters on the kernel's command line, and the runs.
    pub boots: Vec<(BTreeMap<String, String>, Vec<Run>)>,
    /// Variants that this kernel does not support.
    pub passed_over: Vec<String>,
}

impl Plan {
    fn add(&mut self, boot: BTreeMap<String, String>, run: Run) {
        match self.boots.iter_mut().find(|(known, _)| *known == boot) {
            Some((_, runs)) => runs.push(run),
            None => self.boots.push((boot, vec![run])),
        }
    }
}

/// Returns the lab's folder of experiments.
fn folder(lab: &Path) -> PathBuf {
    lab.join("experiments")
}

/// Returns the sorted names of all experiments.
pub fn names(lab: &Path) -> Result<Vec<String>, DescriptionError> {
    description::names(&folder(lab))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        title = "t"
        question = "q"
        seconds = 1
        [[vm]]
        name = "a"
        vcpus = 4
        workload = "spinlock"
        ring = 0
        set = { inside = "2k" }
        [[variant]]
        name = "stock"
        [[variant]]
        name = "small window"
        set = { "kvm_intel.ple_window" = 512 }
        [[variant]]
        name = "longer"
        workload = { inside = 4000 }
        [[variant]]
        name = "APLE"
        kernel = "patched"
        set = { "kvm.aple" = true }
    "#;

    fn experiment(text: &str) -> Result<Experiment, Box<dyn std::error::Error>> {
        let experiment: Experiment = toml::from_str(text)?;
        experiment.check()?;
        Ok(experiment)
    }

    #[test]
    fn run_time_variants_share_a_boot() {
        let experiment = experiment(TEXT).unwrap();
        let plan = experiment.plan(&Kind::Stock, &[], 1..=1);
        let names =
            |runs: &[Run]| -> Vec<String> { runs.iter().map(|run| run.variant.clone()).collect() };
        assert_eq!(plan.boots.len(), 2);
        assert_eq!(names(&plan.boots[0].1), ["stock", "longer"]);
        assert_eq!(plan.boots[1].0["kvm_intel.ple_window"], "512");
        assert_eq!(plan.passed_over, ["APLE"]);
        let longer = &plan.boots[0].1[1].vms[0].set;
        assert_eq!(longer["inside"].text(), "4000");
        let patched = experiment.plan(&Kind::Patched, &[("kvm.hvs".into(), "1".into())], 1..=1);
        let aple = patched.boots[0].1.last().unwrap();
        assert_eq!(aple.settings["kvm.aple"], "1");
        assert_eq!(aple.settings["kvm.hvs"], "1");
    }

    #[test]
    fn plan_runs_all_variants_per_seed() {
        let plan = experiment(TEXT).unwrap().plan(&Kind::Stock, &[], 3..=4);
        let runs = &plan.boots[0].1;
        let seen: Vec<(&str, u64, u64)> =
            runs.iter().map(|run| (run.variant.as_str(), run.seed, run.vms[0].seed)).collect();
        let expected =
            [("stock", 3, 2001), ("longer", 3, 2001), ("stock", 4, 3001), ("longer", 4, 3001)];
        assert_eq!(seen, expected);
        assert_eq!(plan.passed_over, ["APLE"]);
    }

    #[test]
    fn invalid_experiments_are_refused() {
        let error = |from: &str, to: &str| {
            let text = TEXT.replacen(from, to, 1);
            experiment(&text).unwrap_err().to_string()
        };
        assert!(error("seconds = 1", "seconds = -1").contains("0 to 3600"));
        assert!(error("\"2k\"", "\"fast\"").contains("not a value for inside"));
        assert!(error("vcpus = 4", "vcpus = 65").contains("1 to 64"));
        assert!(error("kvm_intel.ple_window", "ple_window").contains("MODULE.NAME"));
        assert!(error("title", "titel").contains("titel"));
    }
}
