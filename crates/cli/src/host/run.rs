//! `tandem host run`: from arguments to checked settings, and the daemon.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tandem_command::console;
use tandem_command::number::not_possible;
use tandem_host::config::{HostConfig, Placement, Policies, Select, VmRule};
use tandem_host::daemon::{Daemon, Reload};
use tandem_host::select::VmPattern;
use tandem_linux::settings::{SettingsError, parse_address};
use tandem_model::{PolicySet, length};
use tracing::{debug, warn};

use super::expert::{ExpertArgs, hint};
use super::look::{FindArgs, OUTPUT, SELECTION, parse_vm};
use super::myself;
use crate::live::policy_names;
use crate::placement::PlacementArg;

const POLICIES: &str = "Policies";
const SAFETY: &str = "Safety";

/// `tandem host run`
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// VMs to manage: a name or glob ('db-*', of root's VMs and in /machine.slice), a process id (4711), a cgroup ('/machine.slice/*') or a user
    /// (uid:1000); they replace the selection of the settings file
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// Manage all VMs
    #[arg(long, help_heading = SELECTION)]
    select_all: bool,
    /// Do not manage these VMs, also if they match; may be repeated
    #[arg(long, value_name = "VM", value_parser = parse_vm, help_heading = SELECTION)]
    exclude: Vec<VmPattern>,
    #[command(flatten)]
    find: FindArgs,
    /// Settings file (TOML); options override it
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    config: Option<PathBuf>,
    /// Weight of the VMs with this name (glob), process, cgroup or user: 'db-*=2'. 1 is the kernel's default; a VM without a rule keeps the
    /// weight of its own cgroup
    #[arg(long, value_name = "VM=WEIGHT", value_parser = weight_rule, help_heading = POLICIES)]
    weight: Vec<VmRule>,
    /// Apply the weight to each vCPU: a VM of 4 vCPUs and weight 2 has weight 8
    #[arg(long, help_heading = POLICIES)]
    weight_per_vcpu: bool,
    /// Policies of the selected VMs: fair (weights follow the lag), turns (co-scheduling of VMs that never sleep), apart (a cgroup per vCPU for
    /// VMs with more vCPUs than pCPUs that sleep at times), asymmetric (a VM's time goes to the vCPUs that need it), flexs (a spinning vCPU swaps
    /// pCPUs with a waiting sibling: needs a PMU and --placement rebalance), configured (configured weights, no adjustment) or none [default:
    /// fair,turns,apart]
    #[arg(long, value_name = "NAME,…", value_parser = policy_names, help_heading = POLICIES)]
    policies: Option<PolicySet>,
    /// Other policies for some VMs: 'db-*=configured'; join several with +; none leaves the VM as it is
    #[arg(long, value_name = "VM=POLICY", value_parser = policies_rule, help_heading = POLICIES)]
    vm_policies: Vec<VmRule>,
    /// Affinities that the daemon may change [default: turns]
    #[arg(long, value_enum, help_heading = POLICIES)]
    placement: Option<PlacementArg>,
    #[command(flatten)]
    expert: ExpertArgs,
    /// Print every decision with its reason, change nothing
    #[arg(long, help_heading = SAFETY)]
    dry_run: bool,
    /// Stop after this time, such as 30s or 5m, and revert all changes [default: run until SIGTERM or SIGINT]
    #[arg(long, value_name = "TIME", value_parser = length::length, help_heading = SAFETY)]
    duration: Option<Duration>,
    /// Check options and settings, print the resulting settings and exit: status 0, or 2 if one is invalid. Does not look for processes and
    /// cgroups
    #[arg(long, help_heading = SAFETY)]
    check_config: bool,
    /// Directory of journal, lock, status and control socket [default: /run/tandem]
    #[arg(long, value_name = "DIR", help_heading = SAFETY)]
    state_dir: Option<PathBuf>,
    /// Serve metrics (OpenMetrics) on this loopback address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address, help_heading = OUTPUT)]
    metrics_listen: Option<SocketAddr>,
    /// Write metrics (OpenMetrics) to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    metrics_file: Option<PathBuf>,
    /// Print 'ready' on standard output when the daemon acts
    #[arg(long, help_heading = OUTPUT)]
    print_ready: bool,
}

impl RunArgs {
    /// Returns the selection of the command line, if there is one.
    fn selection(&self) -> Option<Select> {
        if self.select_all {
            Some(Select::of(&[]))
        } else {
            (!self.vms.is_empty()).then(|| Select::of(&self.vms))
        }
    }

    /// Returns the settings of the file, overridden by options, without checks, and the expert options with their keys.
    fn settings(self) -> anyhow::Result<(HostConfig, Vec<(&'static str, String)>)> {
        let mut config = match &self.config {
            Some(path) => HostConfig::read(path)?,
            None => HostConfig::default(),
        };
        fn set<T>(slot: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *slot = given;
            }
        }
        if let Some(select) = self.selection() {
            let exclude = std::mem::take(&mut config.select.exclude);
            config.select = Select { exclude, ..select };
        }
        config.select.exclude.extend(self.exclude.iter().map(ToString::to_string));
        set(&mut config.policies, self.policies.map(Policies));
        set(&mut config.state_dir, self.state_dir);
        set(&mut config.placement, self.placement.map(Placement::from));
        let keys = self.expert.apply(&mut config);
        config.dry_run |= self.dry_run;
        config.weight_per_vcpu |= self.weight_per_vcpu;
        config.metrics_listen = self.metrics_listen.or(config.metrics_listen);
        config.metrics_file = self.metrics_file.or(config.metrics_file);
        config.thread_pattern = self.find.thread_pattern.or(config.thread_pattern);
        if !self.find.qmp_socket.is_empty() {
            config.qmp_sockets = self.find.qmp_socket;
        }
        config.without_kvm.extend(self.find.without_kvm);
        // The first matching rule counts, so options precede those of the file.
        let rules = self.weight.into_iter().chain(self.vm_policies);
        config.rule = rules.chain(config.rule).collect();
        // With a file that selects no VM, the daemon logs this and waits for a reload, as at its first start.
        if self.config.is_none() {
            config.check_selected()?;
        }
        Ok((config, keys))
    }
}

fn weight_rule(text: &str) -> Result<VmRule, String> {
    let expected = "write VM=WEIGHT, such as 'db-*=2' or uid:1000=2";
    let (rule, weight) = rule(text, expected)?;
    let weight = weight.parse().map_err(|_| format!("'{weight}' is not a number; {expected}"))?;
    checked(VmRule { weight: Some(weight), ..rule })
}

fn policies_rule(text: &str) -> Result<VmRule, String> {
    let expected = "write VM=POLICY+…, such as 'db-*=configured'";
    let (rule, names) = rule(text, expected)?;
    let policies = policy_names(names).map_err(|error| format!("{error}; {expected}"))?;
    checked(VmRule { policies: Some(policies), ..rule })
}

/// Checks the values of a rule; clap adds the option to errors.
fn checked(rule: VmRule) -> Result<VmRule, String> {
    match rule.check("") {
        Ok(()) => Ok(rule),
        Err(SettingsError::Value { value, expected, .. }) => Err(not_possible(value, expected)),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses `VM=VALUE`; returns a rule for the VM without a value, and the value.
fn rule<'a>(text: &'a str, expected: &str) -> Result<(VmRule, &'a str), String> {
    let (whose, what) = text.rsplit_once('=').ok_or(expected)?;
    if whose.is_empty() {
        return Err(expected.to_owned());
    }
    Ok((VmRule::whose(whose)?, what))
}

/// Runs the daemon until a signal or the end of its duration.
pub fn main(args: RunArgs) -> anyhow::Result<()> {
    if args.check_config {
        let (config, keys) = args.settings().map_err(console::wrong_argument)?;
        Daemon::check(&config).map_err(|error| console::wrong_argument(error.into()))?;
        hint(&keys);
        for remark in config.remarks() {
            note!("{remark}");
        }
        return console::print(config.to_toml().trim_end());
    }
    console::log_to_stderr(None, args.print_ready);
    let limit = args.duration;
    let reload = reload(&args);
    let (config, keys) = args.settings()?;
    hint(&keys);
    for remark in config.former_keys() {
        warn!("{remark}");
    }
    debug!("current settings:\n{}", config.to_toml());
    let mut watchdog = myself(&["host", "watchdog"]);
    watchdog.arg(&config.state_dir);
    let daemon = Daemon::open(config, Some(watchdog))?;
    let daemon = match reload {
        Some(reload) => daemon.with_reload(reload)?,
        None => daemon,
    };
    daemon.run(limit)?;
    Ok(())
}

/// Returns the function that reloads the settings file, if there is one.
fn reload(args: &RunArgs) -> Option<Reload> {
    let file = args.config.clone()?;
    let file = std::path::absolute(&file).unwrap_or(file);
    let args = RunArgs { config: Some(file.clone()), ..args.clone() };
    let read = move || {
        let read = args.clone().settings();
        read.map(|(config, _)| config).map_err(|error| console::explain(&error))
    };
    let on_hangup = !std::io::stdin().is_terminal();
    Some(Reload { file, read: Box::new(read), on_hangup })
}
