//! Two threads pass a token back and forth.
//!
//! It is the purest wake-up-bound program: one thread runs while the other is blocked, so an idle vCPU pays for a halt and a wake-up at every pass.
//! The token is a number; its parity tells which thread holds it.
//! A thread waits with a futex, or with `Mutex` and `Condvar` as most programs do.
//! One unit of work is one pass.
//!
//! `tandem-lab bench guest-token` runs it as a program of the set, and prints `passes: N` and `seconds: S` by its own clock.
//! It does not choose vCPUs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// Primitive with which a thread waits for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// futex(2).
    Futex,
    /// `std::sync::Condvar`.
    Condvar,
}

impl Means {
    /// Name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Means::Futex => "futex",
            Means::Condvar => "condvar",
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passed {
    /// Number of passes.
    pub passes: u64,
    /// Time of the run.
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

/// Returns the number of passes by two threads.
fn pass(token: &impl Token, time: Duration) -> u64 {
    // Only the holder of the token accesses it, so both threads end after the same pass.
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
            // Read the clock only every eighth round, to limit its cost.
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
            // Fails if the token has moved, or on a signal: check again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, token, None);
        }
        holding();
        self.0.fetch_add(1, Ordering::Release);
        // The other thread may not wait yet.
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
    fn each_pass_moves_the_token_once() {
        let futex = FutexToken::default();
        let passes = pass(&futex, Duration::from_millis(5));
        assert_eq!(u64::from(futex.0.into_inner()), passes);
        let condvar = CondvarToken::default();
        let passes = pass(&condvar, Duration::from_millis(5));
        assert_eq!(u64::from(*condvar.token.lock().unwrap()), passes);
        assert!(passes >= 2);
    }
}
