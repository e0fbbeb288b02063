//! Experiments: `research/lab/experiments/NAME.toml`, which say what question is asked, which VMs run, and which
//! variants of the kernel's parameters are compared.
//!
//! Each variant runs the same VMs with the same seeds, and again with others if asked to. A variant may
//! ask for the patched kernel; with the stock kernel it is passed over, and said so. Times are seconds
//! of the emulated machine.

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

/// Why an experiment cannot be used.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// Its description cannot be read.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// It asks for something impossible.
    #[error("in {path}: {source}")]
    Impossible {
        /// Which description.
        path: PathBuf,
        /// What it asks for.
        source: Box<Impossible>,
    },
}

/// What an experiment cannot ask for.
#[derive(Debug, Error)]
pub enum Impossible {
    /// A time below zero, or of more than an hour.
    #[error("{0} s is no time to run; give seconds and warm_up from 0 to 3600")]
    Time(f64),
    /// Nothing would be run, or nothing counted.
    #[error("an experiment needs seconds above 0, at least one [[vm]] and one [[variant]]")]
    Nothing,
    /// A VM that cannot be.
    #[error(transparent)]
    Vm(#[from] ConfigError),
    /// Not a parameter of a kernel.
    #[error("variant '{variant}': {source}")]
    Setting {
        /// Which variant.
        variant: String,
        /// What it sets.
        source: SettingError,
    },
    /// Not a parameter of the workload, or not a value for it.
    #[error("variant '{variant}', VM {vm}: {source}")]
    Parameter {
        /// Which variant.
        variant: String,
        /// Which VM.
        vm: String,
        /// What it sets.
        source: ParameterError,
    },
}

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is about, in a line.
    pub title: String,
    /// What it is to answer, and how to read the answer.
    pub question: String,
    /// The machine, unless another is asked for.
    #[serde(default = "bochs")]
    pub machine: String,
    /// Clock of an emulated pCPU in MHz; none: the machine's own.
    pub mhz: Option<u32>,
    /// How long the VMs run before anything is counted.
    #[serde(default = "tenth")]
    pub warm_up: f64,
    /// How long is counted.
    pub seconds: f64,
    /// How often the timeline is read; zero: never.
    #[serde(default)]
    pub sample_ms: u64,
    /// Whether pause-loop exits are traced.
    #[serde(default)]
    pub trace: bool,
    /// The VMs that run side by side.
    #[serde(rename = "vm")]
    pub vms: Vec<Vm>,
    /// What is compared.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
}

/// One of the things compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in tables.
    pub name: String,
    /// Which kernel has what it sets.
    #[serde(default)]
    pub kernel: Need,
    /// Parameters of the kernel.
    #[serde(default)]
    pub set: BTreeMap<String, Value>,
    /// Values for every VM's files in KVM's debug file system.
    #[serde(default)]
    pub kvm: BTreeMap<String, Value>,
    /// Parameters of every VM's workload.
    #[serde(default)]
    pub workload: BTreeMap<String, Value>,
    /// Arguments of the daemon (`tandem host run`) beside the VMs; none: there is no daemon.
    #[serde(default)]
    pub daemon: Vec<String>,
    /// vCPUs of every VM, in place of the experiment's.
    pub vcpus: Option<u32>,
}

/// Which kernel a variant can run with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Any kernel.
    #[default]
    Any,
    /// Only one with Tandem's patches.
    Patched,
}

/// From a VM's seed in one run to that in the next: more than VMs in an experiment, so that none runs
/// with the seed of another.
const BETWEEN_SEEDS: u64 = 1000;

fn bochs() -> String {
    "bochs".to_owned()
}

fn tenth() -> f64 {
    0.1
}

impl Experiment {
    /// Reads the experiment `name` of the lab in `lab`, or the file that `name` is.
    pub fn read(lab: &Path, name: &str) -> Result<Experiment, ExperimentError> {
        let path = match name.ends_with(".toml") {
            true => PathBuf::from(name),
            false => folder(lab).join(name).with_extension("toml"),
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

    /// The VMs as `variant` has them.
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

    /// The runs of the variants that `kernel` can serve, each with what it needs at boot, and the
    /// names of those it cannot. Each variant runs once for each of `seeds`; all run for one seed
    /// before any does for the next, so that what a run leaves behind is no matter of its variant.
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
                vms: self.vms_of(variant).into_iter().map(|vm| moved_on(vm, seed)).collect(),
            };
            plan.add(boot, run);
        }
        plan
    }
}

/// The VM for the run of this seed: the first is as the experiment has it.
fn moved_on(mut vm: Vm, seed: u64) -> Vm {
    vm.seed = vm.seed.wrapping_add(seed.wrapping_sub(1).wrapping_mul(BETWEEN_SEEDS));
    vm
}

/// What is run, boot by boot.
#[derive(Debug, Default)]
pub struct Plan {
    /// Boots of the machine: parameters on the kernel's command line, and the runs.
    pub boots: Vec<(BTreeMap<String, String>, Vec<Run>)>,
    /// Variants that this kernel cannot serve.
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

/// Where the lab keeps its experiments.
fn folder(lab: &Path) -> PathBuf {
    lab.join("experiments")
}

/// The names of all experiments, sorted.
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
    fn variants_that_differ_at_run_time_share_a_boot() {
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
    fn every_variant_runs_for_one_seed_before_any_does_for_the_next() {
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
    fn what_an_experiment_cannot_be_is_said() {
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
