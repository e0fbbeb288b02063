//! `tandem bench churn`: what stays behind after many VMs have come and gone under the daemon.
//!
//! VMs start and stop one after the other, a few at a time, each long enough for the daemon to find
//! it and to act on it. Before and after, with no VM running, the daemon's open files, memory,
//! cgroups and journal are counted; the most cgroups seen in between shows that it did act. Nothing
//! may grow with the number of starts.

use std::collections::VecDeque;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use tandem_linux::ProcFs;
use tandem_linux::cgroup;
use tandem_report::experiment::Host;
use tandem_report::table::Table;

use super::usage::Usage;
use super::usage::files_kept_open;
use super::write_json;
use crate::console::check_writable;
use crate::console::explain;
use crate::console::print;
use crate::demo::DaemonArgs;
use crate::demo::daemon_process::DaemonProcess;
use crate::demo::daemon_process::Selected;
use crate::demo::host_facts;
use crate::demo::plan::Backend;
use crate::demo::plan::VmPlan;
use crate::demo::state_dir;
use crate::demo::state_dir::StateDir;
use crate::demo::vm_process::VmProcess;
use crate::demo::vm_process::stop_all;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

/// Names of this bench's VMs, for the daemon's selection.
const NAMES: &str = "churn*";

/// How many VMs run at a time.
const TOGETHER: usize = 4;

/// Time between two starts.
const STEP: Duration = Duration::from_millis(150);

/// Time for the daemon to notice that VMs are gone, before it is counted.
const SETTLE: Duration = Duration::from_secs(3);

/// `tandem bench churn`
#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Number of VM starts, 1 … 100000
    #[arg(long, default_value_t = 200)]
    starts: u32,
    /// vCPUs of each VM, 1 … 64
    #[arg(long, default_value_t = 2)]
    vcpus: u32,
    /// What runs the vCPUs [default: kvm, or threads where there is no KVM]
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// The daemon and its traces at one moment.
#[derive(Clone, Copy, Serialize)]
struct Traces {
    daemon: Usage,
    /// Files that the daemon keeps open; those it reads at the moment are not among them.
    open_files: usize,
    cgroups: usize,
    journal_bytes: u64,
}

#[derive(Serialize)]
struct Churn {
    host: Host,
    backend: &'static str,
    starts: u32,
    vcpus: u32,
    /// After the first few VMs, so that what is allocated once is not taken for a leak.
    before: Traces,
    after: Traces,
    most_cgroups: usize,
    daemon_errors: Vec<String>,
}

/// Runs the measurement.
pub fn main(args: &ChurnArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=100_000).contains(&args.starts),
        "--starts {} is not possible: 1 … 100000",
        args.starts
    );
    ensure!(
        (1..=64).contains(&args.vcpus),
        "--vcpus {} is not possible: 1 … 64",
        args.vcpus
    );
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
    let progress = Progress::begin(u64::from(args.starts));
    let backend = backend(args, &dir, &progress)?;

    let selected = Selected::Names(NAMES.to_owned());
    // Looking often for VMs makes each one's short life long enough to be acted on.
    let extra = ["--scan-ms", "100"];
    let mut daemon = DaemonProcess::start(&selected, &daemon_plan, &extra, &dir.daemon())?;
    let mut churner = Churner {
        args,
        backend,
        dir: &dir,
        interrupt: &interrupt,
        next: 0,
        most: 0,
    };
    churner.run(TOGETHER as u32 * 2, &Progress::hidden())?;
    interrupt.sleep(SETTLE)?;
    let before = traces(&daemon)?;
    churner.most = 0;
    progress.say(&format!("{} VM starts and stops", args.starts));
    churner.run(args.starts, &progress)?;
    interrupt.sleep(SETTLE)?;
    daemon.check_alive()?;
    let after = traces(&daemon)?;
    let most_cgroups = churner.most;
    let daemon_errors = daemon.errors()?;
    daemon.stop()?;
    dir.finish();
    drop(progress);

    let figures = Churn {
        host: host_facts::read(),
        backend: backend.name(),
        starts: args.starts,
        vcpus: args.vcpus,
        before,
        after,
        most_cgroups,
        daemon_errors,
    };
    print(&table(&figures).to_string())?;
    for error in figures.daemon_errors.iter().take(5) {
        eprintln!("the daemon said: {error}");
    }
    args.json
        .as_ref()
        .map_or(Ok(()), |path| write_json(path, &figures))
}

/// KVM if there is KVM: tried with one VM that the daemon does not select.
fn backend(args: &ChurnArgs, dir: &StateDir, progress: &Progress) -> anyhow::Result<Backend> {
    if let Some(backend) = args.backend {
        return Ok(backend);
    }
    let probe = || -> anyhow::Result<()> {
        let mut vm = VmProcess::start(&vm("probe", 1), Backend::Kvm, 1, dir.logs())?;
        vm.ready()?;
        vm.stop()
    };
    match probe() {
        Ok(()) => Ok(Backend::Kvm),
        Err(error) => {
            progress.note(&format!(
                "KVM could not be used, plain threads instead: {}",
                explain(&error)
            ));
            Ok(Backend::Threads)
        }
    }
}

fn vm(name: &str, vcpus: u32) -> VmPlan {
    VmPlan {
        name: name.to_owned(),
        vcpus,
        weight: 1.0,
        workload: "burn".to_owned(),
        settings: Vec::new(),
        pins: Vec::new(),
    }
}

struct Churner<'a> {
    args: &'a ChurnArgs,
    backend: Backend,
    dir: &'a StateDir,
    interrupt: &'a Interrupt,
    next: u64,
    most: usize,
}

impl Churner<'_> {
    /// Starts this many VMs, and ends with none running.
    fn run(&mut self, starts: u32, progress: &Progress) -> anyhow::Result<()> {
        let mut running: VecDeque<VmProcess> = VecDeque::new();
        for start in 1..=starts {
            progress.detail(&format!("VM {start} of {starts}"));
            // Names come again, as they do when a VM is restarted.
            let plan = vm(&format!("churn{}", self.next % 10), self.args.vcpus);
            let mut vm = VmProcess::start(&plan, self.backend, self.next, self.dir.logs())?;
            vm.ready()?;
            self.next += 1;
            running.push_back(vm);
            self.interrupt.sleep(STEP)?;
            self.most = self.most.max(cgroups()?);
            if running.len() == TOGETHER
                && let Some(oldest) = running.pop_front()
            {
                oldest.stop()?;
            }
            progress.step();
        }
        stop_all(running.into())
    }
}

fn traces(daemon: &DaemonProcess) -> anyhow::Result<Traces> {
    let journal = daemon.journal();
    let journal_bytes = std::fs::metadata(&journal)
        .with_context(|| format!("cannot look at {}", journal.display()))?
        .len();
    Ok(Traces {
        daemon: Usage::read(daemon.pid())?,
        open_files: files_kept_open(daemon.pid())?,
        cgroups: cgroups()?,
        journal_bytes,
    })
}

/// How many cgroups of Tandem's there are.
fn cgroups() -> anyhow::Result<usize> {
    Ok(count(cgroup::open(&ProcFs::host())?.mount()))
}

/// Folders come and go while we look; what is gone does not count.
fn count(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let folders = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| {
            let ours = entry.file_name().to_string_lossy().starts_with("tandem");
            usize::from(ours) + count(&entry.path())
        })
        .sum()
}

fn table(figures: &Churn) -> Table {
    let mut table = Table::new(&["figure", "before", "after"]);
    let (before, after) = (&figures.before, &figures.after);
    let kib = |kib: u64| format!("{kib} KiB");
    let rows = [
        (
            "VM starts and stops",
            String::new(),
            figures.starts.to_string(),
        ),
        (
            "most cgroups at a time",
            String::new(),
            figures.most_cgroups.to_string(),
        ),
        (
            "errors reported by the daemon",
            String::new(),
            figures.daemon_errors.len().to_string(),
        ),
        (
            "daemon open files",
            before.open_files.to_string(),
            after.open_files.to_string(),
        ),
        (
            "daemon memory",
            kib(before.daemon.rss_kib),
            kib(after.daemon.rss_kib),
        ),
        (
            "daemon threads",
            before.daemon.threads.to_string(),
            after.daemon.threads.to_string(),
        ),
        (
            "Tandem's cgroups",
            before.cgroups.to_string(),
            after.cgroups.to_string(),
        ),
        (
            "journal",
            format!("{} bytes", before.journal_bytes),
            format!("{} bytes", after.journal_bytes),
        ),
    ];
    for (name, before, after) in rows {
        table.row([name.to_owned(), before, after]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tandems_cgroups_are_counted_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for path in [
            "tandem-a",
            "machine/tandem-b",
            "machine/other",
            "tandem-a/vcpus",
        ] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        std::fs::write(dir.path().join("tandem.txt"), "").unwrap();
        assert_eq!(count(dir.path()), 2);
        assert_eq!(count(&dir.path().join("gone")), 0);
    }
}
