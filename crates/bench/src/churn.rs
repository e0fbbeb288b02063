//! What stays behind after many VMs have come and gone under the daemon.
//!
//! VMs start and stop one after the other, a few at a time, each long enough for the daemon to find
//! it and to act on it. Before and after, with no VM running, the daemon's open files, memory,
//! cgroups and journal are counted; the most cgroups seen in between shows that it did act. Nothing
//! may grow with the number of starts.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tandem_linux::ProcFs;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::interrupt::Interrupted;
use tandem_linux::usage::Usage;
use tandem_linux::usage::UsageError;
use tandem_linux::usage::files_kept_open;
use tandem_microvm::Backend;
use tandem_report::experiment::Host;
use tandem_report::explain;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::daemon_process::DaemonError;
use crate::daemon_process::DaemonProcess;
use crate::daemon_process::Selected;
use crate::host_facts;
use crate::plan::DaemonPlan;
use crate::plan::VmPlan;
use crate::state_dir::StateDir;
use crate::state_dir::StateDirError;
use crate::vm_process::VmError;
use crate::vm_process::VmProcess;
use crate::vm_process::stop_all;

/// Names of this bench's VMs, for the daemon's selection.
const NAMES: &str = "churn*";

/// How many VMs run at a time.
const TOGETHER: usize = 4;

/// Time between two starts.
const STEP: Duration = Duration::from_millis(150);

/// Time for the daemon to notice that VMs are gone, before it is counted.
const SETTLE: Duration = Duration::from_secs(3);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of VM starts.
    pub starts: u32,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// What runs the vCPUs; without one, KVM if there is KVM.
    pub backend: Option<Backend>,
    /// How the daemon is started.
    pub daemon: DaemonPlan,
    /// Where the experiment works.
    pub state_dir: PathBuf,
}

impl Settings {
    /// How many steps of progress the measurement has.
    pub fn steps(&self) -> u64 {
        u64::from(self.starts)
    }
}

/// The daemon and its traces at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Traces {
    /// What it uses.
    pub daemon: Usage,
    /// Files that the daemon keeps open; those it reads at the moment are not among them.
    pub open_files: usize,
    /// Cgroups of Tandem's.
    pub cgroups: usize,
    /// Size of its journal.
    pub journal_bytes: u64,
}

/// What stayed behind.
#[derive(Clone, Debug, Serialize)]
pub struct Churn {
    /// The host.
    pub host: Host,
    /// What ran the vCPUs.
    pub backend: Backend,
    /// Number of VM starts.
    pub starts: u32,
    /// vCPUs of each VM.
    pub vcpus: u32,
    /// After the first few VMs, so that what is allocated once is not taken for a leak.
    pub before: Traces,
    /// After all of them.
    pub after: Traces,
    /// The most cgroups of Tandem's in between.
    pub most_cgroups: usize,
    /// The lines in which the daemon reported errors.
    pub daemon_errors: Vec<String>,
}

/// What ends the measurement.
#[derive(Debug, Error)]
pub enum ChurnError {
    /// It has nowhere to work.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A VM failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The daemon failed.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// What the daemon uses could not be read.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// There are no cgroups to count.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// The daemon's journal could not be measured.
    #[error("cannot look at {}", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Runs the measurement.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Churn, ChurnError> {
    let dir = StateDir::open(&settings.state_dir)?;
    let backend = settings
        .backend
        .unwrap_or_else(|| usable_backend(&dir, progress));

    let selected = Selected::Names(NAMES.to_owned());
    // Looking often for VMs makes each one's short life long enough to be acted on.
    let extra = ["--scan-ms", "100"];
    let mut daemon = DaemonProcess::start(&selected, &settings.daemon, &extra, &dir.daemon())?;
    let mut churner = Churner {
        vcpus: settings.vcpus,
        backend,
        dir: &dir,
        interrupt,
        next: 0,
        most: 0,
    };
    churner.run(TOGETHER as u32 * 2, &Progress::hidden())?;
    interrupt.sleep(SETTLE)?;
    let before = traces(&daemon)?;
    churner.most = 0;
    progress.say(&format!("{} VM starts and stops", settings.starts));
    churner.run(settings.starts, progress)?;
    interrupt.sleep(SETTLE)?;
    daemon.check_alive()?;
    let after = traces(&daemon)?;
    let most_cgroups = churner.most;
    let daemon_errors = daemon.errors()?;
    daemon.stop()?;
    dir.finish();

    Ok(Churn {
        host: host_facts::read(),
        backend,
        starts: settings.starts,
        vcpus: settings.vcpus,
        before,
        after,
        most_cgroups,
        daemon_errors,
    })
}

/// KVM if there is KVM: tried with one VM that the daemon does not select.
fn usable_backend(dir: &StateDir, progress: &Progress) -> Backend {
    let probe = || -> Result<(), VmError> {
        let mut vm = VmProcess::start(&vm("probe", 1), Backend::Kvm, 1, dir.logs())?;
        vm.ready()?;
        vm.stop()
    };
    match probe() {
        Ok(()) => Backend::Kvm,
        Err(error) => {
            progress.note(&format!(
                "KVM could not be used, plain threads instead: {}",
                explain(&error)
            ));
            Backend::Threads
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
    vcpus: u32,
    backend: Backend,
    dir: &'a StateDir,
    interrupt: &'a Interrupt,
    next: u64,
    most: usize,
}

impl Churner<'_> {
    /// Starts this many VMs, and ends with none running.
    fn run(&mut self, starts: u32, progress: &Progress) -> Result<(), ChurnError> {
        let mut running: VecDeque<VmProcess> = VecDeque::new();
        for start in 1..=starts {
            progress.detail(&format!("VM {start} of {starts}"));
            // Names come again, as they do when a VM is restarted.
            let plan = vm(&format!("churn{}", self.next % 10), self.vcpus);
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
        Ok(stop_all(running.into())?)
    }
}

fn traces(daemon: &DaemonProcess) -> Result<Traces, ChurnError> {
    let journal = daemon.journal();
    let journal_bytes = std::fs::metadata(&journal)
        .map_err(|source| ChurnError::Journal {
            path: journal,
            source,
        })?
        .len();
    Ok(Traces {
        daemon: Usage::read(daemon.pid())?,
        open_files: files_kept_open(daemon.pid())?,
        cgroups: cgroups()?,
        journal_bytes,
    })
}

/// How many cgroups of Tandem's there are.
fn cgroups() -> Result<usize, CgroupError> {
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
