//! A recorded host as data: what a scenario is written from.

use tandem_model::{Nanos, PcpuSet, Weight};

use super::pattern::Demand;

/// The interface that weights are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knob {
    /// `cpu.shares` of cgroup v1: usually 1024.
    #[default]
    Shares,
    /// `cpu.weight` of cgroup v2: usually 100.
    Weight,
}

impl Knob {
    /// The usual weight in a scenario.
    pub const USUAL: f64 = 1024.0;

    /// Which one these weights are of. A record does not say; the usual weights differ tenfold, so their geometric mean is nearer to one
    /// of the two.
    pub fn of(weights: impl IntoIterator<Item = Weight>) -> Knob {
        let logarithms = weights.into_iter().map(|weight| libm::log(weight.value()));
        let logarithms: Vec<f64> = logarithms.collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64;
        let far = |usual: f64| (mean - libm::log(usual)).abs();
        match !logarithms.is_empty() && far(100.0) < far(Knob::USUAL) {
            true => Knob::Weight,
            false => Knob::Shares,
        }
    }

    /// A weight in a scenario, where the usual one is 1024.
    pub fn usual(self, weight: Weight) -> f64 {
        let weight = match self {
            Knob::Shares => weight.value(),
            Knob::Weight => weight.value() / 100.0 * Knob::USUAL,
        };
        weight.clamp(1.0, 262_144.0)
    }

    /// As scenarios call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Knob::Shares => "v1",
            Knob::Weight => "v2",
        }
    }
}

/// One vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVcpu {
    /// What it wants.
    pub demand: Demand,
    /// Where it may run; `None`: anywhere.
    pub pins: Option<PcpuSet>,
}

/// One VM, or something else that takes pCPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct HostVm {
    /// Its name in the scenario.
    pub name: String,
    /// Its weight; 1024 is the usual one.
    pub weight: f64,
    /// Its vCPUs.
    pub vcpus: Vec<HostVcpu>,
    /// Whether it is no VM: no policy acts on it.
    pub is_background: bool,
    /// The VM whose other threads these are (emulator, I/O, vhost): they go with it.
    pub threads_of: Option<String>,
    /// What a reader must know.
    pub remarks: Vec<String>,
}

impl HostVm {
    /// What used so much CPU time in `length`, on as few pCPUs as can be.
    pub(super) fn background(
        name: String,
        time: Nanos,
        length: Nanos,
        pcpus: u32,
        cycle: Nanos,
    ) -> HostVm {
        let needed = time.0.div_ceil(length.0.max(1));
        let threads = needed.clamp(1, u64::from(pcpus.max(1)));
        let vcpu = HostVcpu {
            demand: Demand::background(length, Nanos(time.0 / threads), cycle),
            pins: None,
        };
        HostVm {
            name,
            weight: Knob::USUAL,
            vcpus: vec![vcpu; threads as usize],
            is_background: true,
            threads_of: None,
            remarks: vec![
                "no VM: it takes here what it got, though it may have wanted more".to_owned(),
            ],
        }
    }
}

/// A host as it was recorded, or as it might be.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedHost {
    /// What it was made from.
    pub about: String,
    /// How many pCPUs it has.
    pub pcpus: u32,
    /// How many of them share a last-level cache, each the next so many; `None`: not known, and all of them.
    pub pcpus_per_llc: Option<u32>,
    /// Its scheduler: `eevdf` or `cfs`. A record does not say.
    pub scheduler: &'static str,
    /// Its clock tick; `None`: the simulator's usual one. A record does not say.
    pub tick: Option<Nanos>,
    /// What its weights are of.
    pub knob: Knob,
    /// The policies of the daemon that act.
    pub policies: Vec<String>,
    /// How long is simulated, warm-up included.
    pub duration: Nanos,
    /// What is not counted of that.
    pub warmup: Nanos,
    /// VMs and background.
    pub vms: Vec<HostVm>,
    /// What a reader must know.
    pub remarks: Vec<String>,
}

impl Default for RecordedHost {
    fn default() -> RecordedHost {
        RecordedHost {
            about: String::new(),
            pcpus: 1,
            pcpus_per_llc: None,
            scheduler: "eevdf",
            tick: None,
            knob: Knob::default(),
            policies: Vec::new(),
            duration: Nanos::from_secs(12),
            warmup: Nanos::from_secs(2),
            vms: Vec::new(),
            remarks: Vec::new(),
        }
    }
}
