//! Roaming vCPUs, whose affinities change with each turn.
//!
//! The affinity of a vCPU is journaled before it roams, so that it is reverted after any end of the daemon.
//! From then on only the turn thread writes it: the slot of each turn, one of the operator's pCPUs, and in the end the operator's pCPUs again.
//! An affinity that others set meanwhile stays and is reported.

use std::collections::BTreeMap;

use tandem_linux::actuator::{Moved, Slots};
use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuId, PcpuSet};

use super::player::Player;

/// A roaming vCPU.
struct Roamer {
    slots: Slots,
    /// Whether a foreign affinity was reported.
    is_reported: bool,
}

/// All roaming vCPUs.
pub(super) struct Roamers {
    threads: Box<dyn Threads>,
    roamers: BTreeMap<ThreadRef, Roamer>,
    /// Number of moves to another slot.
    pub(super) moves: u64,
    /// vCPUs with foreign affinities, since this was last taken.
    pub(super) taken: Vec<ThreadRef>,
    /// Errors since this was last taken.
    pub(super) errors: Vec<String>,
}

impl Roamers {
    /// Returns a set without roaming vCPUs.
    pub(super) fn new(threads: Box<dyn Threads>) -> Roamers {
        Roamers {
            threads,
            roamers: BTreeMap::new(),
            moves: 0,
            taken: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Sets the VMs that take turns; vCPUs of VMs that do not roam leave their slots.
    pub(super) fn follow<'a>(&mut self, players: impl Iterator<Item = &'a Player>) {
        let homes: BTreeMap<ThreadRef, &PcpuSet> = players
            .filter_map(|player| Some((player, player.roams.as_ref()?)))
            .flat_map(|(player, home)| player.threads.iter().map(move |thread| (*thread, home)))
            .collect();
        let is_over = |(thread, roamer): (&ThreadRef, &Roamer)| {
            let goes_on = homes.get(thread).is_some_and(|home| *home == roamer.slots.home());
            (!goes_on).then_some(*thread)
        };
        let over: Vec<ThreadRef> = self.roamers.iter().filter_map(is_over).collect();
        for thread in over {
            self.leave(&thread);
        }
        for (thread, home) in homes {
            self.roamers.entry(thread).or_insert_with(|| Roamer {
                slots: Slots::journaled(thread, home.clone()),
                is_reported: false,
            });
        }
    }

    /// Moves a vCPU to this slot.
    pub(super) fn sit(&mut self, thread: &ThreadRef, pcpu: PcpuId) {
        let Some(roamer) = self.roamers.get_mut(thread) else {
            return;
        };
        match roamer.slots.sit(&*self.threads, pcpu) {
            Ok(Moved::Moved) => {
                roamer.is_reported = false;
                self.moves += 1;
            }
            Ok(Moved::Unchanged) => {}
            Ok(Moved::Foreign) => {
                if !std::mem::replace(&mut roamer.is_reported, true) {
                    self.taken.push(*thread);
                }
            }
            Err(error) => self.tell(&error),
        }
    }

    /// Ends a vCPU's roaming and restores its affinity.
    pub(super) fn leave(&mut self, thread: &ThreadRef) {
        if let Some(roamer) = self.roamers.remove(thread)
            && let Err(error) = roamer.slots.leave(&*self.threads)
        {
            self.tell(&error);
        }
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
    use tandem_model::{VmId, Weight};
    use tandem_testing::fake_host::Fake;

    use super::*;

    fn thread(tid: u32) -> ThreadRef {
        crate::fixtures::thread(tid, tid)
    }

    fn player(tid: u32, roams: Option<&str>) -> Player {
        Player {
            vm: VmId(tid.into()),
            switch: IdleSwitch::journaled(CgroupPath(format!("/{tid}")), Weight::constant(1024.0)),
            threads: vec![thread(tid)],
            roams: roams.map(|list| list.parse().unwrap()),
        }
    }

    fn set_by_others(fake: &Fake, tid: u32, list: &str) {
        fake.operator_sets_affinity(&thread(tid), &list.parse().unwrap());
    }

    fn place(fake: &Fake, tid: u32) -> String {
        fake.affinity(Tid(tid)).unwrap().to_string()
    }

    /// Threads 7 and 8 may run on pCPUs 0 and 1, and the first of them roams.
    fn roamers() -> (Roamers, Fake) {
        let fake = Fake::default();
        for tid in [7, 8] {
            fake.put(thread(tid), &CgroupPath("/vms".to_owned()));
            set_by_others(&fake, tid, "0-1");
        }
        let mut roamers = Roamers::new(Box::new(fake.clone()));
        roamers.follow([player(7, Some("0-1")), player(8, None)].iter());
        (roamers, fake)
    }

    #[test]
    fn slot_change_is_one_write() {
        let (mut roamers, fake) = roamers();
        for (pcpu, writes) in [(0, 1), (0, 1), (1, 2), (1, 2), (0, 3)] {
            roamers.sit(&thread(7), PcpuId(pcpu));
            assert_eq!((place(&fake, 7), fake.asked().changes), (pcpu.to_string(), writes));
        }
        assert_eq!(roamers.moves, 3);
        roamers.sit(&thread(8), PcpuId(1));
        assert_eq!(place(&fake, 8), "0-1", "it does not roam");
    }

    #[test]
    fn end_of_roaming_restores_affinity() {
        let (mut roamers, fake) = roamers();
        roamers.sit(&thread(7), PcpuId(1));
        roamers.follow([player(7, Some("0-1"))].iter());
        assert_eq!(place(&fake, 7), "1", "it still roams");
        roamers.follow([player(7, None)].iter());
        assert_eq!(place(&fake, 7), "0-1");
        roamers.follow([player(7, Some("0-1"))].iter());
        roamers.sit(&thread(7), PcpuId(0));
        roamers.leave(&thread(7));
        assert_eq!(place(&fake, 7), "0-1");
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!(place(&fake, 7), "0-1", "it has left");
    }

    #[test]
    fn foreign_affinity_stays_and_is_reported_once() {
        let (mut roamers, fake) = roamers();
        set_by_others(&fake, 7, "0-2");
        roamers.follow([player(7, Some("0-2"))].iter());
        roamers.sit(&thread(7), PcpuId(1));
        set_by_others(&fake, 7, "2");
        roamers.sit(&thread(7), PcpuId(0));
        roamers.sit(&thread(7), PcpuId(1));
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!((place(&fake, 7), roamers.taken.len()), ("2".to_owned(), 1));
        // With its home affinity again, it continues to roam.
        set_by_others(&fake, 7, "0-2");
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!(place(&fake, 7), "0");
        set_by_others(&fake, 7, "1-2");
        roamers.leave(&thread(7));
        assert_eq!(place(&fake, 7), "1-2");
        assert_eq!(roamers.errors, Vec::<String>::new());
    }

    #[test]
    fn ended_thread_is_ignored() {
        let (mut roamers, fake) = roamers();
        roamers.sit(&thread(7), PcpuId(1));
        [7, 8].iter().for_each(|tid| fake.end(&thread(*tid)));
        roamers.sit(&thread(7), PcpuId(0));
        roamers.leave(&thread(7));
        assert_eq!((fake.asked().changes, roamers.errors.len()), (1, 0));
    }
}
