//! The hog of Linux 6.13 in the model: a VM with two vCPUs on each of two pCPUs that blocks all the time.
//!
//! The figures in the decision record are simulated, so every machine reproduces them exactly.

use std::path::{Path, PathBuf};

use tandem_sim::World;
use tandem_sim::scenario::load::{Setting, Source};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pCPUs that each VM of `scenarios/reweight-hog.toml` received, to three decimals.
fn received(settings: &[&str]) -> Vec<f64> {
    let mut source = Source::read(&root().join("scenarios/reweight-hog.toml")).unwrap();
    for setting in settings {
        source.set(Setting::parse(setting).unwrap());
    }
    let results = World::new(&source.scenario().unwrap()).run();
    let seconds = results.measured.as_secs_f64();
    let share = |vm: &tandem_sim::results::VmResults| vm.received.as_secs_f64() / seconds;
    let digits = |share: f64| (share * 1000.0).round() / 1000.0;
    results.vms.iter().map(|vm| digits(share(vm))).collect()
}

const PLACED: &str = "host.eevdf.reweight=\"6.13\"";
const KEPT: &str = "host.eevdf.reweight=\"reverted\"";

#[test]
fn hog_needs_inflated_lag() {
    let (placed, kept) = (received(&[PLACED]), received(&[KEPT]));
    assert!(placed[0] > 1.5 && placed[1] < 0.2 && placed[2] < 0.3, "{placed:?}");
    assert!(kept[0] < 0.7 && kept[1] > 0.4 && kept[2] > 0.7, "{kept:?}");
}

#[test]
fn hog_needs_two_vcpus_per_pcpu() {
    let one_each = received(&[PLACED, "vm.barrier.vcpus=2"]);
    assert!(one_each[0] < 0.7 && one_each[1] > 0.4, "{one_each:?}");
}

#[test]
fn fair_policy_limits_hog_to_a_fifth() {
    for share in received(&[PLACED, "policies.fair=true"]) {
        assert!((share - 2.0 / 3.0).abs() < 0.145, "{share}");
    }
}

#[test]
fn decision_figures_match_scenario() {
    let text = std::fs::read_to_string(root().join("research/data/decisions.json")).unwrap();
    let data: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = data["016"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let settings = row["settings"].as_array().unwrap();
        let settings: Vec<&str> = settings.iter().filter_map(|set| set.as_str()).collect();
        let kept: Vec<f64> =
            ["barrier", "burn", "shootdown"].iter().filter_map(|vm| row[vm].as_f64()).collect();
        assert_eq!(received(&settings), kept, "{settings:?}");
    }
}
