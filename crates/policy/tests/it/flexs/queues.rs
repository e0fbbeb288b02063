//! Shared code of the FlexS tests: small run queues, and counts of spinning and of work.

use tandem_model::branch_counters::BranchCounts;
use tandem_model::{Nanos, PcpuId, VcpuId, VmId};
use tandem_policy::flexs::{Outcome, RunQueues, SpinDetector, SwapAction, VcpuKey};
use tandem_policy::{FlexS, FlexSConfig};

pub fn vcpu(vm: u64, vcpu: u32) -> VcpuKey {
    VcpuKey { vm: VmId(vm), vcpu: VcpuId(vcpu) }
}

pub fn counts(instructions: u64, branches: u64, mispredicted: u64) -> BranchCounts {
    BranchCounts { instructions, branches, mispredicted }
}

/// A tight loop: a branch in three instructions, one in 10,000 mispredicted.
pub const SPIN: BranchCounts =
    BranchCounts { instructions: 3_000_000, branches: 1_000_000, mispredicted: 100 };
/// Work: a branch in six instructions, two in a hundred mispredicted.
pub const WORK: BranchCounts =
    BranchCounts { instructions: 6_000_000, branches: 1_000_000, mispredicted: 20_000 };

pub fn detector() -> SpinDetector {
    SpinDetector::new(10, 1)
}

/// Run queues of a test. Everything is allowed unless forbidden.
#[derive(Default)]
pub struct Queues {
    pub pcpus: Vec<PcpuId>,
    pub queued: Vec<Vec<VcpuKey>>,
    pub forbidden: Vec<(VcpuKey, PcpuId)>,
}

impl Queues {
    pub fn new(pcpus: u32) -> Queues {
        Queues {
            pcpus: (0..pcpus).map(PcpuId).collect(),
            queued: vec![Vec::new(); pcpus as usize],
            forbidden: Vec::new(),
        }
    }

    pub fn queue(mut self, pcpu: usize, waiting: &[VcpuKey]) -> Queues {
        self.queued[pcpu] = waiting.to_vec();
        self
    }

    pub fn forbid(mut self, vcpu: VcpuKey, pcpu: u32) -> Queues {
        self.forbidden.push((vcpu, PcpuId(pcpu)));
        self
    }
}

impl RunQueues for Queues {
    fn pcpus(&self) -> &[PcpuId] {
        &self.pcpus
    }

    fn queued(&self, pcpu: PcpuId) -> &[VcpuKey] {
        let queue = self.queued.get(pcpu.0 as usize);
        queue.map_or(&[], Vec::as_slice)
    }

    fn allowed(&self, vcpu: VcpuKey, pcpu: PcpuId) -> bool {
        !self.forbidden.contains(&(vcpu, pcpu))
    }
}

pub fn flexs() -> FlexS {
    FlexS::new(FlexSConfig::default(), 1).expect("the defaults are in their ranges")
}

pub fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Accounts vCPU 0 of VM 1, on pCPU 0, as spinning.
pub fn spin(flexs: &mut FlexS, now: Nanos, queues: &Queues) -> Outcome {
    flexs.tick(now, vcpu(1, 0), PcpuId(0), &SPIN, queues)
}

pub fn swapped_with(outcome: &Outcome) -> Option<(u32, u32)> {
    match outcome.action {
        SwapAction::Swap { with, on, .. } => Some((with.0, on.0)),
        SwapAction::GoOn { .. } => None,
    }
}
