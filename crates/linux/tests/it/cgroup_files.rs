//! Both versions' controllers on fake hierarchies: reads, writes, and errors for malformed files, vanished cgroups and
//! unsuitable layouts.
//!
//! The hierarchy is a folder of ordinary files, which cannot refuse a write; `live.rs` tests the errors of real kernels.

use std::fs;
use std::path::PathBuf;

use tandem_linux::ProcFs;
use tandem_linux::cgroup::ownership::{Occupant, Occupants};
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob, Quota, Version, open};
use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
use tandem_model::Weight;
use tempfile::TempDir;

/// A machine in a folder.
struct Tree {
    root: TempDir,
    controller: Box<dyn CpuController>,
}

fn path(text: &str) -> CgroupPath {
    CgroupPath(text.to_owned())
}

impl Tree {
    fn new(version: Version) -> Tree {
        let root = tempfile::tempdir().unwrap();
        let (mounts, files): (_, &[(&str, &str)]) = match version {
            Version::V1 => ("cgroup /cg cgroup rw,cpu,cpuacct 0 0\n", &[]),
            Version::V2 => (
                "cgroup2 /cg cgroup2 rw 0 0\n",
                &[
                    ("cgroup.controllers", "cpuset cpu memory\n"),
                    ("cgroup.subtree_control", "cpu memory\n"),
                ],
            ),
        };
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::create_dir_all(root.path().join("cg")).unwrap();
        fs::write(root.path().join("proc/mounts"), mounts).unwrap();
        for (name, text) in files {
            fs::write(root.path().join("cg").join(name), text).unwrap();
        }
        let controller = open(&ProcFs::at(root.path())).unwrap();
        assert_eq!(controller.version(), version);
        Tree { root, controller }
    }

    fn file(&self, cgroup: &str, name: &str) -> PathBuf {
        let folder = self.root.path().join("cg").join(cgroup.trim_start_matches('/'));
        fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    fn put(&self, cgroup: &str, name: &str, text: &str) {
        fs::write(self.file(cgroup, name), text).unwrap();
    }

    fn text(&self, cgroup: &str, name: &str) -> String {
        fs::read_to_string(self.file(cgroup, name)).unwrap()
    }

    /// A v1 cgroup with the kernel's files.
    fn v1_cgroup(&self, cgroup: &str) {
        for (name, text) in [
            ("cpu.shares", "1024\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("tasks", ""),
            ("cgroup.procs", ""),
        ] {
            self.put(cgroup, name, text);
        }
    }

    /// A v2 cgroup with the kernel's files.
    fn v2_cgroup(&self, cgroup: &str, kind: &str, subtree: &str) {
        for (name, text) in [
            ("cgroup.type", kind),
            ("cgroup.subtree_control", subtree),
            ("cgroup.events", "populated 0\nfrozen 0\n"),
            ("cgroup.threads", ""),
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
        ] {
            self.put(cgroup, name, text);
        }
    }

    /// Reads a thread's cgroup from this text.
    fn place(&self, text: &str) -> Result<CgroupPath, CgroupError> {
        let folder = self.root.path().join("proc/7/task/8");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup"), text).unwrap();
        self.controller.cgroup_of(&thread())
    }
}

fn thread() -> ThreadRef {
    ThreadRef { pid: Pid(7), tid: Tid(8), start: StartTime(9) }
}

/// The message of an expected error.
fn refusal<T>(result: Result<T, CgroupError>) -> String {
    match result {
        Ok(_) => panic!("this must be refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn v1_weights_and_caps() {
    let tree = Tree::new(Version::V1);
    tree.v1_cgroup("/vm");
    let (c, vm) = (&tree.controller, path("/vm"));
    assert_eq!(c.weight(&vm).unwrap(), Weight::constant(1024.0));
    for (asked, written) in [(300.4, "300"), (0.0, "2"), (-5.0, "2"), (1e9, "262144")] {
        let rounded = c.set_weight(&vm, Weight::saturating(asked)).unwrap();
        assert_eq!(tree.text("/vm", "cpu.shares"), written);
        assert_eq!(rounded.value().to_string(), written);
    }
    assert_eq!(c.quota(&vm).unwrap(), None);
    let half = Quota { quota_us: 25_000, period_us: 50_000 };
    c.set_quota(&vm, Some(half)).unwrap();
    assert_eq!(tree.text("/vm", "cpu.cfs_quota_us"), "25000");
    assert_eq!(tree.text("/vm", "cpu.cfs_period_us"), "50000");
    assert_eq!(c.quota(&vm).unwrap(), Some(half));
    c.write_knob(&vm, Knob::Quota, "max 70000").unwrap();
    assert_eq!(tree.text("/vm", "cpu.cfs_quota_us"), "-1");
    assert_eq!(c.read_knob(&vm, Knob::Quota).unwrap(), "max 70000");
}

#[test]
fn zero_weight_reads_as_default() {
    for (version, file, default) in
        [(Version::V1, "cpu.shares", 1024.0), (Version::V2, "cpu.weight", 100.0)]
    {
        let tree = Tree::new(version);
        let (c, vm) = (&tree.controller, path("/vm"));
        tree.put("/vm", file, "0\n");
        assert_eq!(c.weight(&vm).unwrap(), Weight::constant(default));
        for text in ["nan", "inf", "-1", "1.5", "", "99999999999"] {
            tree.put("/vm", file, text);
            let error = refusal(c.weight(&vm));
            assert!(error.contains("a whole number"), "{text}: {error}");
        }
    }
}

#[test]
fn v2_weights_and_caps() {
    let tree = Tree::new(Version::V2);
    tree.v2_cgroup("/vm", "domain\n", "\n");
    let (c, vm) = (&tree.controller, path("/vm"));
    for (asked, written) in [(99.5, "100"), (0.2, "1"), (20_000.0, "10000")] {
        c.set_weight(&vm, Weight::saturating(asked)).unwrap();
        assert_eq!(tree.text("/vm", "cpu.weight"), written);
    }
    c.set_quota(&vm, None).unwrap();
    assert_eq!(tree.text("/vm", "cpu.max"), "max 100000");
}

#[test]
fn invalid_values_are_refused_before_writing() {
    for version in [Version::V1, Version::V2] {
        let tree = Tree::new(version);
        tree.v1_cgroup("/vm");
        tree.v2_cgroup("/vm", "domain\n", "");
        let (c, vm) = (&tree.controller, path("/vm"));
        for (quota_us, period_us) in [(999, 100_000), (5000, 999), (5000, 1_000_001)] {
            let cap = Some(Quota { quota_us, period_us });
            let error = refusal(c.set_quota(&vm, cap));
            assert!(error.contains("1000 … 1000000"), "{error}");
        }
        let root = CgroupPath::root();
        let error = refusal(c.set_weight(&root, Weight::constant(5.0)));
        assert!(error.contains("cgroup of its own"), "{error}");
    }
}

#[test]
fn malformed_files_are_quoted_in_errors() {
    let tree = Tree::new(Version::V1);
    tree.v1_cgroup("/vm");
    let (c, vm) = (&tree.controller, path("/vm"));
    tree.put("/vm", "cpu.shares", "many\n");
    let error = refusal(c.weight(&vm));
    assert!(error.contains("'many'") && error.contains("/vm"), "{error}");
    tree.put("/vm", "cpu.cfs_period_us", "\n");
    let error = refusal(c.quota(&vm));
    assert!(error.contains("quota or 'max'"), "{error}");
    tree.put("/vm", "tasks", "12\nx\n");
    let error = refusal(c.threads(&vm));
    assert!(error.contains("tasks") && error.contains("'x'"), "{error}");
    tree.put("/vm", "cgroup.procs", "-1\n");
    let error = refusal(c.processes(&vm));
    assert!(error.contains("cgroup.procs") && error.contains("'-1'"), "{error}");
}

#[test]
fn some_processes_respects_its_limit() {
    for version in [Version::V1, Version::V2] {
        let tree = Tree::new(version);
        let (c, vm) = (&tree.controller, path("/vm"));
        let all: String = (1_000_000..1_020_000).map(|n| format!("{n}\n")).collect();
        // The malformed line is only found if it is read.
        tree.put("/vm", "cgroup.procs", &format!("{all}x\n"));
        let first = |most| c.some_processes(&vm, most).unwrap();
        assert_eq!(first(0), []);
        assert_eq!(first(1), [Pid(1_000_000)]);
        assert_eq!(first(300).len(), 300);
        assert!(c.some_processes(&vm, 30_000).is_err(), "reads the whole file");
        // Short pids need fewer bytes, but the limit applies.
        tree.put("/vm", "cgroup.procs", "1\n2\n3\n4\n5\n");
        assert_eq!(first(2), [Pid(1), Pid(2)]);
        assert_eq!(first(30).len(), 5);
    }
}

#[test]
fn vanished_cgroup_differs_from_missing_file() {
    for version in [Version::V1, Version::V2] {
        let tree = Tree::new(version);
        let (c, vm) = (&tree.controller, path("/vm"));
        for error in [
            c.weight(&vm).err(),
            c.set_weight(&vm, Weight::constant(5.0)).err(),
            c.quota(&vm).err(),
            c.threads(&vm).err(),
            c.processes(&vm).err(),
            c.children(&vm).err(),
            c.id(&vm).err(),
            c.move_thread(Tid(1), &vm).err(),
            c.create_child(&vm, "x").err(),
            c.check_parent(&vm).err(),
        ] {
            let error = error.expect("there is no such cgroup");
            assert!(error.is_gone(), "{error}");
            assert!(error.to_string().contains("/vm"), "{error}");
        }
        assert!(!c.exists(&vm));
        c.remove(&vm).expect("a vanished cgroup counts as removed");
        tree.put("/vm", "unrelated", "");
        let error = c.weight(&vm).unwrap_err();
        assert!(!error.is_gone(), "{error}");
    }
}

#[test]
fn missing_idle_class_differs_from_vanished_cgroup() {
    for version in [Version::V1, Version::V2] {
        let tree = Tree::new(version);
        let (c, vm) = (&tree.controller, path("/vm"));
        assert!(c.is_idle(&vm).unwrap_err().is_gone());
        tree.put("/vm", "cpu.weight", "100\n");
        tree.put("/vm", "cpu.shares", "1024\n");
        assert_eq!(c.is_idle(&vm).unwrap(), None);
        tree.put("/vm", "cpu.idle", "1\n");
        assert_eq!(c.is_idle(&vm).unwrap(), Some(true));
        tree.put("/vm", "cpu.idle", "yes\n");
        let error = refusal(c.is_idle(&vm));
        assert!(error.contains("'yes'") && error.contains("0 or 1"), "{error}");
    }
}

#[test]
fn cgroup_of_selects_the_controllers_line() {
    let tree = Tree::new(Version::V1);
    let place = |text: &str| tree.place(text);
    let lines = "3:cpuset:/no\n2:cpu,cpuacct:/vms/a:b c\n1:name=systemd:/no\n0::/no\n";
    assert_eq!(place(lines).unwrap(), path("/vms/a:b c"));
    let error = refusal(place("3:cpuset:/a\n0::/b\n"));
    assert!(error.contains("does not list") && error.contains("cpuset"), "{error}");
    assert!(place("2:cpu:/vm (deleted)\n").unwrap_err().is_gone());
    // An existing cgroup may have such a name.
    tree.v1_cgroup("/vm (deleted)");
    assert_eq!(place("2:cpu:/vm (deleted)\n").unwrap(), path("/vm (deleted)"));
    let error = refusal(place("2:cpu:/../outside\n"));
    assert!(error.contains("namespace") && error.contains("--cgroupns=host"), "{error}");
    fs::remove_dir_all(tree.root.path().join("proc/7")).unwrap();
    assert!(tree.controller.cgroup_of(&thread()).unwrap_err().is_gone());

    let tree = Tree::new(Version::V2);
    assert_eq!(tree.place("0::/vm.scope\n").unwrap(), path("/vm.scope"));
    assert_eq!(tree.place("1:cpu:/no\n0::/yes\n").unwrap(), path("/yes"));
}

#[test]
fn invalid_and_existing_names_are_refused() {
    let tree = Tree::new(Version::V1);
    tree.v1_cgroup("/vm");
    let c = &tree.controller;
    let error = refusal(c.create_child(&CgroupPath::root(), "vm"));
    assert!(error.contains("exists already"), "{error}");
    let error = refusal(c.create_child(&CgroupPath::root(), "cpu.shares"));
    assert!(error.contains("'cpu.shares'"), "{error}");
    let made = c.create_child(&path("/vm"), "tandem-a").unwrap();
    assert_eq!(c.children(&path("/vm")).unwrap(), [made]);
}

#[test]
fn cpuset_is_not_created() {
    let tree = Tree::new(Version::V1);
    let c = &tree.controller;
    tree.v1_cgroup("/vm");
    tree.put("/vm", "cpuset.cpus", "0-3\n");
    tree.put("/vm", "cpuset.mems", "0\n");
    // The new cgroup has no cpuset files, so none is written.
    let made = c.create_child(&path("/vm"), "plain").unwrap();
    assert!(!tree.file(&made.0, "cpuset.cpus").exists());
}

#[test]
fn v2_missing_enables_are_listed() {
    let tree = Tree::new(Version::V2);
    tree.v2_cgroup("/a", "domain\n", "memory\n");
    tree.v2_cgroup("/a/b", "domain\n", "\n");
    let c = &tree.controller;
    assert_eq!(c.missing_enables(&path("/a")).unwrap(), []);
    assert_eq!(c.missing_enables(&path("/a/b")).unwrap(), [path("/a")]);
    let both = [path("/a"), path("/a/b")];
    assert_eq!(c.missing_enables(&path("/a/b/new")).unwrap(), both);
    c.enable(&path("/a/b")).unwrap();
    assert_eq!(tree.text("/a/b", "cgroup.subtree_control"), "+cpu");
    assert!(c.missing_enables(&path("/x/y")).unwrap_err().is_gone());
}

#[test]
fn v2_check_parent_names_the_obstacle() {
    let tree = Tree::new(Version::V2);
    let check = |cgroup: &str| tree.controller.check_parent(&path(cgroup));
    tree.v2_cgroup("/good", "domain\n", "cpu pids\n");
    check("/good").unwrap();
    check("/").unwrap();
    tree.v2_cgroup("/threaded", "threaded\n", "\n");
    check("/threaded").unwrap();
    tree.v2_cgroup("/invalid", "domain invalid\n", "\n");
    let error = refusal(check("/invalid"));
    assert!(error.contains("domain invalid") && error.contains("outside"), "{error}");
    tree.v2_cgroup("/domains", "domain\n", "cpu memory io\n");
    let error = refusal(check("/domains"));
    assert!(error.contains("memory, io") && error.contains("of its own"), "{error}");
    tree.v2_cgroup("/good/busy", "domain\n", "\n");
    check("/good").unwrap();
    tree.put("/good/busy", "cgroup.events", "populated 1\nfrozen 0\n");
    let error = refusal(check("/good"));
    assert!(error.contains("/good/busy"), "{error}");
}

#[test]
fn v2_controller_in_use_stays_enabled() {
    let tree = Tree::new(Version::V2);
    tree.v2_cgroup("/a", "domain\n", "cpu\n");
    tree.v2_cgroup("/a/b", "domain\n", "\n");
    let disable = || tree.controller.disable(&path("/a"));
    for (file, text) in [
        ("cpu.weight", "250\n"),
        ("cpu.max", "5000 100000\n"),
        ("cpu.idle", "1\n"),
        ("cgroup.subtree_control", "cpu\n"),
    ] {
        let before = fs::read_to_string(tree.file("/a/b", file)).unwrap_or("0\n".to_owned());
        tree.put("/a/b", file, text);
        let error = refusal(disable());
        assert!(error.contains("/a/b uses it"), "{file}: {error}");
        assert_eq!(tree.text("/a", "cgroup.subtree_control"), "cpu\n");
        tree.put("/a/b", file, &before);
    }
    disable().unwrap();
    assert_eq!(tree.text("/a", "cgroup.subtree_control"), "-cpu");
}

#[test]
fn v2_examines_a_bounded_number_of_children() {
    let tree = Tree::new(Version::V2);
    let c = &tree.controller;
    tree.v2_cgroup("/his", "domain\n", "cpu\n");
    for n in 0..256 {
        tree.v2_cgroup(&format!("/his/{n}"), "domain\n", "\n");
    }
    assert_eq!(c.some_children(&path("/his"), 100).unwrap().len(), 100);
    assert_eq!(c.some_children(&path("/his"), 999).unwrap().len(), 256);
    c.check_parent(&path("/his")).unwrap();
    tree.v2_cgroup("/his/one-more", "domain\n", "\n");
    let error = refusal(c.check_parent(&path("/his")));
    assert!(error.contains("more than 256 cgroups") && error.contains("of its own"), "{error}");
    // All of root's cgroups are examined before the controller is disabled, unlike a tenant's.
    let is_roots = c.owners(&path("/his")).unwrap().folder == 0;
    if is_roots {
        c.disable(&path("/his")).unwrap();
        tree.put("/his", "cgroup.subtree_control", "cpu\n");
        std::os::unix::fs::chown(tree.root.path().join("cg/his"), Some(1000), None).unwrap();
    }
    let error = refusal(c.disable(&path("/his")));
    assert!(error.contains("more than 256 cgroups of user"), "{error}");
    assert_eq!(tree.text("/his", "cgroup.subtree_control"), "cpu\n");
}

/// The VM is process 50.
#[test]
fn occupants_examine_a_bounded_number() {
    let tree = Tree::new(Version::V2);
    let procfs = ProcFs::at(tree.root.path());
    let of = |cgroup: &str, vcpus: usize| {
        let mut occupants = Occupants::new(tree.controller.as_ref(), &procfs);
        occupants.of(&path(cgroup), vcpus).unwrap()
    };
    tree.put("/vm", "cgroup.procs", "50\n");
    for n in 0..300 {
        tree.put(&format!("/vm/{n}"), "cgroup.procs", "");
    }
    // Limit for 22 vCPUs: 256 + 2 × 22 = 300; needed are the cgroup, the 300 below, and the process.
    assert_eq!(of("/vm", 22), Occupant::Several);
    assert_eq!(of("/vm", 23), Occupant::One(Pid(50)));
    // Kernel threads are no occupants, but identifying each counts towards the limit.
    let workers: Vec<u32> = (100..400).collect();
    let mut procs = String::from("50\n");
    for pid in &workers {
        let folder = tree.root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let stat =
            format!("{pid} (vhost-50) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
        procs += &format!("{pid}\n");
    }
    tree.put("/fast", "cgroup.procs", &procs);
    assert_eq!(of("/fast", 1), Occupant::Several);
    assert_eq!(of("/fast", 23), Occupant::One(Pid(50)));
}
