//! What the live tests have around them: VMs to work on, a cgroup that one of them owns, and a
//! picture of all that an actuator can change, to be compared before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Lines;
use std::io::Write;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdin;
use std::process::ChildStdout;
use std::process::Stdio;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::ProcFs;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::ThreadStat;
use tandem_linux::thread::Tid;

use crate::Skip;
use crate::helper;

/// Long enough for anything that must happen to happen, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what must come true.
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(2));
    }
}

/// This host's controller, or why it cannot be used here.
pub fn controller() -> Result<Box<dyn CpuController>, Skip> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("needs root to change cgroups".to_owned()));
    }
    cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))
}

/// The vCPU threads of a helper VM, by number.
pub fn vcpu_threads(pid: Pid) -> Vec<ThreadRef> {
    let procfs = ProcFs::host();
    let mut threads = Vec::new();
    for entry in fs::read_dir(procfs.process(pid).join("task")).expect("its threads") {
        let name = entry.expect("an entry").file_name();
        let tid = Tid(name
            .to_str()
            .and_then(|n| n.parse().ok())
            .expect("a number"));
        // A thread may end while we look.
        let Ok(stat) = ThreadStat::read(&procfs.task(pid, tid)) else {
            continue;
        };
        if let Some((_, index)) = stat.comm.rsplit_once("/vcpu") {
            let start = stat.start;
            threads.push((
                index.parse::<u32>().expect("an index"),
                ThreadRef { pid, tid, start },
            ));
        }
    }
    threads.sort();
    threads.into_iter().map(|(_, thread)| thread).collect()
}

/// A helper process, killed when it is dropped.
pub struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts a helper and waits until it is ready.
    pub fn start(role: &str, arguments: &[&str]) -> Helper {
        let mut child = helper::command(role)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut helper = Helper {
            child,
            input,
            output,
        };
        while helper.next_line() != "ready" {}
        helper
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// What it says next.
    pub fn next_line(&mut self) -> String {
        self.output
            .next()
            .expect("the helper lives")
            .expect("it writes text")
    }

    /// Tells it something.
    pub fn tell(&mut self, order: &str) {
        let input = self.input.as_mut().expect("it listens");
        writeln!(input, "{order}").expect("it listens");
    }

    /// Ends it by kill -9; it must have been alive.
    pub fn kill(mut self) {
        let ended = self.child.try_wait().expect("it can be asked");
        if ended.is_some() {
            panic!("the helper ended by itself: {}", self.next_line());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test uses, nor another run of these tests at the same time.
pub fn unique(what: &str) -> String {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("tandem-live-{}-{what}{n}-", std::process::id())
}

/// A folder for a journal, removed when it is dropped.
pub struct StateDir(pub PathBuf);

impl StateDir {
    /// An empty one.
    pub fn new() -> StateDir {
        let path = std::env::temp_dir().join(unique("state"));
        fs::create_dir_all(&path).expect("a temporary folder");
        StateDir(path)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A VM that shares its cgroup with this test, and another that has one of its own.
pub struct World {
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

impl World {
    /// Starts both VMs.
    pub fn new() -> Result<World, Skip> {
        let controller = controller()?;
        let prefix = unique("g");
        let own = CgroupPath(format!("/{}own.scope", unique("vm")));
        let folder = controller.mount().join(own.0.trim_start_matches('/'));
        fs::create_dir(&folder)
            .map_err(|error| Skip(format!("cannot make {}: {error}", folder.display())))?;
        let world = World {
            shared: Helper::start("vm", &["shared", "3"]),
            owner: Helper::start("vm", &["owner", "2"]),
            own,
            prefix,
            folder,
        };
        let procs = world.folder.join("cgroup.procs");
        fs::write(procs, world.owner.pid().to_string()).expect("a process can be moved");
        let home = controller.cgroup_of(&world.threads()[0]).expect("a cgroup");
        match controller.check_parent(&home) {
            Ok(()) => Ok(world),
            Err(error) => Err(Skip(error.to_string())),
        }
    }

    /// The vCPU threads of the VM that shares.
    pub fn threads(&self) -> Vec<ThreadRef> {
        vcpu_threads(self.shared.pid())
    }

    /// All that an actuator could have changed, as text by what it is.
    pub fn picture(&self) -> BTreeMap<String, String> {
        let controller = cgroup::open(&ProcFs::host()).expect("a controller");
        let mut picture = BTreeMap::new();
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
                picture.insert(thread.to_string(), what);
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
                picture.insert(path.display().to_string(), text.trim_end().to_owned());
            }
            let children = controller.children(&place).expect("the cgroup exists");
            let made = children
                .iter()
                .filter(|child| child.name().starts_with(&self.prefix));
            let made: Vec<String> = made.map(CgroupPath::to_string).collect();
            picture.insert(format!("made below {place}"), made.join(" "));
        }
        picture
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.owner.child.kill();
        let _ = self.owner.child.wait();
        wait_until("the VM's cgroup can be removed", || {
            fs::remove_dir(&self.folder).is_ok()
        });
    }
}
