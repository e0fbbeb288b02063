//! `tandem host`: the daemon, what it and the host do, and putting things back.
//!
//! Arguments in two steps: what was typed, then a [`HostConfig`] that has been checked.

mod export;
mod look;
mod record;
mod scalability;
mod why;

use std::io::IsTerminal;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use clap::Subcommand;
use tandem_host::check;
use tandem_host::check::CheckOptions;
use tandem_host::check::measure;
use tandem_host::check::report::Report;
use tandem_host::check::report::Verdict;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::config::HostConfig;
use tandem_host::config::Placement;
use tandem_host::config::Policies;
use tandem_host::config::Select;
use tandem_host::config::VmRule;
use tandem_host::daemon::Daemon;
use tandem_host::glob;
use tandem_host::select::NothingMatched;
use tandem_host::select::Selector;
use tandem_host::status;
use tandem_host::status::Watcher;
use tandem_host::top;
use tandem_host::top::Top;
use tandem_host::top::screen::terminal;
use tandem_host::top::screen::terminal::View;
use tandem_host::turns::watchdog;
use tandem_linux::actuator::restore_all;
use tandem_linux::branch_counters::CounterChoice;
use tandem_linux::cgroup;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::procfs::ProcFs;
use tandem_linux::service::Console;
use tandem_linux::service::Reporter;
use tandem_linux::settings::SettingsError;
use tandem_linux::settings::parse_address;
use tandem_policy::FlexWConfig;
use tandem_policy::PolicySet;
use tandem_policy::asymmetric::AsymmetricConfig;

use crate::live::policy_names;
use look::FindArgs;
use look::SourceArgs;
use look::seconds;
use look::style;
use look::vm_name;
use tandem_report::table::Look;
use tandem_report::table::Table;

use crate::console;
use crate::number::not_possible;
use crate::number::real;
use crate::number::whole;
use crate::placement::PlacementArg;

/// `tandem host …`
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Give each selected VM its fair share, until stopped; then put everything back
    Run(Box<RunArgs>),
    /// Show what each VM and vCPU receives
    Status(StatusArgs),
    /// Show where the time of each VM goes, and who takes it, each second
    Top(TopArgs),
    /// Serve all of that as metrics for Prometheus, until stopped; changes nothing
    Export(Box<ExportArgs>),
    /// Write what top shows, interval after interval, for days
    Record(record::RecordArgs),
    /// Show what top showed at any time of a record, or over a range of it
    Replay(record::ReplayArgs),
    /// Say why a VM is slow, and what to do
    Why(why::WhyArgs),
    /// Say how far VMs scale, and how far they could
    Scalability(scalability::ScalabilityArgs),
    /// Put back what a killed daemon left behind
    Restore(RestoreArgs),
    /// Measure which knobs act on this kernel, with threads and cgroups made for that: takes some seconds, and two pCPUs
    Check(CheckArgs),
    /// What the check starts to measure in cgroups of its own; listens on stdin
    #[command(hide = true)]
    CheckMeasure,
    /// What the daemon starts to take VMs out of the idle class if it cannot do so itself; listens on stdin
    #[command(hide = true)]
    Watchdog { state_dir: PathBuf },
}

/// Which VMs.
#[derive(Clone, Debug, Args)]
struct SelectArgs {
    /// Select every VM
    #[arg(long)]
    select_all: bool,
    /// Select a VM by its process id; may be repeated
    #[arg(long, value_name = "PID")]
    select_pid: Vec<u32>,
    /// Select VMs by name: a glob such as 'db-*'; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = vm_name)]
    select_name: Vec<String>,
    /// Select VMs by the cgroup of their vCPUs: a path or glob such as '/machine.slice/*'; may be
    /// repeated
    #[arg(long, value_name = "PATH", value_parser = cgroup)]
    select_cgroup: Vec<String>,
}

impl SelectArgs {
    fn given(&self) -> Option<Select> {
        let select = Select {
            all: self.select_all,
            pids: self.select_pid.clone(),
            names: self.select_name.clone(),
            cgroups: self.select_cgroup.clone(),
        };
        (!select.is_empty()).then_some(select)
    }

    /// Looking harms nobody: without a selection, everything is shown.
    fn wanted(&self) -> Select {
        self.given().unwrap_or(Select {
            all: true,
            ..Select::default()
        })
    }
}

/// `tandem host run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Read settings from this TOML file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    find: FindArgs,
    /// Configured weight of the VMs with this name (glob) or process id: 'db-*=2'. 1 is the kernel's
    /// default; a VM that has a cgroup of its own otherwise keeps that cgroup's weight
    #[arg(long, value_name = "NAME|PID=WEIGHT", value_parser = weight_rule)]
    weight: Vec<VmRule>,
    /// Weights are those of each vCPU: a VM of 4 vCPUs and weight 2 has weight 8, and more when vCPUs are plugged in
    #[arg(long)]
    weight_per_vcpu: bool,
    /// What acts on the selected VMs: fair (each receives its fair share), turns (VMs that never sleep take turns, so that their
    /// vCPUs run together), apart (VMs that sleep at times and have more vCPUs than pCPUs: a group for each vCPU), asymmetric (a
    /// VM's time goes to those of its vCPUs that need it), flexs (a vCPU that spins changes places with a sibling that waits: needs a PMU
    /// and --placement rebalance), configured (each has its configured weight and nothing more) or none [default: fair,turns,apart]
    #[arg(long, value_name = "NAME,…", value_parser = policy_names)]
    policies: Option<PolicySet>,
    /// Other policies for the VMs with this name (glob) or process id: 'db-*=configured'; several are
    /// joined by +, none leaves the VM as it is
    #[arg(long, value_name = "NAME|PID=POLICY", value_parser = policies_rule)]
    vm_policies: Vec<VmRule>,
    /// Accounting period, 30 … 1000 ms [default: 100]
    #[arg(long, value_name = "MS", value_parser = whole(HostConfig::PERIODS_MS, "milliseconds"))]
    period_ms: Option<u64>,
    /// Fair window, 1 … 3600 s: after it, weights saved up by idle VMs are taken back [default: 10]
    #[arg(long, value_name = "S", value_parser = whole(HostConfig::FAIR_WINDOWS_S, "seconds"))]
    fair_window_s: Option<u64>,
    /// How often to look for new VMs and vCPUs, 100 … 60000 ms [default: 500]
    #[arg(long, value_name = "MS", value_parser = whole(HostConfig::SCANS_MS, "milliseconds"))]
    scan_ms: Option<u64>,
    /// Gain of the control law, 0.001 … 1 [default: 0.3]
    #[arg(long, value_parser = real(FlexWConfig::GAINS), allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Smoothing of the control law, 0.001 … 1: weight of the newest period [default: 0.3]
    #[arg(long, value_parser = real(FlexWConfig::SMOOTHINGS), allow_negative_numbers = true)]
    smoothing: Option<f64>,
    /// Lag that is left alone, 0 … 0.5 [default: 0.01]
    #[arg(long, value_parser = real(FlexWConfig::DEAD_BANDS), allow_negative_numbers = true)]
    dead_band: Option<f64>,
    /// Idle part of the pCPUs that still counts as used up, 0 … 0.5 [default: 0.05]
    #[arg(long, value_parser = real(FlexWConfig::IDLE_TOLERANCES), allow_negative_numbers = true)]
    idle_tolerance: Option<f64>,
    /// Largest factor between configured and real-time weight, 1 … 1000 [default: 100]
    #[arg(long, value_parser = real(FlexWConfig::SPREADS), allow_negative_numbers = true)]
    spread: Option<f64>,
    /// How long a turn is of VMs that never sleep, 5 … 100 ms [default: 20]
    #[arg(long, value_name = "MS", value_parser = whole(HostConfig::TURNS_MS, "milliseconds"))]
    turn_ms: Option<u64>,
    /// Which parts of the policy asymmetric act: time, latency, resolver (which moves vCPUs, so it needs --placement rebalance)
    /// [default: all]
    #[arg(long, value_name = "PART,…", value_parser = AsymmetricConfig::parse)]
    asymmetric: Option<AsymmetricConfig>,
    /// Branch counters that the policy flexs reads: hardware, or synthetic (of Tandem's own microVMs) [default: hardware]
    #[arg(long, value_name = "SOURCE")]
    counters: Option<CounterChoice>,
    /// May the daemon change where vCPUs run? [default: turns]
    #[arg(long, value_enum)]
    placement: Option<PlacementArg>,
    /// Print every decision with its reason, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Directory of journal, lock and status [default: /run/tandem]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Serve metrics in OpenMetrics text on this loopback address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    metrics_listen: Option<SocketAddr>,
    /// Write metrics in OpenMetrics text to this file
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// Stop after this many seconds [default: run until SIGTERM or SIGINT]
    #[arg(long, value_name = "S", value_parser = whole((0, u64::from(u32::MAX)), "seconds"))]
    seconds: Option<u64>,
    /// Print 'ready' on stdout once acting
    #[arg(long)]
    print_ready: bool,
    /// Check options and settings, print the settings that would be in force, and end: status 0, or 2 where something cannot be.
    /// Changes nothing; whether a process or a cgroup is there is not looked at, as it may come later
    #[arg(long)]
    check_config: bool,
}

impl RunArgs {
    /// The file's settings with the flags on top; not checked yet.
    fn settings(self) -> anyhow::Result<HostConfig> {
        let mut config = match &self.config {
            Some(path) => HostConfig::read(path)?,
            None => HostConfig::default(),
        };
        fn set<T>(slot: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *slot = given;
            }
        }
        set(&mut config.select, self.select.given());
        set(&mut config.policies, self.policies.map(Policies));
        set(&mut config.period_ms, self.period_ms);
        set(&mut config.fair_window_s, self.fair_window_s);
        set(&mut config.scan_ms, self.scan_ms);
        set(&mut config.gain, self.gain);
        set(&mut config.smoothing, self.smoothing);
        set(&mut config.dead_band, self.dead_band);
        set(&mut config.idle_tolerance, self.idle_tolerance);
        set(&mut config.spread, self.spread);
        set(&mut config.state_dir, self.state_dir);
        set(&mut config.placement, self.placement.map(Placement::from));
        set(&mut config.turn_ms, self.turn_ms);
        set(&mut config.asymmetric, self.asymmetric);
        set(&mut config.counters, self.counters);
        config.dry_run |= self.dry_run;
        config.weight_per_vcpu |= self.weight_per_vcpu;
        config.metrics_listen = self.metrics_listen.or(config.metrics_listen);
        config.metrics_file = self.metrics_file.or(config.metrics_file);
        config.thread_pattern = self.find.thread_pattern.or(config.thread_pattern);
        if !self.find.qmp_socket.is_empty() {
            config.qmp_sockets = self.find.qmp_socket;
        }
        config.without_kvm.extend(self.find.without_kvm);
        // The first match counts, so flags go before the file's.
        let rules = self.weight.into_iter().chain(self.vm_policies);
        config.rule = rules.chain(config.rule).collect();
        Ok(config)
    }
}

fn weight_rule(text: &str) -> Result<VmRule, String> {
    let expected = "write NAME=WEIGHT or PID=WEIGHT, such as 'db-*=2'";
    let (rule, weight) = rule(text, expected)?;
    let weight = weight
        .parse()
        .map_err(|_| format!("'{weight}' is not a number; {expected}"))?;
    checked(VmRule {
        weight: Some(weight),
        ..rule
    })
}

fn policies_rule(text: &str) -> Result<VmRule, String> {
    let expected = "write NAME=POLICY+… or PID=POLICY+…, such as 'db-*=configured'";
    let (rule, names) = rule(text, expected)?;
    let policies = policy_names(names).map_err(|error| format!("{error}; {expected}"))?;
    checked(VmRule {
        policies: Some(policies),
        ..rule
    })
}

/// A rule whose values are possible; clap names the option.
fn checked(rule: VmRule) -> Result<VmRule, String> {
    match rule.check("") {
        Ok(()) => Ok(rule),
        Err(SettingsError::Value {
            value, expected, ..
        }) => Err(not_possible(value, expected)),
        Err(error) => Err(error.to_string()),
    }
}

fn cgroup(text: &str) -> Result<String, String> {
    match glob::for_cgroups(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(expected) => Err(not_possible(text, expected)),
    }
}

/// `WHOSE=WHAT`: a rule that says nothing yet, and what.
fn rule<'a>(text: &'a str, expected: &str) -> Result<(VmRule, &'a str), String> {
    let (whose, what) = text.rsplit_once('=').ok_or(expected)?;
    if whose.is_empty() {
        return Err(expected.to_owned());
    }
    Ok((VmRule::whose(whose)?, what))
}

/// What `status` and `top` look at, and for how long.
#[derive(Debug, Args)]
struct LookArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    find: FindArgs,
    /// A line for each vCPU, too
    #[arg(long)]
    vcpus: bool,
    /// Length of the interval that is looked at, 0.05 … 3600 s
    #[arg(long, default_value = "1", value_name = "S", value_parser = seconds)]
    interval: Duration,
    /// Where a running daemon keeps its state
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// `tandem host status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON: one document, or with --watch one per line
    #[arg(long)]
    json: bool,
    /// Go on until interrupted
    #[arg(long)]
    watch: bool,
}

/// `tandem host top`
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// One interval, then end
    #[arg(long)]
    once: bool,
    /// Plain text on terminals too: no colour, nothing redrawn, one interval below the other
    #[arg(long)]
    batch: bool,
    /// Print JSON: one document per interval, each on a line
    #[arg(long)]
    json: bool,
}

/// `tandem host export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    serve: export::ServeArgs,
}

/// `tandem host restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Where the daemon and `host check` kept their journals
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// `tandem host check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// On cgroup v2, let the cpu controller into the cgroups below the root for as long as the check takes, if nobody has: all of
    /// them compete by weight for so long
    #[arg(long)]
    enable_controller: bool,
    /// Where that is journaled, so that it is put back after kill -9 too
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
}

/// Runs the command.
pub fn main(command: HostCommand) -> anyhow::Result<()> {
    match command {
        HostCommand::Run(args) => run(*args),
        HostCommand::Status(args) => status(&args),
        HostCommand::Top(args) => top(&args),
        HostCommand::Export(args) => export(*args),
        HostCommand::Record(args) => record::record(&args),
        HostCommand::Replay(args) => record::replay(&args),
        HostCommand::Why(args) => why::main(&args),
        HostCommand::Scalability(args) => scalability::main(&args),
        HostCommand::Restore(args) => restore(&args),
        HostCommand::Check(args) => check(&args),
        HostCommand::CheckMeasure => Ok(measure::main()?),
        HostCommand::Watchdog { state_dir } => {
            let controller = cgroup::open(&ProcFs::host())?;
            Ok(watchdog::watch(std::io::stdin(), &*controller, &state_dir)?)
        }
    }
}

fn run(args: RunArgs) -> anyhow::Result<()> {
    if args.check_config {
        let config = args.settings().map_err(console::wrong_argument)?;
        Daemon::check(&config).map_err(|error| console::wrong_argument(error.into()))?;
        for remark in config.remarks() {
            note!("{remark}");
        }
        return console::print(config.to_toml().trim_end());
    }
    let mut console = Console {
        info: "info",
        error: "error",
        print_ready: args.print_ready,
        level: console::level(),
    };
    let limit = args.seconds.map(Duration::from_secs);
    let config = args.settings()?;
    if console.is_verbose() {
        console.info(&format!("settings in force:\n{}", config.to_toml()));
    }
    let mut watchdog = myself(&["host", "watchdog"]);
    watchdog.arg(&config.state_dir);
    let daemon = Daemon::open(config, Some(watchdog), &mut console)?;
    daemon.run(limit, &mut console)?;
    Ok(())
}

/// This program, to be started again as another process.
fn myself(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(args);
    command
}

/// Prints; false once nobody reads any more. With `redraw` from the terminal's first line on.
fn show(text: &str, redraw: bool) -> anyhow::Result<bool> {
    let clear = if redraw { "\x1b[H\x1b[2J" } else { "" };
    match writeln!(std::io::stdout(), "{clear}{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        outcome => outcome.context("cannot write to stdout").map(|()| true),
    }
}

fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let look = &args.look;
    let select = look.select.wanted();
    let selector = Selector::from_config(&select)?;
    let mut watcher = Watcher::open(
        args.source.open()?,
        look.find.options(),
        selector,
        &look.state_dir,
    )?;
    let is_terminal = std::io::stdout().is_terminal();
    for round in 0.. {
        let status = watcher.observe(look.interval)?;
        if let (0, 0, Some(error)) = (round, status.vms.len(), select.none_matches(status.found)) {
            bail!(NothingMatched(error));
        }
        let text = match (args.json, args.watch) {
            (true, true) => serde_json::to_string(&status)?,
            (true, false) => serde_json::to_string_pretty(&status)?,
            _ => status::text::text(&status, look.vcpus, &look.state_dir, style(is_terminal)),
        };
        let redraw = args.watch && is_terminal && !args.json;
        if !show(&text, redraw)? || !args.watch {
            break;
        }
    }
    Ok(())
}

fn top(args: &TopArgs) -> anyhow::Result<()> {
    let look = &args.look;
    let select = look.select.wanted();
    let selector = Selector::from_config(&select)?;
    let mut top = Top::open(
        args.source.open()?,
        look.find.options(),
        selector,
        &look.state_dir,
    )?;
    let found = top.begin()?;
    let mut begin = Instant::now();
    if let (0, Some(error)) = (found.selected, select.none_matches(found.all)) {
        bail!(NothingMatched(error));
    }
    let style = style(std::io::stdout().is_terminal() && !args.batch);
    let is_root = rustix::process::geteuid().is_root();
    if std::io::stdout().is_terminal() && !(args.once || args.batch || args.json) {
        let view = View {
            interval: look.interval,
            with_vcpus: look.vcpus,
            colour: style.colour,
            is_root,
        };
        return Ok(terminal::show(&mut top, view)?);
    }
    for round in 0.. {
        // What reading takes is a part of the interval, so that they come at the pace that was asked for.
        begin += look.interval;
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let shown = top.interval()?;
        let text = match args.json {
            true => serde_json::to_string(&shown)?,
            false => {
                // Notes are the same each time.
                let notes = top::text::notes(&shown, is_root).into_iter();
                let notes = notes.filter(|_| round == 0).map(|note| format!("{note}\n"));
                notes.collect::<String>() + &top::text::text(&shown, look.vcpus, style)
            }
        };
        if !show(&text, false)? || args.once {
            break;
        }
    }
    Ok(())
}

/// A selection that matches nothing yet may match a VM that is to come.
fn export(args: ExportArgs) -> anyhow::Result<()> {
    let selector = Selector::from_config(&args.select.wanted())?;
    args.serve.run(args.find.options(), selector)
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::watch()?;
    let options = CheckOptions {
        enable_controller: args.enable_controller,
        state_dir: args.state_dir.clone(),
    };
    let report = check::run(myself(&["host", "check-measure"]), &options, &interrupt)?;
    console::print(&match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => check_table(&report),
    })?;
    match report.could_measure() {
        true => Ok(()),
        false => bail!("nothing could be measured in cgroups; the table says why"),
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
        table.row([
            finding.subject.words().to_owned(),
            finding.verdict.to_string(),
            figure,
        ]);
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
