//! `tandem-lab bench sim` and `tandem-lab kernel`.

use std::path::Path;
use std::process::Command;

fn scenario(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Returns the standard output of a command that succeeds.
fn tandem(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-lab")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn bench_sim_reports_each_scenario() {
    let path = scenario("single-vcpu.toml");
    let vary = "vm.*.vcpus=1,2";
    let figures = json(&tandem(&["bench", "sim", &path, "--runs", "1", "--vary", vary, "--json"]));
    let vcpus = |row: usize| figures[row]["vcpus"].as_u64().unwrap();
    assert_eq!(vcpus(1), 2 * vcpus(0));
    let one = &figures[0];
    assert_eq!(one["scenario"], "single-vcpu");
    for key in
        ["events", "seconds", "events_per_second", "peak_rss_bytes", "queue_events_per_second"]
    {
        assert!(one[key].as_f64().unwrap() > 0.0, "{key}: {one}");
    }
}

/// Checks that the figures exist; their agreement needs an idle machine (research/docs/kernel-comparison.md).
#[test]
fn kernel_compares_real_and_simulated_threads() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: the comparison with a kernel needs two CPUs");
        return;
    }
    let path = scenario("../research/scenarios/kernel/two-weights.toml");
    let comparison = json(&tandem(&["kernel", &path, "--runs", "1", "--json"]));
    let roles = comparison["programs"][0]["roles"].as_array().unwrap();
    assert_eq!(roles.len(), 2);
    for role in roles {
        assert!(role["real_ns"].as_f64().unwrap() > 0.0, "{role}");
        assert!(role["simulated_ratio"].as_f64().unwrap() > 1.0, "{role}");
    }
    let costs = comparison["calibration"].as_array().unwrap();
    assert!(costs.iter().any(|cost| cost["measured"].is_u64()));
}
