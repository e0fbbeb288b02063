//! Fixtures of live tests on this host: VMs, a cgroup that one of them owns, and a snapshot of the state that an
//! actuator can change, to compare before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup::{CgroupPath, CpuController, Knob, Version};
use tandem_linux::sched_attr::slice;
use tandem_linux::thread::ThreadRef;
use tandem_linux::{ProcFs, cgroup};

use crate::harness::Skip;
use crate::helper::{Helper, StateDir, unique, vcpu_threads, wait_until};

/// Returns this host's CPU controller, or the reason why it is unusable.
pub fn controller() -> Result<Box<dyn CpuController>, Skip> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("needs root to change cgroups".to_owned()));
    }
    cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))
}

/// A VM in the cgroup of this test, and another VM in its own cgroup.
pub struct LiveHost {
    /// The VM in the cgroup of the test.
    pub shared: Helper,
    /// The VM in its own cgroup.
    pub owner: Helper,
    /// Another VM in the cgroup of the test, if the test started one.
    pub third: Option<Helper>,
    /// The cgroup of `owner`, a scope.
    pub own: CgroupPath,
    /// Prefix of the names of groups that a test makes.
    pub prefix: String,
    /// Other changes of the operator, which are reverted before the VMs end.
    pub operator: Option<(Actuator, StateDir)>,
    /// The folders made for `owner`, the topmost first.
    made: Vec<PathBuf>,
    /// Cgroups in which the operator enabled the cpu controller for `own` and its descendants.
    enabled: Vec<CgroupPath>,
}

impl LiveHost {
    /// Starts both VMs; `owner` is in a scope below the root.
    pub fn new() -> Result<LiveHost, Skip> {
        let own = CgroupPath(format!("/{}own.scope", unique("vm")));
        LiveHost::of(own.clone(), &own)
    }

    /// Starts both VMs; `owner` is in cgroups like those of libvirt.
    ///
    /// Its scope (on v2: `libvirt` below it) has a cgroup for each vCPU thread and one for all other threads.
    /// The cpu controller is enabled for them.
    pub fn like_libvirt() -> Result<LiveHost, Skip> {
        let controller = controller()?;
        let name = unique("vm").trim_end_matches('-').replace('-', "\\x2d");
        let own = CgroupPath(format!("/machine.slice/machine-qemu\\x2d1\\x2d{name}.scope"));
        let home = match controller.version() {
            Version::V1 => own.clone(),
            Version::V2 => own.child("libvirt"),
        };
        let mut live_host = LiveHost::of(own, &home)?;
        let main = ThreadRef::of_process(&ProcFs::host(), live_host.owner.pid());
        let mut threads = vec![("emulator".to_owned(), main.expect("it lives"))];
        for (n, thread) in live_host.own_threads().into_iter().enumerate() {
            threads.push((format!("vcpu{n}"), thread));
        }
        for (name, thread) in threads {
            let group = controller.create_child(&home, &name).expect("a cgroup");
            live_host.made.push(folder(&*controller, &group));
            controller.move_thread(thread.tid, &group).expect("a move");
        }
        live_host.enable_controller_down_to(&home.child("vcpu0"));
        Ok(live_host)
    }

    /// Starts both VMs, `owner` in `home`, which is `own` or a descendant of it.
    fn of(own: CgroupPath, home: &CgroupPath) -> Result<LiveHost, Skip> {
        let controller = controller()?;
        let mut live_host = LiveHost {
            shared: Helper::start("vm", &["shared", "3"]),
            owner: Helper::start("vm", &["owner", "2"]),
            third: None,
            own,
            prefix: unique("g"),
            operator: None,
            made: Vec::new(),
            enabled: Vec::new(),
        };
        for cgroup in home.ancestors().iter().skip(1).chain([home]) {
            let folder = folder(&*controller, cgroup);
            match fs::create_dir(&folder) {
                Ok(()) => live_host.made.push(folder),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Skip(format!("cannot make {}: {error}", folder.display())));
                }
            }
        }
        let procs = folder(&*controller, home).join("cgroup.procs");
        fs::write(procs, live_host.owner.pid().to_string()).expect("a process can be moved");
        let home = controller.cgroup_of(&live_host.threads()[0]).expect("a cgroup");
        match controller.check_parent(&home) {
            Ok(()) => Ok(live_host),
            Err(error) => Err(Skip(error.to_string())),
        }
    }

    /// Returns the vCPU threads of `shared`.
    pub fn threads(&self) -> Vec<ThreadRef> {
        vcpu_threads(self.shared.pid())
    }

    /// Returns the vCPU threads of `owner`.
    pub fn own_threads(&self) -> Vec<ThreadRef> {
        vcpu_threads(self.owner.pid())
    }

    /// Enables the cpu controller for `own` on v2, as an operator does.
    pub fn enable_controller_as_operator(&mut self) {
        self.enable_controller_down_to(&self.own.clone());
    }

    fn enable_controller_down_to(&mut self, cgroup: &CgroupPath) {
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        for above in controller.missing_enables(cgroup).expect("the cgroup exists") {
            controller.enable(&above).expect("the controller can be enabled");
            self.enabled.push(above);
        }
    }

    /// Sets a knob of `own`, as an operator does.
    pub fn operator_sets(&mut self, knob: Knob, text: &str) {
        self.enable_controller_as_operator();
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        let written = controller.write_knob(&self.own, knob, text);
        written.expect("the kernel accepts it");
    }

    /// Returns the state that an actuator can change, as text by description.
    pub fn snapshot(&self) -> BTreeMap<String, String> {
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        let mut snapshot = BTreeMap::new();
        let mut places = vec![CgroupPath::root()];
        let vms: Vec<&Helper> =
            [&self.shared, &self.owner].into_iter().chain(&self.third).collect();
        let mut below = vec![self.own.clone()];
        while let Some(place) = below.pop() {
            below.extend(controller.children(&place).expect("the cgroup exists"));
            places.push(place);
        }
        for vm in &vms {
            let main = ThreadRef::of_process(&ProcFs::host(), vm.pid()).expect("it lives");
            let home = controller.cgroup_of(&main).expect("it lives");
            snapshot.insert(format!("main thread of {}", vm.pid()), home.to_string());
            for thread in vcpu_threads(vm.pid()) {
                let status = format!("/proc/{}/task/{}/status", thread.pid, thread.tid);
                let status = fs::read_to_string(status).expect("the thread lives");
                let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed:"));
                let cgroup = controller.cgroup_of(&thread).expect("the thread lives");
                places.extend(cgroup.ancestors());
                places.push(cgroup.clone());
                let slice = slice(thread.tid).map_or("no slices".to_owned(), |slice| match slice {
                    Some(slice) => format!("a slice of {slice}"),
                    None => "the usual slice".to_owned(),
                });
                let (allowed, nice) = (allowed.expect("a mask"), nice(&thread));
                let what = format!("{cgroup}, {allowed}, nice {nice}, {slice}");
                snapshot.insert(thread.to_string(), what);
            }
        }
        for place in places {
            let folder = folder(&*controller, &place);
            // Some files exist only on v1 or v2; a file that appears or disappears is a difference too.
            let mut files = vec!["cgroup.subtree_control", "cgroup.type"];
            if place.is_within(&self.own) {
                files.extend(["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"]);
                files.extend(["cpu.weight", "cpu.max", "cpu.idle"]);
            }
            for file in files {
                let path = folder.join(file);
                let text = fs::read_to_string(&path).unwrap_or_else(|e| e.kind().to_string());
                snapshot.insert(path.display().to_string(), text.trim_end().to_owned());
            }
            let children = controller.children(&place).expect("the cgroup exists");
            // Groups of a test, or of the fleet: `tandem-NAME-PID` with any suffix.
            let is_of_a_vm = |name: &str| {
                let mut parts = name.strip_prefix("tandem-").unwrap_or("").split('-');
                parts.any(|part| vms.iter().any(|vm| vm.pid().to_string() == part))
            };
            let made = children
                .iter()
                .filter(|child| child.name().starts_with(&self.prefix) || is_of_a_vm(child.name()));
            let made: Vec<String> = made.map(CgroupPath::to_string).collect();
            snapshot.insert(format!("made below {place}"), made.join(" "));
        }
        snapshot
    }
}

/// Returns a cgroup's folder.
fn folder(controller: &dyn CpuController, cgroup: &CgroupPath) -> PathBuf {
    controller.mount().join(cgroup.0.trim_start_matches('/'))
}

/// Returns a thread's nice value, field 19 of its `stat`.
pub fn nice(thread: &ThreadRef) -> i8 {
    let path = format!("/proc/{}/task/{}/stat", thread.pid, thread.tid);
    let stat = fs::read_to_string(path).expect("the thread lives");
    let (_, after_name) = stat.rsplit_once(") ").expect("a name");
    let nice = after_name.split(' ').nth(16).expect("a nice value");
    nice.parse().expect("a number")
}

impl Drop for LiveHost {
    fn drop(&mut self) {
        self.operator = None;
        self.owner.end();
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        let own = folder(&*controller, &self.own);
        for folder in self.made.iter().rev() {
            if folder.starts_with(&own) {
                wait_until("the VM's cgroup can be removed", || fs::remove_dir(folder).is_ok());
            } else {
                // Other processes may have moved in meanwhile.
                let _ = fs::remove_dir(folder);
            }
        }
        for above in self.enabled.iter().rev() {
            if controller.exists(above) {
                controller.disable(above).expect("it is unused");
            }
        }
    }
}
