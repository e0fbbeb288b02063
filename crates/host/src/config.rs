//! The host daemon's settings: a TOML file, and flags that override it.
//!
//! Keys with unit, range and default: `docs/reference/settings.md`; an example: `packaging/tandem.toml`.
//! An unknown key, a value out of range or an unreadable file is an error that names the file, the key and the valid form.

mod rule;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use tandem_linux::branch_counters::CounterChoice;
use tandem_linux::settings;
use tandem_linux::settings::{
    Renamed, Section, SettingsError, check_metrics_file, check_metrics_listen, check_state_dir,
};
use tandem_model::{Nanos, PolicySet};
use tandem_policy::FlexWConfig;
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::flexs::FlexSConfig;
pub use tandem_policy::host::Placement;
use tandem_policy::host::{ControllerConfig, flexs, registry};
use tandem_policy::settings::{Ranged, Settings, read};
use tandem_policy::turns::TurnsConfig;

use crate::discovery::{DiscoveryOptions, check_named};
use crate::select::VmPattern;

pub use rule::{Policies, VmRule};

/// Default directory of the journal, the lock and the status.
/// It must survive the daemon, but not a reboot, because cgroups do not either.
pub const DEFAULT_STATE_DIR: &str = "/run/tandem";

/// Returns the command that reverts the changes in this state directory's journal.
pub(crate) fn restore_command(state_dir: &Path) -> String {
    if state_dir == Path::new(DEFAULT_STATE_DIR) {
        "tandem host restore".to_owned()
    } else {
        format!("tandem host restore --state-dir {}", state_dir.display())
    }
}

/// An error in the settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file or a value in it.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No VM is selected.
    #[error(
        "no VM is selected: name VMs ('db-*', 4711, '/machine.slice/*', uid:1000), give --select-all, or select VMs in the \
         section [host.select] of a settings file (--config)"
    )]
    NothingSelected,
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
    /// VMs whose process is one of these users'.
    pub uids: Vec<u32>,
    /// VMs that are not selected although they match, as a command names them: `db-*`, `4711`, `/vms/*`, `uid:1000`.
    pub exclude: Vec<String>,
}

impl Select {
    /// Returns the selection of these VMs, or of all if there is no pattern.
    pub fn of(patterns: &[VmPattern]) -> Select {
        let mut select = Select { all: patterns.is_empty(), ..Select::default() };
        for pattern in patterns {
            match pattern.clone() {
                VmPattern::Name(glob) => select.names.push(glob),
                VmPattern::Process(pid) => select.pids.push(pid),
                VmPattern::Cgroup(glob) => select.cgroups.push(glob),
                VmPattern::User(user) => select.uids.push(user),
            }
        }
        select
    }

    /// Whether no VM is selected.
    pub fn is_empty(&self) -> bool {
        !self.all
            && self.pids.is_empty()
            && self.names.is_empty()
            && self.cgroups.is_empty()
            && self.uids.is_empty()
    }

    /// Returns the error if none of `found` VMs matches; `None` if all are selected.
    pub fn none_matches(&self, found: usize) -> Option<String> {
        let quoted = |text: &String| format!("'{text}'");
        let pids = self.pids.iter().map(|pid| format!("process {pid}"));
        let users = self.uids.iter().map(|uid| format!("uid:{uid}"));
        let globs = self.names.iter().chain(&self.cgroups).map(quoted);
        let wanted: Vec<String> = globs.chain(pids).chain(users).collect();
        let is_wrong = !self.all && !wanted.is_empty();
        is_wrong.then(|| {
            let wanted = wanted.join(" or ");
            format!("0 of {found} VMs match {wanted}; 'tandem host list' shows all VMs")
        })
    }
}

/// The `[host]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Accounting period T in milliseconds, 30 … 1000.
    pub period_ms: u64,
    /// How often to look for new VMs and vCPUs, in milliseconds, 100 … 60000.
    pub scan_ms: u64,
    /// The policies that act on the selected VMs.
    pub policies: Policies,
    /// Whether a weight is that of each vCPU of a VM, not that of the VM.
    pub weight_per_vcpu: bool,
    /// Whose branch counters the policy `flexs` reads.
    pub counters: CounterChoice,
    /// May affinities be changed?
    pub placement: Placement,
    /// Print decisions with their reasons; change nothing.
    pub dry_run: bool,
    /// Directory of journal, lock and status.
    pub state_dir: PathBuf,
    /// Serve metrics in OpenMetrics text on this loopback address.
    #[serde(deserialize_with = "settings::address")]
    pub metrics_listen: Option<SocketAddr>,
    /// Write metrics in OpenMetrics text to this file, at every look for VMs.
    pub metrics_file: Option<PathBuf>,
    /// Names of vCPU threads of a VMM that is not known, with `{n}` for the vCPU's number.
    pub thread_pattern: Option<String>,
    /// QMP sockets of QEMU processes, as globs.
    pub qmp_sockets: Vec<String>,
    /// The processes whose vCPU threads count though they hold no KVM vCPU: `4711`, `uid:1000`, `/vms/*`.
    pub without_kvm: Vec<String>,
    /// Settings of the policy `fair`.
    pub fair: FlexWConfig,
    /// Settings of the policy `turns`.
    pub turns: TurnsConfig,
    /// Settings of the policy `asymmetric`.
    pub asymmetric: AsymmetricConfig,
    /// Settings of the policy `flexs`.
    #[serde(deserialize_with = "flexs_of_periods")]
    pub flexs: FlexSConfig,
    /// Which VMs to act on.
    pub select: Select,
    /// Weights and policies of single VMs.
    #[serde(alias = "weight")]
    pub rule: Vec<VmRule>,
    /// Former keys in the file.
    #[serde(skip)]
    pub former: Vec<&'static Renamed>,
}

/// Keys of policies before they had tables.
pub static FORMER_KEYS: [Renamed; 7] = [
    former("fair_window_s", &["fair.fair_window", "flexs.fair_window"], "s"),
    former("gain", &["fair.gain"], ""),
    former("smoothing", &["fair.smoothing"], ""),
    former("dead_band", &["fair.dead_band"], ""),
    former("idle_tolerance", &["fair.idle_tolerance"], ""),
    former("spread", &["fair.spread"], ""),
    former("turn_ms", &["turns.turn"], "ms"),
];

const fn former(old: &'static str, new: &'static [&'static str], unit: &'static str) -> Renamed {
    Renamed { old, new, unit }
}

/// Reads settings of the policy `flexs`; omitted keys have the defaults of a live host.
fn flexs_of_periods<'de, D: Deserializer<'de>>(table: D) -> Result<FlexSConfig, D::Error> {
    read(FlexSConfig::of_periods(), table)
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            period_ms: 100,
            scan_ms: 500,
            policies: Policies(
                registry::set(["fair", "turns", "apart"]).unwrap_or(PolicySet::NONE),
            ),
            weight_per_vcpu: false,
            counters: CounterChoice::default(),
            placement: Placement::default(),
            dry_run: false,
            state_dir: PathBuf::from(DEFAULT_STATE_DIR),
            metrics_listen: None,
            metrics_file: None,
            thread_pattern: None,
            qmp_sockets: Vec::new(),
            without_kvm: Vec::new(),
            fair: FlexWConfig::default(),
            turns: TurnsConfig::default(),
            asymmetric: AsymmetricConfig::default(),
            flexs: FlexSConfig::of_periods(),
            select: Select::default(),
            rule: Vec::new(),
            former: Vec::new(),
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    host: HostConfig,
}

impl HostConfig {
    /// Range of the accounting period, in milliseconds.
    pub const PERIODS_MS: (u64, u64) = (30, 1000);
    /// Range of the interval between scans for VMs, in milliseconds.
    pub const SCANS_MS: (u64, u64) = (100, 60_000);
    /// The section of the settings file.
    fn section(&self) -> Section<'static> {
        let own = [
            Ranged::new("period_ms", self.period_ms, HostConfig::PERIODS_MS),
            Ranged::new("scan_ms", self.scan_ms, HostConfig::SCANS_MS),
        ];
        let policies = [
            ("fair", self.fair.ranged()),
            ("turns", self.turns.ranged()),
            ("asymmetric", self.asymmetric.ranged()),
            ("flexs", self.flexs.ranged()),
        ];
        Section::new("host", &FORMER_KEYS, own, policies)
    }

    /// Reads the `[host]` section of a TOML file.
    /// [`HostConfig::check`] checks the values, after flags have overridden them.
    pub fn read(path: &Path) -> Result<HostConfig, ConfigError> {
        let (file, former): (File, _) = HostConfig::default().section().read(path)?;
        Ok(HostConfig { former, ..file.host })
    }

    /// Sets the value of a key, such as `fair.gain`; the error is the valid form.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let changed: HostConfig = self.section().set(self, key, text)?;
        if let Some(range) = changed.section().range_outside(key) {
            return Err(range);
        }
        *self = HostConfig { former: std::mem::take(&mut self.former), ..changed };
        Ok(())
    }

    /// Returns the settings as TOML that [`HostConfig::read`] reads.
    pub fn to_toml(&self) -> String {
        self.section().write(&File { host: self.clone() })
    }

    /// Checks the range of every value.
    /// A file may select no VM; then the daemon manages none until it does.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.section().check()?;
        check_state_dir(&self.state_dir)?;
        check_metrics_listen(self.metrics_listen, 9464)?;
        check_metrics_file(self.metrics_file.as_deref())?;
        for text in &self.without_kvm {
            check_named(text)
                .map_err(|error| SettingsError::value("without_kvm", text, error.why))?;
        }
        if self.select.pids.contains(&0) {
            return Err(rule::no_process("select.pids").into());
        }
        for (position, rule) in self.rule.iter().enumerate() {
            rule.check(&format!("rule[{position}]"))?;
        }
        Ok(())
    }

    /// Checks that a VM is selected.
    pub fn check_selected(&self) -> Result<(), ConfigError> {
        if self.select.is_empty() { Err(ConfigError::NothingSelected) } else { Ok(()) }
    }

    /// Returns valid settings that do less than an operator may expect.
    pub fn remarks(&self) -> Vec<String> {
        let none = self.select.is_empty().then_some(
            "no VM is selected: the daemon manages none; add names, cgroups, pids or uids to the section [host.select]",
        );
        let policies = self.controller().policies;
        let swaps = registry::find(flexs::ENTRY.name).is_ok_and(|flexs| policies.contains(flexs));
        let may_swap = self.placement == Placement::Rebalance;
        let flexs = (swaps && !may_swap).then_some(
            "policies: flexs says who spins and swaps nobody, which needs placement = \"rebalance\"",
        );
        none.into_iter().chain(flexs).map(str::to_owned).chain(self.former_keys()).collect()
    }

    /// Returns a remark on each former key of the file.
    pub fn former_keys(&self) -> impl Iterator<Item = String> {
        self.former.iter().map(ToString::to_string)
    }

    /// Returns the accounting period.
    pub fn period(&self) -> Nanos {
        Nanos::from_millis(self.period_ms)
    }

    /// Returns the options of discovery.
    pub fn discovery_options(&self) -> DiscoveryOptions {
        DiscoveryOptions {
            thread_pattern: self.thread_pattern.clone(),
            qmp_sockets: self.qmp_sockets.clone(),
            without_kvm: self.without_kvm.clone(),
            strict: true,
            ..DiscoveryOptions::default()
        }
    }

    /// Returns the settings of the controller and its policies.
    pub fn controller(&self) -> ControllerConfig {
        let rules = self.rule.iter().filter_map(|rule| rule.policies);
        ControllerConfig {
            period: self.period(),
            policies: rules.fold(self.policies.0, PolicySet::or),
            placement: self.placement,
            flexw: self.fair.clone(),
            turns: self.turns,
            asymmetric: self.asymmetric,
            flexs: self.flexs.clone(),
            dry_run: self.dry_run,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::cgroup::CgroupPath;

    use crate::fixtures::vm;
    use crate::origin::Origin;

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
    fn documented_example_is_valid() {
        let config = read(
            "[host]\nperiod_ms = 50\nplacement = \"rebalance\"\n\
             [host.fair]\nfair_window = \"5s\"\n[host.flexs]\nchoices = 3\n\
             [host.select]\nnames = [\"db-*\"]\n[[host.weight]]\nname = \"db-*\"\nweight = 2.0\n",
        )
        .unwrap();
        config.check().unwrap();
        assert_eq!(config.period(), Nanos::from_millis(50));
        assert_eq!(config.placement, Placement::Rebalance);
        assert_eq!(config.rule[0].weight, Some(2.0));
        let controller = config.controller();
        assert_eq!(controller.flexw.fair_window, Nanos::from_secs(5));
        assert_eq!(controller.flexs, FlexSConfig { choices: 3, ..FlexSConfig::of_periods() });
    }

    #[test]
    fn former_keys_are_read_with_a_remark() {
        let old = "[host]\nselect.all = true\nfair_window_s = 5\ngain = 0.1\nturn_ms = 30\n";
        let mut config = read(old).unwrap();
        let remarks = config.remarks();
        assert_eq!(remarks.len(), 3, "{remarks:?}");
        assert!(remarks[0].starts_with("fair_window_s is fair.fair_window and flexs.fair_window"));
        config.former.clear();
        let new = "[host]\nselect.all = true\nfair.fair_window = \"5s\"\nflexs.fair_window = \"5s\"\n\
                   fair.gain = 0.1\nturns.turn = \"30ms\"\n";
        assert_eq!(config, read(new).unwrap());
    }

    #[test]
    fn options_set_values_of_keys() {
        let mut config = HostConfig::default();
        config.set("turns.turn", "30ms").unwrap();
        config.set("counters", "synthetic").unwrap();
        assert_eq!(config.turns.turn, Nanos::from_millis(30));
        assert_eq!(config.counters, CounterChoice::Synthetic);
        assert_eq!(config.set("fair.gain", "7"), Err("0.001 … 1".to_owned()));
        assert!(config.set("counters", "none").unwrap_err().contains("`hardware`"));
    }

    #[test]
    fn weight_per_vcpu_applies_to_host_or_rule() {
        let config = read(
            "[host]\nweight_per_vcpu = true\nselect.all = true\n\
             [[host.rule]]\nname = \"db-*\"\nweight_per_vcpu = false\n",
        )
        .unwrap();
        config.check().unwrap();
        assert!(config.weight_per_vcpu);
        assert_eq!(config.rule[0].weight_per_vcpu, Some(false));
        assert_eq!(config.rule[0].weight, None);
    }

    #[test]
    fn policy_without_effect_is_remarked() {
        let remarks =
            |text: &str| read(&format!("[host]\nselect.all = true\n{text}")).unwrap().remarks();
        let remark = remarks("policies = [\"fair\", \"flexs\"]");
        assert_eq!(remark.len(), 1);
        assert!(remark[0].contains("needs placement = \"rebalance\""), "{}", remark[0]);
        assert!(remarks("policies = [\"flexs\"]\nplacement = \"rebalance\"").is_empty());
        assert!(remarks("").is_empty());
    }

    #[test]
    fn missing_settings_have_defaults() {
        assert_eq!(read("").unwrap(), HostConfig::default());
    }

    #[test]
    fn errors_name_place_and_valid_form() {
        assert!(error("[host]\nperiodms = 1").contains("unknown field `periodms`"));
        assert!(error("[host]\nperiodms = 1").contains("line 2"));
        assert!(error("[host]\nperiodms = 1").ends_with("did you mean `period_ms`?"));
        assert!(error("[host]\ndry_rnu = true").ends_with("did you mean `dry_run`?"));
        assert!(error("[host]\nzzz = true").contains("expected one of"));
        let list = error("[host]\nselect.names = \"db-1\"");
        assert!(list.contains("expected a list, such as ["), "{list}");
        assert!(error("[host]\nperiod_ms = \"x\"").contains("line 2"));
        assert!(error("[host]\nperiod_ms = -1").contains("expected a whole number"));
        assert!(error("[host\n").contains("tandem.toml"));
        assert!(error("[host]\nplacement = \"move\"").contains("rebalance"));
        assert!(error("[hots]\n").contains("unknown field `hots`"));
        assert!(error("[[host.weight]]\nname = \"a\"\n").contains("weight"));
    }

    #[test]
    fn deep_nesting_is_rejected_before_parsing() {
        // A parser that miscounts closing brackets would overflow its stack here.
        let closed = ["{}"; 30_000].join(", ");
        let deep = format!("a = {{ {closed}, b = {}\n", "{a=".repeat(30_000));
        assert!(error(&deep).ends_with("line 1: tables and lists may nest 100 deep at most"));
    }

    #[test]
    fn range_errors_name_key_value_and_range() {
        assert_eq!(error("[host]\nperiod_ms = 5"), "period_ms = 5 is not possible: 30 … 1000");
        assert!(error("[host]\nfair_window_s = 0").contains("100ms … 3600s"));
        assert!(error("[host]\nscan_ms = 1").contains("100 … 60000"));
        assert!(error("[host]\ngain = 0.0").contains("0.001 … 1"));
        assert!(error("[host]\nsmoothing = nan").contains("smoothing = NaN"));
        assert!(error("[host]\nspread = 0.5").contains("1 … 1000"));
        assert!(error("[host]\nmetrics_listen = \"0.0.0.0:1\"").contains("loopback only"));
        assert!(
            error("[[host.weight]]\nname = \"a\"\nweight = -1").contains("rule[0].weight = -1")
        );
        assert!(error("[host]\nmetrics_listen = \"127.0.0.1\"").contains("127.0.0.1:9464"));
        assert!(error("[host]\nstate_dir = \"\"").starts_with("state_dir ="));
        assert!(error("[host]\nselect.pids = [0]").starts_with("select.pids = 0"));
        assert!(error("[[host.weight]]\nweight = 1").contains("say whose"));
        assert!(error("[[host.weight]]\npid = 0\nweight = 1").contains("1 or more"));
        assert!(error("[[host.weight]]\nname = \"\"\nweight = 1").contains("a name"));
        let glob = error("[[host.weight]]\nname = \"[\"\nweight = 1");
        assert!(glob.starts_with("rule[0].name = [ is not possible: a glob such as"));
        let rule = "[[host.rule]]\nname = \"a\"\nweight_per_vcpu = ";
        assert!(error(&format!("{rule}2")).contains("expected a boolean"));
        assert!(
            error(&format!("{rule}true\npolicies = []")).contains("rule[0].weight_per_vcpu = true")
        );
    }

    fn origin(user: u32, cgroup: &str, is_operators: bool) -> Origin {
        Origin { user: Some(user), cgroup: Some(CgroupPath(cgroup.to_owned())), is_operators }
    }

    #[test]
    fn spoofed_names_match_no_name_only_rule() {
        let text = "[[host.rule]]\nname = \"db-*\"\nweight = 100\n";
        let is_for = |text: &str, origin: &Origin| {
            let config = read(text).unwrap();
            config.rule[0].check("rule").unwrap();
            config.rule[0].is_for(&vm(1, "db-1", 1), || origin)
        };
        let roots = origin(0, "/x", true);
        let libvirts = origin(64_055, "/machine.slice/machine-db.scope", true);
        let tenants = origin(1000, "/user.slice/user-1000.slice/session-3.scope", false);
        assert!(is_for(text, &roots) && is_for(text, &libvirts));
        assert!(!is_for(text, &tenants));
        // Together with a user or cgroup in the rule, names count.
        assert!(is_for(&format!("{text}uid = 1000\n"), &tenants));
        assert!(!is_for(&format!("{text}uid = 1001\n"), &tenants));
        let there = format!("{text}cgroup = \"/user.slice/user-1000.slice\"\n");
        assert!(is_for(&there, &tenants) && !is_for(&there, &libvirts));
        let other = there.replace("db-*", "web-*");
        assert!(!is_for(&other, &tenants));
        // A user or a process id alone is enough.
        assert!(is_for("[[host.rule]]\nuid = 1000\nweight = 2\n", &tenants));
        assert!(is_for("[[host.rule]]\npid = 100\nweight = 2\n", &tenants));
        assert!(!is_for("[[host.rule]]\npid = 101\nweight = 2\n", &roots));
        let unknown = Origin::default();
        assert!(!is_for(text, &unknown) && !is_for(&there, &unknown));
    }

    #[test]
    fn options_parse_into_rules() {
        let whose = |text| VmRule::whose(text).unwrap();
        assert_eq!(whose("4711").pid, Some(4711));
        assert_eq!(whose("uid:1000").uid, Some(1000));
        assert_eq!(whose("/vms/*").cgroup.as_deref(), Some("/vms/*"));
        assert_eq!(whose("db-*").name.as_deref(), Some("db-*"));
        let wrong = |text| VmRule::whose(text).unwrap_err();
        assert!(wrong("uid:me").contains("such as uid:1000"));
        assert!(wrong("cgroup:/vms").contains("such as /vms"));
        assert!(error("[[host.rule]]\ncgroup = \"x\"\nweight = 1").contains("rule[0].cgroup"));
        assert!(error("[host]\nwithout_kvm = [\"x\"]").contains("uid:1000"));
    }

    #[test]
    fn empty_selection_needs_a_file() {
        let config = read("[host]\ndry_run = true\n").unwrap();
        config.check().unwrap();
        assert!(config.remarks()[0].starts_with("no VM is selected"), "{:?}", config.remarks());
        let error = config.check_selected().unwrap_err().to_string();
        assert!(error.contains("--select-all") && error.contains("uid:1000"), "{error}");
        let all = read("[host]\nselect.uids = [1000]\n").unwrap();
        all.check_selected().unwrap();
    }

    #[test]
    fn missing_file_is_named() {
        let error = HostConfig::read(Path::new("/no/such.toml")).unwrap_err().to_string();
        assert!(error.contains("/no/such.toml"), "{error}");
    }
}
