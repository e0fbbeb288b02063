//! Any bytes give a scenario or an error that names file and line, in bounded time and memory.
//!
//! Inputs are mutated scenarios and workloads of this repository, as files, so that scenarios also load workloads; and `--set` with any key and value.
//! `scenario_fuzz` changes one text piece by piece; here the mutations are of all kinds, including arbitrary bytes.
//! See `fuzz` for long runs.

use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::{Mutator, below, each_input};
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::{LoadError, Setting, Source};

/// Memory limit for reading a scenario, whose contents are bounded (`docs/reference/scenarios.md`).
const MAX_BYTES: usize = 1 << 30;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The TOML files of a folder and its subfolders, in the order of their names.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let read = paths.into_iter().flat_map(|path| {
        if path.is_dir() {
            files(&path)
        } else {
            let text = fs::read(&path).unwrap();
            vec![(path, text)]
        }
    });
    read.filter(|(path, _)| path.extension().is_some_and(|end| end == "toml")).collect()
}

/// Checks that an error names file and line, in one readable line of limited length.
#[track_caller]
fn check_message(error: &LoadError, files: &[&Path]) {
    let message = error.to_string();
    let is_named = files.iter().any(|file| message.contains(file.to_str().unwrap()));
    assert!(is_named, "{message}");
    assert!(message.len() < 2_000, "the message has {} bytes", message.len());
    assert!(!message.chars().any(char::is_control), "{message:?}");
    if let LoadError::Wrong { place, .. } = error {
        let (_, line) = message.split_at(place.to_string().len());
        assert!(line.starts_with(": ") && line.len() > 2, "{message}");
    }
}

#[test]
fn scenario_bytes_parse_or_fail_with_place() {
    let folder = fuzz::folder();
    let workloads = files(&repository().join("workloads"));
    fs::create_dir(folder.path().join("workloads")).unwrap();
    for (path, text) in &workloads {
        let copy = folder.path().join("workloads").join(path.file_name().unwrap());
        fs::write(copy, text).unwrap();
    }
    let scenarios = files(&repository().join("scenarios"));
    // Scenarios in subfolders name workloads by path, which are missing here: these give errors.
    let mutator = Mutator::new(scenarios.iter().map(|(_, text)| text), &WORDS);
    let path = folder.path().join("s.toml");
    let (mut read, mut refused) = (0, 0);
    each_input("scenarios", 700, MAX_BYTES, |random| {
        fs::write(&path, mutator.input(random)).unwrap();
        match load::read(&path) {
            Ok(scenario) => {
                read += 1;
                assert!(!scenario.vms.is_empty() && scenario.duration.0 > 0);
            }
            Err(error) => {
                refused += 1;
                check_message(&error, &[folder.path()]);
            }
        }
    });
    println!("{read} read, {refused} refused");
}

#[test]
fn workload_bytes_parse_or_fail_with_place() {
    let folder = fuzz::folder();
    fs::create_dir(folder.path().join("workloads")).unwrap();
    let path = folder.path().join("workloads/any.toml");
    let scenario = folder.path().join("s.toml");
    let text = "duration = \"1s\"\n[machine]\npcpus = 4\n[[vm]]\nname = \"a\"\ncount = 3\nvcpus = 4\nworkload = \"any\"\n";
    fs::write(&scenario, text).unwrap();
    let examples = files(&repository().join("workloads"));
    let mutator = Mutator::new(examples.iter().map(|(_, text)| text), &WORDS);
    let (mut read, mut refused) = (0, 0);
    each_input("workloads", 1_000, MAX_BYTES, |random| {
        fs::write(&path, mutator.input(random)).unwrap();
        match load::read(&scenario) {
            Ok(scenario) => {
                read += 1;
                assert_eq!(scenario.vms.len(), 3);
            }
            Err(error) => {
                refused += 1;
                check_message(&error, &[&path, &scenario]);
            }
        }
    });
    println!("{read} read, {refused} refused");
}

#[test]
fn setting_parses_or_error_repeats_it() {
    let examples = [
        "vm.0.vcpus=8",
        "host.scheduler=cfs",
        "vm.*.pins=[\"0\", \"1-3\"]",
        "workload.w.role.0.threads=\"2 per vcpu\"",
        "machine.costs={ vm_exit = 900 }",
    ];
    let scenario = repository().join("scenarios/ticket-ple-off.toml");
    let source = Source::read(&scenario).unwrap();
    source.scenario().unwrap();
    let mutator = Mutator::new(examples, &WORDS);
    each_input("--set", 3_000, MAX_BYTES, |random| {
        let mut source = source.clone();
        for _ in 0..=below(random, 2) {
            let text = mutator.input(random);
            match Setting::parse(&String::from_utf8_lossy(&text)) {
                Ok(setting) => source.set(setting),
                Err(error) => assert!(error.to_string().starts_with("--set "), "{error}"),
            }
        }
        if let Err(error) = source.scenario() {
            assert!(matches!(error, LoadError::Wrong { .. }), "{error}");
        }
    });
}

/// Valid words of scenarios that those of this repository lack.
const WORDS: [&str; 30] = [
    "count = 65536",
    "count = 10000",
    "vcpus = 4096",
    "pcpus = 4096",
    "threads = 100000",
    "pins = \"0-8191,0-8191\"",
    "\"1000 per vcpu\"",
    "[[vm]]",
    "[[workload]]",
    "[[workload.role]]",
    "[workload.objects]",
    "[machine.costs]",
    "parties = 2",
    "barrier",
    "[random]",
    "[own]",
    "[4294967295]",
    "forever",
    "repeat = 1000000000",
    "\"pareto(1us, 0.1)\"",
    "\"normal(4000s, 4000s)\"",
    "\"uniform(0ns, 4000s)\"",
    "\"4000s\"",
    "1979-05-27T07:32:00Z",
    "'''",
    "\"\"\"",
    "=",
    "#",
    "\\U0010ffff",
    "hotplug = [{ at = \"0s\", vcpus = 1 }]",
];
