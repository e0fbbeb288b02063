//! Combinations of mechanisms: scenarios of the repository under random settings run to their end, keep the invariants that debug
//! builds check, and conserve pCPU time.
//!
//! The reader refuses invalid combinations (such as more vCPUs than pCPUs without stacking), which are skipped.

use std::path::Path;

use proptest::prelude::*;
use tandem_model::Nanos;
use tandem_sim::scenario::load::{LoadError, Setting, Source};
use tandem_sim::{Scenario, World};

const SCENARIOS: [&str; 14] = [
    "lock-holder-preemption",
    "ticket-ple-off",
    "paravirtual-lock",
    "user-spinning",
    "haltpoll",
    "pipeline",
    "phases-stacked",
    "gang",
    "shootdown-ipi",
    "server",
    "heavy-tail",
    "task-queue",
    "caches",
    "build",
];

const SETTINGS: [(&str, &[&str]); 21] = [
    ("host.scheduler", &["cfs", "eevdf", "credit"]),
    ("host.placement", &["load-balancing", "pin", "no-stacking"]),
    ("host.together", &["no", "gang", "demand"]),
    ("host.cap", &["true", "false"]),
    ("host.halt_poll", &["0", "50us", "1s"]),
    ("host.apicv", &["true", "false"]),
    ("host.tick", &["1ms", "10ms"]),
    ("host.pause_loop.policy", &["off", "fixed", "per-vm", "stock", "aple"]),
    ("host.pause_loop.filter", &["true", "false"]),
    ("host.pause_loop.candidate", &["none", "stock", "hvs", "cch"]),
    ("policies.flexw", &["true", "false"]),
    ("policies.period", &["1ms", "7ms"]),
    ("machine.pcpus", &["1", "2", "3", "8"]),
    ("vm.*.idle", &["halt", "poll", "haltpoll(20us)", "haltpoll(0ns)"]),
    ("vm.*.tlb", &["ipi", "paravirtual", "hypercall"]),
    (
        "vm.*.gleaner",
        &[
            "{ control = \"paper\", period = \"2ms\" }",
            "{ control = \"ours\", period = \"2ms\" }",
            "{ control = \"agent\", period = \"2ms\" }",
        ],
    ),
    ("vm.*.per_thread", &["true", "false"]),
    ("host.fast_reactivation", &["true", "false"]),
    ("vm.*.balance", &["true", "false"]),
    ("vm.*.scheduler", &["cfs", "eevdf"]),
    ("vm.*.vcpus", &["1", "2", "5", "70"]),
];

/// A scenario with settings, or the reason of their refusal.
fn scenario(name: &str, settings: &[String]) -> Result<Scenario, LoadError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut source = Source::read(&folder.join(format!("{name}.toml"))).unwrap();
    for text in ["warmup=5ms", "duration=40ms", "vm.*.starts=0"] {
        source.set(Setting::parse(text).unwrap());
    }
    for text in settings {
        source.set(Setting::parse(text).unwrap());
    }
    source.scenario()
}

/// Ensures that enough mixtures below are valid.
#[test]
fn every_single_setting_is_valid() {
    for (key, values) in SETTINGS {
        for value in values {
            let setting = format!("{key}={value}");
            let refused: Vec<String> = SCENARIOS
                .iter()
                .filter_map(|name| scenario(name, std::slice::from_ref(&setting)).err())
                .map(|error| error.to_string())
                .collect();
            assert!(refused.len() * 2 < SCENARIOS.len(), "{setting}: {refused:#?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mixture_ends_and_conserves_time(
        which in 0..SCENARIOS.len(),
        choices in prop::collection::vec((0..SETTINGS.len(), 0usize..100), 0..7),
        seed in 0u64..1_000_000,
    ) {
        let mut settings = vec![format!("seed={seed}")];
        let mut text = String::new();
        for (setting, value) in choices {
            let (key, values) = SETTINGS[setting];
            let setting = format!("{key}={}", values[value % values.len()]);
            text = format!("{text} --set {setting}");
            settings.push(setting);
        }
        let scenario = scenario(SCENARIOS[which], &settings);
        // Refused mixtures are drawn again, and too many of them fail the test.
        prop_assume!(scenario.is_ok());
        let scenario = scenario.unwrap();
        let text = format!("{} --seed {seed}{text}", SCENARIOS[which]);
        let mut world = World::new(&scenario);
        // Run in portions, so that a stopped clock is detected by the number of events.
        let mut until = Nanos::ZERO;
        while !world.run_until(until) {
            until += Nanos(100_000);
            prop_assert!(world.events() < 20_000_000, "too many events: {text}");
        }
        if let Err(broken) = world.check_all() {
            prop_assert!(false, "{text}: {broken}");
        }
        let results = world.results();
        let pcpus = results.pcpus.iter();
        let all: Nanos = pcpus.map(|pcpu| pcpu.busy + pcpu.polling + pcpu.idle).sum();
        prop_assert_eq!(
            all.0,
            results.measured.0 * u64::from(scenario.machine.pcpus),
            "pCPU time is not conserved: {}",
            text
        );
        let received: Nanos = results.vms.iter().map(|vm| vm.received).sum();
        prop_assert!(received <= all, "{text}");
    }
}
