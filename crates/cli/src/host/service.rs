//! `tandem host status`, `pause` and `resume`: requests to the running daemon.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tandem_command::console;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::control::{AskError, Request};
use tandem_host::select::{NothingMatched, VmPattern, name_matches};
use tandem_host::status::{HostStatus, ManagedStatus};
use tandem_host::{control, glob, status};
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::procfs::{ProcFs, user_of};
use tandem_linux::thread::Pid;

use super::look::{OUTPUT, SELECTION, interval, parse_vm, style};
use super::show;

/// Exit status if no daemon runs.
const NO_DAEMON: i32 = 3;

/// `tandem host status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Managed VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// State directory of the daemon
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = SELECTION)]
    state_dir: PathBuf,
    /// Print a line for each vCPU with a known demand (policy asymmetric), too
    #[arg(long, help_heading = OUTPUT)]
    vcpus: bool,
    /// Print JSON: one document, or with --watch one per line
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Repeat until interrupted
    #[arg(long, help_heading = OUTPUT)]
    watch: bool,
    /// With --watch: time between two requests, 50ms … 1h
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval, help_heading = OUTPUT)]
    interval: Duration,
}

/// `tandem host pause` and `tandem host resume`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000)
    #[arg(value_name = "VM", value_parser = parse_vm, required = true)]
    vms: Vec<VmPattern>,
    /// State directory of the daemon
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = SELECTION)]
    state_dir: PathBuf,
}

/// Shows the daemon and its VMs.
pub fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        let mut found = status::look(&args.state_dir)?;
        let is_running = found.service.is_some();
        filter(&mut found, &args.vms)?;
        let text = match (args.json, args.watch) {
            (true, true) => serde_json::to_string(&found)?,
            (true, false) => serde_json::to_string_pretty(&found)?,
            _ => status::text::text(&found, args.vcpus, &args.state_dir, style(is_terminal)),
        };
        let is_read = show(&text, args.watch && is_terminal && !args.json)?;
        if !args.watch || !is_read {
            if is_running { return Ok(()) } else { std::process::exit(NO_DAEMON) }
        }
        std::thread::sleep(args.interval);
    }
}

/// Keeps the VMs that match the patterns, if there are any; returns an error if none matches.
fn filter(found: &mut HostStatus, patterns: &[VmPattern]) -> anyhow::Result<()> {
    let Some(service) = found.service.as_mut().filter(|_| !patterns.is_empty()) else {
        return Ok(());
    };
    let all = service.vms.len();
    service.vms.retain(|vm| patterns.iter().any(|pattern| matches(pattern, vm)));
    if !service.vms.is_empty() {
        return Ok(());
    }
    let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    let patterns = patterns.join(", ");
    bail!(NothingMatched(format!("none of {all} managed VMs matches {patterns}")))
}

fn matches(pattern: &VmPattern, vm: &ManagedStatus) -> bool {
    match pattern {
        VmPattern::Name(name) => name_matches(name, &vm.name),
        VmPattern::Process(pid) => *pid == vm.pid,
        VmPattern::Cgroup(glob) => vm.cgroup.as_ref().is_some_and(|cgroup| {
            let places = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
            let glob = glob::for_cgroups(glob);
            glob.is_ok_and(|glob| places.into_iter().any(|place| glob.is_match(&place.0)))
        }),
        VmPattern::User(user) => user_of(&ProcFs::host().process(Pid(vm.pid))) == Some(*user),
    }
}

/// Requests that the daemon revert its changes on VMs and stop managing them.
pub fn pause(args: &PauseArgs) -> anyhow::Result<()> {
    change(args, Request::Pause)
}

/// Requests that the daemon manage paused VMs again.
pub fn resume(args: &PauseArgs) -> anyhow::Result<()> {
    change(args, Request::Resume)
}

fn change(args: &PauseArgs, request: impl Fn(Vec<String>) -> Request) -> anyhow::Result<()> {
    let vms = args.vms.iter().map(ToString::to_string).collect();
    match control::change(&args.state_dir, &request(vms)) {
        Ok(lines) => console::print(&lines.join("\n")),
        Err(AskError::NoMatch(why)) => bail!(NothingMatched(why)),
        Err(error @ AskError::NoDaemon(_)) => bail!(NothingMatched(error.to_string())),
        Err(error) => Err(error.into()),
    }
}
