//! The mixes of the fairness suite: typical mixes of operators, and known hard cases.
//!
//! Pinned mixes have vCPU i on pCPU i mod P, P being the number of usable pCPUs.
//! The two accounting groups each have one half of the pCPUs to themselves.
//! Weights are relative to the kernel's default.

use tandem_model::PcpuSet;
use thiserror::Error;

use tandem_demo::plan::{Pinning, PlanError, VmPlan, place, vms_of_mix};
use tandem_demo::vm_spec::{VmSpec, WORKLOAD};

/// Error of a mix.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MixError {
    /// Unknown name of a mix.
    #[error("'{0}' is no mix; the mixes are {known}", known = MIXES.map(|mix| mix.name).join(", "))]
    Unknown(String),
    /// The host is too small for two groups.
    #[error("two accounting groups need two pCPUs; this process may use {0}")]
    TwoGroups(PcpuSet),
    /// Invalid VMs.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A named mix.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Name in arguments and reports.
    pub name: &'static str,
    /// Description of the VMs.
    pub what: &'static str,
    vcpus: &'static str,
    weights: Option<&'static str>,
    kind: Kind,
}

/// A workload and its settings.
type Program = (&'static str, &'static [&'static str]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pinned,
    Unpinned,
    /// The first VM sleeps and wakes.
    Bursty,
    /// The first two VMs and the others have disjoint pCPUs.
    TwoGroups,
    /// Pinned, with a workload and settings for each VM.
    Programs(&'static [Program]),
}

const fn mix(
    name: &'static str,
    what: &'static str,
    vcpus: &'static str,
    weights: Option<&'static str>,
    kind: Kind,
) -> Mix {
    Mix { name, what, vcpus, weights, kind }
}

/// All mixes, in the order in which they run.
pub const MIXES: [Mix; 16] = [
    mix("2+1", "two burners", "2,1", None, Kind::Pinned),
    mix("3+1", "two burners", "3,1", None, Kind::Pinned),
    mix("4+2+1", "three burners", "4,2,1", None, Kind::Pinned),
    mix("2+1+1+1", "four burners", "2,1,1,1", None, Kind::Pinned),
    mix(
        "weights-123",
        "burners of 4, 3 and 2 vCPUs, weights 1:2:3",
        "4,3,2",
        Some("1,2,3"),
        Kind::Pinned,
    ),
    mix(
        "weights-321",
        "burners of 4, 3 and 2 vCPUs, weights 3:2:1",
        "4,3,2",
        Some("3,2,1"),
        Kind::Pinned,
    ),
    mix("bursty", "a bursty VM of 2 vCPUs beside burners of 4 and 1", "2,4,1", None, Kind::Bursty),
    mix(
        "two-groups",
        "burners of 2 and 1 on one half of the pCPUs, of 3 and 1 on the other",
        "2,1,3,1",
        None,
        Kind::TwoGroups,
    ),
    mix(
        "infeasible",
        "burners of 2, 1 and 1 vCPUs, weights 1:1:6",
        "2,1,1",
        Some("1,1,6"),
        Kind::Pinned,
    ),
    mix("free-4+2+1", "three burners, not pinned", "4,2,1", None, Kind::Unpinned),
    mix("free-2+1+1+1", "four burners, not pinned", "2,1,1,1", None, Kind::Unpinned),
    mix(
        "barrier-4+1+2",
        "a blocking barrier of 4 vCPUs beside a burner of 1 and shootdowns of 2",
        "4,1,2",
        None,
        Kind::Programs(&[BARRIER, BURN, ("shootdown", &[])]),
    ),
    mix(
        "barrier-4+2",
        "a blocking barrier of 4 vCPUs beside a burner of 2",
        "4,2",
        None,
        Kind::Programs(&[BARRIER, BURN]),
    ),
    mix(
        "barrier-2+2",
        "a blocking barrier beside a burner, 2 vCPUs each",
        "2,2",
        None,
        Kind::Programs(&[BARRIER, BURN]),
    ),
    mix(
        "forkjoin-2+2",
        "fork-join beside a burner, 2 vCPUs each",
        "2,2",
        None,
        Kind::Programs(&[("forkjoin", &[]), BURN]),
    ),
    mix(
        "serial-2+2",
        "fork-join with a long serial part beside a burner, 2 vCPUs each",
        "2,2",
        None,
        Kind::Programs(&[("forkjoin", &["serial=2M", "parallel=200k"]), BURN]),
    ),
];

const BARRIER: Program = ("barrier", &["wait=block"]);
const BURN: Program = ("burn", &[]);

impl Mix {
    /// Returns whether vCPUs are pinned.
    pub fn pinned(&self) -> bool {
        self.kind != Kind::Unpinned
    }

    /// Places its VMs on this host.
    pub fn vms(&self, pcpus: &PcpuSet) -> Result<Vec<VmPlan>, MixError> {
        let mut specs = vms_of_mix(self.vcpus, self.weights, WORKLOAD)?;
        match self.kind {
            Kind::Pinned | Kind::Unpinned => {}
            Kind::Bursty => make_bursty(&mut specs),
            Kind::TwoGroups => split(&mut specs, pcpus)?,
            Kind::Programs(programs) => {
                for (spec, (workload, settings)) in specs.iter_mut().zip(programs) {
                    spec.workload = (*workload).to_owned();
                    spec.settings = settings.iter().map(|&s| s.to_owned()).collect();
                }
            }
        }
        let pinning = if self.pinned() { Pinning::RoundRobin } else { Pinning::None };
        Ok(place(specs, pcpus, pinning)?)
    }
}

/// Sets bursts of 20 million cycles (some milliseconds) every 200 million: a tenth of a pCPU per vCPU.
/// That is below the fair share on any host that is overcommitted at most tenfold.
fn make_bursty(specs: &mut [VmSpec]) {
    if let Some(first) = specs.first_mut() {
        first.workload = "bursty".to_owned();
        first.settings = vec!["work=20000000".to_owned(), "period=200000000".to_owned()];
    }
}

fn split(specs: &mut [VmSpec], pcpus: &PcpuSet) -> Result<(), MixError> {
    if pcpus.len() < 2 {
        return Err(MixError::TwoGroups(pcpus.clone()));
    }
    let half = pcpus.len() / 2;
    for (i, spec) in specs.iter_mut().enumerate() {
        let own = pcpus.iter().enumerate().filter(|(at, _)| (*at < half) == (i < 2));
        spec.pcpus = Some(own.map(|(_, pcpu)| pcpu).collect());
    }
    Ok(())
}

/// Returns the mixes of these names, or all.
pub fn chosen(names: Option<&str>) -> Result<Vec<Mix>, MixError> {
    let Some(names) = names else {
        return Ok(MIXES.to_vec());
    };
    let mut chosen = Vec::new();
    for name in names.split(',').map(str::trim) {
        match MIXES.iter().find(|mix| mix.name == name) {
            Some(mix) => chosen.push(*mix),
            None => return Err(MixError::Unknown(name.to_owned())),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use tandem_microvm::{Parameters, Workload};

    use super::*;

    #[test]
    fn mixes_fit_small_and_large_hosts() {
        for pcpus in ["0-1", "0-15"] {
            let pcpus: PcpuSet = pcpus.parse().unwrap();
            for mix in MIXES {
                let vms = mix.vms(&pcpus).unwrap();
                assert_eq!(vms.iter().all(|vm| vm.pins.is_empty()), !mix.pinned(), "{}", mix.name);
            }
        }
    }

    #[test]
    fn programs_have_vms_and_valid_settings() {
        let pcpus: PcpuSet = "0-1".parse().unwrap();
        let mut programs = 0;
        for mix in MIXES {
            if let Kind::Programs(own) = mix.kind {
                programs += 1;
                let vms = mix.vms(&pcpus).unwrap();
                assert_eq!(vms.len(), own.len(), "{}", mix.name);
                for vm in vms {
                    let workload: Workload = vm.workload.parse().unwrap();
                    let mut parameters = Parameters::defaults(workload);
                    for setting in &vm.settings {
                        parameters.set_from(setting).unwrap();
                    }
                }
            }
        }
        assert_eq!(programs, 5);
    }

    #[test]
    fn two_groups_have_disjoint_pcpus() {
        let pcpus: PcpuSet = "0-3".parse().unwrap();
        let vms = chosen(Some("two-groups")).unwrap()[0].vms(&pcpus).unwrap();
        let of = |range: std::ops::Range<usize>| -> PcpuSet {
            vms[range].iter().flat_map(|vm| vm.pins.clone()).collect()
        };
        assert!(!of(0..2).overlaps(&of(2..4)));
        let one: PcpuSet = "0".parse().unwrap();
        let error = chosen(Some("two-groups")).unwrap()[0].vms(&one).unwrap_err().to_string();
        assert!(error.contains("need two pCPUs"), "{error}");
    }

    #[test]
    fn unknown_mix_lists_known_mixes() {
        let error = chosen(Some("2+1,9+9")).unwrap_err().to_string();
        assert!(error.contains("'9+9' is no mix; the mixes are 2+1, 3+1"), "{error}");
        assert_eq!(chosen(None).unwrap().len(), MIXES.len());
    }
}
