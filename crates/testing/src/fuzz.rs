//! What the fuzzers share: inputs by seed, mutations of real examples, and what reading one may cost.
//!
//! Each input has a seed of its own (PCG), so the same number is the same input everywhere. Without being asked for more, a fuzzer tries as many as
//! take about a second.
//!
//! | variable | what it says |
//! |---|---|
//! | `TANDEM_FUZZ_SECONDS=3600` | goes on for so long |
//! | `TANDEM_FUZZ_SEED=N` | begins with seed N; a failure prints the line that brings it back |
//! | `TANDEM_FUZZ_SEED=N..M` | these seeds, M left out: so several machines share the work |
//!
//! An input that takes more memory, or more time of a pCPU, than its reader may take fails as a panic does. What other threads and processes do counts
//! for neither.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::time::{ClockId, clock_gettime};

/// The longest input, in bytes.
pub const LONGEST: usize = 64 << 10;

/// The most time of a pCPU that an input may take, in a build without optimization.
const MOST_TIME: Duration = Duration::from_secs(5);

/// Values at the edges of types, and words that mean something to some reader.
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

/// Counts what a thread has on the heap. Threads count for themselves, since tests run side by side.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST_HELD: Cell<isize> = const { Cell::new(0) };
    /// Whether the thread makes an input, which is not the reader's.
    static MAKES_INPUT: Cell<bool> = const { Cell::new(false) };
}

fn count(bytes: isize) {
    // A thread that is going has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        if !MAKES_INPUT.try_with(Cell::get).unwrap_or(true) {
            let _ = MOST_HELD.try_with(|most| most.set(most.get().max(held.get())));
        }
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator. Counting allocates nothing: the counters need neither a constructor nor
// a destructor.
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
        // SAFETY: the pointer came from System with this layout; the rest is the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Says which input it was that failed.
struct Input(u64);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: TANDEM_FUZZ_SEED={}", self.0);
        }
    }
}

/// The seeds that were asked for: the first, and the one at which to end.
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

/// Time that this thread ran.
fn ran() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The most memory that this thread held at a time for it, in bytes.
pub fn most_held(run: impl FnOnce()) -> usize {
    let held = HELD.get();
    MOST_HELD.set(held);
    run();
    (MOST_HELD.get() - held).unsigned_abs()
}

/// Tries inputs: so many, or as the environment says. Each may hold `most_bytes` of memory at a time.
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
        assert!(took < MOST_TIME, "{what}: an input took {took:?}");
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

/// A number below `bound`; 0 if that is 0.
pub fn below(random: &mut Pcg64, bound: usize) -> usize {
    (random.next_u64() % bound.max(1) as u64) as usize
}

/// Any bytes, fewer than `most`.
pub fn bytes(random: &mut Pcg64, most: usize) -> Vec<u8> {
    let length = below(random, most);
    (0..length).map(|_| random.next_u32() as u8).collect()
}

/// An empty folder that goes when it is dropped, in memory where there is such a place.
pub fn folder() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    }
    .expect("a temporary folder")
}

/// Makes inputs of examples: these with changes, and now and then bytes without any.
pub struct Mutator {
    examples: Vec<Vec<u8>>,
    /// All words of the examples, and more of them.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// `words` are those that the examples do not have.
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

    /// An example as it is.
    pub fn example(&self, random: &mut Pcg64) -> &[u8] {
        &self.examples[below(random, self.examples.len())]
    }

    /// An input. What it takes to make it does not count.
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
            text.truncate(LONGEST);
        }
        text
    }

    fn word(&self, random: &mut Pcg64) -> &[u8] {
        &self.words[below(random, self.words.len())]
    }

    /// One change, as disks, editors, other versions and attackers make them.
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
                // Longer and longer, up to what is cut off.
                let copies = 1 << below(random, 12);
                let part = text[from..to].repeat(copies.min(LONGEST / (to - from).max(1)));
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

/// A place between two bytes of it.
fn place(random: &mut Pcg64, text: &[u8]) -> usize {
    below(random, text.len() + 1)
}

/// Lines, or arguments of a command line, change places or come again, once or many times.
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
            let copy = lines[one].repeat(copies.min(LONGEST / lines[one].len().max(1)));
            lines.insert(other, copy);
        }
    }
    *text = lines.concat();
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.+".contains(&byte) || byte >= 0x80
}

/// Where words begin and end.
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
