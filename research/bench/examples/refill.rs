//! Measures the cost of refilling a private cache on this machine, in ns per KiB.
//!
//! `cargo run --release -p tandem-bench --example refill`
//!
//! It reads one word of every line of a working set in shuffled order, warm and after reading a second buffer that evicts the set.
//! The buffer has 4 MiB (the set stays in a larger last-level cache) or 64 MiB (the set comes from memory).
//! Loads are either dependent (each yields the next address, as in lists) or independent (as in arrays).
//! The difference is the refill; figures are medians of 301 repetitions.
//! They are the sources of `refill_per_kib`, `refill_kernel_per_kib` and `refill_far_per_kib` in the simulator's table of costs.

use std::hint::black_box;
use std::time::Instant;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Words of 4 bytes in a line of 64.
const WORDS: usize = 16;

/// Lines in a KiB.
const LINES: usize = 16;

const TIMES: usize = 301;

struct WorkingSet {
    /// The first word of each line holds the index of the next one.
    words: Vec<u32>,
    order: Vec<u32>,
}

impl WorkingSet {
    fn new(kib: usize, random: &mut impl Rng) -> WorkingSet {
        let lines = kib * LINES;
        let mut order: Vec<u32> = (0..lines as u32).map(|line| line * WORDS as u32).collect();
        for at in (1..lines).rev() {
            order.swap(at, random.next_u64() as usize % (at + 1));
        }
        let mut words = vec![0; lines * WORDS];
        for (at, &line) in order.iter().enumerate() {
            words[line as usize] = order[(at + 1) % lines];
        }
        WorkingSet { words, order }
    }

    fn follow(&self) {
        let mut at = 0;
        for _ in 0..self.order.len() {
            at = self.words[at as usize];
        }
        black_box(at);
    }

    fn add(&self) {
        let sum =
            self.order.iter().fold(0_u32, |sum, &line| sum.wrapping_add(self.words[line as usize]));
        black_box(sum);
    }
}

fn push_out(other: &[u8]) {
    for _ in 0..2 {
        let sum = other.iter().step_by(64).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        black_box(sum);
    }
}

/// Additional time to read the evicted working set, in ns per KiB.
fn refill(set: &WorkingSet, other: &[u8], read: fn(&WorkingSet)) -> f64 {
    let median = |before: &dyn Fn()| {
        let mut took: Vec<u128> = (0..TIMES)
            .map(|_| {
                set.follow();
                set.add();
                before();
                let begin = Instant::now();
                read(set);
                begin.elapsed().as_nanos()
            })
            .collect();
        took.sort_unstable();
        took[TIMES / 2] as f64
    };
    let (warm, cold) = (median(&|| ()), median(&|| push_out(other)));
    (cold - warm) / (set.order.len() / LINES) as f64
}

fn main() {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    println!("ns to fetch a KiB again");
    println!(
        "working set, KiB | pushed out by, MiB | loads one after the other | loads that do not wait"
    );
    for kib in [16, 64, 256] {
        let set = WorkingSet::new(kib, &mut random);
        for mib in [4, 64] {
            let other = vec![1; mib << 20];
            let (chained, independent) =
                (refill(&set, &other, WorkingSet::follow), refill(&set, &other, WorkingSet::add));
            println!("{kib:>16} | {mib:>18} | {chained:>24.0} | {independent:>22.0}");
        }
    }
}
