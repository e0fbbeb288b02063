//! What the live tests have around them: VMs to work on, a cgroup that one of them owns, and a
//! snapshot of all that an actuator can change, to be compared before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use tandem_linux::ProcFs;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::thread::ThreadRef;

use crate::harness::Skip;
use crate::helper::Helper;
use crate::helper::unique;
use crate::helper::vcpu_threads;
use crate::helper::wait_until;

/// This host's controller, or why it cannot be used here.
pub fn controller() -> Result<Box<dyn CpuController>, Skip> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("needs root to change cgroups".to_owned()));
    }
    cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))
}

/// A VM that shares its cgroup with this test, and another that has one of its own.
pub struct LiveHost {
    /// The VM that shares.
    pub shared: Helper,
    /// The VM that does not.
    pub owner: Helper,
    /// The cgroup that `owner` is in: a scope below the root.
    pub own: CgroupPath,
    /// How the names of groups begin that a test makes.
    pub prefix: String,
    folder: PathBuf,
}

impl LiveHost {
    /// Starts both VMs.
    pub fn new() -> Result<LiveHost, Skip> {
        let controller = controller()?;
        let prefix = unique("g");
        let own = CgroupPath(format!("/{}own.scope", unique("vm")));
        let folder = controller.mount().join(own.0.trim_start_matches('/'));
        fs::create_dir(&folder)
            .map_err(|error| Skip(format!("cannot make {}: {error}", folder.display())))?;
        let live_host = LiveHost {
            shared: Helper::start("vm", &["shared", "3"]),
            owner: Helper::start("vm", &["owner", "2"]),
            own,
            prefix,
            folder,
        };
        let procs = live_host.folder.join("cgroup.procs");
        fs::write(procs, live_host.owner.pid().to_string()).expect("a process can be moved");
        let home = controller
            .cgroup_of(&live_host.threads()[0])
            .expect("a cgroup");
        match controller.check_parent(&home) {
            Ok(()) => Ok(live_host),
            Err(error) => Err(Skip(error.to_string())),
        }
    }

    /// The vCPU threads of the VM that shares.
    pub fn threads(&self) -> Vec<ThreadRef> {
        vcpu_threads(self.shared.pid())
    }

    /// All that an actuator could have changed, as text by what it is.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        let mut snapshot = BTreeMap::new();
        let mut places = vec![CgroupPath::root(), self.own.clone()];
        for vm in [&self.shared, &self.owner] {
            for thread in vcpu_threads(vm.pid()) {
                let status = format!("/proc/{}/task/{}/status", thread.pid, thread.tid);
                let status = fs::read_to_string(status).expect("the thread lives");
                let allowed = status
                    .lines()
                    .find(|line| line.starts_with("Cpus_allowed:"));
                let cgroup = controller.cgroup_of(&thread).expect("the thread lives");
                places.extend(cgroup.ancestors());
                places.push(cgroup.clone());
                let what = format!("{cgroup}, {}", allowed.expect("a mask"));
                snapshot.insert(thread.to_string(), what);
            }
        }
        for place in places {
            let folder = controller.mount().join(place.0.trim_start_matches('/'));
            // On v1 some of these exist, on v2 others; one that comes or goes is a difference too.
            let mut files = vec!["cgroup.subtree_control", "cgroup.type"];
            if place == self.own {
                files.extend(["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"]);
                files.extend(["cpu.weight", "cpu.max"]);
            }
            for file in files {
                let path = folder.join(file);
                let text = fs::read_to_string(&path).unwrap_or_else(|e| e.kind().to_string());
                snapshot.insert(path.display().to_string(), text.trim_end().to_owned());
            }
            let children = controller.children(&place).expect("the cgroup exists");
            let made = children
                .iter()
                .filter(|child| child.name().starts_with(&self.prefix));
            let made: Vec<String> = made.map(CgroupPath::to_string).collect();
            snapshot.insert(format!("made below {place}"), made.join(" "));
        }
        snapshot
    }
}

impl Drop for LiveHost {
    fn drop(&mut self) {
        self.owner.end();
        wait_until("the VM's cgroup can be removed", || {
            fs::remove_dir(&self.folder).is_ok()
        });
    }
}
