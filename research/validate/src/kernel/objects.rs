//! Shared objects of threads on the real kernel: the simulator's objects, built on futexes and pipes.
//!
//! They have the fast paths that the simulator models.
//! A free mutex or semaphore, and a signal without waiters, need no system call.
//! A waiter sleeps in the kernel at once, without spinning first.
//! A queue is a pipe whose items are one page each, so that a pipe of n pages holds n items.
//! The futex algorithms follow Drepper, "Futexes Are Tricky".
//!
//! Objects that exist only in a kernel (kernel spin locks, TLB flushes, devices) are out of scope.

use std::io;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use rustix::thread::futex;

/// An item of a queue: one page, so that a pipe's capacity counts items.
pub const ITEM: usize = 4096;

fn wait(word: &AtomicU32, value: u32) {
    // The caller rechecks the word, whether it was woken, interrupted or the value had changed.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

fn wake(word: &AtomicU32, count: u32) {
    // Fails only for an unmapped address.
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

/// An object that threads share.
#[derive(Debug)]
pub enum Object {
    /// A futex mutex.
    Mutex(Mutex),
    /// A condition variable: count of signals, and number of waiters.
    Condition(AtomicU32, AtomicU32),
    /// A barrier.
    Barrier(Barrier),
    /// A semaphore.
    Semaphore(Semaphore),
    /// A queue.
    Queue(Queue),
    /// A test-and-set lock in user space.
    Spin(AtomicBool),
}

/// Free (0), locked (1), locked with possible waiters (2).
#[derive(Debug, Default)]
pub struct Mutex(AtomicU32);

impl Mutex {
    /// Locks the mutex.
    pub fn lock(&self) {
        if self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
            return;
        }
        while self.0.swap(2, SeqCst) != 0 {
            wait(&self.0, 2);
        }
    }

    /// Unlocks the mutex.
    pub fn unlock(&self) {
        if self.0.swap(0, SeqCst) == 2 {
            wake(&self.0, 1);
        }
    }
}

/// Releases the mutex, waits for a signal, and takes the mutex again.
pub fn wait_condition(signals: &AtomicU32, waiting: &AtomicU32, mutex: &Mutex) {
    waiting.fetch_add(1, SeqCst);
    let before = signals.load(SeqCst);
    mutex.unlock();
    wait(signals, before);
    waiting.fetch_sub(1, SeqCst);
    mutex.lock();
}

/// Wakes up to `count` threads that wait for a condition.
pub fn signal(signals: &AtomicU32, waiting: &AtomicU32, count: u32) {
    if waiting.load(SeqCst) > 0 {
        signals.fetch_add(1, SeqCst);
        wake(signals, count);
    }
}

/// A reusable barrier for a fixed number of threads.
#[derive(Debug)]
pub struct Barrier {
    parties: u32,
    spin: bool,
    come: AtomicU32,
    round: AtomicU32,
}

impl Barrier {
    /// Creates a barrier for `parties` threads; waiters spin or block.
    pub fn new(parties: u32, spin: bool) -> Barrier {
        Barrier { parties, spin, come: AtomicU32::new(0), round: AtomicU32::new(0) }
    }

    /// Waits until all threads have arrived.
    pub fn pass(&self) {
        let round = self.round.load(SeqCst);
        if self.come.fetch_add(1, SeqCst) + 1 == self.parties {
            self.come.store(0, SeqCst);
            self.round.fetch_add(1, SeqCst);
            if !self.spin {
                wake(&self.round, u32::MAX >> 1);
            }
            return;
        }
        while self.round.load(SeqCst) == round {
            if self.spin { std::hint::spin_loop() } else { wait(&self.round, round) }
        }
    }
}

/// A counting semaphore: units, and number of waiters.
#[derive(Debug)]
pub struct Semaphore(AtomicU32, AtomicU32);

impl Semaphore {
    /// Creates a semaphore with `units` units.
    pub fn new(units: u32) -> Semaphore {
        Semaphore(AtomicU32::new(units), AtomicU32::new(0))
    }

    /// Takes a unit.
    pub fn acquire(&self) {
        let take = |units: u32| units.checked_sub(1);
        while self.0.fetch_update(SeqCst, SeqCst, take).is_err() {
            self.1.fetch_add(1, SeqCst);
            wait(&self.0, 0);
            self.1.fetch_sub(1, SeqCst);
        }
    }

    /// Releases a unit.
    pub fn release(&self) {
        self.0.fetch_add(1, SeqCst);
        if self.1.load(SeqCst) > 0 {
            wake(&self.0, 1);
        }
    }
}

/// A bounded queue.
#[derive(Debug)]
pub struct Queue(PipeReader, PipeWriter);

impl Queue {
    /// Creates a queue for `capacity` items.
    pub fn new(capacity: u32) -> io::Result<Queue> {
        let (reader, writer) = io::pipe()?;
        let bytes = libc::c_int::try_from(capacity as usize * ITEM).unwrap_or(libc::c_int::MAX);
        // SAFETY: fcntl with an integer argument on a descriptor that `writer` keeps open; it accesses no memory of this process.
        let given = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
        match given {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(Queue(reader, writer)),
        }
    }

    /// Puts an item into the queue; waits while it is full.
    pub fn put(&self) -> io::Result<()> {
        (&self.1).write_all(&[0; ITEM])
    }

    /// Takes an item from the queue; waits while it is empty.
    pub fn get(&self) -> io::Result<()> {
        (&self.0).read_exact(&mut [0; ITEM])
    }
}
