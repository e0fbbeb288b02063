//! Serial phases of profiles match those measured in the real programs (`research/data/serial-phases.json`).
//!
//! One thread on one CPU runs a profile with and without its serial phase; the difference in time must be the measured share.

use std::path::Path;

use serde_json::Value;
use tandem_papers::programs::parsec_and_splash;
use tandem_sim::World;
use tandem_sim::scenario::load;

const SCENARIO: &str = r#"

[machine]
pcpus = 1
mode = "native"

[[vm]]
name = "program"
workload = "profile"
"#;

/// Returns the work of one thread in `seconds` of simulated time.
fn work(profile: &str, seconds: u32) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let workloads = folder.path().join("workloads");
    std::fs::create_dir(&workloads).unwrap();
    std::fs::write(workloads.join("profile.toml"), profile).unwrap();
    let file = folder.path().join("serial.toml");
    std::fs::write(&file, format!("duration = \"{seconds}s\"\n{SCENARIO}")).unwrap();
    let scenario = load::read(&file).unwrap_or_else(|error| panic!("{error}"));
    World::new(&scenario).run().vms[0].work as f64
}

/// Returns a profile with and without its serial phase, which starts each round: a step of one thread and a barrier.
fn with_and_without(root: &Path, name: &str) -> (String, String) {
    let text = std::fs::read_to_string(root.join(format!("workloads/{name}.toml"))).unwrap();
    let begin = "program = [{ forever = [\n";
    let (head, program) = text.split_once(begin).unwrap();
    let mut steps = program.lines();
    let (first, second) = (steps.next().unwrap(), steps.next().unwrap());
    assert!(first.contains(r#"repeat = "1 / threads""#), "{name}: {first}");
    assert!(second.contains("barrier"), "{name}: {second}");
    let rest: Vec<&str> = steps.collect();
    let without = format!("{head}{begin}{}\n", rest.join("\n"));
    (text, without)
}

#[test]
fn serial_phases_match_measurements() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let data = std::fs::read(root.join("research/data/serial-phases.json")).unwrap();
    let data: Value = serde_json::from_slice(&data).unwrap();
    let programs = data["programs"].as_array().unwrap();
    let known: Vec<&str> = parsec_and_splash().collect();
    let mut checked = 0;
    for program in programs {
        let name = program["profile"].as_str().unwrap();
        assert!(known.contains(&name), "{name}");
        let serial = program["serial"].as_f64().unwrap();
        let cpu = |key: &str| program[key].as_f64().unwrap();
        let share = cpu("outside_seconds") / cpu("cpu_seconds");
        assert!((share - serial).abs() < 0.001, "{name}: {share}, {serial}");
        if program["used"] == false {
            // Too short, except cholesky, whose tasks have no barrier.
            assert!(serial < 0.005 || name == "splash-cholesky", "{name}");
            continue;
        }
        let (with, without) = with_and_without(&root, name);
        // With more rounds, the incomplete last round has less weight.
        let seconds = if serial > 0.1 { 20 } else { 6 };
        let simulated = 1.0 - work(&with, seconds) / work(&without, seconds);
        assert!(
            (simulated - serial).abs() < 0.004 + 0.02 * serial,
            "{name}: {simulated:.4} of the time is serial, and {serial:.4} was measured"
        );
        checked += 1;
    }
    assert!(checked >= 10, "{checked}");
}
