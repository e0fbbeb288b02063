//! Files of `/proc` with arbitrary contents: readers return the values in the file or an error, and never panic.
//!
//! Owners choose the names of threads and cgroups.
//! The rest is the kernel's, and later kernels may change it.
//! `fuzz` describes long runs.

#[allow(dead_code, reason = "not every fuzzer uses all of it")]
use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::fs;
use std::path::PathBuf;

use fuzz::{Mutator, below, bytes, each_input};
use tandem_linux::cgroup::{CgroupError, Version};
use tandem_linux::printable::printable;
use tandem_linux::procfs::user_of;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::{Pid, StartTime, ThreadRef, ThreadStat, Tid};
use tandem_linux::{ProcFs, cgroup};

const STATS: [&str; 4] = [
    "8935 (cat) R 8931 8930 4578 0 -1 4194304 97 0 0 0 0 0 0 0 20 0 7 0 191178 3133440 361 18446744073709551615 94 94 140 0 0 0 0 0 0 0 0 0 17 1 0 0 0 33 0 \
     0 0 0 0 0 0 0 0\n",
    "100 (CPU 0/KVM) S 1 100 100 0 -1 138412416 5 0 0 0 1200 340 0 0 -2 19 9 0 555 9999999 4096 18446744073709551615 1 1 0 0 0 268444224 0 0 0 0 0 -1 3 0 0 0 \
     872 0 0 0 0 0 0 0 0 0\n",
    "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 2 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
    "77 (going) X 0 -1 -1 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 0 0 9 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
];

const SCHEDSTATS: [&str; 4] = [
    "0 0 0\n",
    "123456789 98765 432\n",
    "18446744073709551615 18446744073709551615 18446744073709551615\n",
    "1 2 3 4\n",
];

const STATUSES: [&str; 2] = [
    "Name:\tqemu-system-x86\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t100\nPid:\t100\nUid:\t64055\t64055\t64055\t64055\nGid:\t109\t109\t109\t109\nVmHWM:\t  \
     5120 kB\nVmRSS:\t    4096 kB\nThreads:\t9\nCpus_allowed_list:\t0-3,7\nvoluntary_ctxt_switches:\t150\n",
    "Name:\tUid:\nUid:\t0\t0\t0\t0\n",
];

const MACHINES: [&str; 2] = [
    "cpu  10 20 30 40 50 60 70 0 0 0\ncpu0 5 10 15 20 25 30 35 0 0 0\ncpu1 5 10 15 20 25 30 35 0 0 0\nintr 12 0 0\nctxt 5\nbtime 1700000000\n",
    "cpu 1 2 3 4\ncpu8191 1 2 3 4 5\n",
];

const CGROUPS: [&str; 3] = [
    "12:cpuset:/\n4:cpu,cpuacct:/machine.slice/machine-qemu\\x2d1\\x2ddb.scope/vcpu0\n0::/\n",
    "0::/machine.slice/machine-qemu\\x2d1.scope/libvirt/emulator\n",
    "0::/user.slice/x (deleted)\n",
];

/// A machine in a folder, with one process of one thread.
struct Machine {
    root: tempfile::TempDir,
    procfs: ProcFs,
    thread: ThreadRef,
}

impl Machine {
    fn new() -> Machine {
        let root = fuzz::folder();
        let thread = ThreadRef { pid: Pid(100), tid: Tid(101), start: StartTime(191_178) };
        for folder in ["proc/100/task/101", "sys/devices/system/cpu", "cg"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let machine = Machine { procfs: ProcFs::at(root.path()), root, thread };
        machine.put("proc/100/task/101/stat", STATS[0].as_bytes());
        machine
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    fn put(&self, file: &str, text: &[u8]) {
        fs::write(self.path(file), text).unwrap();
    }
}

/// Checks that an error names the file and has a bounded length.
#[track_caller]
fn check_error(error: &dyn std::error::Error, file: &str) {
    let said = error.to_string();
    assert!(said.contains(file), "{said}");
    assert!(said.len() < 2_000, "the error has {} bytes", said.len());
}

#[test]
fn stat_parses_or_fails() {
    let machine = Machine::new();
    let mutator = Mutator::new(STATS, &["(", ")", ") R 1 (", "Z", "I", "-2147483648"]);
    let folder = machine.procfs.task(machine.thread.pid, machine.thread.tid);
    let (mut read, mut refused) = (0, 0);
    each_input("stat", 8_000, 1 << 20, |random| {
        if below(random, 4) == 0 {
            // Any name of at most 15 bytes, the kernel's limit.
            let plain = mutator.example(random).to_vec();
            let name: Vec<u8> = bytes(random, 16).into_iter().filter(|&b| b != 0).collect();
            let open = plain.iter().position(|&b| b == b'(').unwrap();
            let close = plain.iter().rposition(|&b| b == b')').unwrap();
            machine
                .put("proc/100/task/101/stat", &[&plain[..=open], &name, &plain[close..]].concat());
            let wanted = ThreadStat {
                comm: printable(&String::from_utf8_lossy(&name)).into_owned(),
                ..ThreadStat::parse(std::str::from_utf8(&plain).unwrap()).unwrap()
            };
            assert_eq!(ThreadStat::read(&folder).unwrap(), wanted);
            return;
        }
        machine.put("proc/100/task/101/stat", &mutator.input(random));
        match ThreadStat::read(&folder) {
            Ok(stat) => {
                read += 1;
                assert!(!stat.comm.chars().any(char::is_control), "{:?}", stat.comm);
            }
            Err(error) => {
                refused += 1;
                check_error(&error, "task/101/stat");
            }
        }
        let sampler = Sampler::new(machine.procfs.clone());
        if let Err(error) = sampler.read_activity(&machine.thread) {
            check_error(&error, "task/101/stat");
        }
        // Must not panic.
        machine.thread.is_alive(&machine.procfs);
    });
    println!("{read} read, {refused} refused");
}

#[test]
fn schedstat_parses_or_fails() {
    let machine = Machine::new();
    let mutator = Mutator::new(SCHEDSTATS, &[" ", "  ", "\n", "+1"]);
    each_input("schedstat", 8_000, 1 << 20, |random| {
        let text = mutator.input(random);
        machine.put("proc/100/task/101/schedstat", &text);
        let mut sampler = Sampler::new(machine.procfs.clone());
        match sampler.sample(&machine.thread) {
            // Texts longer than three numbers can be are truncated.
            Ok(sample) if text.len() <= 64 => {
                let words = text.split(|byte| b" \n".contains(byte));
                let numbers: Vec<u64> = words
                    .filter(|word| !word.is_empty())
                    .take(3)
                    .map(|word| std::str::from_utf8(word).unwrap().parse().unwrap())
                    .collect();
                assert_eq!(numbers, [sample.ran.0, sample.waited.0, sample.runs]);
            }
            Ok(_) => {}
            Err(error) => check_error(&error, "task/101/schedstat"),
        }
    });
}

#[test]
fn status_stat_and_online_parse_or_fail() {
    let machine = Machine::new();
    let status = Mutator::new(STATUSES, &["Uid:", "Uid:\t"]);
    let stat = Mutator::new(MACHINES, &["cpu", "cpu4294967296", "cpu-1"]);
    let online = Mutator::new(["0-3,7\n", "0\n"], &["-", ",", "0-8191", "7-3", "8192"]);
    each_input("status, stat, online", 5_000, 8 << 20, |random| {
        machine.put("proc/100/status", &status.input(random));
        user_of(&machine.procfs.process(Pid(100)));
        let text = stat.input(random);
        machine.put("proc/stat", &text);
        let sampler = Sampler::new(machine.procfs.clone());
        match sampler.pcpu_idle() {
            Ok(idle) => assert!(idle.len() <= text.split(|&b| b == b'\n').count()),
            Err(error) => check_error(&error, "proc/stat"),
        }
        machine.put("sys/devices/system/cpu/online", &online.input(random));
        match sampler.online_pcpus() {
            Ok(pcpus) => assert!(pcpus.iter().all(|pcpu| pcpu.0 <= 8191)),
            Err(error) => check_error(&error, "cpu/online"),
        }
    });
}

#[test]
fn cgroup_lines_parse_or_fail() {
    let mutator = Mutator::new(CGROUPS, &["0", "::", ":", "cpu", "/..", "/", "(deleted)"]);
    let machine = Machine::new();
    machine.put("cg/cgroup.controllers", b"cpu\n");
    machine.put("cg/cgroup.subtree_control", b"cpu\n");
    let mounts = [
        (Version::V1, "cgroup /cg cgroup rw,cpu,cpuacct 0 0\n"),
        (Version::V2, "cgroup2 /cg cgroup2 rw 0 0\n"),
    ];
    let controllers = mounts.map(|(version, line)| {
        machine.put("proc/mounts", line.as_bytes());
        let controller = cgroup::open(&machine.procfs).unwrap();
        assert_eq!(controller.version(), version);
        controller
    });
    each_input("cgroup", 8_000, 1 << 20, |random| {
        let text = mutator.input(random);
        machine.put("proc/100/task/101/cgroup", &text);
        for controller in &controllers {
            match controller.cgroup_of(&machine.thread) {
                Ok(cgroup) => {
                    let lossy = String::from_utf8_lossy(&text);
                    let ends = lossy.lines().any(|line| line.ends_with(&cgroup.0));
                    assert!(ends, "{cgroup} is not there");
                    assert!(!cgroup.0.contains('\n'));
                }
                Err(error @ CgroupError::NotListed { .. }) => {
                    check_error(&error, "task/101/cgroup");
                }
                Err(error @ CgroupError::NotText { .. }) => {
                    check_error(&error, "task/101/cgroup");
                }
                // These name the path.
                Err(CgroupError::Gone(_) | CgroupError::OutsideNamespace { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}
