//! Shared code of the fuzzers: seeded inputs, mutations of real examples, and limits of memory and time per input.
//!
//! Each input has its own seed (PCG), so a seed means the same input on every machine.
//! By default, a fuzzer tries as many inputs as take about a second.
//!
//! | variable | effect |
//! |---|---|
//! | `TANDEM_FUZZ_SECONDS=3600` | runs for this time |
//! | `TANDEM_FUZZ_SEED=N` | starts with seed N; a failure prints this setting, to reproduce it |
//! | `TANDEM_FUZZ_SEED=N..M` | runs seeds N to M - 1, to divide the work among machines |
//!
//! An input that exceeds the limit of memory or CPU time fails like a panic.
//! Other threads and processes do not count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::time::{ClockId, clock_gettime};

/// Maximum length of an input, in bytes.
pub const MAX_LENGTH: usize = 64 << 10;

/// Maximum CPU time of an input, in a build without optimization.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Values at the limits of types, and words with a meaning to some parser.
const EDGES: [&str; 28] = [
    "0",
    "-1",
    "1",
    "255",
    "4095",
    "65536",
    "100000",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "0.0",
    "1e308",
    "1e-400",
    "nan",
    "inf",
    "-0",
    "0x7fffffffffffffff",
    "true",
    "null",
    "\"\"",
    "[]",
    "{}",
    "\\u0000",
    "\u{202e}",
    "\u{1b}[2J",
];

/// Allocator that counts the heap memory of each thread; tests run in parallel threads.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST_HELD: Cell<isize> = const { Cell::new(0) };
    /// Whether the thread generates an input; this memory does not count.
    static MAKES_INPUT: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: isize) {
    // An exiting thread has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        if !MAKES_INPUT.try_with(Cell::get).unwrap_or(true) {
            let _ = MOST_HELD.try_with(|most| most.set(most.get().max(held.get())));
        }
    });
}

// SAFETY: every call is forwarded unchanged to the system's allocator. Counting does not allocate: the counters have neither a constructor
// nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that System asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the pointer came from System with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that System asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the pointer came from System with this layout; the caller guarantees the rest.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Prints the seed of the input when it panics.
struct Input(u64);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to reproduce: TANDEM_FUZZ_SEED={}", self.0);
        }
    }
}

/// Returns the requested seeds: the first one and the end, which is exclusive.
fn seeds() -> (u64, Option<u64>) {
    let Ok(text) = std::env::var("TANDEM_FUZZ_SEED") else {
        return (0, None);
    };
    let number = |text: &str| -> u64 {
        text.trim().parse().unwrap_or_else(|_| {
            panic!("TANDEM_FUZZ_SEED={text}: write a number, or two as 0..1000")
        })
    };
    match text.split_once("..") {
        Some((first, end)) => (number(first), Some(number(end))),
        None => (number(&text), None),
    }
}

/// Returns the CPU time of this thread.
fn ran() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Returns the peak heap memory of this thread during `run`, in bytes.
pub fn most_held(run: impl FnOnce()) -> usize {
    let held = HELD.get();
    MOST_HELD.set(held);
    run();
    (MOST_HELD.get() - held).unsigned_abs()
}

/// Tries `inputs` inputs, or as many as the environment requests; each has a limit of `most_bytes` of heap memory.
pub fn each_input(what: &str, inputs: u64, most_bytes: usize, mut run: impl FnMut(&mut Pcg64)) {
    let seconds = std::env::var("TANDEM_FUZZ_SECONDS").ok();
    let length = seconds.map(|text| {
        let seconds = text.parse().ok().map(Duration::from_secs);
        seconds.unwrap_or_else(|| panic!("TANDEM_FUZZ_SECONDS={text}: write a number"))
    });
    let (first, end) = seeds();
    let begin = Instant::now();
    let (mut slowest, mut largest) = ((Duration::ZERO, first), (0, first));
    let mut seed = first;
    let goes_on = |seed: u64| match (end, length) {
        (Some(end), _) if seed >= end => false,
        (_, Some(length)) => begin.elapsed() < length,
        (Some(_), None) => true,
        (None, None) => seed < first + inputs,
    };
    while goes_on(seed) {
        let _input = Input(seed);
        let begun = ran();
        let bytes = most_held(|| run(&mut Pcg64::seed_from_u64(seed)));
        let took = ran() - begun;
        assert!(took < MAX_TIME, "{what}: an input took {took:?}");
        assert!(bytes <= most_bytes, "{what}: an input took {bytes} bytes");
        slowest = slowest.max((took, seed));
        largest = largest.max((bytes, seed));
        seed += 1;
    }
    println!(
        "{what}: {} inputs, seeds {first}..{seed}, in {:.1} s; the slowest took {:.1} ms (seed {}), the largest {} KiB (seed {})",
        seed - first,
        begin.elapsed().as_secs_f64(),
        slowest.0.as_secs_f64() * 1e3,
        slowest.1,
        largest.0 >> 10,
        largest.1,
    );
}

/// Returns a random number below `bound`; 0 if `bound` is 0.
pub fn below(random: &mut Pcg64, bound: usize) -> usize {
    (random.next_u64() % bound.max(1) as u64) as usize
}

/// Returns fewer than `most` random bytes.
pub fn bytes(random: &mut Pcg64, most: usize) -> Vec<u8> {
    let length = below(random, most);
    (0..length).map(|_| random.next_u32() as u8).collect()
}

/// Returns an empty folder that is removed on drop, in memory if `/dev/shm` exists.
pub fn folder() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

/// Generates inputs: changed examples, and sometimes random bytes.
pub struct Mutator {
    examples: Vec<Vec<u8>>,
    /// All words of the examples, and additional words.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// Makes a mutator; `words` are additional to those of the examples.
    pub fn new<E: AsRef<[u8]>>(examples: impl IntoIterator<Item = E>, words: &[&str]) -> Mutator {
        let examples: Vec<Vec<u8>> = examples.into_iter().map(|e| e.as_ref().to_vec()).collect();
        assert!(!examples.is_empty(), "nothing to change");
        let mut known: BTreeSet<Vec<u8>> = examples
            .iter()
            .flat_map(|example| words_of(example).map(move |(from, to)| example[from..to].to_vec()))
            .collect();
        known.extend(words.iter().chain(&EDGES).map(|w| w.as_bytes().to_vec()));
        Mutator { examples, words: known.into_iter().collect() }
    }

    /// Returns an example without changes.
    pub fn example(&self, random: &mut Pcg64) -> &[u8] {
        &self.examples[below(random, self.examples.len())]
    }

    /// Returns an input; its generation does not count as memory of the input.
    pub fn input(&self, random: &mut Pcg64) -> Vec<u8> {
        MAKES_INPUT.set(true);
        let mut text = self.make(random);
        text.shrink_to_fit();
        MAKES_INPUT.set(false);
        text
    }

    fn make(&self, random: &mut Pcg64) -> Vec<u8> {
        if below(random, 32) == 0 {
            return bytes(random, 2_000);
        }
        let mut text = self.example(random).to_vec();
        for _ in 0..below(random, 8) {
            self.change(random, &mut text);
            text.truncate(MAX_LENGTH);
        }
        text
    }

    fn word(&self, random: &mut Pcg64) -> &[u8] {
        &self.words[below(random, self.words.len())]
    }

    /// Makes one change such as those of disk errors, editors, other versions and attackers.
    fn change(&self, random: &mut Pcg64, text: &mut Vec<u8>) {
        let (a, b) = (place(random, text), place(random, text));
        let (from, to) = (a.min(b), a.max(b));
        match below(random, 16) {
            0 if !text.is_empty() => {
                let at = below(random, text.len());
                text[at] ^= 1 << below(random, 8);
            }
            1 => text.truncate(to),
            2 if to - from < 64 => drop(text.drain(from..to)),
            3 => {
                let byte = random.next_u32() as u8;
                let run = vec![byte; below(random, 600)];
                text.splice(from..from, run);
            }
            4 => {
                let some = bytes(random, 40);
                text.splice(from..from, some);
            }
            5 => {
                let other = self.example(random);
                let (c, d) = (place(random, other), place(random, other));
                text.splice(from..from, other[c.min(d)..c.max(d)].to_vec());
            }
            6 | 7 => change_lines(random, text),
            8 => {
                let opening = [&b"["[..], b"{", b"(", b"a.", b"[a.", b"{a=", b"[[", b"\"", b"\\"];
                let nested = opening[below(random, opening.len())].repeat(below(random, 5_000));
                text.splice(from..from, nested);
            }
            9 => {
                // Repeat a part, up to the maximum length.
                let copies = 1 << below(random, 12);
                let part = text[from..to].repeat(copies.min(MAX_LENGTH / (to - from).max(1)));
                text.splice(from..from, part);
            }
            10 => {
                let number = (random.next_u64() >> below(random, 64)).to_string();
                replace_word(random, text, number.as_bytes());
            }
            11 => {
                let word = self.word(random).to_vec();
                text.splice(from..from, word);
            }
            _ => {
                let word = self.word(random).to_vec();
                replace_word(random, text, &word);
            }
        }
    }
}

/// Returns a position between two bytes.
fn place(random: &mut Pcg64, text: &[u8]) -> usize {
    below(random, text.len() + 1)
}

/// Swaps, removes or repeats lines, or arguments of a command line.
fn change_lines(random: &mut Pcg64, text: &mut Vec<u8>) {
    let mut lines: Vec<Vec<u8>> =
        text.split_inclusive(|&byte| byte == b'\n' || byte == 0).map(Vec::from).collect();
    if lines.is_empty() {
        return;
    }
    let (one, other) = (below(random, lines.len()), below(random, lines.len()));
    match below(random, 3) {
        0 => lines.swap(one, other),
        1 => drop(lines.remove(one)),
        _ => {
            let copies = 1 << below(random, 9);
            let copy = lines[one].repeat(copies.min(MAX_LENGTH / lines[one].len().max(1)));
            lines.insert(other, copy);
        }
    }
    *text = lines.concat();
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.+".contains(&byte) || byte >= 0x80
}

/// Returns the bounds of all words.
fn words_of(text: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let begins = (0..text.len())
        .filter(move |&at| is_of_word(text[at]) && (at == 0 || !is_of_word(text[at - 1])));
    begins.map(move |from| {
        let length = text[from..].iter().take_while(|&&b| is_of_word(b)).count();
        (from, from + length)
    })
}

fn replace_word(random: &mut Pcg64, text: &mut Vec<u8>, by: &[u8]) {
    let words: Vec<(usize, usize)> = words_of(text).collect();
    if let Some(&(from, to)) = words.get(below(random, words.len())) {
        text.splice(from..to, by.iter().copied());
    }
}
