//! The mixes: VMs with a spin barrier on two pCPUs, and VMs that compute on one or both of them.
//!
//! The first vCPU of a spinning VM has its pCPU to itself, or shares it with another spinning VM.
//! The second vCPU shares its pCPU with the computing VMs.
//! So the first vCPU reaches the barrier earlier and spins, and the second would finish sooner in its place.
//! In one mix both pCPUs have the same load: a swap gains nothing there, and must lose nothing.

use tandem_model::PcpuSet;
use thiserror::Error;

use tandem_demo::plan::{Pinning, PlanError, VmPlan, place};
use tandem_demo::vm_spec::VmSpec;

/// Computation per vCPU and phase of the barrier, in millions of TSC cycles: some tenths of a second, so that waits span whole periods.
pub const WORK: u32 = 600;

/// Error in the choice of mixes.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MixError {
    /// Unknown name of a mix.
    #[error("--mixes {text}: '{part}' is not known; it takes a list of {}", Mix::ALL.map(Mix::name).join(","))]
    Unknown {
        /// The whole list.
        text: String,
        /// The unknown name.
        part: String,
    },
    /// A mix is named twice.
    #[error("--mixes names '{0}' twice; each is measured once")]
    Twice(&'static str),
    /// The host has too few pCPUs.
    #[error("the VMs need two pCPUs, and this process may use pCPUs {0}")]
    Pcpus(PcpuSet),
    /// Invalid VMs.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// VMs on two pCPUs. A spinning VM has two vCPUs, one on each pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One spinning VM, and one computing vCPU on the second pCPU.
    OneBurner,
    /// One spinning VM, and two computing vCPUs on the second pCPU.
    TwoBurners,
    /// Two spinning VMs, and one computing vCPU on the second pCPU.
    TwoSpinners,
    /// One spinning VM, and one computing vCPU on each pCPU: a swap gains nothing.
    Even,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 4] = [Mix::OneBurner, Mix::TwoBurners, Mix::TwoSpinners, Mix::Even];

    /// Name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mix::OneBurner => "one-burner",
            Mix::TwoBurners => "two-burners",
            Mix::TwoSpinners => "two-spinners",
            Mix::Even => "even",
        }
    }

    /// Description of the VMs.
    pub fn what(self) -> &'static str {
        match self {
            Mix::OneBurner => "spin on pCPUs 0 and 1, burn on 1",
            Mix::TwoBurners => "spin on pCPUs 0 and 1, burn twice on 1",
            Mix::TwoSpinners => "spin and another on pCPUs 0 and 1, burn on 1",
            Mix::Even => "spin on pCPUs 0 and 1, burn on both: nothing to be gained",
        }
    }

    /// Places the VMs on the first two of these pCPUs; spinning VMs come first.
    pub fn vms(self, pcpus: &PcpuSet, work: u32) -> Result<Vec<VmPlan>, MixError> {
        let two: Vec<_> = pcpus.iter().take(2).collect();
        let [first, second] = two.as_slice() else {
            return Err(MixError::Pcpus(pcpus.clone()));
        };
        let both: PcpuSet = [*first, *second].into_iter().collect();
        let one: PcpuSet = [*second].into_iter().collect();
        let spin = |name: &str| VmSpec {
            name: name.to_owned(),
            vcpus: 2,
            weight: 1.0,
            workload: "barrier".to_owned(),
            settings: vec![format!("work={work}M"), "wait=spin".to_owned()],
            pcpus: Some(both.clone()),
        };
        let burn = |vcpus, on: &PcpuSet| VmSpec {
            name: "burn".to_owned(),
            vcpus,
            weight: 1.0,
            workload: "burn".to_owned(),
            settings: Vec::new(),
            pcpus: Some(on.clone()),
        };
        let specs = match self {
            Mix::OneBurner => vec![spin("spin"), burn(1, &one)],
            Mix::TwoBurners => vec![spin("spin"), burn(2, &one)],
            Mix::TwoSpinners => vec![spin("spin"), spin("spin2"), burn(1, &one)],
            Mix::Even => vec![spin("spin"), burn(2, &both)],
        };
        Ok(place(specs, pcpus, Pinning::None)?)
    }
}

/// Parses `--mixes`: names separated by commas, each at most once.
pub fn list(text: &str) -> Result<Vec<Mix>, MixError> {
    let mut mixes = Vec::new();
    for part in text.split(',').map(str::trim) {
        let found = Mix::ALL.into_iter().find(|mix| mix.name() == part);
        let mix = found
            .ok_or_else(|| MixError::Unknown { text: text.to_owned(), part: part.to_owned() })?;
        if mixes.contains(&mix) {
            return Err(MixError::Twice(mix.name()));
        }
        mixes.push(mix);
    }
    Ok(mixes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burners_share_the_second_pcpu() {
        let pcpus: PcpuSet = "2-5".parse().unwrap();
        let pins = |mix: Mix| -> Vec<Vec<u32>> {
            let vms = mix.vms(&pcpus, WORK).unwrap();
            let pins = vms.iter().map(|vm| vm.pins.iter().map(|p| p.0).collect());
            pins.collect()
        };
        assert_eq!(pins(Mix::OneBurner), [vec![2, 3], vec![3]]);
        assert_eq!(pins(Mix::TwoBurners), [vec![2, 3], vec![3, 3]]);
        assert_eq!(pins(Mix::TwoSpinners), [vec![2, 3], vec![2, 3], vec![3]]);
        assert_eq!(pins(Mix::Even), [vec![2, 3], vec![2, 3]]);
        let vms = Mix::OneBurner.vms(&pcpus, 7000).unwrap();
        assert_eq!(vms[0].settings, ["work=7000M", "wait=spin"]);
        let error = Mix::Even.vms(&"1".parse().unwrap(), WORK).unwrap_err();
        assert!(error.to_string().contains("need two pCPUs"), "{error}");
    }

    #[test]
    fn mix_list_refuses_unknown_and_repeated_names() {
        assert_eq!(list("even, one-burner"), Ok(vec![Mix::Even, Mix::OneBurner]));
        let error = list("even,odd").unwrap_err().to_string();
        assert!(
            error.contains("'odd' is not known; it takes a list of one-burner,two-burners"),
            "{error}"
        );
        assert_eq!(list("even,even"), Err(MixError::Twice("even")));
    }
}
