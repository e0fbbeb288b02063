//! Two threads hand a token back and forth, and do nothing else.
//!
//! It is the purest wake-up-bound program: at any time one thread runs and the other is blocked, so a
//! vCPU that halts meanwhile pays for a halt and a wake-up at every pass. The token is a number; a
//! thread may pass it on when its parity is its own. It is waited for with a futex directly, or with
//! `Mutex` and `Condvar` as programs do. One unit of work is one pass.
//!
//! `tandem-lab bench guest-token` runs it as a program of the set, and prints `passes: N` and `seconds: S` by its
//! own clock. It does not choose vCPUs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// How a thread waits for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// futex(2).
    Futex,
    /// `std::sync::Condvar`.
    Condvar,
}

impl Means {
    /// Its name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Means::Futex => "futex",
            Means::Condvar => "condvar",
        }
    }
}

/// What two threads did with the token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passed {
    /// How many times they passed it.
    pub passes: u64,
    /// How long that took.
    pub time: Duration,
}

/// Passes the token for some time.
pub fn run(by: Means, time: Duration) -> Passed {
    let begin = Instant::now();
    let passes = match by {
        Means::Futex => pass(&FutexToken::default(), time),
        Means::Condvar => pass(&CondvarToken::default(), time),
    };
    Passed { passes, time: begin.elapsed() }
}

trait Token: Sync {
    /// Waits until the token's parity is `side`, calls `holding`, and passes it on.
    fn hand_on(&self, side: u32, holding: impl FnOnce());
}

/// How many times two threads passed the token.
fn pass(token: &impl Token, time: Duration) -> u64 {
    // Written and read only by who holds the token, so that both see the same number of passes.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = false;
            while !last {
                token.hand_on(1, || last = over.load(Ordering::Relaxed));
            }
        });
        let deadline = Instant::now() + time;
        let mut passes = 0;
        let mut last = false;
        while !last {
            // The clock is looked at once in eight rounds: it must not be what is measured.
            last = passes % 16 == 0 && Instant::now() >= deadline;
            token.hand_on(0, || over.store(last, Ordering::Relaxed));
            passes += 2;
        }
        passes
    })
}

#[derive(Default)]
struct FutexToken(AtomicU32);

impl Token for FutexToken {
    fn hand_on(&self, side: u32, holding: impl FnOnce()) {
        loop {
            let token = self.0.load(Ordering::Acquire);
            if token % 2 == side {
                break;
            }
            // An error is a token that moved meanwhile, or a signal: look again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, token, None);
        }
        holding();
        self.0.fetch_add(1, Ordering::Release);
        // Nobody waits where the other has not yet come so far.
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
    }
}

#[derive(Default)]
struct CondvarToken {
    token: Mutex<u32>,
    passed: Condvar,
}

impl Token for CondvarToken {
    fn hand_on(&self, side: u32, holding: impl FnOnce()) {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let mut token = self
            .passed
            .wait_while(token, |token| *token % 2 != side)
            .unwrap_or_else(PoisonError::into_inner);
        holding();
        *token = token.wrapping_add(1);
        self.passed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_moves_the_token_once() {
        let futex = FutexToken::default();
        let passes = pass(&futex, Duration::from_millis(5));
        assert_eq!(u64::from(futex.0.into_inner()), passes);
        let condvar = CondvarToken::default();
        let passes = pass(&condvar, Duration::from_millis(5));
        assert_eq!(u64::from(*condvar.token.lock().unwrap()), passes);
        assert!(passes >= 2);
    }
}
