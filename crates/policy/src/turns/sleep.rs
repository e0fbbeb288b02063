//! Whether a VM slept since the end of its last turn: then it takes no turns any more.
//!
//! A kernel counts a wait when it is over. Who waits when it is looked at may seem to have slept for as long as that wait lasts, and where
//! many VMs take turns a vCPU that lost its turn to others on its pCPU waits for a whole rotation. So of a vCPU that is runnable
//! the longest wait that can be in progress is taken for one. To know it better, who seems to have slept is looked at
//! when its next turn begins, too: a wait in progress is no longer than the turn, less what the vCPU ran in it.

use tandem_model::units::Nanos;

/// A vCPU slept if it was not runnable for this part of a turn and ...
const SLEPT_OF_TURN: f64 = 0.4;
/// ... this part of the time.
const SLEPT_OF_TIME: f64 = 0.05;
/// Of one that is asleep now all waits are over and counted: then this part of a turn is enough.
const DOZED_OF_TURN: f64 = 0.1;
/// In so many looks it shows who sleeps between looks and is runnable at each; then a new account begins. Fewer miss who sleeps for a
/// quarter of the time, more make the tolerance of [`SLEPT_OF_TIME`] long.
const MOST_LOOKS: u32 = 16;

/// Whether a vCPU slept that was runnable for so long of the time since its VM's last turn ended. What a kernel counts at clock
/// ticks is no sleep.
pub fn is_sleep(turn: Nanos, elapsed: Nanos, runnable: Nanos) -> bool {
    let slept = elapsed.saturating_sub(runnable);
    slept.0 as f64 > SLEPT_OF_TURN * turn.0 as f64 + SLEPT_OF_TIME * elapsed.0 as f64
}

/// Whether a vCPU that is asleep at the end of its VM's turn began to sleep before, when it was runnable for so long of the time since
/// the VM's last turn ended. Else its VM would be in the idle class for another turn while it wakes for requests.
pub fn has_dozed_off(turn: Nanos, elapsed: Nanos, runnable: Nanos) -> bool {
    elapsed.saturating_sub(runnable).0 as f64 > DOZED_OF_TURN * turn.0 as f64
}

/// What was seen of a vCPU at the ends of its VM's turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct SleepWatch {
    window: Option<Window>,
}

/// Times are on any clock that goes forward.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// When it begins, and how long the vCPU had been runnable then.
    at: Nanos,
    runnable: Nanos,
    /// The last look, what it showed, and how many there were.
    looked: Nanos,
    seen: Nanos,
    looks: u32,
    /// A wait that is in progress now did not begin before.
    waits_since: Nanos,
    /// When its turn began, and how long it had run then.
    began: Option<(Nanos, Nanos)>,
}

/// What a kernel tells of a vCPU: how long it ran and waited so far, waits counted when they are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// On a pCPU.
    pub ran: Nanos,
    /// To run.
    pub waited: Nanos,
}

impl SleepWatch {
    /// Whether it seemed to have slept when it was looked at last, and [`SleepWatch::turn_begins`] helps to tell.
    pub fn is_suspicious(&self) -> bool {
        self.window.is_some_and(|window| window.looks > 0)
    }

    /// Its VM's turn begins now.
    pub fn turn_begins(&mut self, now: Nanos, account: Account) {
        if let Some(window) = &mut self.window {
            window.began = Some((now, account.ran));
        }
    }

    /// Looks at a vCPU at the end of a turn of this length: whether it slept since the end of its VM's turn before. `is_runnable` is asked
    /// only if it seems so.
    pub fn look(
        &mut self,
        turn: Nanos,
        now: Nanos,
        account: Account,
        is_runnable: impl FnOnce() -> bool,
    ) -> bool {
        let runnable = account.ran + account.waited;
        let begin = Window {
            at: now,
            runnable,
            looked: now,
            seen: runnable,
            looks: 0,
            waits_since: now,
            began: None,
        };
        let Some(mut window) = self.window.replace(begin) else {
            return false;
        };
        let elapsed = now.saturating_sub(window.at);
        let counted = runnable.saturating_sub(window.runnable);
        if !has_dozed_off(turn, elapsed, counted) {
            return false;
        }
        if !is_runnable() {
            return true;
        }
        if !is_sleep(turn, elapsed, counted) {
            return false;
        }
        if runnable > window.seen {
            window.waits_since = window.looked;
        }
        let mut waits = now.saturating_sub(window.waits_since);
        if let Some((began, had_run)) = window.began.take()
            && account.ran > had_run
        {
            let ran = account.ran.saturating_sub(had_run);
            waits = waits.min(now.saturating_sub(began).saturating_sub(ran));
        }
        if is_sleep(turn, elapsed, counted + waits) {
            return true;
        }
        (window.looked, window.seen) = (now, runnable);
        window.looks += 1;
        if window.looks < MOST_LOOKS {
            self.window = Some(window);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Nanos = Nanos::from_millis(20);

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Looks every so many ms at a vCPU whose account shows these ms: the look, from 0, at which it is seen to sleep.
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
            watch.look(TURN, now, account, || is_runnable)
        })
    }

    #[test]
    fn sleep_is_told_from_a_tick_and_from_half_a_turn() {
        let is_sleep = |elapsed, runnable| is_sleep(TURN, ms(elapsed), ms(runnable));
        assert!(!is_sleep(40, 36), "a tick");
        assert!(is_sleep(40, 20), "its whole turn");
        assert!(is_sleep(40, 29));
        assert!(!is_sleep(40, 45));
        // Asleep now, since 3 ms: its requests would wait for a turn.
        let has_dozed_off = |runnable| has_dozed_off(TURN, ms(40), ms(runnable));
        assert!(has_dozed_off(37) && !is_sleep(40, 37));
        assert!(!has_dozed_off(38) && !has_dozed_off(45));
    }

    #[test]
    fn who_is_asleep_at_the_end_of_its_turn_is_seen_at_once() {
        assert_eq!(seen_asleep(40, [100, 137], false), Some(1));
        assert_eq!(seen_asleep(40, [100, 139], false), None);
    }

    #[test]
    fn a_wait_of_many_rotations_is_no_sleep() {
        // Its turn came again and again, and it did not run; then all of it counts.
        let starved = [100; 12].into_iter().chain([580, 620]);
        assert_eq!(seen_asleep(40, starved, true), None);
        // At each look it waits since the middle of its turn before.
        let behind = (0..100).map(|look| 80 + 40 * look);
        assert_eq!(seen_asleep(40, behind, true), None);
    }

    #[test]
    fn who_sleeps_between_turns_is_seen_though_it_is_runnable_at_each_look() {
        // 15 ms of 40: after four rows more is missing than a wait since the third can be.
        assert_eq!(seen_asleep(40, (0..9).map(|look| 25 * look), true), Some(4));
        assert_eq!(seen_asleep(40, (0..9).map(|look| 29 * look), true), Some(6));
        assert_eq!(seen_asleep(40, (0..400).map(|look| 38 * look), true), None);
    }

    #[test]
    fn who_ran_through_its_turn_cannot_be_waiting() {
        let account = |ran, waited| Account { ran: ms(ran), waited: ms(waited) };
        // Of three VMs one slept for 15 ms in others' turns again and again; the other waits since it had run for 1 ms of its turn.
        let sleeper = [account(20, 25), account(20, 45), account(40, 45)];
        let waiter = [account(5, 40), account(5, 40), account(6, 96)];
        for ([first, begins, last], slept) in [(sleeper, true), (waiter, false)] {
            let mut watch = SleepWatch::default();
            assert!(!watch.look(TURN, ms(60), account(0, 0), || true));
            assert!(!watch.is_suspicious());
            assert!(!watch.look(TURN, ms(120), first, || true));
            assert!(watch.is_suspicious());
            watch.turn_begins(ms(160), begins);
            assert_eq!(watch.look(TURN, ms(180), last, || true), slept);
        }
    }
}
