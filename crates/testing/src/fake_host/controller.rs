//! The host's operations, as the kernel would carry them out.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob, Version};
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, Tid};
use tandem_model::{Nanos, Nice, PcpuSet, Weight};

use super::{Cgroup, Fake};

pub(super) fn refused(cgroup: &CgroupPath, why: &str) -> CgroupError {
    CgroupError::Write {
        action: why.to_owned(),
        path: PathBuf::from(&cgroup.0),
        source: io::ErrorKind::Unsupported.into(),
        hint: "",
    }
}

impl CpuController for Fake {
    fn version(&self) -> Version {
        self.version
    }

    fn mount(&self) -> &Path {
        Path::new("/fake")
    }

    fn default_weight(&self) -> Weight {
        self.weights.default
    }

    fn weight_range(&self) -> (Weight, Weight) {
        self.weights.range
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        let mut inner = self.read();
        inner.asked.places += 1;
        let place = inner.now.threads.get(&thread.tid.0).map(|t| t.place.clone());
        place.ok_or_else(|| ThreadError::Gone(thread.to_string()).into())
    }

    fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        drop(self.read());
        self.with(cgroup, |cgroup| CgroupId(cgroup.id))
    }

    fn read_knob(&self, cgroup: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        drop(self.read());
        self.has_knobs(cgroup)?;
        self.with(cgroup, |cgroup| match knob {
            Knob::Weight => cgroup.weight.clone(),
            Knob::Quota => cgroup.quota.clone(),
            Knob::Idle => u8::from(cgroup.idle).to_string(),
        })
    }

    fn write_knob(&self, cgroup: &CgroupPath, knob: Knob, text: &str) -> Result<(), CgroupError> {
        self.has_knobs(cgroup)?;
        if knob == Knob::Weight && self.with(cgroup, |cgroup| cgroup.idle)? {
            return Err(refused(cgroup, "no weight in the idle class"));
        }
        let default = self.default_text();
        self.change(|state, _| {
            let cgroup = state.cgroups.get_mut(cgroup).unwrap();
            match knob {
                Knob::Weight => cgroup.weight = text.to_owned(),
                Knob::Quota => cgroup.quota = text.to_owned(),
                Knob::Idle => cgroup.set_idle(text == "1", &default),
            }
        });
        Ok(())
    }

    fn stat(&self, cgroup: &CgroupPath) -> Result<String, CgroupError> {
        drop(self.read());
        self.with(cgroup, |_| String::new())
    }

    fn threads(&self, cgroup: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.read();
        let threads = inner.now.threads.iter().filter(|(_, t)| t.place == *cgroup);
        Ok(threads.map(|(&tid, _)| Tid(tid)).collect())
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.read();
        let threads = inner.now.threads.values().filter(|thread| thread.place == *cgroup);
        let pids: BTreeSet<Pid> = threads.map(|thread| thread.pid).collect();
        Ok(pids.into_iter().collect())
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.read();
        Ok(inner.now.children(cgroup))
    }

    fn move_thread(&self, tid: Tid, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.with(cgroup, |_| ())?;
        let inner = self.lock();
        if inner.stuck.contains(&tid.0) || !inner.now.threads.contains_key(&tid.0) {
            return Err(CgroupError::ThreadGone(tid));
        }
        drop(inner);
        self.change(|state, _| {
            state.threads.get_mut(&tid.0).unwrap().place = cgroup.clone();
        });
        Ok(())
    }

    fn check_parent(&self, parent: &CgroupPath) -> Result<(), CgroupError> {
        let mut inner = self.read();
        inner.asked.parents += 1;
        if inner.unfit.contains(parent) {
            let reason = "as some cgroups".to_owned();
            return Err(CgroupError::NotThreadable { parent: parent.clone(), reason });
        }
        drop(inner);
        self.with(parent, |_| ())
    }

    fn create_child(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        self.with(parent, |_| ())?;
        let child = parent.child(name);
        if self.with(&child, |_| ()).is_ok() {
            return Err(CgroupError::Exists(child));
        }
        // Some creations fail at the last moment.
        if parent.name() == "own.scope" && name.ends_with('3') {
            return Err(refused(&child, "make"));
        }
        let made = Cgroup::new(&self.default_text(), self.version == Version::V1);
        self.change(|state, next_id| {
            *next_id += 1;
            state.cgroups.insert(child.clone(), Cgroup { id: *next_id, ..made.clone() });
        });
        Ok(child)
    }

    fn remove(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        let inner = self.read();
        if !inner.now.cgroups.contains_key(cgroup) {
            return Ok(());
        }
        let threads = inner.now.threads.values().filter(|t| t.place == *cgroup).count();
        let children = inner.now.children(cgroup).len();
        if threads + children > 0 || inner.busy.contains(cgroup) {
            let held = format!("{} threads, {children} cgroups", threads.max(1));
            return Err(CgroupError::Busy { cgroup: cgroup.clone(), held });
        }
        if inner.stuck_groups.contains(cgroup) {
            return Err(refused(cgroup, "remove"));
        }
        drop(inner);
        self.change(|state, _| state.cgroups.remove(cgroup));
        Ok(())
    }

    fn missing_enables(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        drop(self.read());
        let mut missing = Vec::new();
        for above in cgroup.ancestors() {
            if !self.with(&above, |cgroup| cgroup.enables)? {
                missing.push(above);
            }
        }
        Ok(missing)
    }

    fn enable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        self.with(cgroup, |_| ())?;
        self.change(|state, _| state.cgroups.get_mut(cgroup).unwrap().enables = true);
        Ok(())
    }

    fn disable(&self, cgroup: &CgroupPath) -> Result<(), CgroupError> {
        if !self.with(cgroup, |cgroup| cgroup.enables)? {
            return Ok(());
        }
        for child in self.children(cgroup)? {
            let is_set = |c: &Cgroup| {
                let default = c.weight == self.default_text() && c.quota == "max 100000" && !c.idle;
                !default || (self.version == Version::V2 && c.enables)
            };
            if self.with(&child, is_set)? {
                return Err(CgroupError::InUse { cgroup: cgroup.clone(), user: child.to_string() });
            }
        }
        self.change(|state, _| state.cgroups.get_mut(cgroup).unwrap().enables = false);
        Ok(())
    }
}

impl Threads for Fake {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        let mut inner = self.lock();
        inner.asked.lives += 1;
        let found = inner.now.threads.get(&thread.tid.0);
        found.is_some_and(|found| found.start == thread.start.0)
    }

    fn user(&self, _: Pid) -> Option<u32> {
        self.user
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        let inner = self.lock();
        let pcpus = inner.now.threads.get(&tid.0).map(|t| t.pcpus.clone());
        pcpus.ok_or(AffinityError::Gone(tid))
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        if pcpus.is_empty() {
            return Err(AffinityError::Empty(tid));
        }
        if !self.lock().now.threads.contains_key(&tid.0) {
            return Err(AffinityError::Gone(tid));
        }
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().pcpus = pcpus.clone());
        Ok(())
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        let inner = self.lock();
        let thread = inner.now.threads.get(&tid.0);
        thread.map(|t| t.nice).ok_or(SchedAttrError::Gone(tid))
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        self.nice(tid)?;
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().nice = nice);
        Ok(())
    }

    fn slice(&self, tid: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        let inner = self.lock();
        let thread = inner.now.threads.get(&tid.0);
        thread.map(|t| t.slice).ok_or(SchedAttrError::Gone(tid))
    }

    fn set_slice(&self, tid: Tid, slice: Option<Nanos>) -> Result<(), SchedAttrError> {
        self.slice(tid)?;
        self.change(|state, _| state.threads.get_mut(&tid.0).unwrap().slice = slice);
        Ok(())
    }
}
