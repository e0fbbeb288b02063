//! Any bytes are usable settings of the daemon, or an error that names the file or the key.
//!
//! Settings that pass the checks are in range: NaN, zero weights and invalid globs are refused.
//! `fuzz` explains how to continue for hours.

use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::fs;

use fuzz::{Mutator, each_input};
use tandem_host::config::{ConfigError, HostConfig, VmRule};
use tandem_host::discovery::Discovery;
use tandem_host::select::Selector;
use tandem_linux::ProcFs;
use tandem_linux::settings::SettingsError;

/// The packaged settings, mostly comments.
const PACKAGED: &str = include_str!("../../../packaging/tandem.toml");

const EXAMPLES: [&str; 4] = [
    "[host]\nperiod_ms = 50\nfair_window_s = 5\nscan_ms = 500\ngain = 0.1\nsmoothing = 0.5\ndead_band = 0.02\nidle_tolerance = 0.02\nspread = 16.0\n\
     policies = [\"fair\", \"turns\", \"apart\"]\nweight_per_vcpu = true\nturn_ms = 20\nplacement = \"rebalance\"\ndry_run = true\nstate_dir = \"/run/t\"\n\
     metrics_listen = \"127.0.0.1:9464\"\nmetrics_file = \"/run/t/m\"\nthread_pattern = \"vcpu-{n}\"\nqmp_sockets = [\"/run/*/mon.sock\"]\n\
     without_kvm = [\"4711\", \"uid:1000\", \"/vms/*\"]\n[host.select]\nall = false\npids = [1, 2]\nnames = [\"db-*\"]\ncgroups = [\"/machine.slice/*\"]\n",
    "[host.select]\nall = true\n[[host.rule]]\nname = \"db-*\"\nweight = 2.0\n[[host.rule]]\ncgroup = \"/machine.slice/*\"\nuid = 1000\nweight_per_vcpu = \
     false\npolicies = [\"configured\"]\n[[host.weight]]\npid = 7\nweight = 0.5\n",
    "host = { select = { all = true }, asymmetric = { time = true, latency = false } }\n",
    "[host.fair]\nfair_window = \"5s\"\ngain = 0.1\n[host.turns]\nturn = \"20ms\"\nperiods = 5\n[host.flexs]\nchoices = 3\n",
];

/// The packaged settings with every key uncommented.
fn uncommented() -> String {
    let line = |line: &'static str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest,
        _ => line,
    };
    PACKAGED.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Checks that validated settings are usable for the controller.
fn check_usable(config: &HostConfig) {
    let controller = config.controller();
    assert!((30_000_000..=1_000_000_000).contains(&controller.period.0));
    let flexw = controller.flexw;
    let numbers =
        [flexw.gain, flexw.smoothing, flexw.dead_band, flexw.idle_tolerance, flexw.spread];
    assert!(numbers.iter().all(|number| number.is_finite()), "{flexw:?}");
    for rule in &config.rule {
        let weight = rule.weight.unwrap_or(1.0);
        assert!((0.01..=100.0).contains(&weight), "{weight}");
    }
}

#[test]
fn arbitrary_bytes_are_settings_or_named_error() {
    let folder = fuzz::folder();
    fs::create_dir(folder.path().join("proc")).unwrap();
    let path = folder.path().join("tandem.toml");
    let words = [
        "[[host.rule]]",
        "[[host.weight]]",
        "[host.select]",
        "none",
        "turns",
        "{n}",
        "[",
        "{",
        "\"\"\"",
        "=",
        "0.0.0.0:1",
        "[::1]:1",
        "uid:4294967296",
        "1979-05-27",
    ];
    let mutator =
        Mutator::new(EXAMPLES.map(str::to_owned).into_iter().chain([uncommented()]), &words);
    let (mut used, mut refused) = (0, 0);
    each_input("settings of the daemon", 2_000, 64 << 20, |random| {
        fs::write(&path, mutator.input(random)).unwrap();
        let checked = HostConfig::read(&path).and_then(|config| {
            config.check()?;
            Selector::from_config(&config.select)?;
            Ok(config)
        });
        match checked {
            Ok(config) => {
                used += 1;
                check_usable(&config);
                let procfs = ProcFs::at(folder.path());
                // This compiles the patterns.
                if let Err(error) = Discovery::new(config.discovery_options(), procfs) {
                    assert!(error.to_string().len() < 2_000, "{error}");
                }
            }
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                match error {
                    ConfigError::Settings(SettingsError::Value { key, .. }) => {
                        assert!(said.starts_with(&key) && said.len() < 2_000, "{said}");
                        assert!(!said.chars().any(char::is_control), "{said:?}");
                    }
                    ConfigError::Settings(_) => {
                        assert!(said.contains(path.to_str().unwrap()), "{said}");
                    }
                    ConfigError::NothingSelected => {}
                }
            }
        }
    });
    println!("{used} used, {refused} refused");
}

#[test]
fn arbitrary_rule_options_are_parsed_or_refused() {
    let mutator = Mutator::new(
        ["4711", "uid:1000", "/machine.slice/*", "db-*"],
        &["*", "[", "{a,b}", "..", "cgroup:", "uid:"],
    );
    each_input("options of rules", 3_000, 64 << 20, |random| {
        let text = mutator.input(random);
        let text = String::from_utf8_lossy(&text);
        let mut rule = match VmRule::whose(&text) {
            Ok(rule) => rule,
            Err(said) => return assert!(said.contains("such as"), "{said}"),
        };
        rule.weight = Some(2.0);
        if let Err(error) = rule.check("--weight") {
            let said = error.to_string();
            assert!(said.starts_with("--weight") && said.len() < 2_000, "{said}");
        }
    });
}
