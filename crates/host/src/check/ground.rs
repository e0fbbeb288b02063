//! The cgroup in which a check measures: made, and removed however the check ends.
//!
//! It lies below the root, is called `tandem-check-PID` by the process that runs the check, and holds the process that measures, which makes more
//! below. On cgroup v2 it is a domain of its own, so that its threads may be in threaded groups below it, wherever the check was started.
//!
//! Where the cpu controller has to be let down from the root for it, that is journaled before, in the folder `check` of the state directory.
//!
//! What a check that was killed left behind holds no process; the next check, or `tandem host restore`, removes it and then takes the controller
//! back.

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

/// The kernel removes a thread from its cgroup a moment after its process was waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a check left that was killed a moment ago still holds its ending process for less than this.
const ENDING: Duration = Duration::from_secs(1);

/// Why there is no cgroup to measure in.
#[derive(Debug, Error)]
pub enum GroundError {
    /// Nobody has let the controller down from the root.
    #[error(
        "the root cgroup does not let the cpu controller into those below (cgroup.subtree_control); \
         --enable-controller does so for as long as the check takes: all cgroups below the root then compete by weight"
    )]
    NotLetDown,
    /// The kernel refused.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// It could not be journaled that the controller is let down, so it was not, or what an earlier check left could not be looked up.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Somebody else uses by now what was let down, or the kernel refused.
    #[error("not everything is as it was before a check: {0}")]
    NotPutBack(RestoreReport),
}

/// The cgroup, and what was changed for it.
pub struct Ground {
    controller: Arc<dyn CpuController>,
    files: Hierarchy,
    state_dir: PathBuf,
    may_enable: bool,
    /// Since it was.
    enabled: Option<Actuator>,
    top: Option<CgroupPath>,
}

/// In the state directory.
fn journal(state_dir: &Path) -> PathBuf {
    state_dir.join("check")
}

/// Puts back what checks that were killed left. One that runs does so itself.
pub(super) fn put_back(
    controller: &Arc<dyn CpuController>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    // First, since the controller stays as long as any cgroup uses it.
    sweep(controller.as_ref());
    match restore_all(controller.clone(), &journal(state_dir)) {
        Err(ActuatorError::Journal(JournalError::Locked { .. })) => Ok(RestoreReport::default()),
        outcome => outcome,
    }
}

impl Ground {
    /// Nothing is made yet.
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

    /// Makes the cgroup, and puts back what an earlier check left.
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

    /// Moves a process there, with all its threads.
    pub fn take_in(&self, pid: Pid) -> Result<(), CgroupError> {
        match &self.top {
            Some(top) => self.files.write(top, "cgroup.procs", &pid.to_string(), |_| ""),
            None => Ok(()),
        }
    }

    /// Removes everything that was made, and takes the controller back.
    pub fn clear(&mut self) -> Result<(), GroundError> {
        if let Some(top) = self.top.take() {
            remove_within(PATIENCE, self.controller.as_ref(), &top)?;
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

/// What is not complete stays in the journal.
fn complete(report: RestoreReport) -> Result<(), GroundError> {
    if report.is_complete() { Ok(()) } else { Err(GroundError::NotPutBack(report)) }
}

/// Removes a cgroup that may hold threads that are about to end.
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

/// A cgroup and all below it, the lowest first.
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

/// Removes cgroups of checks whose process is gone. What holds anything stays.
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

    /// A hierarchy of v2 whose root does not let the cpu controller down.
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
                // The kernel shows what is enabled, not what was written.
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

        fn is_let_down(&self) -> bool {
            let subtree = self.root.path().join("cg/cgroup.subtree_control");
            fs::read_to_string(subtree).unwrap() == "cpu\n"
        }

        /// A check has let the controller down and is killed.
        fn killed(&self) {
            let mut ground = self.ground(true);
            let top = ground.make().unwrap();
            assert!(self.is_let_down());
            assert!(is_pending(&journal(&self.state_dir())));
            // The journal's lock goes with the process.
            ground.enabled.take().unwrap().abandon();
            ground.top = None;
            drop(ground);
            // This process lives, so nobody takes its cgroup for that of one that was killed.
            fs::remove_dir(self.root.path().join("cg").join(top.name())).unwrap();
            assert!(self.is_let_down(), "as after kill -9");
        }
    }

    #[test]
    fn a_check_that_ends_takes_the_controller_back() {
        let host = Host::new();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        ground.clear().unwrap();
        assert!(!host.is_let_down() && !is_pending(&journal(&host.state_dir())));
        host.ground(true).make().unwrap();
        assert!(!host.is_let_down(), "it was dropped");
    }

    #[test]
    fn what_a_killed_check_let_down_a_restore_takes_back() {
        let host = Host::new();
        host.killed();
        let report = put_back(&host.controller, &host.state_dir()).unwrap();
        assert!(report.is_complete() && report.put_back == 1, "{report}");
        assert!(!host.is_let_down() && !is_pending(&journal(&host.state_dir())));
        let again = put_back(&host.controller, &host.state_dir()).unwrap();
        assert_eq!(again, RestoreReport::default());
    }

    #[test]
    fn what_a_killed_check_let_down_the_next_one_takes_back_first() {
        let host = Host::new();
        host.killed();
        let error = host.ground(false).make().unwrap_err();
        assert!(matches!(error, GroundError::NotLetDown), "{error}");
        assert!(!host.is_let_down());
        host.killed();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        ground.clear().unwrap();
        assert!(!host.is_let_down());
    }

    #[test]
    fn a_check_that_runs_is_left_alone_by_a_restore() {
        let host = Host::new();
        let mut ground = host.ground(true);
        ground.make().unwrap();
        let report = put_back(&host.controller, &host.state_dir()).unwrap();
        assert_eq!(report, RestoreReport::default());
        assert!(host.is_let_down());
        ground.clear().unwrap();
        assert!(!host.is_let_down());
    }
}
