//! A CPU controller that calls a hook of the test after each successful change.

use std::path::Path;

use tandem_linux::cgroup::{
    CgroupError, CgroupId, CgroupPath, CpuController, Knob, Owners, Version,
};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::Weight;

/// A change of the hierarchy.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// This text was written to a knob of a cgroup.
    Knob(&'a CgroupPath, Knob, &'a str),
    /// The cpu controller was enabled for the children of a cgroup.
    Enabled,
    /// The cpu controller was disabled for the children of a cgroup.
    Disabled,
}

/// The controller with the hook.
pub struct Hooked {
    /// The controller that makes the changes.
    pub inner: Box<dyn CpuController>,
    /// The hook after each successful change.
    pub after: Box<dyn Fn(Change<'_>) + Send + Sync>,
}

impl CpuController for Hooked {
    fn version(&self) -> Version {
        self.inner.version()
    }

    fn mount(&self) -> &Path {
        self.inner.mount()
    }

    fn default_weight(&self) -> Weight {
        self.inner.default_weight()
    }

    fn weight_range(&self) -> (Weight, Weight) {
        self.inner.weight_range()
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        self.inner.cgroup_of(thread)
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.inner.id(cgroup)
    }

    fn owners(&self, cgroup: &CgroupPath) -> Result<Owners, CgroupError> {
        self.inner.owners(cgroup)
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        self.inner.read_knob(cgroup, knob)
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        self.inner.write_knob(cgroup, knob, text)?;
        (self.after)(Change::Knob(cgroup, knob, text));
        Ok(())
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        self.inner.stat(cgroup)
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.inner.threads(cgroup)
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.inner.processes(cgroup)
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.inner.children(cgroup)
    }

    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.inner.move_thread(tid, cgroup)
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        self.inner.check_parent(parent)
    }

    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        self.inner.create_child(parent, name)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.inner.remove(cgroup)
    }

    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.inner.missing_enables(cgroup)
    }

    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.inner.enable(cgroup)?;
        (self.after)(Change::Enabled);
        Ok(())
    }

    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.inner.disable(cgroup)?;
        (self.after)(Change::Disabled);
        Ok(())
    }
}
