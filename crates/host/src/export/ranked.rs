//! Counters of those that matter most, one more for the rest, and never more than that.
//!
//! Everybody who was ever waited for as a counter of its own would be more series than a Prometheus can hold: a thousand VMs that wait for each other
//! are a million pairs. So at most so many are named at a time. Who is named is decided by *recent time*: what was added,
//! fading with a time constant of [`FADING`]. Another takes the place of the weakest only with a quarter more ([`AHEAD`]), so
//! that two that are equal do not take turns. What is added of those without a name goes to the rest.
//!
//! Each counter only grows while it is there. One that lost its name begins at 0 when it gets it again, which Prometheus takes for a
//! restart, rightly.

use std::collections::BTreeMap;

use tandem_model::Nanos;

/// After so long a third of what was added still counts.
const FADING: Nanos = Nanos::from_secs(60);

/// Who wants the place of another has more than 5/4 of its recent time.
const AHEAD: (u64, u64) = (5, 4);

/// Who has less recent time gets no name.
const NAMED_FROM: Nanos = Nanos::from_millis(1);

/// Who has less recent time is forgotten, 12 minutes after a second was added.
const FORGOTTEN_BELOW: Nanos = Nanos(10_000);

/// So many without a name are remembered.
const MOST_UNNAMED: usize = 64;

#[derive(Clone, Debug, Default)]
struct Entry {
    recent: Nanos,
    /// What was added since it has a name.
    total: Option<Nanos>,
}

/// The counters.
#[derive(Clone, Debug)]
pub(super) struct Ranked<K> {
    most: usize,
    entries: BTreeMap<K, Entry>,
    others: Option<Nanos>,
}

impl<K: Ord + Clone> Ranked<K> {
    /// None yet, and at most so many.
    pub(super) fn new(most: usize) -> Ranked<K> {
        Ranked { most, entries: BTreeMap::new(), others: None }
    }

    /// Adds what an interval of that length brought: the time of each, and that of those who are not told apart.
    pub(super) fn add(
        &mut self,
        length: Nanos,
        times: impl IntoIterator<Item = (K, Nanos)>,
        rest: Nanos,
    ) {
        for entry in self.entries.values_mut() {
            entry.recent = faded(entry.recent, length, FADING);
        }
        let mut added: BTreeMap<K, Nanos> = BTreeMap::new();
        for (key, time) in times {
            *added.entry(key).or_default() += time;
        }
        for (key, time) in &added {
            self.entries.entry(key.clone()).or_default().recent += *time;
        }
        self.name();
        let mut others = rest;
        for (key, time) in added {
            match self.entries.get_mut(&key).and_then(|entry| entry.total.as_mut()) {
                Some(total) => *total += time,
                None => others += time,
            }
        }
        if others > Nanos::ZERO {
            *self.others.get_or_insert(Nanos::ZERO) += others;
        }
        self.entries.retain(|_, entry| entry.recent >= FORGOTTEN_BELOW);
        self.forget_the_weakest();
    }

    /// Those that are named, in order, and their time.
    pub(super) fn named(&self) -> impl Iterator<Item = (&K, Nanos)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.total?)))
    }

    /// The time of all others; `None` while there was none.
    pub(super) fn others(&self) -> Option<Nanos> {
        self.others
    }

    fn name(&mut self) {
        loop {
            let named = self.named().count();
            let best = self.of_most_recent_time(|entry| entry.total.is_none());
            let Some((best, recent)) = best.filter(|(_, recent)| *recent >= NAMED_FROM) else {
                return;
            };
            if named >= self.most {
                let weakest = self.entries.iter().filter(|(_, entry)| entry.total.is_some());
                let weakest = weakest.min_by_key(|(_, entry)| entry.recent);
                let Some((key, weakest)) = weakest.map(|(key, entry)| (key.clone(), entry.recent))
                else {
                    return;
                };
                let (more, than) = AHEAD;
                if recent.0.saturating_mul(than) <= weakest.0.saturating_mul(more) {
                    return;
                }
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.total = None;
                }
            }
            if let Some(entry) = self.entries.get_mut(&best) {
                entry.total = Some(Nanos::ZERO);
            }
        }
    }

    /// Of equals the first in order.
    fn of_most_recent_time(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<(K, Nanos)> {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry));
        let most = meant.rev().max_by_key(|(_, entry)| entry.recent)?;
        Some((most.0.clone(), most.1.recent))
    }

    fn forget_the_weakest(&mut self) {
        let unnamed = self.entries.values().filter(|entry| entry.total.is_none());
        let mut recent: Vec<Nanos> = unnamed.map(|entry| entry.recent).collect();
        if recent.len() <= MOST_UNNAMED {
            return;
        }
        recent.sort_unstable_by(|one, two| two.cmp(one));
        let least = recent[MOST_UNNAMED];
        self.entries.retain(|_, entry| entry.total.is_some() || entry.recent > least);
    }
}

/// What is left of a recent time: 1 − t ÷ (t + T) of it, which for short intervals is e^(−t ÷ T).
pub(super) fn faded(recent: Nanos, length: Nanos, constant: Nanos) -> Nanos {
    let (fading, length) = (u128::from(constant.0), u128::from(length.0));
    let left = u128::from(recent.0) * fading / (fading + length).max(1);
    Nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn named(ranked: &Ranked<&'static str>) -> Vec<(&'static str, Nanos)> {
        ranked.named().map(|(key, time)| (*key, time)).collect()
    }

    #[test]
    fn the_most_are_named_and_the_rest_adds_up() {
        let mut ranked = Ranked::new(2);
        assert_eq!(ranked.others(), None, "nothing was added yet");
        for _ in 0..3 {
            let times = [("c", ms(30)), ("a", ms(10)), ("b", ms(20)), ("c", ms(5))];
            ranked.add(SECOND, times, ms(7));
        }
        assert_eq!(named(&ranked), [("b", ms(60)), ("c", ms(105))]);
        assert_eq!(ranked.others(), Some(ms(3 * 17)));
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_weakest_once_it_is_well_ahead() {
        let mut ranked = Ranked::new(1);
        for _ in 0..120 {
            ranked.add(SECOND, [("old", ms(100))], Nanos::ZERO);
        }
        // As much as the old one, side by side: not ahead, whatever the order of names.
        for _ in 0..600 {
            ranked.add(SECOND, [("old", ms(100)), ("new", ms(100))], Nanos::ZERO);
        }
        assert_eq!(named(&ranked), [("old", ms(72_000))]);
        let before = ranked.others();
        let mut rounds = 0;
        while named(&ranked)[0].0 == "old" {
            ranked.add(SECOND, [("old", ms(100)), ("new", ms(900))], Nanos::ZERO);
            rounds += 1;
        }
        assert!(rounds < 20, "a big one is named soon: {rounds}");
        assert_eq!(named(&ranked), [("new", ms(900))]);
        assert!(ranked.others() > before, "what it did before is with the rest");
    }

    #[test]
    fn who_is_not_waited_for_any_more_is_forgotten() {
        let mut ranked = Ranked::new(2);
        ranked.add(SECOND, [("gone", SECOND)], Nanos::ZERO);
        assert_eq!(named(&ranked), [("gone", SECOND)]);
        for _ in 0..800 {
            ranked.add(SECOND, [("stays", ms(50))], Nanos::ZERO);
        }
        assert_eq!(named(&ranked), [("stays", ms(40_000))]);
        assert_eq!(ranked.entries.len(), 1);
    }

    #[test]
    fn without_names_all_is_the_rest_and_little_is_remembered() {
        let mut ranked = Ranked::new(0);
        for n in 0..1_000u32 {
            ranked.add(SECOND, [(n, SECOND)], Nanos::ZERO);
            assert!(ranked.entries.len() <= MOST_UNNAMED);
        }
        assert_eq!(ranked.named().count(), 0);
        assert_eq!(ranked.others(), Some(Nanos::from_secs(1_000)));
    }
}
