//! Settings of the agent: a `[guest]` section in TOML, overridden by flags and checked before any change.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_linux::settings;
use tandem_linux::settings::{
    Renamed, Section, SettingsError, check_metrics_file, check_metrics_listen, check_state_dir,
};
use tandem_model::Nanos;
use tandem_policy::gleaner::delay::MAX_DELAY;
use tandem_policy::gleaner::retention::MAX_RETENTION;
use tandem_policy::gleaner::{ControllerConfig, DelayConfig};
use tandem_policy::settings::{Ranged, Settings};

use crate::retention::Means;

/// Default directory of the agent's journal, lock and status.
pub const DEFAULT_STATE_DIR: &str = "/run/tandem-guest";

/// Number of vCPUs that the workload may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Vcpus {
    /// As the controller decides.
    #[default]
    Auto,
    /// All vCPUs.
    All,
    /// A fixed number.
    Held(u32),
}

/// Retention: for how long an idle vCPU is kept awake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RetentionSetting {
    /// As the controller decides.
    #[default]
    Auto,
    /// A fixed time; zero disables retention.
    Held(Nanos),
}

impl FromStr for Vcpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Vcpus, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Vcpus::Auto),
            ("all", _) => Ok(Vcpus::All),
            (_, Ok(number)) if number > 0 => Ok(Vcpus::Held(number)),
            _ => Err(format!("'{text}' is no number of vCPUs; write auto, all, or 1, 2, …")),
        }
    }
}

/// Parses the bound of delayed scheduling: `off` or a time.
pub fn delay_bound(text: &str) -> Result<Nanos, String> {
    match (text, text.parse()) {
        ("off", _) => Ok(Nanos::ZERO),
        (_, Ok(time)) if time <= MAX_DELAY => Ok(time),
        _ => Err(format!("'{text}' is no delay; write off, or up to 20ms, such as 500us")),
    }
}

impl fmt::Display for Vcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vcpus::Auto => f.write_str("auto"),
            Vcpus::All => f.write_str("all"),
            Vcpus::Held(number) => number.fmt(f),
        }
    }
}

impl FromStr for RetentionSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<RetentionSetting, String> {
        match text {
            "auto" => return Ok(RetentionSetting::Auto),
            "off" => return Ok(RetentionSetting::Held(Nanos::ZERO)),
            _ => {}
        }
        match text.parse() {
            Ok(time) if time <= MAX_RETENTION => Ok(RetentionSetting::Held(time)),
            _ => Err(format!(
                "'{text}' is no retention; write auto, off, or up to 100ms, such as 200us"
            )),
        }
    }
}

impl fmt::Display for RetentionSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RetentionSetting::Auto => f.write_str("auto"),
            RetentionSetting::Held(Nanos::ZERO) => f.write_str("off"),
            RetentionSetting::Held(time) => f.write_str(&time.in_whole_units()),
        }
    }
}

impl TryFrom<String> for Vcpus {
    type Error = String;

    fn try_from(text: String) -> Result<Vcpus, String> {
        text.parse()
    }
}

impl TryFrom<String> for RetentionSetting {
    type Error = String;

    fn try_from(text: String) -> Result<RetentionSetting, String> {
        text.parse()
    }
}

impl From<Vcpus> for String {
    fn from(vcpus: Vcpus) -> String {
        vcpus.to_string()
    }
}

impl From<RetentionSetting> for String {
    fn from(retention: RetentionSetting) -> String {
        retention.to_string()
    }
}

/// Settings of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestConfig {
    /// Length of a period, 20 … 2000 ms. Default 100. Shorter reacts sooner, and measures less well.
    pub period_ms: u64,
    /// How many vCPUs the workload may use: "auto", "all", or a number.
    pub vcpus: Vcpus,
    /// Retention, for how long an idle vCPU is kept awake: "auto", "off", or a time such as "200us".
    pub retention: RetentionSetting,
    /// The means of retention: "best", "haltpoll" or "yield".
    pub means: Means,
    /// Each thread on a vCPU of its own, in turn. Default false. For VMs with far more vCPUs than the host has pCPUs.
    pub per_thread: bool,
    /// Decide and say so, change nothing.
    pub dry_run: bool,
    /// Directory of journal, lock and status.
    pub state_dir: PathBuf,
    /// Serve metrics on this loopback address.
    #[serde(deserialize_with = "settings::address")]
    pub metrics_listen: Option<SocketAddr>,
    /// Write metrics to this file.
    pub metrics_file: Option<PathBuf>,
    /// Tunables of the controller.
    pub controller: ControllerConfig,
    /// Delayed scheduling on a single vCPU: the bound of the delay, and its tunables.
    pub delay: DelayConfig,
}

/// Former names of keys.
static FORMER_KEYS: [Renamed; 1] = [Renamed {
    old: "controller.retention.timeout",
    new: &["controller.retention.round_trip"],
    unit: "",
}];

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    guest: GuestConfig,
}

impl Default for GuestConfig {
    fn default() -> GuestConfig {
        GuestConfig {
            period_ms: 100,
            vcpus: Vcpus::Auto,
            retention: RetentionSetting::Auto,
            means: Means::Best,
            per_thread: false,
            dry_run: false,
            state_dir: PathBuf::from(DEFAULT_STATE_DIR),
            metrics_listen: None,
            metrics_file: None,
            controller: ControllerConfig::default(),
            delay: DelayConfig::default(),
        }
    }
}

impl GuestConfig {
    /// Reads the `[guest]` section of a TOML file; omitted keys keep the agent's defaults.
    /// [`GuestConfig::check`] checks the values after flags are applied.
    pub fn read(path: &Path) -> Result<GuestConfig, SettingsError> {
        let (file, _): (File, _) = GuestConfig::default().section().read(path)?;
        Ok(file.guest)
    }

    /// Returns the settings as TOML for [`GuestConfig::read`].
    pub fn to_toml(&self) -> String {
        self.section().write(&File { guest: self.clone() })
    }

    /// The section of the settings file.
    fn section(&self) -> Section<'static> {
        let own = [Ranged::new("period_ms", self.period_ms, (20, 2000))];
        let tables = [("controller", self.controller.ranged()), ("delay", self.delay.ranged())];
        Section::new("guest", &FORMER_KEYS, own, tables)
    }

    /// Checks the range of every value.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.section().check()?;
        check_state_dir(&self.state_dir)?;
        check_metrics_listen(self.metrics_listen, 9465)?;
        check_metrics_file(self.metrics_file.as_deref())?;
        if self.per_thread && self.vcpus != Vcpus::Auto && self.vcpus != Vcpus::All {
            let expected = "with per_thread, threads spread over all vCPUs; omit vcpus";
            return Err(SettingsError::value("vcpus", self.vcpus, expected));
        }
        Ok(())
    }

    /// Length of a period.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GuestConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("guest.toml");
        std::fs::write(&path, text).unwrap();
        let config = GuestConfig::read(&path).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn omitted_keys_keep_defaults() {
        let config = read(
            "[guest]\nvcpus = '2'\nretention = '200us'\nmeans = 'yield'\n\
             [guest.controller.retention]\nleast_work = 0.1\n",
        )
        .unwrap();
        assert_eq!(config.vcpus, Vcpus::Held(2));
        assert_eq!(config.retention, RetentionSetting::Held(Nanos(200_000)));
        assert_eq!(config.means, Means::Yield);
        assert_eq!(config.controller.retention.least_work, 0.1);
        let default = GuestConfig::default().controller;
        assert_eq!(config.controller.retention.calm, default.retention.calm);
        assert_eq!(config.controller.consolidation, default.consolidation);
        assert_eq!(read("").unwrap(), GuestConfig::default());
    }

    #[test]
    fn old_key_name_is_accepted() {
        let of = |keys: &str| read(&format!("[guest.controller.retention]\n{keys}"));
        let config = of("timeout = 70000").unwrap();
        assert_eq!(config.controller.retention.round_trip, Nanos(70_000));
        assert_eq!(config, of("round_trip = 70000").unwrap());
        let error = of("timeout = 70000\nround_trip = 80000").unwrap_err();
        assert!(error.contains("omit controller.retention.timeout"), "{error}");
    }

    #[test]
    fn errors_state_valid_values() {
        let error = |text: &str| read(text).unwrap_err();
        assert!(error("[guest]\nvcpus = '0'").contains("write auto, all, or 1"));
        assert!(error("[guest]\nretention = '2 hours'").contains("such as 200us"));
        assert!(error("[guest]\nretention = '101ms'").contains("up to 100ms"));
        assert!(error("[guest]\nperiod_ms = 5").contains("20 … 2000"));
        let unknown = error("[guest]\nvcpus = 'all'\nperiod_m = 5");
        assert!(
            unknown.contains("line 3") && unknown.ends_with("did you mean `period_ms`?"),
            "{unknown}"
        );
        assert!(error("[gest]\nvcpus = 'all'").contains("did you mean `guest`?"));
        assert!(error("[guest]\nmetrics_listen = '10.0.0.1:80'").contains("loopback"));
        assert!(error("[guest.delay]\nbound = 30000000").ends_with("0ns … 20ms"));
        let of_type = error("[guest.controller.retention]\nround_trip = 'soon'");
        assert!(
            of_type.contains("line 2") && of_type.ends_with("such as \"4ms\", 1ns … 1s"),
            "{of_type}"
        );
        assert!(error("[guest.delay]\ntolerance = 2.0").contains("delay.tolerance"));
        assert!(error("[guest.delay]\njudged_over = 0").contains("1 … 1000"));
        assert!(error("[guest.delay]\nmost_blocks = 0").contains("1 … 100"));
        assert!(error("[guest]\nper_thread = true\nvcpus = '1'").contains("per_thread"));
        assert!(
            error("[guest.controller.retention]\nmost_stolen = 2.0").contains("most_stolen = 2")
        );
    }

    #[test]
    fn delay_bound_is_off_or_time() {
        assert_eq!(delay_bound("off"), Ok(Nanos::ZERO));
        assert_eq!(delay_bound("500us"), Ok(Nanos(500_000)));
        for text in ["on", "21ms", "5", ""] {
            assert!(delay_bound(text).unwrap_err().contains("write off"), "{text}");
        }
        let config = read("[guest.delay]\nbound = '300us'\n").unwrap();
        assert_eq!(config.delay.bound, Nanos(300_000));
        assert_eq!(config.delay.rest, GuestConfig::default().delay.rest);
    }

    #[test]
    fn settings_round_trip_through_display() {
        for text in ["auto", "all", "3"] {
            assert_eq!(text.parse::<Vcpus>().unwrap().to_string(), text);
        }
        for text in ["auto", "off", "200us", "1ms"] {
            let retention: RetentionSetting = text.parse().unwrap();
            assert_eq!(retention.to_string().parse(), Ok(retention));
        }
    }
}
