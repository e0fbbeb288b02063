//! Detection of sleep since the end of a VM's last turn; such a VM leaves the rotation.
//!
//! A kernel counts a wait when it ends, so a vCPU that waits when it is sampled seems to have slept for as long.
//! If many VMs take turns, a vCPU that lost its turn to others on its pCPU waits for a whole rotation.
//! So for a runnable vCPU the longest possible wait in progress counts as waiting.
//! For a tighter bound, a suspicious vCPU is also sampled when its next turn begins.
//! A wait in progress is then no longer than the turn, less the time that the vCPU ran in it.

use tandem_model::units::Nanos;

/// A vCPU slept if it was not runnable for this fraction of a turn ...
const SLEPT_OF_TURN: f64 = 0.4;
/// ... plus this fraction of the elapsed time.
const SLEPT_OF_TIME: f64 = 0.05;
/// A vCPU that is asleep now has no wait in progress: this fraction of a turn is enough.
const DOZED_OF_TURN: f64 = 0.1;
/// Samples after which a new account begins, if a vCPU is runnable at each.
/// Fewer miss a vCPU that sleeps a quarter of the time; more make the tolerance of [`SLEPT_OF_TIME`] long.
const MAX_SAMPLES: u32 = 16;

/// Whether a vCPU slept, given its runnable time since its VM's last turn ended.
/// Inaccuracies of a clock tick do not count as sleep.
pub fn is_sleep(turn: Nanos, elapsed: Nanos, runnable: Nanos) -> bool {
    let slept = elapsed.saturating_sub(runnable);
    slept.0 as f64 > SLEPT_OF_TURN * turn.0 as f64 + SLEPT_OF_TIME * elapsed.0 as f64
}

/// Whether a vCPU that is asleep at the end of its VM's turn fell asleep earlier, given its
/// runnable time since the VM's last turn ended.
/// Its VM would otherwise spend another turn in the idle class while requests wake it.
pub fn has_dozed_off(turn: Nanos, elapsed: Nanos, runnable: Nanos) -> bool {
    elapsed.saturating_sub(runnable).0 as f64 > DOZED_OF_TURN * turn.0 as f64
}

/// A vCPU since the end of its VM's last slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Time since then.
    pub elapsed: Nanos,
    /// For how much of it the vCPU was runnable.
    pub runnable: Nanos,
    /// Whether it is now.
    pub is_runnable: bool,
}

/// Sleep of a VM's vCPUs since the end of its last slot.
///
/// A guest with an operating system sleeps for moments on one vCPU or another, so the mean of the vCPUs counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct VmSleep {
    vcpus: u64,
    runnable_now: u64,
    elapsed: u64,
    runnable: u64,
}

impl VmSleep {
    /// Adds a vCPU.
    pub fn add(&mut self, seen: Seen) {
        self.vcpus += 1;
        self.runnable_now += u64::from(seen.is_runnable);
        self.elapsed += seen.elapsed.0;
        self.runnable += seen.runnable.0.min(seen.elapsed.0);
    }

    /// Whether the VM slept so long that it leaves its turns, of this length per rotation.
    pub fn ends_turns(&self, turn: Nanos) -> bool {
        if self.vcpus == 0 {
            return false;
        }
        let mean = |sum: u64| Nanos(sum / self.vcpus);
        let (elapsed, runnable) = (mean(self.elapsed), mean(self.runnable));
        if self.runnable_now > 0 {
            is_sleep(turn, elapsed, runnable)
        } else {
            has_dozed_off(turn, elapsed, runnable)
        }
    }
}

/// Samples of a vCPU at the ends of its VM's turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct SleepWatch {
    window: Option<Window>,
}

/// Times are on any monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Start of the window, and the vCPU's runnable time then.
    at: Nanos,
    runnable: Nanos,
    /// Time of the last sample, the runnable time then, and the number of samples.
    sampled: Nanos,
    seen: Nanos,
    samples: u32,
    /// Earliest start of a wait that is in progress now.
    waits_since: Nanos,
    /// Start of its turn, and its running time then.
    began: Option<(Nanos, Nanos)>,
}

/// Running and waiting time of a vCPU as counted by the kernel, which counts waits when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// On a pCPU.
    pub ran: Nanos,
    /// To run.
    pub waited: Nanos,
}

impl SleepWatch {
    /// Whether the last sample suggested sleep, and [`SleepWatch::turn_begins`] helps to decide.
    pub fn is_suspicious(&self) -> bool {
        self.window.is_some_and(|window| window.samples > 0)
    }

    /// Records the begin of its VM's turn.
    pub fn turn_begins(&mut self, now: Nanos, account: Account) {
        if let Some(window) = &mut self.window {
            window.began = Some((now, account.ran));
        }
    }

    /// Samples a vCPU at the end of a slot; `None` for the first one.
    /// Calls `is_runnable` only if the vCPU seems to have slept.
    pub fn look(
        &mut self,
        turn: Nanos,
        now: Nanos,
        account: Account,
        is_runnable: impl FnOnce() -> bool,
    ) -> Option<Seen> {
        let runnable = account.ran + account.waited;
        let begin = Window {
            at: now,
            runnable,
            sampled: now,
            seen: runnable,
            samples: 0,
            waits_since: now,
            began: None,
        };
        let mut window = self.window.replace(begin)?;
        let elapsed = now.saturating_sub(window.at);
        let counted = runnable.saturating_sub(window.runnable);
        let seen = Seen { elapsed, runnable: counted, is_runnable: true };
        if !has_dozed_off(turn, elapsed, counted) {
            return Some(seen);
        }
        if !is_runnable() {
            return Some(Seen { is_runnable: false, ..seen });
        }
        if !is_sleep(turn, elapsed, counted) {
            return Some(seen);
        }
        if runnable > window.seen {
            window.waits_since = window.sampled;
        }
        let mut waits = now.saturating_sub(window.waits_since);
        if let Some((began, had_run)) = window.began.take()
            && account.ran > had_run
        {
            let ran = account.ran.saturating_sub(had_run);
            waits = waits.min(now.saturating_sub(began).saturating_sub(ran));
        }
        let at_most = counted + waits;
        if !is_sleep(turn, elapsed, at_most) {
            (window.sampled, window.seen) = (now, runnable);
            window.samples += 1;
            if window.samples < MAX_SAMPLES {
                self.window = Some(window);
            }
        }
        Some(Seen { runnable: at_most, ..seen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Nanos = Nanos::from_millis(20);

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Whether a VM with this vCPU leaves its turns.
    fn ends(seen: Option<Seen>, turn: Nanos) -> bool {
        let mut sleep = VmSleep::default();
        seen.into_iter().for_each(|seen| sleep.add(seen));
        sleep.ends_turns(turn)
    }

    /// Samples a vCPU with these runnable times in ms every `every` ms; returns the first sample
    /// that shows sleep, from 0.
    fn seen_asleep(
        every: u64,
        counts: impl IntoIterator<Item = u64>,
        is_runnable: bool,
    ) -> Option<usize> {
        let mut watch = SleepWatch::default();
        let mut now = Nanos::ZERO;
        counts.into_iter().position(|count| {
            now += ms(every);
            let account = Account { ran: Nanos::ZERO, waited: ms(count) };
            let seen = watch.look(TURN, now, account, || is_runnable);
            ends(seen, TURN)
        })
    }

    #[test]
    fn clock_tick_is_no_sleep() {
        let is_sleep = |elapsed, runnable| is_sleep(TURN, ms(elapsed), ms(runnable));
        assert!(!is_sleep(40, 36), "a tick");
        assert!(is_sleep(40, 20), "its whole turn");
        assert!(is_sleep(40, 29));
        assert!(!is_sleep(40, 45));
        // Asleep now, for 3 ms: its requests would wait for a turn.
        let has_dozed_off = |runnable| has_dozed_off(TURN, ms(40), ms(runnable));
        assert!(has_dozed_off(37) && !is_sleep(40, 37));
        assert!(!has_dozed_off(38) && !has_dozed_off(45));
    }

    #[test]
    fn sleep_at_turn_end_is_detected_at_once() {
        assert_eq!(seen_asleep(40, [100, 137], false), Some(1));
        assert_eq!(seen_asleep(40, [100, 139], false), None);
    }

    #[test]
    fn wait_of_many_rotations_is_no_sleep() {
        // It did not run in many turns; then its whole wait counts.
        let starved = [100; 12].into_iter().chain([580, 620]);
        assert_eq!(seen_asleep(40, starved, true), None);
        // At each sample it has waited since the middle of its previous turn.
        let behind = (0..100).map(|look| 80 + 40 * look);
        assert_eq!(seen_asleep(40, behind, true), None);
    }

    #[test]
    fn sleep_between_turns_is_detected() {
        // 15 ms of 40: after four samples the gap exceeds any wait since the third.
        assert_eq!(seen_asleep(40, (0..9).map(|look| 25 * look), true), Some(4));
        assert_eq!(seen_asleep(40, (0..9).map(|look| 29 * look), true), Some(6));
        assert_eq!(seen_asleep(40, (0..400).map(|look| 38 * look), true), None);
    }

    #[test]
    fn mean_of_vcpus_counts() {
        let vm = |runnable: [u64; 4], now: [bool; 4]| {
            let mut sleep = VmSleep::default();
            for (runnable, is_runnable) in runnable.into_iter().zip(now) {
                sleep.add(Seen { elapsed: ms(40), runnable: ms(runnable), is_runnable });
            }
            sleep.ends_turns(TURN)
        };
        assert!(!vm([40, 40, 40, 10], [true, true, true, false]), "a quarter of it sleeps");
        assert!(vm([40, 20, 20, 10], [true; 4]));
        assert!(vm([37; 4], [false; 4]) && !vm([37; 4], [true, false, false, false]));
        assert!(!VmSleep::default().ends_turns(TURN));
    }

    #[test]
    fn running_time_bounds_wait() {
        let account = |ran, waited| Account { ran: ms(ran), waited: ms(waited) };
        // One vCPU slept for 15 ms in each turn of others; the other has waited since it ran 1 ms of its turn.
        let sleeper = [account(20, 25), account(20, 45), account(40, 45)];
        let waiter = [account(5, 40), account(5, 40), account(6, 96)];
        for ([first, begins, last], slept) in [(sleeper, true), (waiter, false)] {
            let mut watch = SleepWatch::default();
            assert_eq!(watch.look(TURN, ms(60), account(0, 0), || true), None);
            assert!(!watch.is_suspicious());
            assert!(!ends(watch.look(TURN, ms(120), first, || true), TURN));
            assert!(watch.is_suspicious());
            watch.turn_begins(ms(160), begins);
            assert_eq!(ends(watch.look(TURN, ms(180), last, || true), TURN), slept);
        }
    }
}
