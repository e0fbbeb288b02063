//! Fuzz test: any bytes are valid settings of the guest agent, or an error that names the file or the key.
//!
//! The module `fuzz` describes how to run it for hours.

use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::fs;

use fuzz::{Mutator, each_input};
use tandem_guest::config::{GuestConfig, RetentionSetting, Vcpus};
use tandem_linux::settings::SettingsError;

const EXAMPLES: [&str; 3] = [
    "[guest]\nperiod_ms = 100\nvcpus = \"auto\"\nretention = \"200us\"\nmeans = \"best\"\nper_thread = false\ndry_run = false\nstate_dir = \"/run/t\"\n\
     metrics_listen = \"127.0.0.1:9465\"\nmetrics_file = \"/run/m\"\n",
    "[guest.controller]\nleast_gain = 0.05\nslack = 1.5\n[guest.controller.consolidation]\ncontention = 0.1\ntolerance = 0.02\nload_factor = 1.0\n\
     granularity_factor = 1.0\n[guest.controller.retention]\nleast_idle = 0.1\nsmoothing = 0.5\nleast_work = 0.1\nmost_stolen = 0.1\nmost = 200000\n\
     round_trip = 70000\ncalm = 3\n",
    "guest = { vcpus = \"2\", retention = \"off\", means = \"yield\" }\n",
];

#[test]
fn any_bytes_are_settings_or_error() {
    let folder = fuzz::folder();
    let path = folder.path().join("guest.toml");
    let words = ["timeout", "all", "haltpoll", "101ms", "0ns", "\"\"\"", "=", "[", "{", "[guest]"];
    let mutator = Mutator::new(EXAMPLES, &words);
    let (mut used, mut refused) = (0, 0);
    each_input("settings of the agent", 1_500, 64 << 20, |random| {
        fs::write(&path, mutator.input(random)).unwrap();
        let checked = GuestConfig::read(&path).and_then(|config| {
            config.check()?;
            Ok(config)
        });
        match checked {
            Ok(config) => {
                used += 1;
                assert!((20..=2_000).contains(&config.period().as_millis()));
                assert_ne!(config.vcpus, Vcpus::Held(0));
                if let RetentionSetting::Held(time) = config.retention {
                    assert!(time.0 <= 100_000_000, "{time}");
                }
                let controller = &config.controller;
                let numbers = [
                    controller.least_gain,
                    controller.slack,
                    controller.consolidation.contention,
                    controller.consolidation.tolerance,
                    controller.retention.least_work,
                    controller.retention.most_stolen,
                ];
                assert!(numbers.iter().all(|number| number.is_finite()));
            }
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                match error {
                    SettingsError::Value { key, .. } => {
                        assert!(said.starts_with(&key) && said.len() < 2_000, "{said}");
                    }
                    _ => assert!(said.contains(path.to_str().unwrap()), "{said}"),
                }
            }
        }
    });
    println!("{used} used, {refused} refused");
}
