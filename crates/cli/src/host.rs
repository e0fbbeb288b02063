//! `tandem host`: read-only diagnosis, the daemon, its control and its revert.

mod expert;
mod export;
mod list;
mod look;
mod record;
mod run;
mod scalability;
mod service;
mod top;
mod why;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tandem_host::check::report::{Report, Verdict};
use tandem_host::check::{CheckOptions, measure};
use tandem_host::config::{DEFAULT_STATE_DIR, Select};
use tandem_host::select::NothingMatched;
use tandem_host::turns::watchdog;
use tandem_host::{check, status};
use tandem_linux::actuator::restore_all;
use tandem_linux::cgroup;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::procfs::ProcFs;
use tandem_report::table::{Look, Table};

use look::OUTPUT;
use tandem_command::console;

/// `tandem host …`
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the VMs of this host: name, process, vCPUs, cgroup, user
    #[command(after_help = "Examples:
  sudo tandem host list
  sudo tandem host list '/machine.slice/*' --json")]
    List(list::ListArgs),
    /// Show the states of each VM's vCPUs (run, ready, halted, …) and the tasks that they wait for, each second
    #[command(after_help = "Examples:
  sudo tandem host top
  sudo tandem host top db-1 --vcpus --once")]
    Top(top::TopArgs),
    /// Name the causes of a VM's waits, with remedies
    #[command(after_help = "Examples:
  sudo tandem host why db-1
  sudo tandem host why db-1 --try --duration 5s")]
    Why(why::WhyArgs),
    /// Record the figures of top for hours or days, or trace some seconds in full
    #[command(after_help = "Examples:
  sudo tandem host record -o night --duration 12h
  sudo tandem host record --trace --duration 10s -o host.perfetto")]
    Record(record::RecordArgs),
    /// Show any time of a record as top or why shows the present
    #[command(after_help = "Examples:
  tandem host replay night --list
  tandem host replay night db-1 --from -10m --why")]
    Replay(record::ReplayArgs),
    /// Estimate how far VMs scale with their vCPUs
    #[command(after_help = "Examples:
  sudo tandem host scalability db-1 --duration 10s
  tandem host scalability --from night")]
    Scalability(scalability::ScalabilityArgs),
    /// Serve the figures of top as metrics for Prometheus; changes nothing
    #[command(after_help = "Examples:
  sudo tandem host export
  sudo tandem host export '/machine.slice/*' --listen 127.0.0.1:9466 --no-process-names")]
    Export(Box<export::ExportArgs>),
    /// Measure which scheduler knobs act on this kernel, in cgroups made for it: takes some seconds and two pCPUs
    #[command(after_help = "Example:
  sudo tandem host check")]
    Check(CheckArgs),
    /// Run the daemon: give each selected VM its fair share; revert all changes at the end
    #[command(after_help = "Examples:
  sudo tandem host run --select-all --dry-run --duration 10s
  sudo tandem host run 'db-*' --exclude db-9")]
    Run(Box<run::RunArgs>),
    /// Show the running daemon and its VMs: share, weight, lag, turns, paused; status 3 if no daemon runs
    #[command(after_help = "Examples:
  sudo tandem host status
  sudo tandem host status --watch")]
    Status(service::StatusArgs),
    /// Revert the daemon's changes on VMs and leave them alone, such as before a live migration
    #[command(
        after_help = "A pause ends with 'host resume', with the VM or with the daemon; a reload of the settings does not end it.

Example:
  sudo tandem host pause db-1"
    )]
    Pause(service::PauseArgs),
    /// Manage paused VMs again
    #[command(after_help = "Example:
  sudo tandem host resume db-1")]
    Resume(service::PauseArgs),
    /// Revert everything that a killed daemon, or why --try --keep, left
    #[command(after_help = "Example:
  sudo tandem host restore")]
    Restore(RestoreArgs),
    /// Started by the check to measure in cgroups of its own; listens on stdin
    #[command(hide = true)]
    CheckMeasure,
    /// Started by the daemon to take VMs out of the idle class if the daemon cannot; listens on stdin
    #[command(hide = true)]
    Watchdog {
        /// The state directory of the daemon
        state_dir: PathBuf,
    },
}

/// `tandem host restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// State directory of the daemon and of the check, with their journals
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// `tandem host check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// On cgroup v2, enable the cpu controller for the cgroups below the root during the check; until then all of them compete by weight
    #[arg(long)]
    enable_controller: bool,
    /// Directory of the journal, with which 'tandem host restore' reverts that after kill -9
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// Runs the command.
pub fn main(command: HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::List(args) => list::main(&args),
        HostCommand::Top(args) => top::main(&args),
        HostCommand::Why(args) => why::main(&args),
        HostCommand::Record(args) => record::record(&args),
        HostCommand::Replay(args) => record::replay(&args),
        HostCommand::Scalability(args) => scalability::main(&args),
        HostCommand::Export(args) => args.run(),
        HostCommand::Check(args) => check(&args),
        HostCommand::Run(args) => run::main(*args),
        HostCommand::Status(args) => service::status(&args),
        HostCommand::Pause(args) => service::pause(&args),
        HostCommand::Resume(args) => service::resume(&args),
        HostCommand::Restore(args) => restore(&args),
        HostCommand::CheckMeasure => Ok(measure::main()?),
        HostCommand::Watchdog { state_dir } => {
            let controller = cgroup::open(&ProcFs::host())?;
            Ok(watchdog::watch(std::io::stdin(), &*controller, &state_dir)?)
        }
    }
}

/// Returns an error if VMs were named and none of those on the host is selected.
fn check_matches(select: &Select, selected: usize, found: usize) -> anyhow::Result<()> {
    match select.none_matches(found).filter(|_| selected == 0) {
        Some(error) => bail!(NothingMatched(error)),
        None => Ok(()),
    }
}

/// Returns a command that starts this program again.
fn myself(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(args);
    command
}

/// Prints text; returns `false` if the reader has closed the pipe. With `redraw`, clears the terminal first.
fn show(text: &str, redraw: bool) -> anyhow::Result<bool> {
    let clear = if redraw { "\x1b[H\x1b[2J" } else { "" };
    match writeln!(std::io::stdout(), "{clear}{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        outcome => outcome.context("cannot write to stdout").map(|()| true),
    }
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::watch()?;
    let options = CheckOptions {
        enable_controller: args.enable_controller,
        state_dir: args.state_dir.clone(),
    };
    let report = check::run(myself(&["host", "check-measure"]), &options, &interrupt)?;
    console::print(&if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        check_table(&report)
    })?;
    if report.could_measure() {
        Ok(())
    } else {
        bail!("nothing could be measured in cgroups; see the table for the reasons")
    }
}

fn check_table(report: &Report) -> String {
    let kernel = &report.kernel;
    let scheduler = match &kernel.scheduler {
        Some(name) => format!("{name} (by {})", kernel.scheduler_from),
        None => "scheduler not known".to_owned(),
    };
    let mut table = Table::new(&["what", "verdict", "figure"]);
    for finding in &report.findings {
        let figure = match &finding.verdict {
            Verdict::NotMeasured(why) => why.clone(),
            _ => finding.figure.clone(),
        };
        table.row([finding.subject.words().to_owned(), finding.verdict.to_string(), figure]);
    }
    format!(
        "Linux {}, {scheduler}\ncgroup {} at {}\ntick {:.1} ms (resolution of CLOCK_MONOTONIC_COARSE)\n\n{}\n\
         measured in {:.1} s on pCPUs {}",
        kernel.release,
        kernel.cgroup,
        kernel.mount,
        kernel.tick.0 as f64 / 1e6,
        table.text(Look::of(std::io::stdout().is_terminal())),
        report.seconds,
        report.pcpus
    )
}

fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let open = || cgroup::open(&ProcFs::default());
    let mut report = check::put_back(open()?, &args.state_dir)?;
    report.add(restore_all(open()?, &args.state_dir)?);
    if report.is_complete() {
        status::remove_of_gone(&args.state_dir);
    }
    console::print_restored(&report)
}
