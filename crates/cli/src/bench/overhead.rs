//! `tandem bench overhead`: what the daemon costs with many vCPUs.
//!
//! Starts many VMs of plain threads that sleep most of the time, as most VMs of a host do, runs the
//! daemon beside them, and counts the daemon's CPU time over a window that begins when it has found
//! them all and has acted for some periods. The VMs' own CPU time is reported beside, because a
//! daemon has more to do where more happens.

use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use tandem_linux::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_report::experiment::Host;
use tandem_report::figure;
use tandem_report::table::Table;

use super::usage::Usage;
use super::write_json;
use crate::console::check_writable;
use crate::console::print;
use crate::demo::DaemonArgs;
use crate::demo::cpu_time::Reading;
use crate::demo::daemon_process::DaemonProcess;
use crate::demo::daemon_process::Selected;
use crate::demo::host_facts;
use crate::demo::plan;
use crate::demo::plan::Backend;
use crate::demo::plan::VmPlan;
use crate::demo::state_dir;
use crate::demo::state_dir::StateDir;
use crate::demo::vm_process::VmProcess;
use crate::demo::vm_process::stop_all;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

/// Names of this bench's VMs, for the daemon's selection.
const NAMES: &str = "ovh*";

/// The daemon's start (finding VMs, making cgroups) is no part of what it costs to run.
const SETTLE: Duration = Duration::from_secs(3);

/// A burst of about a millisecond every two seconds or so.
const SETTINGS: [&str; 2] = ["work=2000000", "period=5000000000"];

/// `tandem bench overhead`
#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// Number of VMs, 1 … 1000
    #[arg(long, default_value_t = 125)]
    vms: u32,
    /// vCPUs of each, 1 … 64
    #[arg(long, default_value_t = 8)]
    vcpus: u32,
    /// Seconds counted, 1 … 3600
    #[arg(long, value_name = "S", default_value_t = 20.0)]
    seconds: f64,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Overhead {
    host: Host,
    pcpus: usize,
    vms: u32,
    vcpus_per_vm: u32,
    vcpus: u32,
    period_ms: u64,
    seconds: f64,
    /// CPU time of the daemon, as a part of one pCPU.
    daemon_cpu: f64,
    /// CPU time of the daemon per accounting period, in seconds.
    daemon_cpu_per_period: f64,
    /// CPU time of all VMs together, in pCPUs.
    vms_cpu: f64,
    /// Decisions since the daemon's start, by its own metrics.
    decisions: Option<u64>,
    /// Those that took at most 5 ms.
    decisions_in_5_ms: Option<u64>,
    daemon: Usage,
    daemon_errors: Vec<String>,
}

/// Runs the measurement.
pub fn main(args: &OverheadArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=1000).contains(&args.vms),
        "--vms {} is not possible: 1 … 1000",
        args.vms
    );
    ensure!(
        (1..=plan::MOST_VCPUS).contains(&args.vcpus),
        "--vcpus {} is not possible: 1 … {}",
        args.vcpus,
        plan::MOST_VCPUS
    );
    let window = plan::seconds("--seconds", args.seconds, 1.0, 3600.0)?;
    let daemon_plan = args.daemon.plan()?;
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let uid = rustix::process::getuid().as_raw();
    let path = args
        .state_dir
        .clone()
        .unwrap_or_else(|| state_dir::default_for(uid));
    let dir = StateDir::open(&path)?;
    let seconds = (SETTLE + window).as_secs();
    let progress = Progress::begin(u64::from(args.vms) + seconds);

    let vms = start(args, &dir, &progress, &interrupt)?;
    progress.say("the daemon finds the VMs");
    let selected = Selected::Names(NAMES.to_owned());
    let metrics = dir.daemon().join("metrics.txt");
    let file = metrics.to_string_lossy();
    let extra = ["--metrics-file", &file];
    let mut daemon = DaemonProcess::start(&selected, &daemon_plan, &extra, &dir.daemon())?;
    wait(SETTLE, &progress, &interrupt)?;

    let pcpus = host_facts::usable_pcpus()?;
    let mut sampler = Sampler::new(ProcFs::host());
    let before = Usage::read(daemon.pid())?;
    let vms_before = Reading::take(&mut sampler, &vms, &pcpus)?;
    let begin = Instant::now();
    progress.say(&format!("counting {} s", args.seconds));
    wait(window, &progress, &interrupt)?;
    let after = Usage::read(daemon.pid())?;
    let elapsed = begin.elapsed().as_secs_f64();
    let vms_after = Reading::take(&mut sampler, &vms, &pcpus)?;
    daemon.check_alive()?;
    let errors = daemon.errors()?;
    let page = std::fs::read_to_string(&metrics)
        .with_context(|| format!("cannot read {}", metrics.display()))?;
    progress.say("stopping");
    daemon.stop()?;
    stop_all(vms)?;
    dir.finish();
    drop(progress);

    let cpu = after.cpu_seconds - before.cpu_seconds;
    let period_ms = daemon_plan.period_ms.unwrap_or(default_period_ms());
    let figures = Overhead {
        host: host_facts::read(),
        pcpus: pcpus.len(),
        vms: args.vms,
        vcpus_per_vm: args.vcpus,
        vcpus: args.vms * args.vcpus,
        period_ms,
        seconds: elapsed,
        daemon_cpu: cpu / elapsed,
        daemon_cpu_per_period: cpu / elapsed * period_ms as f64 / 1000.0,
        vms_cpu: vms_after.shares_since(&vms_before).iter().sum(),
        decisions: metric(&page, "tandem_decision_seconds_count"),
        decisions_in_5_ms: metric(&page, "tandem_decision_seconds_bucket{le=\"0.005\"}"),
        daemon: after,
        daemon_errors: errors,
    };
    print(&table(&figures).to_string())?;
    args.json
        .as_ref()
        .map_or(Ok(()), |path| write_json(path, &figures))
}

/// A count in a page of OpenMetrics text.
fn metric(page: &str, series: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

fn default_period_ms() -> u64 {
    tandem_host::config::HostConfig::default().period_ms
}

fn start(
    args: &OverheadArgs,
    dir: &StateDir,
    progress: &Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<VmProcess>> {
    progress.say(&format!("starting {} VMs", args.vms));
    let mut vms = Vec::new();
    for i in 0..args.vms {
        interrupt.check()?;
        progress.detail(&format!("starting VM {} of {}", i + 1, args.vms));
        let plan = VmPlan {
            name: format!("ovh{i:03}"),
            vcpus: args.vcpus,
            weight: 1.0,
            workload: "bursty".to_owned(),
            settings: SETTINGS.map(str::to_owned).to_vec(),
            pins: Vec::new(),
        };
        let mut vm = VmProcess::start(&plan, Backend::Threads, u64::from(i), dir.logs())?;
        vm.ready()
            .with_context(|| format!("VM {} of {}", i + 1, args.vms))?;
        vms.push(vm);
        progress.step();
    }
    Ok(vms)
}

fn wait(time: Duration, progress: &Progress, interrupt: &Interrupt) -> anyhow::Result<()> {
    let begin = Instant::now();
    let whole = time.as_secs();
    for second in 1..=whole {
        interrupt.sleep_until(begin + Duration::from_secs(second))?;
        progress.step();
    }
    Ok(interrupt.sleep_until(begin + time)?)
}

fn table(figures: &Overhead) -> Table {
    let mut table = Table::new(&["figure", "value"]);
    let usage = &figures.daemon;
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let within = match (figures.decisions_in_5_ms, figures.decisions) {
        (Some(quick), Some(all)) => format!("{quick} of {all}"),
        _ => "not measured".to_owned(),
    };
    let rows = [
        ("VMs", figures.vms.to_string()),
        ("vCPUs", figures.vcpus.to_string()),
        ("period", format!("{} ms", figures.period_ms)),
        ("window", format!("{:.1} s", figures.seconds)),
        (
            "daemon CPU time",
            format!("{:.2} % of one pCPU", figures.daemon_cpu * 100.0),
        ),
        (
            "daemon CPU time per period",
            format!("{:.3} ms", figures.daemon_cpu_per_period * 1e3),
        ),
        (
            "CPU time of the VMs",
            format!("{} pCPUs", figure::pcpus(figures.vms_cpu)),
        ),
        ("decisions within 5 ms", within),
        ("daemon memory, peak", mib(usage.peak_rss_kib)),
        ("daemon memory, now", mib(usage.rss_kib)),
        ("daemon open files", usage.fds.to_string()),
        ("daemon threads", usage.threads.to_string()),
        (
            "errors reported by the daemon",
            figures.daemon_errors.len().to_string(),
        ),
    ];
    for (name, value) in rows {
        table.row([name.to_owned(), value]);
    }
    table
}
