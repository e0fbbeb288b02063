//! Threads that were born with what others had been given: Linux hands affinity and nice value on from the thread that starts another.
//!
//! Whoever gives a thread one of these for some time has to put it back on what that thread started meanwhile, too. Who that is only the
//! caller can know ([`Inheritance`] is what they got); a thread that has another value by now has it of its own, and is left alone.

use tandem_model::{Nice, PcpuSet};

use super::{Actuator, ActuatorError};
use crate::journal::{Entry, Key, Record};
use crate::thread::ThreadRef;

/// What threads were given, each with what it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inheritance {
    affinities: Vec<(PcpuSet, PcpuSet)>,
    nices: Vec<(Nice, Nice)>,
}

impl Inheritance {
    /// What a thread with this affinity would have had; where its makers had different ones, all of theirs: less might keep it off where
    /// its own was.
    fn affinity(&self, now: &PcpuSet) -> Option<PcpuSet> {
        let of_makers = self.affinities.iter().filter(|(given, _)| given == now);
        of_makers.map(|(_, original)| original.clone()).reduce(|mut all, one| {
            all.extend(&one);
            all
        })
    }

    /// The same for its nice value; of different ones the least nice.
    fn nice(&self, now: Nice) -> Option<Nice> {
        let of_makers = self.nices.iter().filter(|(given, _)| *given == now);
        of_makers.map(|(_, original)| *original).min()
    }
}

impl Actuator {
    /// What these threads have been given and have not been rid of.
    pub fn inheritance(&self, makers: &[ThreadRef]) -> Inheritance {
        let mut inheritance = Inheritance::default();
        let records = self.journal.records();
        for record in records.filter(|record| record.thread().is_some_and(|t| makers.contains(t))) {
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

    /// A thread that may have been born with these: as far as it has them, they are journaled, to be put back as they are on its makers. True if
    /// there is anything to put back.
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
        // It was read by its number, which is its own as long as it lives.
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
