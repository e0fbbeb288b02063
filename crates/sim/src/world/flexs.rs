//! FlexS on the simulated host: what the branch counters say, and the swaps.
//!
//! At each tick of a pCPU the vCPU that runs there is accounted by the policy that also runs on live
//! hosts ([`tandem_policy::flexs`]). Its counters are modelled from what it did since its last
//! accounting. Computing has the workload's own branches per instruction and mispredictions
//! ([`BranchProfile`]), with noise from sample to sample and phases of tight loops that look like
//! spinning. A spin loop is PAUSE, compare, branch: a third are branches, hardly ever mispredicted, but
//! PAUSE makes its instructions few. A sample that is half computing therefore does not look like
//! spinning, as on real counters.
//!
//! The first vCPU in a queue, as far as FlexS is concerned, is the VM's first: siblings rarely share one.

use tandem_policy::FlexS;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::flexs::BranchCounts;
use tandem_policy::flexs::RunQueues;
use tandem_policy::flexs::SwapAction;
use tandem_policy::flexs::Vcpu as Name;

use crate::host::Scheduler;
use crate::queue::Slot;
use crate::random::Dist;
use crate::random::Stream;
use crate::results::VcpuTime;
use crate::trace::VcpuState;
use crate::workload::BranchProfile;

use super::World;
use super::state::EXITS;
use super::state::NONE;
use super::state::Work;

/// Instructions per 1,000 cycles of computing; assumed.
const COMPUTING: u64 = 1000;

/// Instructions of a turn of a spin loop: PAUSE, compare, branch.
const TURN: u64 = 3;

/// Branches per instruction and mispredicted ones per branch, of a tight computing loop and of a spin loop;
/// assumed.
const TIGHT: (f64, f64) = (0.32, 0.001_2);
const SPINNING: (f64, f64) = (1.0 / TURN as f64, 0.001);

/// A phase of tight loops ends with this probability at each sample.
const PHASE_ENDS: f64 = 0.2;

/// The counters of a vCPU, modelled.
struct Counters {
    profile: BranchProfile,
    /// What it had done when it was last accounted.
    seen: VcpuTime,
    /// In a phase of tight loops.
    tight: bool,
    random: Stream,
}

/// FlexS and what it is told.
pub(crate) struct Swapper {
    policy: FlexS,
    /// The usual time between two ticks of a pCPU, ns.
    pub tick: u64,
    counters: Vec<Counters>,
    queues: Queues,
}

/// The queues as FlexS sees them, with the siblings of one VM only.
struct Queues {
    pcpus: Vec<PcpuId>,
    queued: Vec<Vec<Name>>,
    first_vcpu: u32,
    allowed: Vec<PcpuSet>,
}

impl RunQueues for Queues {
    fn pcpus(&self) -> &[PcpuId] {
        &self.pcpus
    }

    fn queued(&self, pcpu: PcpuId) -> &[Name] {
        self.queued.get(pcpu.0 as usize).map_or(&[], Vec::as_slice)
    }

    fn allowed(&self, vcpu: Name, pcpu: PcpuId) -> bool {
        let v = self.first_vcpu as usize + vcpu.vcpu.0 as usize;
        self.allowed.get(v).is_some_and(|set| set.contains(pcpu))
    }
}

impl Counters {
    /// What the counters counted for the time between `self.seen` and `ran`.
    fn sample(&mut self, ran: &VcpuTime, cycles_per_us: u64, pause_cycles: u64) -> BranchCounts {
        // The measurement may have begun in between, with all times at zero.
        let since = |now: Nanos, then: Nanos| match now < then {
            true => now.0,
            false => now.0 - then.0,
        };
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
        let turns = match self.tight {
            true => PHASE_ENDS,
            // So that the part `tight` of the samples is in such phases.
            false => PHASE_ENDS * tight / (1.0 - tight),
        };
        self.tight ^= self.random.unit() <= turns;
        let (branches, mispredicted) = match self.tight {
            true => TIGHT,
            false => (self.profile.per_instruction, self.profile.mispredicted),
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
        let counters = profiles
            .into_iter()
            .enumerate()
            .map(|(v, profile)| Counters {
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

impl World {
    /// FlexS' tick on a pCPU.
    pub(crate) fn flexs_tick(&mut self, p: u32) {
        let Some(mut swapper) = self.flexs.take() else {
            return;
        };
        let v = self.pcpus[p as usize].current;
        let mut next = self.now + swapper.tick;
        let mut swap = None;
        if v != NONE && self.vcpus[v as usize].state == VcpuState::Running {
            self.sync(v);
            self.owe(v, EXITS, self.costs.branch_counters);
            let vm = self.vcpus[v as usize].vm;
            let (first, size) = (
                self.vms[vm as usize].first_vcpu,
                self.vms[vm as usize].vcpus,
            );
            let queues = &mut swapper.queues;
            queues.queued.iter_mut().for_each(Vec::clear);
            queues.first_vcpu = first;
            let name = |v: u32| Name {
                vm: VmId(u64::from(vm)),
                vcpu: VcpuId(v - first),
            };
            for sibling in first..first + size {
                let vcpu = &self.vcpus[sibling as usize];
                if vcpu.state == VcpuState::Ready && vcpu.queued {
                    queues.queued[vcpu.pcpu as usize].push(name(sibling));
                }
            }
            let counts = swapper.counters[v as usize].sample(
                &self.vcpus[v as usize].results.ran,
                self.costs.cycles_per_us,
                self.costs.pause_cycles,
            );
            std::mem::swap(&mut swapper.queues.allowed, &mut self.allowed);
            let outcome = swapper.policy.tick(
                Nanos(self.now),
                name(v),
                PcpuId(p),
                &counts,
                &swapper.queues,
            );
            std::mem::swap(&mut swapper.queues.allowed, &mut self.allowed);
            next = outcome.next_tick.0;
            if let SwapAction::Swap { with, on, .. } = outcome.action {
                swap = Some((first + with.0, on.0));
            }
            self.plan(v);
        }
        self.flexs = Some(swapper);
        let slot = Slot(self.slots.flexs + p);
        self.queue.set(slot, next.max(self.now + 1));
        if let Some((sibling, q)) = swap {
            self.exchange(v, p, sibling, q);
        }
    }

    /// A vCPU that runs on `p` and a sibling that is queued on `q` exchange their places.
    fn exchange(&mut self, v: u32, p: u32, sibling: u32, q: u32) {
        let other = self.pcpus[q as usize].current;
        if other != NONE {
            self.host_account(other);
        }
        self.switch_out(v, p, true);
        self.leave_host(v, p, false);
        self.host.exchange(v, p, sibling, q, self.now);
        for (vcpu, pcpu) in [(v, q), (sibling, p)] {
            self.vcpus[vcpu as usize].pcpu = pcpu;
            self.vcpus[vcpu as usize].queued = true;
        }
        self.counts(v).swaps += 1;
        self.work.push(Work::Pcpu(p));
        if self.pcpus[q as usize].current == NONE {
            self.work.push(Work::Pcpu(q));
        }
    }
}
