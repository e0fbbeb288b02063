//! Synthetic counters of Tandem's own microVMs.
//!
//! A microVM's program counts its compute steps and the iterations of its wait loops.
//! Both counts are in memory that the VMM shares with the guest, in a memory file whose name gives their place:
//! `tandem-counters-VCPUS-OFFSET-DISTANCE`, two 8-byte numbers per vCPU.
//! A process with access to the VMM's `/proc` folder reads that file while the guest runs.
//!
//! A process chooses the names of its open files.
//! A pipe or a file of a user-space file system may bear such a name and would block a reader that opens it.
//! This module therefore checks the file type without opening it, and opens memory files only.
//!
//! The counts are converted to those that a PMU would show for a typical compute program and a spin loop (as in the simulator).
//! FlexS can thus run without a PMU.
//! The counters include the ground truth, whether the program only waited, to check verdicts against.
//! They are exact where real counters vary, so they prove nothing about spin detection of FlexS on hardware.

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

/// Prefix of the memory file's name, as the kernel shows it.
const NAME: &str = "/memfd:tandem-counters-";

/// Instructions of a compute step: multiply, add, subtract, branch.
const OF_STEP: u64 = 4;
/// Instructions of an iteration of a wait loop: PAUSE, compare, branch.
const OF_TURN: u64 = 3;
/// Branches per 100 instructions of a typical program, and misses per 100 branches (Hennessy & Patterson); the simulator's defaults.
const BRANCHES: u64 = 16;
const MISPREDICTED: u64 = 3;
/// Iterations of a spin loop per branch miss; assumed, as in the simulator.
const TURNS_TO_MISS: u64 = 1000;

/// Counts of a guest's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Compute steps.
    pub steps: u64,
    /// Iterations of wait loops.
    pub spins: u64,
}

impl Done {
    /// The difference from `before`.
    fn since(self, before: Done) -> Done {
        Done {
            steps: self.steps.saturating_sub(before.steps),
            spins: self.spins.saturating_sub(before.spins),
        }
    }

    /// The counters, with the ground truth.
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

    /// The counters that a PMU might show.
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

/// Parses the place of a microVM's counters: number of vCPUs, offset of the first, distance.
fn parse(link: &str) -> Option<(u64, u64, u64)> {
    let numbers = link.strip_prefix(NAME)?.split(' ').next()?;
    let mut numbers = numbers.split('-').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

/// The device and type of an open file, from the kernel's cache, so that no user-space file system is involved.
fn device_and_type(file: impl AsFd) -> io::Result<((u32, u32), FileType)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, c"", flags, StatxFlags::TYPE)?;
    let file_type = FileType::from_raw_mode(stat.stx_mode.into());
    Ok(((stat.stx_dev_major, stat.stx_dev_minor), file_type))
}

/// Opens an open file of another process if it is a memory file.
/// All memory files are regular files of one device that has no other named files.
fn open_memory_file(path: &Path) -> io::Result<Option<File>> {
    let behind = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let known = memfd_create("tandem-compare", MemfdFlags::CLOEXEC)?;
    let (device, file_type) = device_and_type(&behind)?;
    if file_type != FileType::RegularFile || device != device_and_type(&known)?.0 {
        return Ok(None);
    }
    // Reopens the checked file, even if the process has replaced it meanwhile.
    let path = format!("/proc/self/fd/{}", behind.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(Some(File::from(open(path, flags, Mode::empty())?)))
}

/// The place of one vCPU's counters.
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

/// The synthetic counters of the vCPUs read so far.
pub struct MicrovmCounters {
    procfs: ProcFs,
    /// `None` if the thread's process is not a microVM.
    threads: BTreeMap<ThreadRef, Option<Place>>,
}

impl MicrovmCounters {
    /// Creates a source for the processes in this `/proc`.
    pub fn new(procfs: ProcFs) -> MicrovmCounters {
        MicrovmCounters { procfs, threads: BTreeMap::new() }
    }

    /// Finds the counters of a vCPU among the open files of its process.
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
    fn file_name_gives_the_place() {
        let link = "/memfd:tandem-counters-4-2097408-2048 (deleted)";
        assert_eq!(parse(link), Some((4, 2_097_408, 2048)));
        for other in ["/dev/null", "/memfd:x", "/memfd:tandem-counters-4-x-1"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn counts_resemble_those_of_a_pmu() {
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
    fn any_step_counts_as_work() {
        let truth = |steps, spins| Done { steps, spins }.as_counted().truth;
        assert_eq!(truth(0, 1), Some(Truth::Spun));
        assert_eq!(truth(1, 1_000_000), Some(Truth::Worked));
        assert_eq!(truth(1, 0), Some(Truth::Worked));
    }

    #[test]
    fn hostile_file_names_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, [0; 4096]).unwrap();
        // The pipe has no writer, so opening it for reading would block.
        for hostile in [&fifo, &file, &dir.path().to_path_buf()] {
            assert!(open_memory_file(hostile).unwrap().is_none(), "{hostile:?}");
        }
        // Named differently, so that the test below, which may run concurrently, finds no microVM in this process.
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        memory.write_all_at(&[7; 128], 0).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let opened = open_memory_file(Path::new(&path)).unwrap().unwrap();
        let mut bytes = [0; 16];
        opened.read_exact_at(&mut bytes, 64).unwrap();
        assert_eq!(bytes, [7; 16]);
    }

    #[test]
    fn error_names_the_other_process() {
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
