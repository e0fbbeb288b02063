//! Threads that inherited a setting of Tandem's: Linux copies affinity and nice value from the creating thread.
//!
//! A caller that changes one of these temporarily must also revert it on threads created meanwhile.
//! Only the caller knows those threads; [`Inheritance`] lists the values that they can have inherited.
//! A thread with any other value has its own and is left alone.

use tandem_model::{Nice, PcpuSet};

use super::{Actuator, ActuatorError};
use crate::journal::{Entry, Key, Record};
use crate::thread::ThreadRef;

/// Values that Tandem wrote to some threads, each with the original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inheritance {
    affinities: Vec<(PcpuSet, PcpuSet)>,
    nices: Vec<(Nice, Nice)>,
}

impl Inheritance {
    /// The affinity that a thread with this inherited one would have had without Tandem.
    /// If its possible creators had different originals, returns their union, because a smaller set might exclude its own pCPUs.
    fn affinity(&self, now: &PcpuSet) -> Option<PcpuSet> {
        let of_creators = self.affinities.iter().filter(|(given, _)| given == now);
        of_creators.map(|(_, original)| original.clone()).reduce(|mut all, one| {
            all.extend(&one);
            all
        })
    }

    /// Like [`Self::affinity`], for the nice value: the lowest of different originals.
    fn nice(&self, now: Nice) -> Option<Nice> {
        let of_creators = self.nices.iter().filter(|(given, _)| *given == now);
        of_creators.map(|(_, original)| *original).min()
    }
}

impl Actuator {
    /// The current changes of these threads, which threads created by them inherit.
    pub fn inheritance(&self, creators: &[ThreadRef]) -> Inheritance {
        let mut inheritance = Inheritance::default();
        let records = self.journal.records();
        let is_of_creator =
            |record: &&Record| record.thread().is_some_and(|thread| creators.contains(thread));
        for record in records.filter(is_of_creator) {
            match (record, self.journal.written(&record.key()).last()) {
                (
                    Record::Affinity { original, .. },
                    Some(Record::Affinity { original: given, .. }),
                ) => {
                    let pair = (given.clone(), original.clone());
                    inheritance.affinities.push(pair);
                }
                (Record::Nice { original, .. }, Some(Record::Nice { original: given, .. })) => {
                    inheritance.nices.push((*given, *original))
                }
                _ => {}
            }
        }
        inheritance
    }

    /// Journals the values that a thread may have inherited, as far as it has them, so that a restore reverts them.
    /// Returns whether there are any.
    pub fn adopt(
        &mut self,
        heir: &ThreadRef,
        inheritance: &Inheritance,
    ) -> Result<bool, ActuatorError> {
        let thread = *heir;
        let mut records = Vec::new();
        if !inheritance.affinities.is_empty()
            && !self.journal.knows(&Key::Affinity(heir.tid, heir.start))
            && let Ok(now) = self.threads.affinity(heir.tid)
            && let Some(original) = inheritance.affinity(&now).filter(|was| *was != now)
        {
            let now = Record::Affinity { thread, original: now };
            records.push((Record::Affinity { thread, original }, now));
        }
        if !inheritance.nices.is_empty()
            && !self.journal.knows(&Key::Nice(heir.tid, heir.start))
            && let Ok(now) = self.threads.nice(heir.tid)
            && let Some(original) = inheritance.nice(now).filter(|was| *was != now)
        {
            let now = Record::Nice { thread, original: now };
            records.push((Record::Nice { thread, original }, now));
        }
        // The reads went by TID, which identifies the thread only while it lives.
        if records.is_empty() || !self.threads.is_alive(heir) {
            return Ok(false);
        }
        for (original, now) in records {
            self.append(original)?;
            self.will_write(now)?;
        }
        Ok(true)
    }
}
