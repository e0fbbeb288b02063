//! What the controller saw and decided in a simulation, as a file: `crates/host/tests/golden/decisions.json`. The live path is
//! fed with it and must decide the same (`crates/host/tests/recorded.rs`).
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-sim --test recorded` writes it anew.

use std::path::Path;

use tandem_model::{Decision, Nanos};
use tandem_policy::host::{HostObservation, Placement};
use tandem_sim::World;
use tandem_sim::scenario::load::{Setting, Source};

/// So many observations are recorded.
const MOST: usize = 40;

#[test]
fn the_recorded_sequence_is_what_the_simulation_gives() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut source = Source::read(&root.join("scenarios/policy-fair.toml")).unwrap();
    // What the live path is played on has the knob of cgroup v1.
    source.set(Setting::parse("policies.weights=v1").unwrap());
    let scenario = source.scenario().unwrap();
    assert_eq!(scenario.policies.host.controller.placement, Placement::Rebalance);
    let mut world = World::new(&scenario);
    world.record_decisions();
    world.run_until(Nanos::from_secs(6));
    let recorded: Vec<(HostObservation, Vec<Decision>)> = world
        .take_decisions()
        .into_iter()
        .take(MOST)
        .map(|(observation, round)| (observation, round.decisions))
        .collect();
    assert_eq!(recorded.len(), MOST);
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
        "the simulation decides otherwise now: review, and write the file anew"
    );
}
