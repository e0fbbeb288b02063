//! vCPUs that roam: their affinities change with the rows.
//!
//! Before a vCPU roams its affinity is journaled, so that whatever ends the daemon, it is put back. From then on only the thread that keeps the
//! rhythm writes it: the seat of each row, one pCPU of those where the operator lets it run, and these again when it roams no more. Where
//! somebody else has set another affinity meanwhile it stays, and that is told.

use std::collections::BTreeMap;

use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::thread::ThreadRef;
use tandem_model::{PcpuId, PcpuSet};

use super::player::Player;

/// One of them.
struct Roamer {
    /// Where it may run while it does not roam.
    home: PcpuSet,
    /// The seat that it was given last.
    seat: Option<PcpuId>,
    /// Whether it has been told that somebody else moved it.
    is_told: bool,
}

/// All of them.
pub(super) struct Roamers {
    threads: Box<dyn Threads>,
    roamers: BTreeMap<ThreadRef, Roamer>,
    /// How often one was given another seat.
    pub(super) moves: u64,
    /// Those that somebody else has moved, since this was last taken.
    pub(super) taken: Vec<ThreadRef>,
    /// What went wrong, since this was last taken.
    pub(super) errors: Vec<String>,
}

impl Roamers {
    /// Nobody roams.
    pub(super) fn new(threads: Box<dyn Threads>) -> Roamers {
        Roamers {
            threads,
            roamers: BTreeMap::new(),
            moves: 0,
            taken: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Those of these VMs that roam do so from now on, and no others.
    pub(super) fn follow<'a>(&mut self, players: impl Iterator<Item = &'a Player>) {
        let homes: BTreeMap<ThreadRef, &PcpuSet> = players
            .filter_map(|player| Some((player, player.roams.as_ref()?)))
            .flat_map(|(player, home)| player.threads.iter().map(move |thread| (*thread, home)))
            .collect();
        let is_over = |(thread, roamer): (&ThreadRef, &Roamer)| {
            let goes_on = homes.get(thread).is_some_and(|home| **home == roamer.home);
            (!goes_on).then_some(*thread)
        };
        let over: Vec<ThreadRef> = self.roamers.iter().filter_map(is_over).collect();
        for thread in over {
            self.leave(&thread);
        }
        for (thread, home) in homes {
            self.roamers.entry(thread).or_insert_with(|| Roamer {
                home: home.clone(),
                seat: None,
                is_told: false,
            });
        }
    }

    /// One has this seat from now on.
    pub(super) fn sit(&mut self, thread: &ThreadRef, pcpu: PcpuId) {
        let Some(roamer) = self.roamers.get_mut(thread) else {
            return;
        };
        if roamer.seat == Some(pcpu) || !self.threads.is_alive(thread) {
            return;
        }
        let seated = match is_ours(&*self.threads, thread, roamer) {
            Ok(true) => self.threads.set_affinity(thread.tid, &only(pcpu)),
            Ok(false) => {
                if !std::mem::replace(&mut roamer.is_told, true) {
                    self.taken.push(*thread);
                }
                return;
            }
            Err(error) => Err(error),
        };
        match seated {
            Ok(()) => {
                roamer.seat = Some(pcpu);
                roamer.is_told = false;
                self.moves += 1;
            }
            Err(error) => self.tell(&error),
        }
    }

    /// One roams no more: it may run again where it could before.
    pub(super) fn leave(&mut self, thread: &ThreadRef) {
        let Some(roamer) = self.roamers.remove(thread) else {
            return;
        };
        if roamer.seat.is_none() || !self.threads.is_alive(thread) {
            return;
        }
        let left = match is_ours(&*self.threads, thread, &roamer) {
            Ok(true) => self.threads.set_affinity(thread.tid, &roamer.home),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = left {
            self.tell(&error);
        }
    }

    /// A thread that ended is dropped with the next rotation; anything else is told.
    fn tell(&mut self, error: &AffinityError) {
        if !error.is_gone() {
            self.errors.push(error.to_string());
        }
    }
}

fn only(pcpu: PcpuId) -> PcpuSet {
    [pcpu].into_iter().collect()
}

/// Whether nobody else has moved it: it is where it was put, or anywhere again.
fn is_ours(
    threads: &dyn Threads,
    thread: &ThreadRef,
    roamer: &Roamer,
) -> Result<bool, AffinityError> {
    let Some(seat) = roamer.seat else {
        return Ok(true);
    };
    let now = threads.affinity(thread.tid)?;
    Ok(now == only(seat) || now == roamer.home)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tandem_linux::cgroup::CgroupPath;
    use tandem_linux::sched_attr::SchedAttrError;
    use tandem_linux::thread::Tid;
    use tandem_model::{Nanos, Nice, VmId, Weight};

    use super::*;

    /// Affinities of threads, and how often they were set; threads without one have ended.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<(BTreeMap<Tid, PcpuSet>, u32)>>);

    impl Fake {
        fn of(&self, tid: u32) -> String {
            self.0.lock().unwrap().0[&Tid(tid)].to_string()
        }

        fn somebody_sets(&self, tid: u32, list: &str) {
            let set = list.parse().unwrap();
            self.0.lock().unwrap().0.insert(Tid(tid), set);
        }

        fn writes(&self) -> u32 {
            self.0.lock().unwrap().1
        }
    }

    impl Threads for Fake {
        fn is_alive(&self, thread: &ThreadRef) -> bool {
            self.0.lock().unwrap().0.contains_key(&thread.tid)
        }

        fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
            let known = self.0.lock().unwrap().0.get(&tid).cloned();
            known.ok_or(AffinityError::Gone(tid))
        }

        fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
            let mut known = self.0.lock().unwrap();
            known.1 += 1;
            known.0.insert(tid, pcpus.clone());
            Ok(())
        }

        fn nice(&self, _: Tid) -> Result<Nice, SchedAttrError> {
            unreachable!("turns set no nice value")
        }

        fn set_nice(&self, _: Tid, _: Nice) -> Result<(), SchedAttrError> {
            unreachable!("turns set no nice value")
        }

        fn slice(&self, _: Tid) -> Result<Option<Nanos>, SchedAttrError> {
            unreachable!("turns set no slice")
        }

        fn set_slice(&self, _: Tid, _: Option<Nanos>) -> Result<(), SchedAttrError> {
            unreachable!("turns set no slice")
        }
    }

    fn thread(tid: u32) -> ThreadRef {
        crate::fixtures::thread(tid, tid)
    }

    fn player(tid: u32, roams: Option<&str>) -> Player {
        Player {
            vm: VmId(tid.into()),
            cgroup: CgroupPath(format!("/{tid}")),
            weight: Weight::constant(1024.0),
            threads: vec![thread(tid)],
            roams: roams.map(|list| list.parse().unwrap()),
        }
    }

    /// Threads 7 and 8 may run on pCPUs 0 and 1, and the first of them roams.
    fn roamers() -> (Roamers, Fake) {
        let fake = Fake::default();
        fake.somebody_sets(7, "0-1");
        fake.somebody_sets(8, "0-1");
        let mut roamers = Roamers::new(Box::new(fake.clone()));
        roamers.follow([player(7, Some("0-1")), player(8, None)].iter());
        (roamers, fake)
    }

    #[test]
    fn each_change_of_seats_is_one_write() {
        let (mut roamers, fake) = roamers();
        for (pcpu, writes) in [(0, 1), (0, 1), (1, 2), (1, 2), (0, 3)] {
            roamers.sit(&thread(7), PcpuId(pcpu));
            assert_eq!((fake.of(7), fake.writes()), (pcpu.to_string(), writes));
        }
        assert_eq!(roamers.moves, 3);
        roamers.sit(&thread(8), PcpuId(1));
        assert_eq!(fake.of(8), "0-1", "it does not roam");
    }

    #[test]
    fn who_roams_no_more_may_run_where_it_could_before() {
        let (mut roamers, fake) = roamers();
        roamers.sit(&thread(7), PcpuId(1));
        roamers.follow([player(7, Some("0-1"))].iter());
        assert_eq!(fake.of(7), "1", "it goes on");
        roamers.follow([player(7, None)].iter());
        assert_eq!(fake.of(7), "0-1");
        roamers.follow([player(7, Some("0-1"))].iter());
        roamers.sit(&thread(7), PcpuId(0));
        roamers.leave(&thread(7));
        assert_eq!(fake.of(7), "0-1");
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!(fake.of(7), "0-1", "it has left");
    }

    #[test]
    fn what_somebody_else_sets_stays_and_is_told_once() {
        let (mut roamers, fake) = roamers();
        fake.somebody_sets(7, "0-2");
        roamers.follow([player(7, Some("0-2"))].iter());
        roamers.sit(&thread(7), PcpuId(1));
        fake.somebody_sets(7, "2");
        roamers.sit(&thread(7), PcpuId(0));
        roamers.sit(&thread(7), PcpuId(1));
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!((fake.of(7), roamers.taken.len()), ("2".to_owned(), 1));
        // Anywhere again, it roams on.
        fake.somebody_sets(7, "0-2");
        roamers.sit(&thread(7), PcpuId(0));
        assert_eq!(fake.of(7), "0");
        fake.somebody_sets(7, "1-2");
        roamers.leave(&thread(7));
        assert_eq!(fake.of(7), "1-2");
        assert_eq!(roamers.errors, Vec::<String>::new());
    }

    #[test]
    fn a_thread_that_ended_is_left_alone() {
        let (mut roamers, fake) = roamers();
        roamers.sit(&thread(7), PcpuId(1));
        fake.0.lock().unwrap().0.clear();
        roamers.sit(&thread(7), PcpuId(0));
        roamers.leave(&thread(7));
        assert_eq!((fake.writes(), roamers.errors.len()), (1, 0));
    }
}
