//! The cgroup in which a check measures; it is removed however the check ends.
//!
//! It lies below the root and is named `tandem-check-PID` after the process that runs the check.
//! It holds the measuring process, which makes more cgroups below.
//! On cgroup v2 it is a domain, so that its threads may be in threaded cgroups below it, wherever the check was started.
//!
//! If the root's subtree control lacks the cpu controller, enabling it is journaled first, in `check` of the state directory.
//!
//! The cgroups of a killed check hold no process.
//! The next check, or `tandem host restore`, removes them and then disables the controller.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::actuator::{Actuator, ActuatorError, restore_all};
use tandem_linux::cgroup::files::Hierarchy;
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Version};
use tandem_linux::ids::Pid;
use tandem_linux::journal::JournalError;
use tandem_linux::procfs::ProcFs;
use tandem_linux::restore::RestoreReport;
use thiserror::Error;

const PREFIX: &str = "tandem-check-";

/// Timeout of removing a cgroup: the kernel removes a thread from it a moment after its process was waited for.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of removing the cgroup of a check that was just killed, whose process is still ending.
const ENDING: Duration = Duration::from_secs(1);

/// Why there is no cgroup to measure in.
#[derive(Debug, Error)]
pub enum GroundError {
    /// The root's subtree control lacks the controller.
    #[error(
        "the root cgroup does not let the cpu controller into those below (cgroup.subtree_control); \
         --enable-controller does so for as long as the check takes: all cgroups below the root then compete by weight"
    )]
    NotLetDown,
    /// The kernel refused.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The journal could not be written before enabling the controller, or that of an earlier check could not be read.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Another process uses the controller by now, or the kernel refused.
    #[error("not all changes of a check are reverted: {0}")]
    NotPutBack(RestoreReport),
}

/// The cgroup, and the changes made for it.
pub struct Ground {
    controller: Arc<dyn CpuController>,
    files: Hierarchy,
    state_dir: PathBuf,
    may_enable: bool,
    /// Set while the controller is enabled for the check.
    enabled: Option<Actuator>,
    top: Option<CgroupPath>,
}

/// Returns the journal's folder in the state directory.
fn journal(state_dir: &Path) -> PathBuf {
    state_dir.join("check")
}

/// Reverts the changes of killed checks, but not those of a running one.
pub(super) fn put_back(
    controller: &Arc<dyn CpuController>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    // Remove cgroups first, since the controller stays enabled while any cgroup uses it.
    sweep(controller.as_ref());
    match restore_all(controller.clone(), &journal(state_dir)) {
        Err(ActuatorError::Journal(JournalError::Locked { .. })) => Ok(RestoreReport::default()),
        outcome => outcome,
    }
}

impl Ground {
    /// Prepares the ground without changing anything.
    pub fn new(
        procfs: &ProcFs,
        controller: Arc<dyn CpuController>,
        state_dir: &Path,
        may_enable: bool,
    ) -> Ground {
        Ground {
            files: Hierarchy::new(procfs, controller.mount()),
            controller,
            state_dir: state_dir.to_owned(),
            may_enable,
            enabled: None,
            top: None,
        }
    }

    /// Makes the cgroup, and reverts the changes of an earlier check.
    pub fn make(&mut self) -> Result<CgroupPath, GroundError> {
        complete(put_back(&self.controller, &self.state_dir)?)?;
        let root = CgroupPath::root();
        let name = format!("{PREFIX}{}", std::process::id());
        let top = root.child(&name);
        if !self.controller.missing_enables(&top)?.is_empty() {
            if !self.may_enable {
                return Err(GroundError::NotLetDown);
            }
            let journal = journal(&self.state_dir);
            let (mut actuator, earlier) = Actuator::open(self.controller.clone(), &journal)?;
            complete(earlier)?;
            actuator.prepare_group(&top)?;
            self.enabled = Some(actuator);
        }
        let top = match self.controller.version() {
            Version::V1 => self.controller.create_child(&root, &name)?,
            Version::V2 => self.files.make(&root, &name)?,
        };
        Ok(self.top.insert(top).clone())
    }

    /// Moves a process with all its threads into the cgroup.
    pub fn take_in(&self, pid: Pid) -> Result<(), CgroupError> {
        match &self.top {
            Some(top) => self.files.write(top, "cgroup.procs", &pid.to_string(), |_| ""),
            None => Ok(()),
        }
    }

    /// Removes all cgroups, and disables the controller.
    pub fn clear(&mut self) -> Result<(), GroundError> {
        if let Some(top) = self.top.take() {
            remove_within(REMOVE_TIMEOUT, self.controller.as_ref(), &top)?;
        }
        if let Some(mut actuator) = self.enabled.take() {
            let report = actuator.restore();
            if !report.left.is_empty() {
                return Err(GroundError::NotPutBack(report));
            }
            complete(report)?;
        }
        Ok(())
    }
}

/// Fails if changes remain in the journal.
fn complete(report: RestoreReport) -> Result<(), GroundError> {
    if report.is_complete() { Ok(()) } else { Err(GroundError::NotPutBack(report)) }
}

/// Removes a cgroup that may hold ending threads.
fn remove_within(
    patience: Duration,
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
) -> Result<(), CgroupError> {
    let end = Instant::now() + patience;
    loop {
        match remove(controller, cgroup) {
            Err(CgroupError::Busy { .. }) if Instant::now() < end => {
                sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// Removes a cgroup and its descendants, the lowest first.
fn remove(controller: &dyn CpuController, cgroup: &CgroupPath) -> Result<(), CgroupError> {
    match controller.children(cgroup) {
        Ok(children) => {
            for child in children {
                remove(controller, &child)?;
            }
        }
        Err(error) if error.is_gone() => return Ok(()),
        Err(error) => return Err(error),
    }
    controller.remove(cgroup)
}

/// Removes the cgroups of checks whose process has ended, if they are empty.
fn sweep(controller: &dyn CpuController) {
    let Ok(children) = controller.children(&CgroupPath::root()) else {
        return;
    };
    for child in children {
        let left = child
            .name()
            .strip_prefix(PREFIX)
            .is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if left {
            let _ = remove_within(ENDING, controller, &child);
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tandem_linux::cgroup::open;
    use tandem_linux::journal::is_pending;

    use super::*;
    use tandem_testing::hooked::{Change, Hooked};

    /// A v2 hierarchy whose root does not enable the cpu controller.
    struct Host {
        root: tempfile::TempDir,
        controller: Arc<dyn CpuController>,
    }

    impl Host {
        fn new() -> Host {
            let root = tempfile::tempdir().unwrap();
            let (cg, proc) = (root.path().join("cg"), root.path().join("proc"));
            fs::create_dir_all(&proc).unwrap();
            fs::write(proc.join("mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
            fs::create_dir_all(&cg).unwrap();
            fs::write(cg.join("cgroup.controllers"), "cpu\n").unwrap();
            let subtree = cg.join("cgroup.subtree_control");
            fs::write(&subtree, "\n").unwrap();
            let controller = Hooked {
                inner: open(&ProcFs::at(root.path())).unwrap(),
                // Reading the file shows the enabled controllers, not the written text.
                after: Box::new(move |change| match change {
                    Change::Enabled => fs::write(&subtree, "cpu\n").unwrap(),
                    Change::Disabled => fs::write(&subtree, "\n").unwrap(),
                    Change::Knob(..) => {}
                }),
            };
            Host { controller: Arc::new(controller), root }
        }

        fn state_dir(&self) -> PathBuf {
            self.root.path().join("state")
        }

        fn ground(&self, may_enable: bool) -> Ground {
            let procfs = ProcFs::at(self.root.path());
            let controller = self.controller.clone();
            Ground::new(&procfs, controller, &self.state_dir(), may_enable)
        }

        fn is_enabled(&self) -> bool {
            let subtree = self.root.path().join("cg/cgroup.subtree_control");
            fs::read_to_string(subtree).unwrap() == "cpu\n"
        }

        /// Simulates a check that was killed after it enabled the controller.
        fn killed(&self) {
            let mut ground = self.ground(true);
            let top = ground.make().unwrap();
            assert!(self.is_enabled());
            assert!(is_pending(&journal(&self.state_dir())));
            // The lock of the journal ends with the process.
            ground.enabled.take().unwrap().abandon();
            ground.top = None;
            drop(ground);
            // This process lives, so its cgroup would not count as that of a killed check.
            fs::remove_dir(self.root.path().join("cg").join(top.name())).unwrap();
            assert!(self.is_enabled(), "as after kill -9");
        }
    }

    #[test]
    fn ended_check_disables_the_controller() {
        let host = Host::new();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        ground.clear().unwrap();
        assert!(!host.is_enabled() && !is_pending(&journal(&host.state_dir())));
        host.ground(true).make().unwrap();
        assert!(!host.is_enabled(), "it was dropped");
    }

    #[test]
    fn restore_reverts_a_killed_check() {
        let host = Host::new();
        host.killed();
        let report = put_back(&host.controller, &host.state_dir()).unwrap();
        assert!(report.is_complete() && report.put_back == 1, "{report}");
        assert!(!host.is_enabled() && !is_pending(&journal(&host.state_dir())));
        let again = put_back(&host.controller, &host.state_dir()).unwrap();
        assert_eq!(again, RestoreReport::default());
    }

    #[test]
    fn next_check_reverts_a_killed_check() {
        let host = Host::new();
        host.killed();
        let error = host.ground(false).make().unwrap_err();
        assert!(matches!(error, GroundError::NotLetDown), "{error}");
        assert!(!host.is_enabled());
        host.killed();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        ground.clear().unwrap();
        assert!(!host.is_enabled());
    }

    #[test]
    fn restore_leaves_a_running_check_alone() {
        let host = Host::new();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        let report = put_back(&host.controller, &host.state_dir()).unwrap();
        assert_eq!(report, RestoreReport::default());
        assert!(host.is_enabled());
        ground.clear().unwrap();
        assert!(!host.is_enabled());
    }
}
