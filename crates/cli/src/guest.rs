//! `tandem guest`: the agent inside a VM, its status, and putting things back.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use clap::Subcommand;
use clap::ValueEnum;
use tandem_experiment::recorded::application;
use tandem_experiment::recorded::application::Setting;
use tandem_guest::actuator::restore_all;
use tandem_guest::agent::Agent;
use tandem_guest::agent::AgentError;
use tandem_guest::config::GuestConfig;
use tandem_guest::config::RetentionSetting;
use tandem_guest::config::Vcpus;
use tandem_guest::config::delay_bound;
use tandem_guest::record;
use tandem_guest::record::RecordError;
use tandem_guest::retention::Means;
use tandem_guest::status;
use tandem_guest::status::Status;
use tandem_guest::workload::Target;
use tandem_linux::ProcFs;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::restore::RestoreReport;
use tandem_linux::service::Console;
use tandem_linux::service::Reporter;
use tandem_linux::settings::parse_address;
use tandem_linux::thread::Pid;
use tandem_policy::Nanos;
use tandem_report::table::Look;
use tandem_report::table::Table;

use crate::console;
use crate::number::time;
use crate::number::whole;

/// `tandem guest …`
#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    /// Help one workload, until it is over or the agent is stopped; then put everything back
    Run(Box<RunArgs>),
    /// Record a program's threads, and write a scenario of the simulator that runs the same
    Record(RecordArgs),
    /// Show what a running agent does, and what this VM offers
    Status(StatusArgs),
    /// Put back what a killed agent left behind
    Restore(RestoreArgs),
}

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
#[command(
    override_usage = "tandem guest run [OPTIONS] -- COMMAND [ARG]...\n       \
                            tandem guest run [OPTIONS] --pid PID\n       \
                            tandem guest run [OPTIONS] --cgroup PATH\n       \
                            tandem guest run [OPTIONS] --unit NAME"
)]
pub struct RunArgs {
    /// Help this process and what descends from it
    #[arg(long, value_name = "PID", conflicts_with_all = ["cgroup", "command"])]
    pid: Option<u32>,
    /// Help everything in this cgroup: its path in the hierarchy of the cpuset controller
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    cgroup: Option<String>,
    /// Help this service of systemd's system.slice, with the state directory /run/tandem-guest-NAME
    #[arg(long, value_name = "NAME", conflicts_with_all = ["cgroup", "command", "pid"])]
    unit: Option<String>,
    /// Read settings from this TOML file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// vCPUs that the workload may use: auto, all, or a number that is held [default: auto]
    #[arg(long, value_name = "N")]
    vcpus: Option<Vcpus>,
    /// Retention, for how long an idle vCPU stays awake: auto, off, or a time that is held, such as 200us [default:
    /// auto]
    #[arg(long, value_name = "TIME")]
    retention: Option<RetentionSetting>,
    /// By what vCPUs are kept awake [default: best]
    #[arg(long, value_enum)]
    means: Option<MeansArg>,
    /// Each thread on a vCPU of its own, in turn: for VMs with far more vCPUs than the host has pCPUs
    #[arg(long)]
    per_thread: bool,
    /// On a single vCPU, by how much threads may be held back: a time such as 500us, or off [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = delay_bound)]
    delay: Option<Nanos>,
    /// Length of a period, 20 … 2000 ms [default: 100]
    #[arg(long, value_name = "MS", value_parser = time::<u64>("milliseconds"))]
    period_ms: Option<u64>,
    /// Print what would be set and why, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Directory of journal, lock and status [default: /run/tandem-guest]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Serve metrics in OpenMetrics text on this loopback address, such as 127.0.0.1:9465
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    metrics_listen: Option<SocketAddr>,
    /// Write metrics in OpenMetrics text to this file
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// Stop after this many seconds [default: run until the workload is over]
    #[arg(long, value_name = "S", value_parser = time::<u64>("seconds"))]
    seconds: Option<u64>,
    /// Write what was done, as JSON, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print 'ready' on stdout once acting
    #[arg(long)]
    print_ready: bool,
    /// Check options and settings, print the settings that would be in force, and end: status 0, or 2 where something cannot be. Changes
    /// nothing, and starts no program
    #[arg(long)]
    check_config: bool,
    /// A program to start and help, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// The file's settings with the flags on top; not checked yet.
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
        config.period_ms = self.period_ms.unwrap_or(config.period_ms);
        let of_unit = self.unit.as_deref().map(status::state_dir_of_unit);
        if let Some(dir) = self.state_dir.clone().or(of_unit) {
            config.state_dir = dir;
        }
        config.metrics_listen = self.metrics_listen.or(config.metrics_listen);
        config.metrics_file = self.metrics_file.clone().or(config.metrics_file);
        Ok(config)
    }

    /// The settings, where all of them are possible; whom to help need not be said.
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
                bail!("whom to help? Give --pid, --cgroup, --unit, or a command after '--'")
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
    /// Record for this many seconds, from 1 on; the program goes on [default: until it is over, or Ctrl-C]
    #[arg(long, value_name = "S", value_parser = whole((1, 86_400), "seconds"))]
    seconds: Option<u64>,
    /// Do not trace who wakes whom, though it could be done
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
    let mut console = Console {
        info: "tandem guest",
        error: "tandem guest: error",
        print_ready: args.print_ready,
        level: console::level(),
    };
    if console.is_verbose() {
        console.info(&format!("settings in force:\n{}", config.to_toml()));
    }
    let agent = Agent::open(config, target, &mut console).map_err(|error| match error {
        AgentError::Settings(_) => console::wrong_argument(error.into()),
        other => other.into(),
    })?;
    let ended = agent.run(args.seconds.map(Duration::from_secs), &mut console)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&ended.report)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    pass_on(ended.command);
    Ok(())
}

/// Ends as a command did that failed: we stand for it, as a shell would.
fn pass_on(command: Option<ExitStatus>) {
    if let Some(status) = command.filter(|status| !status.success()) {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        std::process::exit(code.unwrap_or(1));
    }
}

fn record_program(args: RecordArgs) -> anyhow::Result<()> {
    let mut console = Console {
        info: "tandem guest",
        error: "tandem guest: error",
        print_ready: false,
        level: console::level(),
    };
    // Who waits for a program wants to hear before that its file cannot be.
    let cannot = || format!("cannot write {}", args.output.display());
    if let Some(path) = &args.json {
        console::check_writable(path)?;
    }
    let mut file = File::create_new(&args.output).with_context(cannot)?;
    let command = Target::Command(args.command);
    let options = record::Options {
        target: args.pid.map_or(command, |pid| Target::Process(Pid(pid))),
        seconds: args.seconds.map(Duration::from_secs),
        traces: !args.no_trace,
    };
    let recording = record::record(options, &mut console).inspect_err(|error| {
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
        console.info(&waited);
    }
    let scenario = file.write_all(text.as_bytes()).with_context(cannot);
    let write = |path| tandem_report::json::write(path, profile);
    let json = args.json.as_deref().map(write);
    // Also where the disk is full: the command is somebody's.
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
    row(
        "vCPUs in use",
        format!("{} of {}", status.active, status.vcpus),
    );
    row("because", status.consolidation.clone());
    let retention = status.retention_ns as f64 / 1e3;
    row(
        "retention",
        format!("{retention:.0} us, by {}", status.means),
    );
    row("because", status.retention.clone());
    row("held back", status.delay.clone());
    row(
        "utilization",
        format!("{:.1} %", status.utilization * 100.0),
    );
    row(
        "stolen by the host",
        format!("{:.1} %", status.stolen * 100.0),
    );
    row("periods", status.periods.to_string());
    let cpu = status.agent_cpu_ns as f64 / 1e6;
    row("the agent's CPU time", format!("{cpu:.1} ms"));
    table
}

fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let mut report = RestoreReport::default();
    let (procfs, all) = (ProcFs::host(), args.which.state_dirs());
    for dir in &all {
        // Of several, those of agents that run are theirs.
        if all.len() == 1 || status::running(dir, &procfs)?.is_none() {
            report.add(restore_all(&procfs, dir)?);
        }
    }
    console::print_restored(&report)
}
