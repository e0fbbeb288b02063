//! Synthetic counters of Tandem's own microVMs.
//!
//! A microVM's program counts what it does: steps of its computing, and turns of loops that wait. Both lie in memory that the VMM
//! shares with the guest, in a memory file whose name says where:
//! `tandem-counters-VCPUS-OFFSET-DISTANCE`, two numbers of 8 bytes per vCPU. Who may look into the VMM's process reads that file while
//! it runs.
//!
//! Names of open files are what their process wants them to be: a pipe or a file of a file system in user space may have one like that, and would hold up
//! whoever opens it. So what is behind the name is looked at first, without opening it, and only a memory file is opened.
//!
//! From these, counters are made up as a PMU would show them of a usual program that computes, and of a spin loop (the simulator
//! assumes the same): the loop of FlexS can run where there is no PMU. With them comes the truth, whether the program did nothing but wait,
//! which verdicts can be held against. They are exact where real ones vary, so nothing about how well
//! FlexS detects spinning on hardware follows from them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, open, statx,
};
use tandem_model::VcpuId;
use tandem_model::branch_counters::{BranchCounts, Counted, CounterSource, Truth};

use super::source::{BranchCounters, CounterError};
use crate::procfs::{ProcFs, is_gone};
use crate::thread::ThreadRef;

/// How the name of the memory file begins, as the kernel shows it.
const NAME: &str = "/memfd:tandem-counters-";

/// Instructions of a step: multiply, add, subtract, branch.
const OF_STEP: u64 = 4;
/// Instructions of a turn of a loop that waits: PAUSE, compare, branch.
const OF_TURN: u64 = 3;
/// Branches in 100 instructions of a usual program, and mispredicted ones in 100 branches (Hennessy & Patterson); the simulator's defaults.
const BRANCHES: u64 = 16;
const MISPREDICTED: u64 = 3;
/// Turns of a spin loop to one mispredicted branch; assumed, as in the simulator.
const TURNS_TO_MISS: u64 = 1000;

/// What a program counted of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps of computing.
    pub steps: u64,
    /// Turns of loops that wait.
    pub spins: u64,
}

impl Done {
    /// What it did since `before`.
    fn since(self, before: Done) -> Done {
        Done {
            steps: self.steps.saturating_sub(before.steps),
            spins: self.spins.saturating_sub(before.spins),
        }
    }

    /// The counters, and what the program says of itself.
    fn as_counted(self) -> Counted {
        Counted {
            counts: self.as_counts(),
            source: CounterSource::Synthetic,
            truth: Some(match self.steps {
                0 => Truth::Spun,
                _ => Truth::Worked,
            }),
        }
    }

    /// The counters that a PMU might show of this.
    pub fn as_counts(self) -> BranchCounts {
        let computed = self.steps.saturating_mul(OF_STEP);
        let branches = computed / 100 * BRANCHES;
        BranchCounts {
            instructions: computed.saturating_add(self.spins.saturating_mul(OF_TURN)),
            branches: branches.saturating_add(self.spins),
            mispredicted: (branches / 100 * MISPREDICTED)
                .saturating_add(self.spins / TURNS_TO_MISS),
        }
    }
}

/// Where a microVM's counters are: vCPUs, offset of the first, distance.
fn parse(link: &str) -> Option<(u64, u64, u64)> {
    let numbers = link.strip_prefix(NAME)?.split(' ').next()?;
    let mut numbers = numbers.split('-').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

/// The device and the type of an open file, from what the kernel knows by itself: no file system in user space is asked.
fn device_and_type(file: impl AsFd) -> io::Result<((u32, u32), FileType)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, c"", flags, StatxFlags::TYPE)?;
    let file_type = FileType::from_raw_mode(stat.stx_mode.into());
    Ok(((stat.stx_dev_major, stat.stx_dev_minor), file_type))
}

/// Opens what a process holds open, if it is a memory file: all of them are regular files of one device, which nothing else is on that has a name.
fn open_memory_file(path: &Path) -> io::Result<Option<File>> {
    let behind = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let known = memfd_create("tandem-compare", MemfdFlags::CLOEXEC)?;
    let (device, file_type) = device_and_type(&behind)?;
    if file_type != FileType::RegularFile || device != device_and_type(&known)?.0 {
        return Ok(None);
    }
    // The very same file, whatever the process has put there meanwhile.
    let path = format!("/proc/self/fd/{}", behind.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(Some(File::from(open(path, flags, Mode::empty())?)))
}

/// One vCPU's counters.
struct Place {
    file: File,
    at: u64,
    last: Done,
}

impl Place {
    fn read(&self) -> std::io::Result<Done> {
        let mut bytes = [0; 16];
        self.file.read_exact_at(&mut bytes, self.at)?;
        let number = |half: &[u8]| {
            let mut eight = [0; 8];
            eight.copy_from_slice(half);
            u64::from_ne_bytes(eight)
        };
        Ok(Done { steps: number(&bytes[..8]), spins: number(&bytes[8..]) })
    }
}

/// The synthetic counters of the vCPUs that were asked about.
pub struct MicrovmCounters {
    procfs: ProcFs,
    /// `None`: its process is no microVM.
    threads: BTreeMap<ThreadRef, Option<Place>>,
}

impl MicrovmCounters {
    /// Of processes in this `/proc`.
    pub fn new(procfs: ProcFs) -> MicrovmCounters {
        MicrovmCounters { procfs, threads: BTreeMap::new() }
    }

    /// Finds the file of a vCPU's counters, by the names of what its process holds open.
    fn find(&self, vcpu: VcpuId, thread: &ThreadRef) -> Result<Option<Place>, CounterError> {
        let folder = self.procfs.resolve(format!("/proc/{}/fd", thread.pid.0));
        let wrong = |cause: std::io::Error| {
            if is_gone(&cause) { CounterError::Gone } else { CounterError::Other { cause } }
        };
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let Ok(link) = std::fs::read_link(&path) else {
                continue;
            };
            let Some((vcpus, first, distance)) = link.to_str().and_then(parse) else {
                continue;
            };
            let at = distance.checked_mul(u64::from(vcpu.0)).and_then(|at| at.checked_add(first));
            if let Some(at) = at.filter(|_| u64::from(vcpu.0) < vcpus) {
                let last = Done::default();
                if let Some(file) = open_memory_file(&path).map_err(wrong)? {
                    return Ok(Some(Place { file, at, last }));
                }
            }
        }
        Ok(None)
    }
}

impl BranchCounters for MicrovmCounters {
    fn source(&self) -> CounterSource {
        CounterSource::Synthetic
    }

    fn count(&mut self, vcpu: VcpuId, thread: &ThreadRef) -> Result<Option<Counted>, CounterError> {
        let is_new = !self.threads.contains_key(thread);
        if is_new {
            let found = self.find(vcpu, thread)?;
            self.threads.insert(*thread, found);
        }
        let Some(Some(place)) = self.threads.get_mut(thread) else {
            return Err(CounterError::NoMicrovm { pid: thread.pid.0 });
        };
        let now = place.read().map_err(|cause| CounterError::Other { cause })?;
        let did = now.since(std::mem::replace(&mut place.last, now));
        Ok((!is_new && did != Done::default()).then(|| did.as_counted()))
    }

    fn forget(&mut self, thread: &ThreadRef) {
        self.threads.remove(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_where_counters_are() {
        let link = "/memfd:tandem-counters-4-2097408-2048 (deleted)";
        assert_eq!(parse(link), Some((4, 2_097_408, 2048)));
        for other in ["/dev/null", "/memfd:x", "/memfd:tandem-counters-4-x-1"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn spinning_and_computing_look_as_they_do_to_a_pmu() {
        let done = |steps, spins| Done { steps, spins }.as_counts();
        let spun = done(0, 1_000_000);
        assert_eq!(
            (spun.instructions, spun.branches, spun.mispredicted),
            (3_000_000, 1_000_000, 1000)
        );
        let computed = done(1_000_000, 0);
        assert_eq!(
            (computed.instructions, computed.branches, computed.mispredicted),
            (4_000_000, 640_000, 19_200)
        );
    }

    #[test]
    fn who_did_a_step_has_worked() {
        let truth = |steps, spins| Done { steps, spins }.as_counted().truth;
        assert_eq!(truth(0, 1), Some(Truth::Spun));
        assert_eq!(truth(1, 1_000_000), Some(Truth::Worked));
        assert_eq!(truth(1, 0), Some(Truth::Worked));
    }

    #[test]
    fn hostile_files_with_the_name_of_counters_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, [0; 4096]).unwrap();
        // Nobody writes to the pipe: who opens it to read waits for ever.
        for hostile in [&fifo, &file, &dir.path().to_path_buf()] {
            assert!(open_memory_file(hostile).unwrap().is_none(), "{hostile:?}");
        }
        // Of another name: to the test below, which may run meanwhile, this process is to be no microVM.
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        memory.write_all_at(&[7; 128], 0).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let opened = open_memory_file(Path::new(&path)).unwrap().unwrap();
        let mut bytes = [0; 16];
        opened.read_exact_at(&mut bytes, 64).unwrap();
        assert_eq!(bytes, [7; 16]);
    }

    #[test]
    fn a_process_that_is_no_microvm_is_named() {
        let me = crate::thread::ThreadRef::of_process(
            &ProcFs::host(),
            crate::thread::Pid(std::process::id()),
        )
        .unwrap();
        let mut counters = MicrovmCounters::new(ProcFs::host());
        let error = counters.count(VcpuId(0), &me).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
    }
}
