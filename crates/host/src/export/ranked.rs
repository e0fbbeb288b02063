//! Named counters for the keys with the most time, and one counter for all others.
//!
//! One counter per culprit would exceed Prometheus: a thousand VMs that wait for each other make a million pairs.
//! A fixed number of keys is therefore named, by *recent time*: the time added, fading with the constant [`FADING`].
//! A key replaces the weakest named one only with a quarter more ([`AHEAD`]), so that equal keys do not alternate.
//! The time of unnamed keys goes to the others.
//!
//! Each counter only grows while it is named.
//! A key that is named again restarts at 0, which Prometheus correctly takes for a counter reset.

use std::collections::BTreeMap;

use tandem_model::Nanos;

/// Time constant: after 60 s, a third of the added time still counts.
const FADING: Nanos = Nanos::from_secs(60);

/// A key replaces a named one with more than 5/4 of its recent time.
const AHEAD: (u64, u64) = (5, 4);

/// Minimum recent time of a named key.
const NAMED_FROM: Nanos = Nanos::from_millis(1);

/// Minimum recent time of a remembered key: one second of added time fades to it in 12 minutes.
const FORGOTTEN_BELOW: Nanos = Nanos(10_000);

/// Maximum number of remembered keys without a name.
const MAX_UNNAMED: usize = 64;

#[derive(Clone, Debug, Default)]
struct Entry {
    recent: Nanos,
    /// Time added since the key is named.
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
    /// Starts empty, with at most `most` named keys.
    pub(super) fn new(most: usize) -> Ranked<K> {
        Ranked { most, entries: BTreeMap::new(), others: None }
    }

    /// Adds the times of an interval of this length: those of each key, and the undivided `rest`.
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
        self.forget_weakest();
    }

    /// Returns the named keys in order, with their time.
    pub(super) fn named(&self) -> impl Iterator<Item = (&K, Nanos)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.total?)))
    }

    /// Returns the time of all others; `None` before there was any.
    pub(super) fn others(&self) -> Option<Nanos> {
        self.others
    }

    fn name(&mut self) {
        loop {
            let named = self.named().count();
            let best = self.most_recent(|entry| entry.total.is_none());
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

    /// Returns the entry with the most recent time; among equals, the first in order.
    fn most_recent(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<(K, Nanos)> {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry));
        let most = meant.rev().max_by_key(|(_, entry)| entry.recent)?;
        Some((most.0.clone(), most.1.recent))
    }

    fn forget_weakest(&mut self) {
        let unnamed = self.entries.values().filter(|entry| entry.total.is_none());
        let mut recent: Vec<Nanos> = unnamed.map(|entry| entry.recent).collect();
        if recent.len() <= MAX_UNNAMED {
            return;
        }
        recent.sort_unstable_by(|one, two| two.cmp(one));
        let least = recent[MAX_UNNAMED];
        self.entries.retain(|_, entry| entry.total.is_some() || entry.recent > least);
    }
}

/// Fades a recent time to 1 − t ÷ (t + T) of it, which is e^(−t ÷ T) for short intervals.
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
    fn largest_are_named_and_rest_adds_up() {
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
    fn newcomer_replaces_weakest_once_well_ahead() {
        let mut ranked = Ranked::new(1);
        for _ in 0..120 {
            ranked.add(SECOND, [("old", ms(100))], Nanos::ZERO);
        }
        // Equal to the old one: not ahead, independent of the order of names.
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
        assert!(ranked.others() > before, "its earlier time is in the rest");
    }

    #[test]
    fn idle_key_is_forgotten() {
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
    fn zero_names_counts_all_as_rest() {
        let mut ranked = Ranked::new(0);
        for n in 0..1_000u32 {
            ranked.add(SECOND, [(n, SECOND)], Nanos::ZERO);
            assert!(ranked.entries.len() <= MAX_UNNAMED);
        }
        assert_eq!(ranked.named().count(), 0);
        assert_eq!(ranked.others(), Some(Nanos::from_secs(1_000)));
    }
}
