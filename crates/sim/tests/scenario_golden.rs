//! The same scenario and seed give the same bytes: every scenario of the repository against a golden file.
//!
//! `scripts/test-wheel` compares a release build with the debug build.
//!
//! A line of the file has the scenario, the events, the work of all VMs, the CPU time received, and a hash (FNV-1a, 64 bits) of the results as JSON.
//! The first figures are for reviewers of a change of the model.
//! The hash must not differ between builds and machines.
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-sim --release --test scenario_golden` rewrites the file.

use std::path::{Path, PathBuf};

use tandem_model::Nanos;
use tandem_sim::scenario::load;
use tandem_sim::{Results, Scenario, World};

/// Prefix of benchmarks of the simulator's speed, which are long and test nothing more than shorter scenarios.
const LONG: &str = "bench-";

fn scenarios() -> Vec<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| load::read(file).unwrap_or_else(|error| panic!("{error}")))
        .filter(|scenario| !scenario.name.starts_with(LONG))
        .collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn line(results: &Results) -> String {
    let json = serde_json::to_string_pretty(results).unwrap();
    let work: u64 = results.vms.iter().map(|vm| vm.work).sum();
    let received: Nanos = results.vms.iter().map(|vm| vm.received).sum();
    format!(
        "{} events={} work={work} received={} hash={:016x}",
        results.scenario,
        results.events,
        received.0,
        fnv(json.as_bytes())
    )
}

#[test]
fn every_scenario_matches_golden_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/results.txt");
    let scenarios = scenarios();
    assert!(scenarios.len() >= 20, "{}", scenarios.len());
    let lines: Vec<String> =
        scenarios.iter().map(|scenario| line(&World::new(scenario).run())).collect();
    if std::env::var_os("TANDEM_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; write it as described in the test's source", path.display())
    });
    let golden: Vec<&str> = golden.lines().collect();
    let different: Vec<String> = lines
        .iter()
        .filter(|line| !golden.contains(&line.as_str()))
        .map(|line| {
            let name = line.split(' ').next().unwrap_or_default();
            let was = golden.iter().find(|g| g.split(' ').next() == Some(name));
            format!("  is  {line}\n  was {}", was.unwrap_or(&"(not there)"))
        })
        .collect();
    assert!(
        different.is_empty() && golden.len() == lines.len(),
        "{} of {} scenarios differ (if the model change is intended, review and rewrite the \
         file):\n{}",
        different.len(),
        lines.len(),
        different.join("\n")
    );
}

#[test]
fn every_scenario_does_some_work() {
    for scenario in scenarios() {
        let results = World::new(&scenario).run();
        for vm in &results.vms {
            assert!(vm.work > 0, "{}: {} did nothing", scenario.name, vm.name);
        }
        let pcpus = results.pcpus.iter();
        let all: Nanos = pcpus.map(|pcpu| pcpu.busy + pcpu.polling + pcpu.idle).sum();
        assert_eq!(
            all.0,
            results.measured.0 * u64::from(scenario.machine.pcpus),
            "{}: pCPU time is not conserved",
            scenario.name
        );
    }
}

#[test]
fn running_in_portions_changes_nothing() {
    for scenario in scenarios().iter().filter(|s| s.duration < Nanos::from_millis(400)).take(8) {
        let whole = World::new(scenario).run();
        let mut world = World::new(scenario);
        let mut until = Nanos::ZERO;
        while !world.run_until(until) {
            until += Nanos(777_777);
        }
        assert_eq!(world.results(), whole, "{}", scenario.name);
    }
}

#[test]
fn another_seed_gives_other_results() {
    let mut scenario =
        scenarios().into_iter().find(|scenario| scenario.name == "pipeline").unwrap();
    let first = World::new(&scenario).run();
    scenario.seed += 1;
    let second = World::new(&scenario).run();
    assert_ne!(first.vms, second.vms);
}
