//! vCPUs that move to the pCPUs of their slots.
//!
//! The affinities of a vCPU are journaled before it moves, so that they are reverted after any end of the daemon.
//! From then on only the turn thread writes them: a pCPU in each slot, and the operator's pCPUs outside slots.
//! An affinity that others set meanwhile stays and is reported.

use std::collections::BTreeMap;

use tandem_linux::actuator::{Moved, Slots};
use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuId, PcpuSet};

use super::player::Player;

/// A vCPU that moves.
struct Mover {
    slots: Slots,
    /// Whether a foreign affinity was reported.
    is_reported: bool,
}

/// All vCPUs that move.
pub(super) struct Movers {
    threads: Box<dyn Threads>,
    movers: BTreeMap<ThreadRef, Mover>,
    /// Number of moves to another slot.
    pub(super) moves: u64,
    /// vCPUs with foreign affinities, since this was last taken.
    pub(super) taken: Vec<ThreadRef>,
    /// Errors since this was last taken.
    pub(super) errors: Vec<String>,
}

impl Movers {
    /// Returns an empty set.
    pub(super) fn new(threads: Box<dyn Threads>) -> Movers {
        Movers { threads, movers: BTreeMap::new(), moves: 0, taken: Vec::new(), errors: Vec::new() }
    }

    /// Sets the VMs that take turns; other vCPUs leave their slots.
    pub(super) fn follow<'a>(&mut self, players: impl Iterator<Item = &'a Player>) {
        let vcpus = players.flat_map(|player| &player.vcpus);
        let homes: BTreeMap<ThreadRef, &PcpuSet> =
            vcpus.filter_map(|vcpu| Some((vcpu.thread, vcpu.home.as_ref()?))).collect();
        let is_over = |(thread, mover): (&ThreadRef, &Mover)| {
            let goes_on = homes.get(thread).is_some_and(|home| *home == mover.slots.home());
            (!goes_on).then_some(*thread)
        };
        let over: Vec<ThreadRef> = self.movers.iter().filter_map(is_over).collect();
        for thread in over {
            self.end(&thread);
        }
        for (thread, home) in homes {
            self.movers.entry(thread).or_insert_with(|| Mover {
                slots: Slots::journaled(thread, home.clone()),
                is_reported: false,
            });
        }
    }

    /// Moves a vCPU to this slot.
    pub(super) fn sit(&mut self, thread: &ThreadRef, pcpu: PcpuId) {
        let Some(mover) = self.movers.get_mut(thread) else {
            return;
        };
        match mover.slots.sit(&*self.threads, pcpu) {
            Ok(Moved::Moved) => {
                mover.is_reported = false;
                self.moves += 1;
            }
            Ok(Moved::Unchanged) => {}
            Ok(Moved::Foreign) => {
                if !std::mem::replace(&mut mover.is_reported, true) {
                    self.taken.push(*thread);
                }
            }
            Err(error) => self.tell(&error),
        }
    }

    /// Restores a vCPU's affinity until its next slot.
    pub(super) fn leave(&mut self, thread: &ThreadRef) {
        if let Some(mover) = self.movers.get_mut(thread)
            && let Err(error) = mover.slots.leave(&*self.threads)
        {
            self.tell(&error);
        }
    }

    /// Ends a vCPU's slots, and restores its affinity.
    pub(super) fn end(&mut self, thread: &ThreadRef) {
        self.leave(thread);
        self.movers.remove(thread);
    }

    /// Keeps an error, except for a thread that ended, which the next rotation drops.
    fn tell(&mut self, error: &AffinityError) {
        if !error.is_gone() {
            self.errors.push(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::actuator::IdleSwitch;
    use tandem_linux::cgroup::CgroupPath;
    use tandem_linux::thread::Tid;
    use tandem_model::{VcpuId, VmId, Weight};
    use tandem_testing::fake_host::Fake;

    use super::*;
    use crate::turns::player::PlayerVcpu;

    fn thread(tid: u32) -> ThreadRef {
        crate::fixtures::thread(tid, tid)
    }

    fn player(tid: u32, home: Option<&str>) -> Player {
        Player {
            vm: VmId(tid.into()),
            switch: IdleSwitch::journaled(CgroupPath(format!("/{tid}")), Weight::constant(1024.0)),
            vcpus: vec![PlayerVcpu {
                id: VcpuId(0),
                thread: thread(tid),
                home: home.map(|list| list.parse().unwrap()),
            }],
        }
    }

    fn set_by_others(fake: &Fake, tid: u32, list: &str) {
        fake.operator_sets_affinity(&thread(tid), &list.parse().unwrap());
    }

    fn place(fake: &Fake, tid: u32) -> String {
        fake.affinity(Tid(tid)).unwrap().to_string()
    }

    /// Threads 7 and 8 may run on pCPUs 0 and 1, and the first of them moves.
    fn movers() -> (Movers, Fake) {
        let fake = Fake::default();
        for tid in [7, 8] {
            fake.put(thread(tid), &CgroupPath("/vms".to_owned()));
            set_by_others(&fake, tid, "0-1");
        }
        let mut movers = Movers::new(Box::new(fake.clone()));
        movers.follow([player(7, Some("0-1")), player(8, None)].iter());
        (movers, fake)
    }

    #[test]
    fn slot_change_is_one_write() {
        let (mut movers, fake) = movers();
        for (pcpu, writes) in [(0, 1), (0, 1), (1, 2), (1, 2), (0, 3)] {
            movers.sit(&thread(7), PcpuId(pcpu));
            assert_eq!((place(&fake, 7), fake.asked().changes), (pcpu.to_string(), writes));
        }
        assert_eq!(movers.moves, 3);
        movers.sit(&thread(8), PcpuId(1));
        assert_eq!(place(&fake, 8), "0-1", "it does not move");
    }

    #[test]
    fn end_of_slots_restores_affinity() {
        let (mut movers, fake) = movers();
        movers.sit(&thread(7), PcpuId(1));
        movers.follow([player(7, Some("0-1"))].iter());
        assert_eq!(place(&fake, 7), "1", "it still has slots");
        movers.follow([player(7, None)].iter());
        assert_eq!(place(&fake, 7), "0-1");
        movers.follow([player(7, Some("0-1"))].iter());
        movers.sit(&thread(7), PcpuId(0));
        movers.leave(&thread(7));
        assert_eq!(place(&fake, 7), "0-1", "between slots");
        movers.sit(&thread(7), PcpuId(0));
        assert_eq!(place(&fake, 7), "0");
        movers.end(&thread(7));
        assert_eq!(place(&fake, 7), "0-1");
        movers.sit(&thread(7), PcpuId(0));
        assert_eq!(place(&fake, 7), "0-1", "it has left");
    }

    #[test]
    fn foreign_affinity_stays_and_is_reported_once() {
        let (mut movers, fake) = movers();
        set_by_others(&fake, 7, "0-2");
        movers.follow([player(7, Some("0-2"))].iter());
        movers.sit(&thread(7), PcpuId(1));
        set_by_others(&fake, 7, "2");
        movers.sit(&thread(7), PcpuId(0));
        movers.sit(&thread(7), PcpuId(1));
        movers.sit(&thread(7), PcpuId(0));
        assert_eq!((place(&fake, 7), movers.taken.len()), ("2".to_owned(), 1));
        // With its home affinity again, it has slots again.
        set_by_others(&fake, 7, "0-2");
        movers.sit(&thread(7), PcpuId(0));
        assert_eq!(place(&fake, 7), "0");
        set_by_others(&fake, 7, "1-2");
        movers.leave(&thread(7));
        assert_eq!(place(&fake, 7), "1-2");
        assert_eq!(movers.errors, Vec::<String>::new());
    }

    #[test]
    fn ended_thread_is_ignored() {
        let (mut movers, fake) = movers();
        movers.sit(&thread(7), PcpuId(1));
        [7, 8].iter().for_each(|tid| fake.end(&thread(*tid)));
        movers.sit(&thread(7), PcpuId(0));
        movers.leave(&thread(7));
        assert_eq!((fake.asked().changes, movers.errors.len()), (1, 0));
    }
}
