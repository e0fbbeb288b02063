//! Observations and decisions of the controller in a simulation, as a file: `crates/host/tests/golden/decisions.json`.
//!
//! The live path replays the observations and must make the same decisions (`crates/host/tests/recorded.rs`).
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-sim --test it recorded` rewrites the file.

use std::path::Path;

use tandem_model::{Decision, Nanos};
use tandem_policy::host::{HostObservation, Placement};
use tandem_sim::World;
use tandem_sim::scenario::load::{Setting, Source};

/// Number of recorded observations.
const MAX_OBSERVATIONS: usize = 40;

#[test]
fn recorded_decisions_match_simulation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut source = Source::read(&root.join("scenarios/policy-fair.toml")).unwrap();
    // The live path replays them on a cgroup v1 host.
    source.set(Setting::parse("policies.weights=v1").unwrap());
    let scenario = source.scenario().unwrap();
    assert_eq!(scenario.policies.host.controller.placement, Placement::Rebalance);
    let mut world = World::new(&scenario);
    world.record_decisions();
    world.run_until(Nanos::from_secs(6));
    let recorded: Vec<(HostObservation, Vec<Decision>)> = world
        .take_decisions()
        .into_iter()
        .take(MAX_OBSERVATIONS)
        .map(|(observation, round)| (observation, round.decisions))
        .collect();
    assert_eq!(recorded.len(), MAX_OBSERVATIONS);
    let text = serde_json::to_string(&recorded).unwrap() + "\n";
    let path = root.join("crates/host/tests/golden/decisions.json");
    if std::env::var_os("TANDEM_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(
        golden == text,
        "the simulation's decisions have changed: review, and rewrite the file"
    );
}
