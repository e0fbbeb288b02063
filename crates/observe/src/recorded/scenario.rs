//! A recorded host as data, from which a scenario is written.

use tandem_model::{Nanos, PcpuSet, Weight};

use super::pattern::Demand;

/// The interface of the weights.
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

    /// Guesses the interface of these weights, which a record does not contain. The usual weights differ tenfold, so
    /// the geometric mean is nearer to one of the two.
    pub fn of(weights: impl IntoIterator<Item = Weight>) -> Knob {
        let logarithms = weights.into_iter().map(|weight| libm::log(weight.value()));
        let logarithms: Vec<f64> = logarithms.collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64;
        let far = |usual: f64| (mean - libm::log(usual)).abs();
        if !logarithms.is_empty() && far(100.0) < far(Knob::USUAL) {
            Knob::Weight
        } else {
            Knob::Shares
        }
    }

    /// Converts a weight to a scenario's scale, whose usual weight is 1024.
    pub fn usual(self, weight: Weight) -> f64 {
        let weight = match self {
            Knob::Shares => weight.value(),
            Knob::Weight => weight.value() / 100.0 * Knob::USUAL,
        };
        weight.clamp(1.0, 262_144.0)
    }

    /// Returns the name in scenarios.
    pub(super) fn name(self) -> &'static str {
        match self {
            Knob::Shares => "v1",
            Knob::Weight => "v2",
        }
    }
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVcpu {
    /// Its demand.
    pub demand: Demand,
    /// Its affinity; `None`: all pCPUs.
    pub pins: Option<PcpuSet>,
}

/// A VM, or background load.
#[derive(Clone, Debug, PartialEq)]
pub struct HostVm {
    /// Its name in the scenario.
    pub name: String,
    /// Its weight; the usual one is 1024.
    pub weight: f64,
    /// Its vCPUs.
    pub vcpus: Vec<HostVcpu>,
    /// Whether it is background, which no policy manages.
    pub is_background: bool,
    /// The VM to which these other threads (emulator, I/O, vhost) belong; they are removed with it.
    pub threads_of: Option<String>,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

impl HostVm {
    /// Creates background load with this CPU time in `length`, on as few pCPUs as possible.
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

/// A recorded host, possibly modified.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedHost {
    /// Its origin.
    pub about: String,
    /// Number of pCPUs.
    pub pcpus: u32,
    /// Number of consecutive pCPUs that share a last-level cache; `None`: unknown, and all share one.
    pub pcpus_per_llc: Option<u32>,
    /// Its scheduler: `eevdf` or `cfs`. A record does not contain it.
    pub scheduler: &'static str,
    /// Its clock tick; `None`: the simulator's default. A record does not contain it.
    pub tick: Option<Nanos>,
    /// The interface of its weights.
    pub knob: Knob,
    /// The active policies of the daemon.
    pub policies: Vec<String>,
    /// Simulated time, including warm-up.
    pub duration: Nanos,
    /// Warm-up time, which is not counted.
    pub warmup: Nanos,
    /// VMs and background load.
    pub vms: Vec<HostVm>,
    /// Remarks for the reader.
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
