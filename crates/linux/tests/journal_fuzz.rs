//! Damaged or forged journals: the reader accepts or refuses them as a whole, and never panics.
//!
//! `fuzz` describes long runs and how to repeat an input.

use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use fuzz::{below, each_input};
use rand_core::Rng;
use rand_pcg::Pcg64;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::journal::{Entry, Journal, Record, Stamp};
use tandem_model::{Nice, PcpuId, Weight};
use tandem_testing::fake_host::Fake;

/// Replacements for a value.
const TOKENS: [&str; 24] = [
    "0",
    "-1",
    "1e400",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "null",
    "true",
    "\"\"",
    "\"/\"",
    "\"/../..\"",
    "\"/a/./b//c/\"",
    "\"0-8191\"",
    "\"0-4294967295\"",
    "\"7-3\"",
    "\"\\u0000\"",
    "\"\\n\"",
    "\"max max\"",
    "\"weight\"",
    "{}",
    "[]",
    "\"\\ud800\"",
    "{\"pid\":1,\"tid\":102,\"start\":102}",
    "[[[[[[[[]]]]]]]]",
];

/// A random position between two bytes.
fn place(random: &mut Pcg64, text: &[u8]) -> usize {
    below(random, text.len() + 1)
}

/// Makes one change, like a faulty disk, an editor or an attacker.
fn damage(random: &mut Pcg64, text: &mut Vec<u8>) {
    let (a, b) = (place(random, text), place(random, text));
    let (from, to) = (a.min(b), a.max(b));
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|&b| b == b'\n').map(Vec::from).collect();
    let (one, other) = (below(random, lines.len()), below(random, lines.len()));
    match below(random, 10) {
        0 if !text.is_empty() => {
            let at = below(random, text.len());
            text[at] ^= 1 << below(random, 8);
        }
        1 => text.truncate(from),
        2 if to - from < 64 => drop(text.drain(from..to)),
        3 => {
            let zeros = vec![0; below(random, 600)];
            text.splice(from..from, zeros);
        }
        4 => {
            let bytes: Vec<u8> = (0..below(random, 40)).map(|_| random.next_u32() as u8).collect();
            text.splice(from..from, bytes);
        }
        5 if !lines.is_empty() => {
            lines.swap(one, other);
            *text = lines.concat();
        }
        6 if !lines.is_empty() => {
            let copy = lines[one].clone();
            lines.insert(other, copy);
            *text = lines.concat();
        }
        7 => {
            let nested = b"[".repeat(below(random, 5_000));
            text.splice(from..from, nested);
        }
        _ => {
            // Replaces a value: the text between a colon and a comma or brace.
            let colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
            let colons: Vec<usize> = colons.map(|(at, _)| at + 1).collect();
            if let Some(&begin) = colons.get(below(random, colons.len())) {
                let is_end = |byte: &u8| [b',', b'}', b'\n'].contains(byte);
                let length = text[begin..].iter().position(is_end).unwrap_or(0);
                let token = TOKENS[below(random, TOKENS.len())];
                text.splice(begin..begin + length, token.bytes());
            }
        }
    }
}

/// A host after a killed run, and its journal with records and values of every kind.
fn after_kill(version: Version, dir: &Path) -> (Fake, Vec<u8>) {
    let _ = fs::remove_file(dir.join("journal"));
    let host = Fake::new(version);
    let opened = Actuator::open_with(host.controller(), host.threads(), dir, "boot");
    let mut actuator = opened.unwrap().0;
    let own = CgroupPath("/vms/own.scope".to_owned());
    let shared = CgroupPath("/vms/shared".to_owned());
    let group = actuator.create_group(&shared, "tandem-x").unwrap();
    for number in 0..5 {
        let thread = host.thread(number).unwrap();
        actuator.move_thread(&thread, &group).unwrap();
        for pcpu in 0..3 {
            let pcpus = [PcpuId(pcpu)].into_iter().collect();
            actuator.set_affinity(&thread, &pcpus).unwrap();
        }
        actuator.set_nice(&thread, Nice(9)).unwrap();
    }
    for weight in [300.0, 400.0, 500.0] {
        actuator.set_weight(&own, Weight::constant(weight)).unwrap();
    }
    actuator.prepare_idle(&own, Weight::constant(500.0)).unwrap();
    actuator.set_idle(&own, true).unwrap();
    actuator.abandon();
    let journal = fs::read(dir.join("journal")).unwrap();
    (host, journal)
}

/// Contents of a journal: the records, each with its written values.
fn contents(journal: &Journal<Record>) -> Vec<(Record, Vec<Record>)> {
    let records = journal.records();
    records.map(|record| (record.clone(), journal.written(&record.key()).to_vec())).collect()
}

#[test]
fn damaged_journals_parse_or_fail_whole() {
    let dir = fuzz::folder();
    let path = dir.path().join("journal");
    let journals =
        [Version::V1, Version::V2].map(|version| (version, after_kill(version, dir.path()).1));
    let (mut read, mut refused) = (0, 0);
    each_input("journals read", 4_000, 8 << 20, |random| {
        let (version, whole) = &journals[below(random, 2)];
        let mut text = whole.clone();
        for _ in 0..=below(random, 6) {
            damage(random, &mut text);
        }
        fs::write(&path, &text).unwrap();
        let open = || {
            let stamp = Stamp::new("boot".to_owned(), *version, "/fake".into());
            Journal::<Record>::open(dir.path(), stamp)
        };
        match open() {
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                assert!(said.contains(path.to_str().unwrap()), "{said}");
                assert!(said.len() < 2_000, "the error has {} bytes", said.len());
                assert!(!said.chars().any(char::is_control), "{said:?}");
                assert_eq!(fs::read(&path).unwrap(), text, "changed: {said}");
            }
            Ok(journal) => {
                read += 1;
                let seen = contents(&journal);
                drop(journal);
                assert!(seen.len() <= text.iter().filter(|&&b| b == b'\n').count());
                let keys: HashSet<_> = seen.iter().map(|(record, _)| record.key()).collect();
                assert_eq!(keys.len(), seen.len(), "one original per key");
                for (record, written) in &seen {
                    record.check().unwrap();
                    assert!(written.len() <= record.kept(), "{record}");
                }
                assert_eq!(contents(&open().unwrap()), seen, "the same when read again");
            }
        }
    });
    println!("{read} read, {refused} refused");
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn damaged_journals_restore_whole_and_idempotently() {
    let dir = fuzz::folder();
    let path = dir.path().join("journal");
    each_input("journals restored", 300, 16 << 20, |random| {
        let version = [Version::V1, Version::V2][below(random, 2)];
        let (host, mut text) = after_kill(version, dir.path());
        for _ in 0..=below(random, 3) {
            damage(random, &mut text);
        }
        fs::write(&path, &text).unwrap();
        let before = host.now();
        let restore =
            || Actuator::open_with(host.controller(), host.threads(), dir.path(), "boot").err();
        match restore() {
            Some(_) => assert_eq!(host.now(), before, "a refused journal changes nothing"),
            None => {
                // The actuator retries failures when it ends; this is another attempt.
                let after = host.now();
                assert!(restore().is_none());
                assert_eq!(host.now(), after);
            }
        }
    });
}
