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
}

/// One round of a mix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What came of the what-ifs.
    pub outcomes: Vec<Outcome>,
    /// Of each VM, what it received as recorded and in the simulator, in pCPUs.
    pub shares: Vec<(String, f64, f64)>,
}
