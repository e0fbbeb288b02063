//! FlexS's view of the simulated host: the run queues, and modelled branch counters.
//!
//! The counters are modelled from a vCPU's times since its last accounting.
//! Computing has the workload's own branches per instruction and mispredictions ([`BranchProfile`]),
//! with noise from sample to sample and phases of tight loops that look like spinning.
//! A spin loop is PAUSE, compare, branch: a third of its instructions are branches, hardly ever mispredicted, but PAUSE makes instructions few.
//! A sample that is half computing therefore does not look like spinning, as on real counters.

use tandem_model::branch_counters::BranchCounts;
use tandem_model::{Nanos, PcpuId, PcpuSet};
use tandem_policy::FlexS;
use tandem_policy::flexs::{RunQueues, VcpuKey};

use crate::random::{Dist, Stream};
use crate::results::VcpuTime;
use crate::workload::BranchProfile;

/// Instructions per 1,000 cycles of computing; assumed.
const COMPUTING: u64 = 1000;

/// Instructions per iteration of a spin loop: PAUSE, compare, branch.
const TURN: u64 = 3;

/// Branches per instruction and mispredictions per branch, of a tight computing loop and of a spin loop; assumed.
const TIGHT: (f64, f64) = (0.32, 0.001_2);
const SPINNING: (f64, f64) = (1.0 / TURN as f64, 0.001);

/// Probability per sample that a phase of tight loops ends; assumed.
const PHASE_ENDS: f64 = 0.2;

/// The modelled counters of a vCPU.
pub(super) struct Counters {
    profile: BranchProfile,
    /// Its times at the last accounting.
    seen: VcpuTime,
    /// In a phase of tight loops.
    tight: bool,
    random: Stream,
}

/// FlexS and its inputs.
pub(crate) struct Swapper {
    pub policy: FlexS,
    /// The usual time between two ticks of a pCPU, ns.
    pub tick: u64,
    pub counters: Vec<Counters>,
    pub queues: Queues,
}

/// The run queues as FlexS sees them, with the siblings of one VM only.
pub(super) struct Queues {
    pcpus: Vec<PcpuId>,
    pub queued: Vec<Vec<VcpuKey>>,
    pub first_vcpu: u32,
    pub allowed: Vec<PcpuSet>,
}

impl RunQueues for Queues {
    fn pcpus(&self) -> &[PcpuId] {
        &self.pcpus
    }

    fn queued(&self, pcpu: PcpuId) -> &[VcpuKey] {
        self.queued.get(pcpu.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn allowed(&self, vcpu: VcpuKey, pcpu: PcpuId) -> bool {
        let v = self.first_vcpu as usize + vcpu.vcpu.0 as usize;
        self.allowed.get(v).is_some_and(|set| set.contains(pcpu))
    }
}

impl Counters {
    /// Returns the counts for the times between `self.seen` and `ran`.
    pub fn sample(
        &mut self,
        ran: &VcpuTime,
        cycles_per_us: u64,
        pause_cycles: u64,
    ) -> BranchCounts {
        // The measurement may have started in between and reset all times.
        let since = |now: Nanos, then: Nanos| if now < then { now.0 } else { now.0 - then.0 };
        let seen = std::mem::replace(&mut self.seen, *ran);
        let computing = since(ran.useful, seen.useful) + since(ran.guest_kernel, seen.guest_kernel);
        let spinning = since(ran.spin_user, seen.spin_user)
            + since(ran.spin_kernel, seen.spin_kernel)
            + since(ran.shootdown_wait, seen.shootdown_wait);
        let instructions = |ns: u64, per_1000_cycles: u64| {
            (u128::from(ns) * u128::from(cycles_per_us) * u128::from(per_1000_cycles) / 1_000_000)
                as u64
        };
        let computed = instructions(computing, COMPUTING);
        let spun = instructions(spinning, 1000 * TURN / pause_cycles.max(TURN));
        let BranchProfile { tight, .. } = self.profile;
        // Phases of tight loops make up the part `tight` of the samples.
        let turns = if self.tight { PHASE_ENDS } else { PHASE_ENDS * tight / (1.0 - tight) };
        self.tight ^= self.random.unit() <= turns;
        let (branches, mispredicted) = if self.tight {
            TIGHT
        } else {
            (self.profile.per_instruction, self.profile.mispredicted)
        };
        let branches = (branches * self.noise()).clamp(0.001, 0.5);
        let mispredicted = (mispredicted * self.noise()).clamp(0.0, 1.0);
        let of_computing = computed as f64 * branches;
        let of_spinning = spun as f64 * SPINNING.0;
        BranchCounts {
            instructions: computed + spun,
            branches: (of_computing + of_spinning).round() as u64,
            mispredicted: (of_computing * mispredicted + of_spinning * SPINNING.1).round() as u64,
        }
    }

    /// A factor around 1.
    fn noise(&mut self) -> f64 {
        let deviation = (self.profile.noise * 1e6) as u64;
        Dist::Normal(1_000_000, deviation).draw(&mut self.random) as f64 / 1e6
    }
}

impl Swapper {
    pub(crate) fn new(
        policy: FlexS,
        tick: u64,
        seed: u64,
        pcpus: u32,
        profiles: Vec<BranchProfile>,
    ) -> Swapper {
        let counters = profiles.into_iter().enumerate().map(|(v, profile)| Counters {
            profile,
            seen: VcpuTime::default(),
            tight: false,
            random: Stream::new(seed, "branches", v as u64),
        });
        Swapper {
            policy,
            tick,
            counters: counters.collect(),
            queues: Queues {
                pcpus: (0..pcpus).map(PcpuId).collect(),
                queued: vec![Vec::new(); pcpus as usize],
                first_vcpu: 0,
                allowed: Vec::new(),
            },
        }
    }
}
