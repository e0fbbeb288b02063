//! `tandem guest`: the agent inside a VM, its status, and its revert.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use tandem_guest::actuator::restore_all;
use tandem_guest::agent::{Agent, AgentError};
use tandem_guest::config::{GuestConfig, RetentionSetting, Vcpus, delay_bound};
use tandem_guest::record::RecordError;
use tandem_guest::retention::Means;
use tandem_guest::status::Status;
use tandem_guest::workload::Target;
use tandem_guest::{record, status};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::restore::RestoreReport;
use tandem_linux::settings::parse_address;
use tandem_linux::thread::Pid;
use tandem_model::Nanos;
use tandem_model::length::length;
use tandem_observe::recorded::application;
use tandem_observe::recorded::application::Setting;
use tandem_report::table::{Look, Table};
use tracing::{debug, info};

use tandem_command::console;
use tandem_command::number::duration;

/// `tandem guest …`
#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    /// Help one workload until it ends or the agent is stopped; then revert all changes
    #[command(after_help = "Examples:
  tandem guest run -- make -j8
  tandem guest run --dry-run --pid 4711 --duration 30s")]
    Run(Box<RunArgs>),
    /// Record the threads of a program as a scenario for the simulator
    #[command(after_help = "Example:
  tandem guest record -o app.toml -- make -j8")]
    Record(RecordArgs),
    /// Show running agents, and the knobs of this VM
    #[command(after_help = "Example:
  tandem guest status")]
    Status(StatusArgs),
    /// Revert everything that a killed agent left
    #[command(after_help = "Example:
  tandem guest restore")]
    Restore(RestoreArgs),
}

const WORKLOAD: &str = "Workload";
const DECISIONS: &str = "Decisions";
const SAFETY: &str = "Safety";
const OUTPUT: &str = "Output";

/// Prefix of log lines.
const NAME: &str = "tandem guest";

/// Limits of a period.
const MIN_PERIOD: Duration = Duration::from_millis(20);
const MAX_PERIOD: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MeansArg {
    /// The kernel where its haltpoll governor is in charge, else yielding threads
    Best,
    /// The kernel's haltpoll
    Haltpoll,
    /// Threads of the lowest class that yield in a loop
    Yield,
}

/// `tandem guest run`
#[derive(Debug, Args)]
#[command(override_usage = "tandem guest run [OPTIONS] -- COMMAND [ARG]...\n       \
                            tandem guest run [OPTIONS] --pid PID\n       \
                            tandem guest run [OPTIONS] --cgroup PATH\n       \
                            tandem guest run [OPTIONS] --unit NAME")]
pub struct RunArgs {
    /// Help this process and its descendants
    #[arg(long, value_name = "PID", conflicts_with_all = ["cgroup", "command"], help_heading = WORKLOAD)]
    pid: Option<u32>,
    /// Help all processes of this cgroup: its path in the hierarchy of the cpuset controller
    #[arg(long, value_name = "PATH", conflicts_with = "command", help_heading = WORKLOAD)]
    cgroup: Option<String>,
    /// Help this service of systemd's system.slice, with the state directory /run/tandem-guest-NAME
    #[arg(long, value_name = "NAME", conflicts_with_all = ["cgroup", "command", "pid"], help_heading = WORKLOAD)]
    unit: Option<String>,
    /// Settings file (TOML); options override it
    #[arg(long, value_name = "FILE", help_heading = SAFETY)]
    config: Option<PathBuf>,
    /// vCPUs that the workload may use: auto, all, or a fixed number [default: auto]
    #[arg(long, value_name = "N", help_heading = DECISIONS)]
    vcpus: Option<Vcpus>,
    /// Retention, the time for which an idle vCPU stays awake: auto, off, or a fixed time such as 200us [default: auto]
    #[arg(long, value_name = "TIME", help_heading = DECISIONS)]
    retention: Option<RetentionSetting>,
    /// Mechanism that keeps vCPUs awake [default: best]
    #[arg(long, value_enum, help_heading = DECISIONS)]
    means: Option<MeansArg>,
    /// Give each thread a vCPU of its own: for VMs with far more vCPUs than the host has pCPUs
    #[arg(long, help_heading = DECISIONS)]
    per_thread: bool,
    /// Maximum delay of threads on a single vCPU: a time such as 500us, or off [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = delay_bound, help_heading = DECISIONS)]
    delay: Option<Nanos>,
    /// Length of a period, 20ms … 2s [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration(MIN_PERIOD, MAX_PERIOD), help_heading = DECISIONS)]
    interval: Option<Duration>,
    /// Print intended changes with their reasons, change nothing
    #[arg(long, help_heading = SAFETY)]
    dry_run: bool,
    /// Directory of journal, lock and status [default: /run/tandem-guest]
    #[arg(long, value_name = "DIR", help_heading = SAFETY)]
    state_dir: Option<PathBuf>,
    /// Serve metrics (OpenMetrics) on this loopback address, such as 127.0.0.1:9465
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address, help_heading = OUTPUT)]
    metrics_listen: Option<SocketAddr>,
    /// Write metrics (OpenMetrics) to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    metrics_file: Option<PathBuf>,
    /// Stop after this time, such as 30s or 5m; a COMMAND that it started continues [default: run until the workload ends]
    #[arg(long, value_name = "TIME", value_parser = length, help_heading = SAFETY)]
    duration: Option<Duration>,
    /// Write a report of the changes, as JSON, to this file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    json: Option<PathBuf>,
    /// Print 'ready' on standard output when the agent acts
    #[arg(long, help_heading = OUTPUT)]
    print_ready: bool,
    /// Check options and settings, print the resulting settings and exit: status 0, or 2 if one is invalid. Starts no program
    #[arg(long, help_heading = SAFETY)]
    check_config: bool,
    /// A program to start and help, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the settings of the file, overridden by options, without checks.
    fn settings(&self) -> anyhow::Result<GuestConfig> {
        let mut config = match &self.config {
            Some(path) => GuestConfig::read(path)?,
            None => GuestConfig::default(),
        };
        config.vcpus = self.vcpus.unwrap_or(config.vcpus);
        config.retention = self.retention.unwrap_or(config.retention);
        config.means = match self.means {
            None => config.means,
            Some(MeansArg::Best) => Means::Best,
            Some(MeansArg::Haltpoll) => Means::Haltpoll,
            Some(MeansArg::Yield) => Means::Yield,
        };
        config.delay.bound = self.delay.unwrap_or(config.delay.bound);
        config.per_thread |= self.per_thread;
        config.dry_run |= self.dry_run;
        if let Some(interval) = self.interval {
            config.period_ms = u64::try_from(interval.as_millis())?;
        }
        let of_unit = self.unit.as_deref().map(status::state_dir_of_unit);
        if let Some(dir) = self.state_dir.clone().or(of_unit) {
            config.state_dir = dir;
        }
        config.metrics_listen = self.metrics_listen.or(config.metrics_listen);
        config.metrics_file = self.metrics_file.clone().or(config.metrics_file);
        Ok(config)
    }

    /// Returns the settings after checks; a target is optional.
    fn checked_settings(&self) -> anyhow::Result<GuestConfig> {
        let is_given = self.pid.is_some() || self.cgroup.is_some();
        if is_given {
            self.target()?;
        }
        let config = self.settings()?;
        config.check()?;
        Ok(config)
    }

    fn target(&self) -> anyhow::Result<Target> {
        if let Some(unit) = &self.unit {
            return Ok(Target::Cgroup(status::cgroup_of_unit(unit)));
        }
        match (self.pid, &self.cgroup, self.command.is_empty()) {
            (Some(pid), ..) => Ok(Target::Process(Pid(pid))),
            (_, Some(path), _) if path.starts_with('/') => {
                Ok(Target::Cgroup(CgroupPath(path.clone())))
            }
            (_, Some(path), _) => bail!(
                "--cgroup '{path}': a path in the hierarchy of the cpuset controller begins with '/', as \
                 in /proc/PID/cgroup"
            ),
            (None, None, false) => Ok(Target::Command(self.command.clone())),
            (None, None, true) => {
                bail!("no target: give --pid, --cgroup, --unit, or a command after '--'")
            }
        }
    }
}

/// `tandem guest record`
#[derive(Debug, Args)]
#[command(
    override_usage = "tandem guest record [OPTIONS] -o FILE.toml -- COMMAND [ARG]...\n       \
                            tandem guest record [OPTIONS] -o FILE.toml --pid PID"
)]
pub struct RecordArgs {
    /// The scenario: a TOML file that is not there yet
    #[arg(short, long, value_name = "FILE.toml")]
    output: PathBuf,
    /// Record this process and what descends from it
    #[arg(
        long,
        value_name = "PID",
        conflicts_with = "command",
        required_unless_present = "command"
    )]
    pid: Option<u32>,
    /// Record for this time, 1s … 24h; the program continues [default: until it ends, or Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = duration(Duration::from_secs(1), Duration::from_secs(86_400)))]
    duration: Option<Duration>,
    /// Do not trace wake-ups between threads, even where tracing is available
    #[arg(long)]
    no_trace: bool,
    /// Write what was seen of the threads, as JSON, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A program to start and record, with its arguments; its exit status is passed on
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Which agent: by where it keeps its state.
#[derive(Debug, Args)]
struct WhichArgs {
    /// The agent of this service [default: all agents of this VM]
    #[arg(long, value_name = "NAME", conflicts_with = "state_dir")]
    unit: Option<String>,
    /// The agent with this state directory
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl WhichArgs {
    fn state_dirs(&self) -> Vec<PathBuf> {
        status::dirs_of(self.state_dir.as_deref(), self.unit.as_deref())
    }
}

/// `tandem guest status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON: of one agent an object, of several a list
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: WhichArgs,
}

/// `tandem guest restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    which: WhichArgs,
}

/// Runs the command.
pub fn main(command: GuestCommand) -> anyhow::Result<()> {
    match command {
        GuestCommand::Run(args) => run(&args),
        GuestCommand::Record(args) => record_program(args),
        GuestCommand::Status(args) => show(&args),
        GuestCommand::Restore(args) => restore(&args),
    }
}

fn run(args: &RunArgs) -> anyhow::Result<()> {
    if args.check_config {
        let config = args.checked_settings().map_err(console::wrong_argument)?;
        return console::print(config.to_toml().trim_end());
    }
    let config = args.settings()?;
    let checked = config.check().map_err(anyhow::Error::from);
    checked.map_err(console::wrong_argument)?;
    let target = args.target().map_err(console::wrong_argument)?;
    console::log_to_stderr(Some(NAME), args.print_ready);
    debug!("current settings:\n{}", config.to_toml());
    let agent = Agent::open(config, target).map_err(|error| match error {
        AgentError::Settings(_) => console::wrong_argument(error.into()),
        other => other.into(),
    })?;
    let ended = agent.run(args.duration)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&ended.report)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    pass_on(ended.command);
    Ok(())
}

/// Exits with the status of a failed command, as a shell does.
fn pass_on(command: Option<ExitStatus>) {
    if let Some(status) = command.filter(|status| !status.success()) {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        std::process::exit(code.unwrap_or(1));
    }
}

fn record_program(args: RecordArgs) -> anyhow::Result<()> {
    console::log_to_stderr(Some(NAME), false);
    // Check the files before the program starts.
    let cannot = || format!("cannot write {}", args.output.display());
    if let Some(path) = &args.json {
        console::check_writable(path)?;
    }
    let mut file = File::create_new(&args.output).with_context(cannot)?;
    let command = Target::Command(args.command);
    let options = record::Options {
        target: args.pid.map_or(command, |pid| Target::Process(Pid(pid))),
        seconds: args.duration,
        traces: !args.no_trace,
    };
    let recording = record::record(options).inspect_err(|error| {
        let _ = std::fs::remove_file(&args.output);
        if let RecordError::EndedAtOnce { status, .. } = error
            && status.0.is_some_and(|status| !status.success())
        {
            tell!("tandem: {error}");
            pass_on(status.0);
        }
    })?;
    let profile = &recording.profile;
    let text = application::scenario(profile, &Setting::recorded(profile));
    if let Some(waited) = application::waited_for_others(profile) {
        info!("{waited}");
    }
    let scenario = file.write_all(text.as_bytes()).with_context(cannot);
    let write = |path| tandem_report::json::write(path, profile);
    let json = args.json.as_deref().map(write);
    // Wait for the command even if the disk is full.
    let status = recording.wait();
    scenario?;
    json.transpose()?;
    pass_on(status?);
    Ok(())
}

fn show(args: &StatusArgs) -> anyhow::Result<()> {
    let procfs = ProcFs::host();
    let mut running: Vec<Status> = Vec::new();
    for dir in args.which.state_dirs() {
        running.extend(status::running(&dir, &procfs)?);
    }
    if args.json {
        return console::print(&match running.as_slice() {
            [] | [_] => serde_json::to_string_pretty(&running.first())?,
            several => serde_json::to_string_pretty(several)?,
        });
    }
    let look = Look::of(std::io::stdout().is_terminal());
    for status in &running {
        console::print(&table(status).text(look))?;
    }
    console::print(&status::of_vm(&procfs, &running, &args.which.state_dirs()))
}

fn table(status: &Status) -> Table {
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| {
        table.row([name.to_owned(), value]);
    };
    row("workload", status.workload.clone());
    row("cgroup", status.cgroup.clone().unwrap_or_default());
    row("vCPUs in use", format!("{} of {}", status.active, status.vcpus));
    row("because", status.consolidation.clone());
    let retention = status.retention_ns as f64 / 1e3;
    row("retention", format!("{retention:.0} us, by {}", status.means));
    row("because", status.retention.clone());
    row("held back", status.delay.clone());
    row("utilization", format!("{:.1} %", status.utilization * 100.0));
    row("stolen by the host", format!("{:.1} %", status.stolen * 100.0));
    row("periods", status.periods.to_string());
    let cpu = status.agent_cpu_ns as f64 / 1e6;
    row("the agent's CPU time", format!("{cpu:.1} ms"));
    table
}

fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let mut report = RestoreReport::default();
    let (procfs, all) = (ProcFs::host(), args.which.state_dirs());
    for dir in &all {
        // Without an explicit agent, running agents keep their changes.
        if all.len() == 1 || status::running(dir, &procfs)?.is_none() {
            report.add(restore_all(&procfs, dir)?);
        }
    }
    console::print_restored(&report)
}
