//! The cgroup in which a check measures: made, and removed however the check ends.
//!
//! It lies below the root, is called `tandem-check-PID` by the process that runs the check, and holds the process that measures, which makes more
//! below. On cgroup v2 it is a domain of its own, so that its threads may be in threaded groups below it, wherever the check was started.
//!
//! What a check that was killed left behind holds no process; the next check removes it.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::Version;
use tandem_linux::cgroup::files::Hierarchy;
use tandem_linux::ids::Pid;
use tandem_linux::procfs::ProcFs;
use thiserror::Error;

const PREFIX: &str = "tandem-check-";

/// The kernel removes a thread from its cgroup a moment after its process was waited for.
const PATIENCE: Duration = Duration::from_secs(5);

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
}

/// The cgroup, and what was changed for it.
pub struct Ground {
    controller: Box<dyn CpuController>,
    files: Hierarchy,
    may_enable: bool,
    enabled: bool,
    top: Option<CgroupPath>,
}

impl Ground {
    /// Nothing is made yet.
    pub fn new(controller: Box<dyn CpuController>, may_enable: bool) -> Ground {
        Ground {
            files: Hierarchy::new(&ProcFs::host(), controller.mount()),
            controller,
            may_enable,
            enabled: false,
            top: None,
        }
    }

    /// Makes the cgroup, and removes what an earlier check left.
    pub fn make(&mut self) -> Result<CgroupPath, GroundError> {
        self.sweep();
        let root = CgroupPath::root();
        let name = format!("{PREFIX}{}", std::process::id());
        if !self
            .controller
            .missing_enables(&root.child(&name))?
            .is_empty()
        {
            if !self.may_enable {
                return Err(GroundError::NotLetDown);
            }
            self.enabled = true;
            self.controller.enable(&root)?;
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
            Some(top) => self
                .files
                .write(top, "cgroup.procs", &pid.to_string(), |_| ""),
            None => Ok(()),
        }
    }

    /// Removes everything that was made.
    pub fn clear(&mut self) -> Result<(), CgroupError> {
        if let Some(top) = self.top.take() {
            let end = Instant::now() + PATIENCE;
            loop {
                match self.remove(&top) {
                    Err(CgroupError::Busy { .. }) if Instant::now() < end => {
                        sleep(Duration::from_millis(5));
                    }
                    other => break other?,
                }
            }
        }
        if std::mem::take(&mut self.enabled) {
            self.controller.disable(&CgroupPath::root())?;
        }
        Ok(())
    }

    /// A cgroup and all below it, the lowest first.
    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        match self.controller.children(cgroup) {
            Ok(children) => {
                for child in children {
                    self.remove(&child)?;
                }
            }
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        }
        self.controller.remove(cgroup)
    }

    /// Removes cgroups of checks whose process is gone. What holds anything stays.
    fn sweep(&self) {
        let Ok(children) = self.controller.children(&CgroupPath::root()) else {
            return;
        };
        for child in children {
            let left = child
                .name()
                .strip_prefix(PREFIX)
                .is_some_and(|pid| !Path::new("/proc").join(pid).exists());
            if left {
                let _ = self.remove(&child);
            }
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}
