//! The host daemon's settings: a TOML file, and flags that override it.
//!
//! ```toml
//! [host]
//! period_ms = 100           # accounting period, 30 … 1000
//! fair_window_s = 10        # 1 … 3600
//! placement = "keep"        # or "rebalance": may move vCPUs that are pinned to one pCPU
//!
//! [host.select]             # which VMs to act on; nothing is touched that is not selected
//! all = false
//! pids = [4711]
//! names = ["db-*"]
//! cgroups = ["/machine.slice/*"]
//!
//! [[host.weight]]           # configured weights; the default is the VM's own cgroup's weight
//! name = "db-*"
//! weight = 2.0              # 1 = the kernel's default (cpu.shares 1024, cpu.weight 100)
//! ```
//!
//! Every key has a flag of the same name. An unknown key, a value out of range or an unreadable file
//! is an error that names the file, the key and what would be right.

use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;
use tandem_linux::settings;
use tandem_linux::settings::SettingsError;
use tandem_linux::settings::check_metrics_listen;
use tandem_linux::settings::check_real;
use tandem_linux::settings::check_whole;
use tandem_policy::FlexWConfig;
use tandem_policy::Nanos;
use thiserror::Error;

use crate::discovery::DiscoveryOptions;

/// Where the journal, the lock and the status live unless told otherwise. It must survive the
/// daemon and should not survive a reboot, because cgroups do not.
pub const DEFAULT_STATE_DIR: &str = "/run/tandem";

/// Why the settings cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file or a value in it.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No VM is selected.
    #[error(
        "no VM is selected: give --select-all, --select-pid, --select-name or --select-cgroup, \
         or a [host.select] section"
    )]
    NothingSelected,
}

/// May the daemon change where pinned vCPUs run?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Leave every affinity as it is. What the pins make impossible stays unfair.
    #[default]
    Keep,
    /// Where the pins leave no fair division, move vCPUs that are pinned to a single pCPU, within
    /// the pCPUs that the VMs of their accounting group use.
    Rebalance,
}

/// Which VMs to act on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Select {
    /// All VMs.
    pub all: bool,
    /// VMs by process id.
    pub pids: Vec<u32>,
    /// VMs by name; `*`, `?` and `[…]` as in a shell.
    pub names: Vec<String>,
    /// VMs whose vCPU threads are in these cgroups or below; globs too.
    pub cgroups: Vec<String>,
}

impl Select {
    /// Whether nothing at all is selected.
    pub fn is_empty(&self) -> bool {
        !self.all && self.pids.is_empty() && self.names.is_empty() && self.cgroups.is_empty()
    }
}

/// A configured weight for the VMs that match. The first match counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRule {
    /// VM name, as a glob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// VM by process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The weight w_i relative to the kernel's default (1024 on v1, 100 on v2), 0.01 … 100.
    pub weight: f64,
}

/// The `[host]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Accounting period T in milliseconds, 30 … 1000.
    pub period_ms: u64,
    /// Fair window in seconds, 1 … 3600.
    pub fair_window_s: u64,
    /// How often to look for new VMs and vCPUs, in milliseconds, 100 … 60000.
    pub scan_ms: u64,
    /// Gain of the control law, above 0 … 1.
    pub gain: f64,
    /// Smoothing of the control law, above 0 … 1.
    pub smoothing: f64,
    /// Lag that is left alone, 0 … 0.5.
    pub dead_band: f64,
    /// Idle part of the pCPUs that still counts as used up, 0 … 0.5.
    pub idle_tolerance: f64,
    /// Largest factor between configured and real-time weight, 1 … 1000.
    pub spread: f64,
    /// May pinned vCPUs be moved?
    pub placement: Placement,
    /// Print decisions with their reasons; change nothing.
    pub dry_run: bool,
    /// Directory of journal, lock and status.
    pub state_dir: PathBuf,
    /// Serve metrics in OpenMetrics text on this loopback address.
    pub metrics_listen: Option<SocketAddr>,
    /// Write metrics in OpenMetrics text to this file, once a second.
    pub metrics_file: Option<PathBuf>,
    /// Names of vCPU threads of a VMM that is not known, with `{n}` for the vCPU's number.
    pub thread_pattern: Option<String>,
    /// QMP sockets of QEMU processes, as globs.
    pub qmp_sockets: Vec<String>,
    /// Which VMs to act on.
    pub select: Select,
    /// Configured weights.
    pub weight: Vec<WeightRule>,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        let flexw = FlexWConfig::default();
        HostConfig {
            period_ms: 100,
            fair_window_s: flexw.fair_window.0 / 1_000_000_000,
            scan_ms: 500,
            gain: flexw.gain,
            smoothing: flexw.smoothing,
            dead_band: flexw.dead_band,
            idle_tolerance: flexw.idle_tolerance,
            spread: flexw.spread,
            placement: Placement::Keep,
            dry_run: false,
            state_dir: PathBuf::from(DEFAULT_STATE_DIR),
            metrics_listen: None,
            metrics_file: None,
            thread_pattern: None,
            qmp_sockets: Vec::new(),
            select: Select::default(),
            weight: Vec::new(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    host: HostConfig,
}

impl HostConfig {
    /// Reads the `[host]` section of a TOML file. Values are checked by [`HostConfig::check`], after
    /// flags have had their say.
    pub fn read(path: &Path) -> Result<HostConfig, ConfigError> {
        let file: File = settings::read(path, |text| toml::from_str(text))?;
        Ok(file.host)
    }

    /// Checks every value's range, and that something is selected.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_whole("period_ms", self.period_ms, 30, 1000, "milliseconds")?;
        check_whole("fair_window_s", self.fair_window_s, 1, 3600, "seconds")?;
        check_whole("scan_ms", self.scan_ms, 100, 60_000, "milliseconds")?;
        check_real("gain", self.gain, f64::MIN_POSITIVE, 1.0)?;
        check_real("smoothing", self.smoothing, f64::MIN_POSITIVE, 1.0)?;
        check_real("dead_band", self.dead_band, 0.0, 0.5)?;
        check_real("idle_tolerance", self.idle_tolerance, 0.0, 0.5)?;
        check_real("spread", self.spread, 1.0, 1000.0)?;
        check_metrics_listen(self.metrics_listen, 9464)?;
        for (position, rule) in self.weight.iter().enumerate() {
            check_weight(position, rule)?;
        }
        match self.select.is_empty() {
            true => Err(ConfigError::NothingSelected),
            false => Ok(()),
        }
    }

    /// The accounting period.
    pub fn period(&self) -> Nanos {
        Nanos::from_millis(self.period_ms)
    }

    /// How to find VMs.
    pub fn discovery_options(&self) -> DiscoveryOptions {
        DiscoveryOptions {
            thread_pattern: self.thread_pattern.clone(),
            qmp_sockets: self.qmp_sockets.clone(),
            ..DiscoveryOptions::default()
        }
    }

    /// What the control law takes from these settings.
    pub fn flexw(&self) -> FlexWConfig {
        FlexWConfig {
            fair_window: Nanos::from_secs(self.fair_window_s),
            gain: self.gain,
            smoothing: self.smoothing,
            dead_band: self.dead_band,
            idle_tolerance: self.idle_tolerance,
            spread: self.spread,
        }
    }
}

fn check_weight(position: usize, rule: &WeightRule) -> Result<(), SettingsError> {
    let key = format!("weight[{position}]");
    if !(0.01..=100.0).contains(&rule.weight) {
        let expected = "0.01 … 100, where 1 is the kernel's default weight";
        return Err(SettingsError::value(&key, rule.weight, expected));
    }
    match (&rule.name, rule.pid) {
        (Some(_), None) | (None, Some(_)) => Ok(()),
        (None, None) => Err(SettingsError::value(
            &key,
            rule.weight,
            "say whose it is: name = \"…\" or pid = …",
        )),
        (Some(_), Some(_)) => Err(SettingsError::value(
            &key,
            rule.weight,
            "give either name or pid, not both",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HostConfig, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tandem.toml");
        std::fs::write(&path, text).unwrap();
        HostConfig::read(&path)
    }

    fn error(text: &str) -> String {
        match read(text) {
            Err(error) => error.to_string(),
            Ok(config) => config.check().unwrap_err().to_string(),
        }
    }

    #[test]
    fn the_example_of_the_documentation_is_read() {
        let config = read(
            "[host]\nperiod_ms = 50\nfair_window_s = 5\nplacement = \"rebalance\"\n\
             [host.select]\nnames = [\"db-*\"]\n[[host.weight]]\nname = \"db-*\"\nweight = 2.0\n",
        )
        .unwrap();
        config.check().unwrap();
        assert_eq!(config.period(), Nanos::from_millis(50));
        assert_eq!(config.placement, Placement::Rebalance);
        assert_eq!(config.weight[0].weight, 2.0);
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        assert_eq!(read("").unwrap(), HostConfig::default());
        assert_eq!(HostConfig::default().flexw(), FlexWConfig::default());
    }

    #[test]
    fn bad_files_say_where_and_what_would_be_right() {
        assert!(error("[host]\nperiodms = 1").contains("unknown field `periodms`"));
        assert!(error("[host]\nperiodms = 1").contains("line 2"));
        assert!(error("[host]\nperiodms = 1").contains("period_ms"));
        assert!(error("[host]\nperiod_ms = \"x\"").contains("line 2"));
        assert!(error("[host\n").contains("tandem.toml"));
        assert!(error("[host]\nplacement = \"move\"").contains("rebalance"));
        assert!(error("[hots]\n").contains("unknown field `hots`"));
        assert!(error("[[host.weight]]\nname = \"a\"\n").contains("weight"));
    }

    #[test]
    fn values_out_of_range_name_key_value_and_range() {
        assert_eq!(
            error("[host]\nperiod_ms = 5"),
            "period_ms = 5 is not possible: 30 … 1000 milliseconds"
        );
        assert!(error("[host]\nfair_window_s = 0").contains("1 … 3600"));
        assert!(error("[host]\nscan_ms = 1").contains("100 … 60000"));
        assert!(error("[host]\ngain = 0.0").contains("above 0 … 1"));
        assert!(error("[host]\nsmoothing = nan").contains("smoothing = NaN"));
        assert!(error("[host]\nspread = 0.5").contains("1 … 1000"));
        assert!(error("[host]\nmetrics_listen = \"0.0.0.0:1\"").contains("loopback only"));
        assert!(error("[[host.weight]]\nname = \"a\"\nweight = -1").contains("weight[0] = -1"));
        assert!(error("[[host.weight]]\nweight = 1").contains("say whose"));
    }

    #[test]
    fn nothing_selected_is_an_error_that_lists_the_ways() {
        assert!(error("").contains("--select-all"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = HostConfig::read(Path::new("/no/such.toml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such.toml"), "{error}");
    }
}
