//! The plan of an experiment: VMs with their pins, modes and times.
//!
//! It is built from the arguments and checked as a whole before anything starts.
//! VMs are given by `--mix 4,2,1` with `--weights 1,1,1`, or by one `--vm` per VM.
//! By default, vCPU i of every VM is pinned to pCPU i mod P, as operators do to keep two vCPUs of a VM off one run queue.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tandem_host::config::{HostConfig, Placement};
use tandem_linux::branch_counters::CounterChoice;
use tandem_microvm::{Backend, MAX_VCPUS, Parameters, Workload};
use tandem_model::{PcpuId, PcpuSet, PolicySet};
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::host::{asymmetric, flexs, registry};
use thiserror::Error;

use crate::mode::Mode;
use crate::vm_spec::VmSpec;

/// Range of weights that both the daemon and the kernel support; 1 is the kernel's default.
pub const WEIGHTS: RangeInclusive<f64> = 0.01..=100.0;

/// Invalid VMs.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// A list has a part that is not a number.
    #[error("{flag} {text}: '{part}' is not {what}; write a list such as 4,2,1")]
    NotANumber {
        /// The argument.
        flag: &'static str,
        /// The given list.
        text: String,
        /// The invalid part.
        part: String,
        /// Description of a valid part.
        what: &'static str,
    },
    /// The numbers of weights and VMs differ.
    #[error("there are {vms} VMs and --weights has {weights}; give one weight per VM")]
    Weights {
        /// Number of VMs.
        vms: usize,
        /// Number of weights.
        weights: usize,
    },
    /// There is no VM.
    #[error("no VM was named; give --mix or --vm")]
    NoVm,
    /// Two VMs have the same name.
    #[error("two VMs are named '{0}'; names must differ")]
    Twice(String),
    /// The name is invalid.
    #[error("'{0}' is not a VM name; write 1 to 8 characters of a-z, 0-9, '_' and '-'")]
    Name(String),
    /// The number of vCPUs is out of range.
    #[error("VM '{name}' has {vcpus} vCPUs; a VM has 1 to {MAX_VCPUS}")]
    Vcpus {
        /// The VM.
        name: String,
        /// Its vCPUs.
        vcpus: u32,
    },
    /// The weight is out of range.
    #[error(
        "VM '{name}' has weight {weight}; weights are {} to {}, where 1 is the kernel's default",
        WEIGHTS.start(),
        WEIGHTS.end()
    )]
    Weight {
        /// The VM.
        name: String,
        /// Its weight.
        weight: f64,
    },
    /// The list of pCPUs is empty.
    #[error("VM '{0}' has an empty list of pCPUs; write one such as 0-1")]
    NoPcpus(String),
    /// A pCPU is not available to this process.
    #[error("VM '{name}' cannot use pCPU {pcpu}; this process may use pCPUs {usable}")]
    Pcpu {
        /// The VM.
        name: String,
        /// The unavailable pCPU.
        pcpu: PcpuId,
        /// The available pCPUs.
        usable: PcpuSet,
    },
}

/// One VM to start.
#[derive(Clone, Debug, PartialEq)]
pub struct VmPlan {
    /// Its name, at most 8 characters.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight, 1 = the kernel's default.
    pub weight: f64,
    /// Name of its workload.
    pub workload: String,
    /// The workload's settings, `key=value`.
    pub settings: Vec<String>,
    /// The pCPU of each vCPU; empty if vCPUs are not pinned.
    pub pins: Vec<PcpuId>,
}

impl VmPlan {
    /// Returns whether its vCPUs are always runnable, regardless of the kernel's wait time: they compute or spin.
    pub fn never_sleeps(&self) -> bool {
        match self.workload.as_str() {
            "burn" | "spinlock" | "shootdown" => true,
            "barrier" => self.settings.iter().any(|setting| setting == "wait=spin"),
            _ => false,
        }
    }

    /// Returns whether its guest has bursts or requests with release times, and so completion times.
    pub fn is_timed(&self) -> bool {
        let workload: Option<Workload> = self.workload.parse().ok();
        workload.is_some_and(Workload::is_timed)
    }

    /// Rounds `time` up to whole rounds of the workload ([`Parameters::round`]).
    /// With a partial round the mix of phases would differ between runs.
    /// Settings that the guest rejects have no effect.
    pub fn whole_rounds(&self, time: Duration) -> Duration {
        let round = || {
            let mut parameters = Parameters::defaults(self.workload.parse().ok()?);
            for setting in &self.settings {
                parameters.set_from(setting).ok()?;
            }
            parameters.round()
        };
        match round() {
            Some(round) if !round.is_zero() => {
                let rounds = time.as_nanos().div_ceil(round.as_nanos()).max(1);
                round.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
            }
            _ => time,
        }
    }

    /// Returns the workload with its settings.
    pub fn description(&self) -> String {
        match self.settings.as_slice() {
            [] => self.workload.clone(),
            settings => format!("{} ({})", self.workload, settings.join(", ")),
        }
    }

    /// Returns the pCPUs that vCPU `index` may use.
    pub fn allowed(&self, index: usize, all: &PcpuSet) -> PcpuSet {
        match self.pins.get(index) {
            Some(&pcpu) => PcpuSet::from_iter([pcpu]),
            None => all.clone(),
        }
    }
}

/// Settings of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonPlan {
    /// Accounting period in milliseconds; the daemon's default if `None`.
    pub period_ms: Option<u64>,
    /// Interval of discovery in milliseconds; the daemon's default if `None`.
    pub scan_ms: Option<u64>,
    /// The placement; `Rebalance` may migrate pinned vCPUs.
    pub placement: Placement,
    /// The policies of all VMs; the daemon's default if `None`.
    pub policies: Option<PolicySet>,
    /// Enabled parts of the policy `asymmetric`; the daemon's default if `None`.
    pub asymmetric: Option<AsymmetricConfig>,
    /// Branch counters that the policy `flexs` reads; the daemon's default if `None`.
    pub counters: Option<CounterChoice>,
}

impl DaemonPlan {
    /// Returns these settings with the policy `asymmetric` added.
    pub fn with_asymmetric(&self) -> DaemonPlan {
        let policies = self.policies.unwrap_or(HostConfig::default().policies.0);
        let asymmetric = registry::set([asymmetric::ENTRY.name]).unwrap_or(PolicySet::NONE);
        DaemonPlan { policies: Some(policies.or(asymmetric)), ..self.clone() }
    }

    /// Returns these settings with the policy `flexs` added, on the VMs' synthetic counters.
    /// The policy swaps pinned vCPUs.
    pub fn with_flexs(&self) -> DaemonPlan {
        let policies = self.policies.unwrap_or(HostConfig::default().policies.0);
        let flexs = registry::set([flexs::ENTRY.name]).unwrap_or(PolicySet::NONE);
        DaemonPlan {
            policies: Some(policies.or(flexs)),
            placement: Placement::Rebalance,
            counters: Some(CounterChoice::Synthetic),
            ..self.clone()
        }
    }
}

/// Returns the value of `--placement`.
pub fn placement_name(placement: Placement) -> &'static str {
    match placement {
        Placement::Keep => "keep",
        Placement::Turns => "turns",
        Placement::Rebalance => "rebalance",
    }
}

/// A whole experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The VMs.
    pub vms: Vec<VmPlan>,
    /// The modes, in order.
    pub modes: Vec<Mode>,
    /// Length of each mode's window.
    pub window: Duration,
    /// Time between entering a mode and its window.
    pub settle: Duration,
    /// The requested backend; if `None`, KVM if available.
    pub backend: Option<Backend>,
    /// Seed of the workloads.
    pub seed: u64,
    /// Settings of the daemon.
    pub daemon: DaemonPlan,
    /// Directory of journals and logs of the experiment.
    pub state_dir: PathBuf,
    /// The pCPUs that VMs may use.
    pub pcpus: PcpuSet,
    /// Time for which each distinct VM is measured alone first; `None` skips this.
    pub alone: Option<Duration>,
}

/// Default pins of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// vCPU i on pCPU i mod P.
    RoundRobin,
    /// Not pinned.
    None,
}

/// Returns the VMs of `--mix` and `--weights`.
pub fn vms_of_mix(
    mix: &str,
    weights: Option<&str>,
    workload: &str,
) -> Result<Vec<VmSpec>, PlanError> {
    let vcpus: Vec<u32> = numbers(mix, "--mix", "a number of vCPUs")?;
    let spec = |(i, vcpus)| VmSpec {
        name: format!("vm{i}"),
        vcpus,
        weight: 1.0,
        workload: workload.to_owned(),
        settings: Vec::new(),
        pcpus: None,
    };
    weigh(vcpus.into_iter().enumerate().map(spec).collect(), weights)
}

/// Returns four typical VMs of an overcommitted host, each with a vCPU for each pCPU.
/// One spins, one blocks, one computes, and one sleeps most of the time.
pub fn everyday_vms(pcpus: &PcpuSet, weights: Option<&str>) -> Result<Vec<VmSpec>, PlanError> {
    let vcpus = (pcpus.len() as u32).clamp(2, MAX_VCPUS);
    let spec = |(name, workload, settings): (&str, &str, &[&str])| VmSpec {
        name: name.to_owned(),
        vcpus,
        weight: 1.0,
        workload: workload.to_owned(),
        settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
        pcpus: None,
    };
    let vms = [
        ("spin", "barrier", &["wait=spin"][..]),
        ("block", "barrier", &["wait=block"]),
        ("compute", "burn", &[]),
        ("bursty", "bursty", &[]),
    ];
    weigh(vms.into_iter().map(spec).collect(), weights)
}

/// Sets the weights of `--weights`.
fn weigh(mut vms: Vec<VmSpec>, weights: Option<&str>) -> Result<Vec<VmSpec>, PlanError> {
    let Some(text) = weights else {
        return Ok(vms);
    };
    let weights: Vec<f64> = numbers(text, "--weights", "a weight")?;
    if weights.len() != vms.len() {
        return Err(PlanError::Weights { vms: vms.len(), weights: weights.len() });
    }
    for (vm, weight) in vms.iter_mut().zip(weights) {
        vm.weight = weight;
    }
    Ok(vms)
}

fn numbers<T: FromStr>(
    text: &str,
    flag: &'static str,
    what: &'static str,
) -> Result<Vec<T>, PlanError> {
    let number = |part: &str| {
        part.trim().parse().map_err(|_| PlanError::NotANumber {
            flag,
            text: text.to_owned(),
            part: part.to_owned(),
            what,
        })
    };
    text.split(',').map(number).collect()
}

/// Checks the VMs, together and against the host, and pins their vCPUs.
pub fn place(
    specs: Vec<VmSpec>,
    pcpus: &PcpuSet,
    pinning: Pinning,
) -> Result<Vec<VmPlan>, PlanError> {
    if specs.is_empty() {
        return Err(PlanError::NoVm);
    }
    let mut vms: Vec<VmPlan> = Vec::with_capacity(specs.len());
    for spec in specs {
        check(&spec, pcpus)?;
        if vms.iter().any(|vm| vm.name == spec.name) {
            return Err(PlanError::Twice(spec.name));
        }
        let home: Vec<PcpuId> = match (&spec.pcpus, pinning) {
            (Some(own), _) => own.iter().collect(),
            (None, Pinning::RoundRobin) => pcpus.iter().collect(),
            (None, Pinning::None) => Vec::new(),
        };
        vms.push(VmPlan {
            pins: home.into_iter().cycle().take(spec.vcpus as usize).collect(),
            name: spec.name,
            vcpus: spec.vcpus,
            weight: spec.weight,
            workload: spec.workload,
            settings: spec.settings,
        });
    }
    Ok(vms)
}

fn check(spec: &VmSpec, pcpus: &PcpuSet) -> Result<(), PlanError> {
    let name = || spec.name.clone();
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    if !(1..=8).contains(&spec.name.len()) || !spec.name.chars().all(letters) {
        return Err(PlanError::Name(name()));
    }
    if !(1..=MAX_VCPUS).contains(&spec.vcpus) {
        return Err(PlanError::Vcpus { name: name(), vcpus: spec.vcpus });
    }
    if !WEIGHTS.contains(&spec.weight) {
        return Err(PlanError::Weight { name: name(), weight: spec.weight });
    }
    if let Some(own) = &spec.pcpus {
        if own.is_empty() {
            return Err(PlanError::NoPcpus(name()));
        }
        if let Some(pcpu) = own.iter().find(|&pcpu| !pcpus.contains(pcpu)) {
            return Err(PlanError::Pcpu { name: name(), pcpu, usable: pcpus.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_spec::WORKLOAD;

    fn pcpus(list: &str) -> PcpuSet {
        list.parse().unwrap()
    }

    fn mix(mix: &str, weights: Option<&str>, pinning: Pinning) -> Result<Vec<VmPlan>, PlanError> {
        place(vms_of_mix(mix, weights, WORKLOAD)?, &pcpus("0-1"), pinning)
    }

    fn error(mix_text: &str, weights: Option<&str>) -> String {
        mix(mix_text, weights, Pinning::RoundRobin).unwrap_err().to_string()
    }

    #[test]
    fn vcpus_are_pinned_in_turn() {
        let vms = mix("3,1", None, Pinning::RoundRobin).unwrap();
        assert_eq!(vms[0].pins, [PcpuId(0), PcpuId(1), PcpuId(0)]);
        assert_eq!(vms[1].pins, [PcpuId(0)]);
        assert_eq!(vms[0].allowed(1, &pcpus("0-1")), pcpus("1"));
    }

    #[test]
    fn free_vcpus_may_run_anywhere() {
        let vms = mix("3,1", None, Pinning::None).unwrap();
        assert!(vms[0].pins.is_empty());
        assert_eq!(vms[0].allowed(1, &pcpus("0-1")), pcpus("0-1"));
    }

    #[test]
    fn given_pcpus_override_the_default() {
        let mut specs = vms_of_mix("2", None, WORKLOAD).unwrap();
        specs[0].pcpus = Some(pcpus("1"));
        let vms = place(specs, &pcpus("0-1"), Pinning::None).unwrap();
        assert_eq!(vms[0].pins, [PcpuId(1), PcpuId(1)]);
    }

    #[test]
    fn everyday_vms_cover_every_pcpu() {
        for (list, vcpus) in [("0", 2), ("0-1", 2), ("0-15", 16)] {
            let vms = everyday_vms(&pcpus(list), Some("1,2,3,4")).unwrap();
            let vms = place(vms, &pcpus(list), Pinning::None).unwrap();
            assert_eq!(vms.len(), 4);
            assert!(vms.iter().all(|vm| vm.vcpus == vcpus && vm.pins.is_empty()));
            let awake: Vec<bool> = vms.iter().map(VmPlan::never_sleeps).collect();
            assert_eq!(awake, [true, false, true, false]);
            assert_eq!(vms[3].weight, 4.0);
        }
        let error = everyday_vms(&pcpus("0"), Some("1")).unwrap_err().to_string();
        assert!(error.starts_with("there are 4 VMs and --weights has 1"), "{error}");
    }

    #[test]
    fn weights_must_match_the_mix() {
        let text = error("4,2,1", Some("1,2"));
        assert_eq!(text, "there are 3 VMs and --weights has 2; give one weight per VM");
    }

    #[test]
    fn invalid_sizes_name_the_range() {
        assert!(error("0", None).contains("a VM has 1 to 64"));
        assert!(error("65", None).contains("a VM has 1 to 64"));
        assert!(
            error("1,1", Some("1,0")).contains("VM 'vm1' has weight 0; weights are 0.01 to 100")
        );
        assert!(error("1", Some("-1")).contains("weight -1"));
        assert!(error("1", Some("nan")).contains("weight NaN"));
        assert!(error("", None).contains("'' is not a number of vCPUs"));
        assert!(error("4,x", None).contains("'x' is not a number of vCPUs"));
        assert!(error("-1", None).contains("write a list such as 4,2,1"));
        assert!(error("1", Some("a")).contains("'a' is not a weight"));
    }

    #[test]
    fn invalid_vms_are_named() {
        let good = vms_of_mix("1,1", None, WORKLOAD).unwrap();
        let mut twice = good.clone();
        twice[1].name = "vm0".to_owned();
        let error = place(twice, &pcpus("0"), Pinning::None).unwrap_err().to_string();
        assert!(error.contains("two VMs are named 'vm0'"), "{error}");
        let mut long = good.clone();
        long[0].name = "much-too-long".to_owned();
        let error = place(long, &pcpus("0"), Pinning::None).unwrap_err().to_string();
        assert!(error.contains("1 to 8 characters"), "{error}");
        let mut away = good;
        away[0].pcpus = Some(pcpus("7"));
        let error = place(away, &pcpus("0-1"), Pinning::None).unwrap_err().to_string();
        assert!(error.contains("pCPU 7; this process may use pCPUs 0-1"), "{error}");
    }
}
