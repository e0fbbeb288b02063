//! SMT: two threads of a core slow each other down.
//!
//! A pCPU's *activity* is working, pausing (spinning or polling with PAUSE), or idle.
//! The activity of its sibling, the core's other thread, sets the speed at which a vCPU's work progresses:
//! full speed next to an idle sibling, and `smt_working_percent` or `smt_pausing_percent` otherwise ([`crate::machine::costs::TABLE`]).
//!
//! Work is computing, critical sections and owed time (kernel, exits, refills, switches), and lasts longer at less speed.
//! Waiting (spinning, polling, pause-loop windows) lasts as long as before, because it is measured by the clock.
//! CPU time remains the time on the pCPU, as the host's scheduler counts it.
//!
//! A change of activity puts the sibling on the list of work.
//! There the vCPU is accounted at its old speed, and its next event is planned at the new one.
//! Progress is counted in hundredths of a ns, so no change of speed loses or creates work.
//!
//! Non-goals: programs that gain more or less from SMT than the costs say, bandwidth of caches and memory,
//! cores of more than two threads, and changes of activity between owed time and the work after it.

use tandem_model::{PcpuId, Topology};

use crate::machine::Costs;
use crate::trace::VcpuState;

use super::simulation::World;
use super::state::{CACHE, Doing, EXITS, Idle, KERNEL, NONE, SWITCH, Thread, Vcpu, Work};

/// Speed of a vCPU alone on its core, percent.
pub(super) const FULL_SPEED: u8 = 100;

/// A ns of work at full speed, in hundredths of a ns.
const NS: u64 = FULL_SPEED as u64;

/// Activity of a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// It has no vCPU, or waits in an idle state.
    Idle,
    /// It executes guest or host code.
    Working,
    /// It spins or polls with PAUSE.
    Pausing,
}

impl Activity {
    /// The activity of a running vCPU's pCPU.
    fn of(vcpu: &Vcpu, threads: &[Thread]) -> Activity {
        if vcpu.search != NONE || !vcpu.answers.is_empty() {
            return Activity::Working;
        }
        match (vcpu.thread, vcpu.idle) {
            (NONE, Idle::Polling) => Activity::Pausing,
            (NONE, _) => Activity::Working,
            (t, _) => match threads[t as usize].doing {
                Doing::Spin(_) | Doing::SpinUser(_) | Doing::FlushWait => Activity::Pausing,
                Doing::Go | Doing::Compute | Doing::Hold | Doing::Blocked | Doing::Ended => {
                    Activity::Working
                }
            },
        }
    }
}

/// Activities of the pCPUs of a machine with SMT.
#[derive(Clone, Debug)]
pub(super) struct Smt {
    /// Per pCPU: the other thread of its core.
    siblings: Vec<u32>,
    activities: Vec<Activity>,
    working: u8,
    pausing: u8,
}

impl Smt {
    /// All pCPUs idle; `None` without SMT.
    pub fn new(topology: &Topology, costs: &Costs) -> Option<Smt> {
        let sibling = |p: PcpuId| topology.siblings(p).iter().next().map(|sibling| sibling.0);
        let siblings = topology.pcpus().map(sibling).collect::<Option<Vec<u32>>>()?;
        let speed = |percent: u64| percent.clamp(1, u64::from(FULL_SPEED)) as u8;
        Some(Smt {
            activities: vec![Activity::Idle; siblings.len()],
            siblings,
            working: speed(costs.smt_working_percent),
            pausing: speed(costs.smt_pausing_percent),
        })
    }

    /// Sets a pCPU's activity; returns the sibling that changes its speed.
    fn set(&mut self, p: u32, activity: Activity) -> Option<u32> {
        let old = std::mem::replace(&mut self.activities[p as usize], activity);
        (old != activity).then(|| self.siblings[p as usize])
    }

    /// The other thread of a pCPU's core.
    pub fn sibling(&self, p: u32) -> u32 {
        self.siblings[p as usize]
    }

    /// Speed of a vCPU on a pCPU, percent.
    pub fn speed(&self, p: u32) -> u8 {
        match self.activities[self.siblings[p as usize] as usize] {
            Activity::Idle => FULL_SPEED,
            Activity::Working => self.working,
            Activity::Pausing => self.pausing,
        }
    }
}

impl World {
    /// Updates the activity of a running vCPU's pCPU.
    #[inline]
    pub(super) fn note_activity(&mut self, v: u32) {
        if let Some(smt) = &mut self.smt {
            let vcpu = &self.vcpus[v as usize];
            let activity = Activity::of(vcpu, &self.threads);
            if let Some(sibling) = smt.set(vcpu.pcpu, activity) {
                self.work.push(Work::Speed(sibling));
            }
        }
    }

    /// Sets the activity of a pCPU that does not run a vCPU.
    #[inline]
    pub(super) fn set_activity(&mut self, p: u32, activity: Activity) {
        if let Some(smt) = &mut self.smt
            && let Some(sibling) = smt.set(p, activity)
        {
            self.work.push(Work::Speed(sibling));
        }
    }

    /// Adapts the vCPU on a pCPU, and its next event, to the activity of the pCPU's sibling.
    pub(super) fn change_speed(&mut self, p: u32) {
        let v = self.pcpus[p as usize].current;
        let Some(smt) = &self.smt else { return };
        let speed = smt.speed(p);
        if v == NONE || self.vcpus[v as usize].speed == speed {
            return;
        }
        self.sync(v);
        self.vcpus[v as usize].speed = speed;
        if self.vcpus[v as usize].state == VcpuState::Running {
            self.plan(v);
        }
    }
}

impl Vcpu {
    /// Time that `work` ns take at the present speed.
    #[inline]
    pub fn lasts(&self, work: u64) -> u64 {
        if self.speed == FULL_SPEED {
            return work;
        }
        let hundredths = (work * NS).saturating_sub(u64::from(self.begun));
        hundredths.div_ceil(u64::from(self.speed))
    }

    /// Accounts `time` ns at less than full speed.
    #[inline(never)]
    pub(super) fn count_slowed(&mut self, threads: &mut [Thread], time: u64) {
        // Possible work in hundredths of a ns, and the time for it.
        let speed = u64::from(self.speed);
        let mut possible = time * speed + u64::from(self.begun);
        let mut left = time;
        let ran = &mut self.results.ran;
        for (what, account) in [(SWITCH, EXITS), (KERNEL, KERNEL), (EXITS, EXITS), (CACHE, CACHE)] {
            let work = self.owed[what].min(possible / NS);
            self.owed[what] -= work;
            possible -= work * NS;
            let rest = if self.owed[what] > 0 { 0 } else { left.min(possible / speed) };
            let spent = std::mem::replace(&mut left, rest) - rest;
            match account {
                KERNEL => ran.guest_kernel.0 += spent,
                EXITS => ran.exits.0 += spent,
                _ => ran.cache.0 += spent,
            }
        }
        self.begun = (possible - left * speed) as u8;
        if left == 0 {
            return;
        }
        if self.thread == NONE {
            ran.idle_poll.0 += left;
            return;
        }
        let thread = &mut threads[self.thread as usize];
        let mut work = left;
        if matches!(thread.doing, Doing::Compute | Doing::Hold) {
            work = thread.remaining.min(possible / NS);
            self.begun = (possible - work * NS).min(NS - 1) as u8;
        }
        thread.count(ran, work, left);
    }
}
