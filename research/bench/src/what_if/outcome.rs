//! What is asked, and what came of it.

/// What might be different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhatIf {
    /// The first VM has a vCPU more.
    Vcpu,
    /// The first VM has half as many neighbours.
    Neighbours,
    /// The daemon's policy `fair` acts.
    Fair,
}

impl WhatIf {
    /// All, in their order.
    pub const ALL: [WhatIf; 3] = [WhatIf::Vcpu, WhatIf::Neighbours, WhatIf::Fair];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            WhatIf::Vcpu => "another vCPU for the first VM",
            WhatIf::Neighbours => "half as many neighbours",
            WhatIf::Fair => "the policy fair",
        }
    }

    /// What somebody would say who knows nothing of scheduling: a VM with another vCPU gets (N + 1) / N done, and else nothing changes. An
    /// answer that is no better than this was not worth a simulation. `is_first`: it is the mix's first VM, which had so many vCPUs.
    pub fn naive(self, is_first: bool, vcpus: u32) -> f64 {
        match self {
            WhatIf::Vcpu if is_first => f64::from(vcpus + 1) / f64::from(vcpus.max(1)),
            WhatIf::Vcpu | WhatIf::Neighbours | WhatIf::Fair => 1.0,
        }
    }
}

/// One VM in one what-if of one round: throughput then over throughput as recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What was different.
    pub what_if: WhatIf,
    /// The VM.
    pub vm: String,
    /// On this host.
    pub live: f64,
    /// In the simulator.
    pub simulated: f64,
    /// By [`WhatIf::naive`].
    pub naive: f64,
}

/// One round of a mix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What came of the what-ifs.
    pub outcomes: Vec<Outcome>,
    /// Of each VM, what it received as recorded and in the simulator, in pCPUs.
    pub shares: Vec<(String, f64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_naive_answer_knows_of_vcpus_only() {
        assert_eq!(WhatIf::Vcpu.naive(true, 2), 1.5);
        assert_eq!(WhatIf::Vcpu.naive(true, 1), 2.0);
        assert_eq!(WhatIf::Vcpu.naive(false, 2), 1.0);
        assert_eq!(WhatIf::Neighbours.naive(true, 2), 1.0);
        assert_eq!(WhatIf::Fair.naive(true, 2), 1.0);
    }
}
