//! Setups of microVMs on two pCPUs, and the ratios that are compared.
//!
//! A [`Setup`] is a set of microVMs that run at the same time.
//! A [`Quantity`] is the work rate of one of them in a setup, and a [`Comparison`] is the ratio of two quantities.
//! In a ratio the speed of the machine cancels out; the effect of scheduling remains.
//!
//! Workloads have the settings for which the simulator has a counterpart.
//! Waiters either block at once (`spin=0`) or spin without a limit.
//! Some workloads, in other sizes and settings, also serve to fit the machine's costs ([`super::fit`]).
//! These are *fitted*, all others are *kept out*.

use std::fmt;

use serde::Serialize;
use tandem_microvm::{ParameterError, Parameters, Workload};

/// pCPUs of every setup.
pub const PCPUS: u32 = 2;

/// A `spin` parameter, in cycles, that exceeds any run: minutes.
pub const FOR_EVER: &str = "1000G";

/// The largest weight of a VM.
pub const HEAVIEST: u32 = 3;

/// Returns the host weight of a VM of weight 1, as a multiple of the host's default weight.
///
/// `range` is the host's largest weight relative to its default; `heaviest` is the largest relative weight of the setup.
pub fn times(range: f64, heaviest: u32) -> f64 {
    (range / f64::from(heaviest.max(HEAVIEST))).floor().max(1.0)
}

/// The pCPU of each vCPU of each VM, counted from 0.
pub type Places = Vec<Vec<u32>>;

/// A microVM of a setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The workload.
    pub workload: Workload,
    /// Non-default parameters of the workload, as `key=value`.
    pub settings: &'static [&'static str],
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Weight relative to other VMs.
    pub weight: u32,
}

impl Guest {
    /// Returns the parameters; an error would be a mistake in the tables below, which a test reads.
    pub fn parameters(&self) -> Result<Parameters, ParameterError> {
        let mut parameters = Parameters::defaults(self.workload);
        for setting in self.settings {
            parameters.set_from(setting)?;
        }
        Ok(parameters)
    }
}

/// Pinning of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// vCPU v on pCPU v modulo 2.
    Spread,
    /// All on one pCPU.
    OnePcpu,
    /// Not pinned.
    Free,
}

impl Pinning {
    /// Returns the pCPU of a vCPU, if it is pinned.
    pub fn pcpu(self, vcpu: u32) -> Option<u32> {
        match self {
            Pinning::Spread => Some(vcpu % PCPUS),
            Pinning::OnePcpu => Some(0),
            Pinning::Free => None,
        }
    }
}

/// MicroVMs that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The VMs.
    pub guests: Vec<Guest>,
    /// Their pinning.
    pub pinning: Pinning,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, guest) in self.guests.iter().enumerate() {
            let Guest { workload, settings, vcpus, weight } = guest;
            let comma = if i == 0 { "" } else { " + " };
            write!(f, "{comma}{workload} × {vcpus}")?;
            if !settings.is_empty() {
                write!(f, " ({})", settings.join(" "))?;
            }
            if *weight != 1 {
                write!(f, " weight {weight}")?;
            }
        }
        f.write_str(match self.pinning {
            Pinning::Spread => ", pinned",
            Pinning::OnePcpu => ", all on one pCPU",
            Pinning::Free => ", not pinned",
        })
    }
}

/// The vCPUs whose work counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// All vCPUs.
    All,
    /// vCPU 0, the initiator of shootdowns.
    First,
    /// All vCPUs except vCPU 0.
    Others,
}

/// The work rate of one VM of a setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The setup.
    pub setup: Setup,
    /// Index of the VM.
    pub guest: usize,
    /// The vCPUs of the VM that count.
    pub count: Count,
}

/// Whether a workload was used to fit the machine's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// It was used, with other sizes.
    Fitted,
    /// It was not used.
    KeptOut,
}

impl Use {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Use::Fitted => "fitted",
            Use::KeptOut => "kept out",
        }
    }
}

/// Workloads of the probes of [`super::fit`].
pub const FITTED: [Workload; 3] = [Workload::Spinlock, Workload::Barrier, Workload::Shootdown];

/// Workloads with a counterpart in the simulator: all except the server, whose phases follow the clock.
pub const COMPARED: [Workload; 8] = [
    Workload::Burn,
    Workload::Spinlock,
    Workload::Mutex,
    Workload::Barrier,
    Workload::Forkjoin,
    Workload::Pipeline,
    Workload::Shootdown,
    Workload::Bursty,
];

/// The ratio of two quantities.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The workload.
    pub workload: Workload,
    /// Description of the two sides.
    pub what: &'static str,
    /// The numerator.
    pub over: Quantity,
    /// The denominator.
    pub under: Quantity,
}

impl Comparison {
    /// Returns whether the workload was used in the fit.
    pub fn kept(&self) -> Use {
        if FITTED.contains(&self.workload) { Use::Fitted } else { Use::KeptOut }
    }
}

fn guest(workload: Workload, settings: &'static [&'static str], vcpus: u32) -> Guest {
    Guest { workload, settings, vcpus, weight: 1 }
}

/// Returns the quantity of the first VM of a setup.
pub fn first_of(guests: Vec<Guest>, pinning: Pinning, count: Count) -> Quantity {
    Quantity { setup: Setup { guests, pinning }, guest: 0, count }
}

/// Returns the settings for which waiters of a workload block.
fn blocking(workload: Workload) -> &'static [&'static str] {
    match workload {
        Workload::Mutex | Workload::Forkjoin | Workload::Pipeline => &["spin=0"],
        Workload::Barrier => &["wait=block", "spin=0"],
        Workload::Burn
        | Workload::Spinlock
        | Workload::Shootdown
        | Workload::Bursty
        | Workload::Server => &[],
    }
}

/// Returns the settings for which waiters of a workload spin, if it also has a blocking form.
fn spinning(workload: Workload) -> Option<&'static [&'static str]> {
    match workload {
        Workload::Mutex => Some(&["spin=1000G"]),
        Workload::Barrier => Some(&["wait=spin"]),
        _ => None,
    }
}

/// Returns all comparisons of a workload.
pub fn comparisons_of(workload: Workload) -> Vec<Comparison> {
    let count = match workload {
        Workload::Shootdown => Count::First,
        _ => Count::All,
    };
    let block = blocking(workload);
    let alone = |settings, pinning| first_of(vec![guest(workload, settings, 2)], pinning, count);
    let two = |settings, pinning| {
        let vm = guest(workload, settings, 2);
        first_of(vec![vm.clone(), vm], pinning, count)
    };
    let with_burn = |pinning| {
        let burn = guest(Workload::Burn, &[], 2);
        first_of(vec![guest(workload, block, 2), burn], pinning, count)
    };
    let mut list = Vec::new();
    let mut add = |what, over, under| {
        list.push(Comparison { workload, what, over, under });
    };
    use Pinning::{Free, Spread};
    add("two VMs ÷ one, pinned", two(block, Spread), alone(block, Spread));
    add("two VMs ÷ one, not pinned", two(block, Free), alone(block, Free));
    add("not pinned ÷ pinned, two VMs", two(block, Free), two(block, Spread));
    if workload != Workload::Burn {
        add("beside a VM that computes ÷ alone, pinned", with_burn(Spread), alone(block, Spread));
    }
    if workload.least_vcpus() == 1 && workload != Workload::Pipeline {
        let one = first_of(vec![guest(workload, block, 1)], Spread, count);
        add("two vCPUs ÷ one, alone, pinned", alone(block, Spread), one);
    }
    if let Some(spin) = spinning(workload) {
        add("spinning ÷ blocking, one VM, pinned", alone(spin, Spread), alone(block, Spread));
        add("spinning ÷ blocking, two VMs, pinned", two(spin, Spread), two(block, Spread));
    }
    if matches!(workload, Workload::Burn | Workload::Spinlock) {
        let vm = |weight| Guest { weight, ..guest(workload, block, 2) };
        let setup = Setup { guests: vec![vm(HEAVIEST), vm(1)], pinning: Spread };
        let of = |guest| Quantity { setup: setup.clone(), guest, count };
        add("weight 3 ÷ weight 1, pinned", of(0), of(1));
    }
    list
}

/// Returns all comparisons of some workloads.
pub fn comparisons(workloads: &[Workload]) -> Vec<Comparison> {
    workloads.iter().copied().flat_map(comparisons_of).collect()
}

/// Returns the distinct setups of some quantities in order of their first occurrence.
pub fn setups<'a>(quantities: impl IntoIterator<Item = &'a Quantity>) -> Vec<Setup> {
    let mut setups: Vec<Setup> = Vec::new();
    for quantity in quantities {
        if !setups.contains(&quantity.setup) {
            setups.push(quantity.setup.clone());
        }
    }
    setups
}

/// Returns the reference of the probes: a VM that computes on each pCPU.
pub fn reference() -> Quantity {
    let burn = guest(Workload::Burn, &[], PCPUS);
    first_of(vec![burn], Pinning::Spread, Count::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_use_whole_host_range() {
        assert_eq!(times(256.0, 1), 85.0);
        assert_eq!(times(256.0, 4), 64.0);
        assert_eq!(times(2.0, 3), 1.0);
    }

    #[test]
    fn workloads_have_three_comparisons_with_valid_settings() {
        for workload in COMPARED {
            let list = comparisons_of(workload);
            assert!(list.len() >= 3, "{workload}: {}", list.len());
            for comparison in list {
                for quantity in [comparison.over, comparison.under] {
                    for guest in &quantity.setup.guests {
                        guest.parameters().unwrap();
                        assert!(guest.vcpus >= guest.workload.least_vcpus());
                    }
                }
            }
        }
    }

    #[test]
    fn mutex_and_pipeline_are_kept_out() {
        let all = comparisons(&COMPARED);
        let kept =
            |workload| all.iter().any(|c| c.workload == workload && c.kept() == Use::KeptOut);
        assert!(kept(Workload::Mutex) && kept(Workload::Pipeline));
        assert!(!kept(Workload::Barrier));
    }

    #[test]
    fn shared_setups_are_measured_once() {
        let list = comparisons_of(Workload::Burn);
        let quantities: Vec<&Quantity> = list.iter().flat_map(|c| [&c.over, &c.under]).collect();
        let distinct = setups(quantities.iter().copied());
        assert_eq!((quantities.len(), distinct.len()), (10, 6));
        assert_eq!(distinct[0].to_string(), "burn × 2 + burn × 2, pinned");
    }
}
