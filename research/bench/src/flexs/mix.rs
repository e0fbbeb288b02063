//! What is run: VMs that wait for themselves at a spin barrier on two pCPUs, and VMs that compute on one or both of these.
//!
//! The first vCPU of a VM that spins has its pCPU to itself, or shares it with another such; the second shares its own with those that compute. So the
//! first is done first and spins, and the second would be done sooner in its place. In one mix both are alike: there a swap gains nothing, and must
//! lose nothing.

use tandem_model::PcpuSet;
use thiserror::Error;

use tandem_demo::plan::{Pinning, PlanError, VmPlan, place};
use tandem_demo::vm_spec::VmSpec;

/// Computation per vCPU and phase of the barrier, in millions of TSC cycles: some tenths of a second, so that waiting lasts for whole periods.
pub const WORK: u32 = 600;

/// Why there is nothing to measure.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MixError {
    /// No mix has the name.
    #[error("--mixes {text}: '{part}' is not known; it takes a list of {}", Mix::ALL.map(Mix::name).join(","))]
    Unknown {
        /// What was given.
        text: String,
        /// The part that is not known.
        part: String,
    },
    /// A mix is named twice.
    #[error("--mixes names '{0}' twice; each is measured once")]
    Twice(&'static str),
    /// The host has too few pCPUs.
    #[error("the VMs need two pCPUs, and this process may use pCPUs {0}")]
    Pcpus(PcpuSet),
    /// Its VMs cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// VMs on two pCPUs. Those that spin have two vCPUs, one on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One that spins, and one of one vCPU that computes, on the second pCPU.
    OneBurner,
    /// The same, with two vCPUs that compute there.
    TwoBurners,
    /// Two that spin, and one vCPU that computes.
    TwoSpinners,
    /// One that spins, and a vCPU that computes on each pCPU: both are alike, and a swap gains nothing.
    Even,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 4] = [Mix::OneBurner, Mix::TwoBurners, Mix::TwoSpinners, Mix::Even];

    /// The name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mix::OneBurner => "one-burner",
            Mix::TwoBurners => "two-burners",
            Mix::TwoSpinners => "two-spinners",
            Mix::Even => "even",
        }
    }

    /// What it is, in words.
    pub fn what(self) -> &'static str {
        match self {
            Mix::OneBurner => "spin on pCPUs 0 and 1, burn on 1",
            Mix::TwoBurners => "spin on pCPUs 0 and 1, burn twice on 1",
            Mix::TwoSpinners => "spin and another on pCPUs 0 and 1, burn on 1",
            Mix::Even => "spin on pCPUs 0 and 1, burn on both: nothing to be gained",
        }
    }

    /// Its VMs on the first two of these pCPUs; those that spin come first.
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

/// Reads `--mixes`: names separated by commas, each at most once.
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
    fn mixes_pin_the_vms_that_spin_to_both_and_burners_to_the_second() {
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
    fn names_of_mixes_are_read_and_bad_ones_refused() {
        assert_eq!(list("even, one-burner"), Ok(vec![Mix::Even, Mix::OneBurner]));
        let error = list("even,odd").unwrap_err().to_string();
        assert!(
            error.contains("'odd' is not known; it takes a list of one-burner,two-burners"),
            "{error}"
        );
        assert_eq!(list("even,even"), Err(MixError::Twice("even")));
    }
}
