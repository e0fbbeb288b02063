//! Profiles of a workload's code from clock samples, and the progress that two such profiles show.
//!
//! Threads that want the same lock are busy all the time and get little done.
//! The lock's cache line moves to and fro; a thread that finds it taken asks the kernel to sleep,
//! and learns that it is free again.
//! Counters of time, switches or calls cannot distinguish that from work, and a VM seldom has the hardware's counters.
//! A clock that interrupts the vCPUs and notes where they were can: in the kernel's code of
//! waiting for locks ([`Code::contention`]).
//!
//! The samples also show how much gets done. A line of code is found in proportion to how often
//! it runs and how long it takes.
//! An access to a cache line takes longer if the line is elsewhere, never shorter.
//! So a line of code that is found r times as often after a change runs at least r times as
//! often, unless its waits have grown.
//! [`Code::pace`] is the ratio of the lines that gained most and make up a quarter of the program's time in user mode.
//! The part that chance may have added is subtracted.

use std::collections::BTreeMap;

use tandem_model::units::Nanos;

/// Length of a line of code in bytes: a power of two.
const LINE: u64 = 64;
/// The lines that gained most count, until they have this fraction of the samples in user mode.
const COUNTING: f64 = 0.25;
/// Minimum samples in user mode for a verdict.
const MIN_SAMPLES: u32 = 50;
/// Standard deviations by which a ratio is lowered, as chance may have raised it.
const DOUBT: f64 = 1.0;

/// Samples of a clock that ran equally fast on all vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    period: Nanos,
    samples: u32,
    contended: u32,
    lines: BTreeMap<u64, u32>,
}

impl Code {
    /// Creates an empty profile of this length.
    pub fn new(period: Nanos) -> Code {
        Code { period, ..Code::default() }
    }

    /// Records a thread in user mode at this address.
    pub fn in_user(&mut self, address: u64) {
        self.samples += 1;
        *self.lines.entry(address / LINE).or_default() += 1;
    }

    /// Records a thread in the kernel; `waits` if in code of waiting for locks.
    pub fn in_kernel(&mut self, waits: bool) {
        self.samples += 1;
        self.contended += u32::from(waits);
    }

    /// Adds the profile of the time after this one.
    pub fn merge(&mut self, next: &Code) {
        self.period += next.period;
        self.samples += next.samples;
        self.contended += next.contended;
        for (line, found) in &next.lines {
            *self.lines.entry(*line).or_default() += found;
        }
    }

    /// Number of samples that found a thread of the workload at work.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Fraction of its time that the workload waits for locks without sleeping, 0 … 1.
    pub fn contention(&self) -> f64 {
        f64::from(self.contended) / f64::from(self.samples.max(1))
    }

    /// Standard deviation of the contention from chance alone.
    pub fn contention_error(&self) -> f64 {
        let part = self.contention();
        (part * (1.0 - part) / f64::from(self.samples.max(1))).sqrt()
    }

    /// Whether there are enough samples in user mode for a pace.
    fn is_telling(&self) -> bool {
        self.in_user_mode() >= MIN_SAMPLES
    }

    /// Whether `samples` samples like these would be enough.
    pub fn would_tell(&self, samples: u32) -> bool {
        let found = u64::from(self.in_user_mode()) * u64::from(samples);
        found >= u64::from(MIN_SAMPLES) * u64::from(self.samples.max(1))
    }

    fn in_user_mode(&self) -> u32 {
        self.lines.values().sum()
    }

    /// Returns how much faster the program runs now than `before`, at least. `None` if there are
    /// too few samples in user mode.
    pub fn pace(&self, before: &Code) -> Option<f64> {
        if !self.is_telling() || !before.is_telling() {
            return None;
        }
        // As if each line had been found once more before, because it may have been missed.
        let mut lines: Vec<(u32, u32)> = self
            .lines
            .iter()
            .map(|(line, &now)| (now, before.lines.get(line).copied().unwrap_or(0) + 1))
            .collect();
        let ratio = |(now, then): (u32, u32)| f64::from(now) / f64::from(then);
        // Ties are in the order of their counts, so that the result does not depend on load addresses.
        lines.sort_unstable_by(|a, b| ratio(*b).total_cmp(&ratio(*a)).then(b.cmp(a)));
        let wanted = COUNTING * f64::from(self.in_user_mode());
        let mut sum = (0, 0);
        for (now, then) in lines {
            sum = (sum.0 + now, sum.1 + then);
            if f64::from(sum.0) >= wanted {
                break;
            }
        }
        let longer = before.period.0.max(1) as f64 / self.period.0.max(1) as f64;
        let error = (1.0 / f64::from(sum.0) + 1.0 / f64::from(sum.1)).sqrt();
        Some(ratio(sum) * longer * libm::exp(-DOUBT * error))
    }

    /// Returns the fraction of its time in user mode spent in the same code as `other`, 0 … 1.
    /// `None` if there are too few samples.
    pub fn alike(&self, other: &Code) -> Option<f64> {
        if !self.is_telling() || !other.is_telling() {
            return None;
        }
        let (ours, theirs) = (self.in_user_mode(), other.in_user_mode());
        let part = |found: u32, all: u32| f64::from(found) / f64::from(all);
        let common = self.lines.iter().map(|(line, &found)| {
            let other = other.lines.get(line).copied().unwrap_or(0);
            part(found, ours).min(part(other, theirs))
        });
        Some(common.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = Nanos::from_millis(200);

    /// Samples in each of these lines, and in the kernel: waiting for locks, and other ones.
    fn found(lines: &[u32], waits: u32, other: u32) -> Code {
        let mut code = Code::new(PERIOD);
        for (line, &times) in lines.iter().enumerate() {
            for _ in 0..times {
                code.in_user(line as u64 * LINE + 7);
            }
        }
        for at in 0..waits + other {
            code.in_kernel(at < waits);
        }
        code
    }

    #[test]
    fn contention_is_fraction_of_samples() {
        assert_eq!(found(&[50], 25, 25).contention(), 0.25);
        assert_eq!(Code::default().contention(), 0.0);
    }

    #[test]
    fn uncontended_code_shows_pace() {
        // Two threads and a mutex, 400 samples of two vCPUs, then 400 of one: the line that takes
        // the lock is found 1.5 times as often, the work between two locks three times as often.
        let contended = found(&[46, 46, 40, 18, 9], 130, 111);
        let mut on_one = found(&[114, 116, 58, 64, 49], 0, 0);
        on_one.period = Nanos(PERIOD.0 * 2);
        let pace = on_one.pace(&contended).unwrap();
        assert!((1.2..2.0).contains(&pace), "{pace}");
        // In reverse there is no such gain.
        assert!(contended.pace(&on_one).unwrap() < 1.5);
    }

    #[test]
    fn computing_program_slows_on_fewer_vcpus() {
        let all = found(&[100, 100, 100, 100], 0, 0);
        let half = found(&[50, 52, 48, 50], 0, 0);
        let pace = half.pace(&all).unwrap();
        assert!((0.3..0.6).contains(&pace), "{pace}");
        // The same profile again is no gain, whatever the noise.
        let again = found(&[115, 85, 90, 110], 0, 0);
        assert!(again.pace(&all).unwrap() < 1.0);
    }

    #[test]
    fn single_line_shows_no_gain() {
        let before = found(&[5, 100, 100, 100], 0, 0);
        let now = found(&[45, 50, 50, 50], 0, 0);
        assert!(now.pace(&before).unwrap() < 1.0);
    }

    #[test]
    fn too_few_samples_give_no_verdict() {
        assert_eq!(found(&[10], 300, 0).pace(&found(&[100], 0, 0)), None);
        assert_eq!(found(&[100], 0, 0).alike(&found(&[10], 0, 0)), None);
        let seldom = found(&[60], 300, 240);
        assert!(seldom.is_telling() && seldom.would_tell(500) && !seldom.would_tell(400));
        assert!(!Code::default().would_tell(1000));
    }

    #[test]
    fn merged_samples_are_as_if_taken_at_once() {
        let mut sum = found(&[10, 20], 3, 4);
        sum.merge(&found(&[0, 5, 6], 1, 1));
        let mut at_once = found(&[10, 25, 6], 4, 5);
        at_once.period = Nanos(PERIOD.0 * 2);
        assert_eq!(sum, at_once);
    }

    #[test]
    fn other_code_is_recognized() {
        let code = found(&[100, 50, 50], 0, 0);
        assert!((code.alike(&found(&[55, 20, 25], 9, 9)).unwrap() - 0.95).abs() < 0.01);
        assert_eq!(code.alike(&found(&[0, 0, 0, 80], 0, 0)), Some(0.0));
    }
}
