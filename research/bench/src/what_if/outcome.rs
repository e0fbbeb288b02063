//! What-ifs and their outcomes.

/// A change to a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhatIf {
    /// The first VM has another vCPU.
    Vcpu,
    /// The first VM has half as many neighbours.
    Neighbours,
    /// The daemon's policy `fair` acts.
    Fair,
}

impl WhatIf {
    /// All what-ifs, in order.
    pub const ALL: [WhatIf; 3] = [WhatIf::Vcpu, WhatIf::Neighbours, WhatIf::Fair];

    /// Describes the change.
    pub fn words(self) -> &'static str {
        match self {
            WhatIf::Vcpu => "another vCPU for the first VM",
            WhatIf::Neighbours => "half as many neighbours",
            WhatIf::Fair => "the policy fair",
        }
    }

    /// Returns the prediction without a simulation: (N + 1) ÷ N for the first VM with another vCPU, else 1.
    /// `vcpus` is the original number of vCPUs.
    pub fn naive(self, is_first: bool, vcpus: u32) -> f64 {
        match self {
            WhatIf::Vcpu if is_first => f64::from(vcpus + 1) / f64::from(vcpus.max(1)),
            WhatIf::Vcpu | WhatIf::Neighbours | WhatIf::Fair => 1.0,
        }
    }
}

/// One VM in one what-if of one round: throughput relative to the recorded mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The change.
    pub what_if: WhatIf,
    /// The VM.
    pub vm: String,
    /// Measured on this host.
    pub live: f64,
    /// Predicted by the simulator.
    pub simulated: f64,
    /// Predicted by [`WhatIf::naive`].
    pub naive: f64,
}

/// One round of a mix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Outcomes of the what-ifs.
    pub outcomes: Vec<Outcome>,
    /// Name of each VM, and its CPU time in the record and in the simulator, in pCPUs.
    pub shares: Vec<(String, f64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naive_prediction_depends_on_vcpus_only() {
        assert_eq!(WhatIf::Vcpu.naive(true, 2), 1.5);
        assert_eq!(WhatIf::Vcpu.naive(true, 1), 2.0);
        assert_eq!(WhatIf::Vcpu.naive(false, 2), 1.0);
        assert_eq!(WhatIf::Neighbours.naive(true, 2), 1.0);
        assert_eq!(WhatIf::Fair.naive(true, 2), 1.0);
    }
}
