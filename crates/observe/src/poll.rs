//! Halt polling of each vCPU: the time that the host polled for an interrupt after the guest halted.
//!
//! KVM counts it for each vCPU (`halt_poll_success_ns`, `halt_poll_fail_ns`) in a file that the VMM requests with
//! KVM_GET_STATS_FD (Linux 5.14). Only the VMM's own process may request it: KVM returns EIO to others, even on a duplicate of the
//! vCPU's descriptor (kvm_vcpu_ioctl() compares the address space). But root can duplicate a file that the VMM holds open, as QEMU
//! (since 8.1) and Tandem's microVMs do, with pidfd_getfd(2), and read it without side effects.
//! For a VMM without such files, POLL is not available.
//!
//! Such a file keeps the VM's memory in the kernel alive. So it is duplicated, read and closed each time.
//!
//! The other process controls its descriptor numbers, and may change them at any moment: reading a tenant's pipe
//! would block as long as the tenant likes. So the link of the duplicate is compared with the vCPU's number before reading.
//! Only the kernel can create files whose link begins with `anon_inode:`.
//!
//! Before Linux 6.5 such a file did not keep the VM alive, and reading it after the VM's end was a use after free
//! (fixed by commit eed3013faa40, "KVM: Grab a reference to KVM for VM and vCPU stats file descriptors"). A backport of the
//! fix cannot be detected, so older kernels are not supported.
//!
//! KVM numbers vCPUs by APIC id, which may leave gaps. The files sorted by these numbers correspond to the vCPUs sorted
//! by theirs, if the counts are equal; otherwise the assignment is unknown, and POLL is not measured.
//!
//! Source: Documentation/virt/kvm/api.rst, 4.133 KVM_GET_STATS_FD: a header, descriptors, data. Only a few fields are used here.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tandem_linux::kernel_release;
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::ThreadRef;
use tandem_model::Nanos;

/// Link of a descriptor of a vCPU's statistics, before the vCPU's number.
const LINK: &str = "anon_inode:kvm-vcpu-stats:";

/// The first kernel on which such a file is safe to read.
const SAFE_SINCE: (u32, u32) = (6, 5);

/// The statistics that sum to the polling time.
const FIGURES: [&str; 2] = ["halt_poll_success_ns", "halt_poll_fail_ns"];

/// Number of intervals after which missing files are searched again.
const RETRY: u32 = 16;

/// Maximum length of names and number of statistics in a valid file.
const MAX_ENTRIES: u32 = 4096;

/// The reason for missing POLL of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPoll {
    /// Reading is not safe on this kernel.
    UnsafeKernel,
    /// This process lacks permission to access the VM's process.
    NotPermitted,
    /// This process has reached its limit of open files.
    TooManyFiles,
    /// The VMM holds no such files.
    NotHeld,
    /// The files cannot be assigned to vCPUs, or a file is invalid.
    Unclear,
}

impl NoPoll {
    /// All reasons in the order of reporting.
    pub const ALL: [NoPoll; 5] = [
        NoPoll::UnsafeKernel,
        NoPoll::NotPermitted,
        NoPoll::TooManyFiles,
        NoPoll::NotHeld,
        NoPoll::Unclear,
    ];

    /// Returns the missing requirement.
    pub fn want(self) -> &'static str {
        match self {
            NoPoll::UnsafeKernel => {
                "before Linux 6.5 it is not safe to read KVM's figures of a VM that may end"
            }
            NoPoll::NotPermitted => "run as root to read KVM's figures of each vCPU",
            NoPoll::TooManyFiles => {
                "this process may not open more files: raise the limit (LimitNOFILE= in the \
                 service, or ulimit -n)"
            }
            NoPoll::NotHeld => {
                "the VMM keeps no file of KVM's figures of its vCPUs open (KVM_GET_STATS_FD; QEMU \
                 does since 8.1)"
            }
            NoPoll::Unclear => "which file of KVM's figures is whose vCPU's is not clear",
        }
    }
}

impl From<io::Error> for NoPoll {
    fn from(error: io::Error) -> NoPoll {
        match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => NoPoll::NotPermitted,
            Some(Errno::MFILE | Errno::NFILE) => NoPoll::TooManyFiles,
            _ => NoPoll::NotHeld,
        }
    }
}

/// Offsets of the polling time in a file of a vCPU's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    offsets: [u64; 2],
}

impl Layout {
    /// Reads the offsets from the descriptors.
    fn read(file: &File) -> io::Result<Layout> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        // Flags, name size, number of descriptors, offsets of id, descriptors and data.
        let mut header = [0u8; 24];
        file.read_exact_at(&mut header, 0)?;
        let word = |bytes: &[u8], at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let [name_size, count, descriptors, data] = [4, 8, 16, 20].map(|at| word(&header, at));
        if name_size > MAX_ENTRIES || count > MAX_ENTRIES {
            return Err(bad("header"));
        }
        // Flags, exponent, size, offset, bucket size; then the name.
        let size = 16 + name_size as usize;
        let mut offsets = [None; 2];
        let mut descriptor = vec![0u8; size];
        for index in 0..count {
            let at = u64::from(descriptors) + u64::from(index) * size as u64;
            file.read_exact_at(&mut descriptor, at)?;
            let name = descriptor[16..].split(|byte| *byte == 0).next();
            let Some(figure) = FIGURES.iter().position(|wanted| name == Some(wanted.as_bytes()))
            else {
                continue;
            };
            let exponent = i16::from_ne_bytes([descriptor[4], descriptor[5]]);
            // Seconds to the power of ten: KVM_STATS_UNIT_SECONDS, KVM_STATS_BASE_POW10.
            let is_nanoseconds = word(&descriptor, 0) & 0xff0 == 0x20 && exponent == -9;
            if !is_nanoseconds {
                return Err(bad("unit"));
            }
            offsets[figure] = Some(u64::from(data) + u64::from(word(&descriptor, 8)));
        }
        match offsets {
            [Some(success), Some(fail)] => Ok(Layout { offsets: [success, fail] }),
            _ => Err(bad("no halt polling")),
        }
    }

    /// Returns the polling time so far.
    fn polled(self, file: &File) -> io::Result<Nanos> {
        let mut sum = Nanos::ZERO;
        for offset in self.offsets {
            let mut value = [0u8; 8];
            file.read_exact_at(&mut value, offset)?;
            sum += Nanos(u64::from_ne_bytes(value));
        }
        Ok(sum)
    }
}

/// The files that a process holds: the descriptor of each, and KVM's number of the vCPU.
#[derive(Debug)]
struct Held {
    process: OwnedFd,
    files: Vec<(i32, u32)>,
    /// The same for all vCPUs; `None` before the first was read.
    layout: Option<Layout>,
}

/// Result of a search in a process.
#[derive(Debug)]
struct Looked {
    held: Result<Held, NoPoll>,
    vcpus: usize,
    age: u32,
}

/// The polling times of processes' vCPUs, while callers request them. No KVM file is open between two readings.
#[derive(Debug)]
pub struct Polls {
    is_safe: bool,
    looked: BTreeMap<ThreadRef, Looked>,
}

impl Polls {
    /// Creates an empty cache.
    pub fn new() -> Polls {
        Polls { is_safe: is_safe(&kernel_release::running()), looked: BTreeMap::new() }
    }

    /// Returns the reason that applies to all VMs, if it is known in advance.
    pub fn never(&self) -> Option<NoPoll> {
        (!self.is_safe).then_some(NoPoll::UnsafeKernel)
    }

    /// Returns a reader for the vCPUs of a process with `vcpus` vCPUs.
    pub fn of(
        &mut self,
        procfs: &ProcFs,
        process: &ThreadRef,
        vcpus: usize,
    ) -> Result<Reader<'_>, NoPoll> {
        if !self.is_safe {
            return Err(NoPoll::UnsafeKernel);
        }
        let look = || Looked { held: Held::look(procfs, process, vcpus), vcpus, age: 0 };
        let looked = self.looked.entry(*process).or_insert_with(look);
        looked.age += 1;
        if looked.vcpus != vcpus || (looked.held.is_err() && looked.age > RETRY) {
            *looked = look();
        }
        match &mut looked.held {
            Ok(held) => Ok(Reader { held }),
            Err(why) => Err(*why),
        }
    }

    /// Returns the known reason for missing POLL of a process.
    pub fn why_not(&self, process: &ThreadRef) -> Option<NoPoll> {
        let looked = self.looked.get(process);
        self.never().or_else(|| looked?.held.as_ref().err().copied())
    }

    /// Searches the files again at the next reading, since one of them changed.
    pub fn look_again(&mut self, process: &ThreadRef) {
        self.looked.remove(process);
    }

    /// Drops the processes for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&ThreadRef) -> bool) {
        self.looked.retain(|process, _| keep(process));
    }
}

impl Default for Polls {
    fn default() -> Polls {
        Polls::new()
    }
}

/// Reads polling times of the vCPUs of a process.
#[derive(Debug)]
pub struct Reader<'a> {
    held: &'a mut Held,
}

impl Reader<'_> {
    /// Returns the polling time so far of the vCPU at this position in the order of numbers.
    pub fn polled(&mut self, index: usize) -> Result<Nanos, NoPoll> {
        let &(number, vcpu) = self.held.files.get(index).ok_or(NoPoll::Unclear)?;
        let copy = pidfd_getfd(&self.held.process, number, PidfdGetfdFlags::empty());
        let file = File::from(copy.map_err(io::Error::from)?);
        if !is_of(&file, vcpu) {
            return Err(NoPoll::Unclear);
        }
        let layout = match self.held.layout {
            Some(layout) => layout,
            None => {
                let layout = Layout::read(&file).map_err(|_| NoPoll::Unclear)?;
                *self.held.layout.insert(layout)
            }
        };
        layout.polled(&file).map_err(|_| NoPoll::Unclear)
    }
}

/// Whether a file of this process contains a vCPU's statistics, by the link that the kernel set.
fn is_of(file: &File, vcpu: u32) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| vcpu_of(&link) == Some(vcpu))
}

/// Parses the vCPU of a link such as `anon_inode:kvm-vcpu-stats:3`.
fn vcpu_of(link: &Path) -> Option<u32> {
    link.to_str()?.strip_prefix(LINK)?.parse().ok()
}

/// Whether this kernel release keeps the VM alive while the file is open.
fn is_safe(release: &str) -> bool {
    kernel_release::numbers(release).is_some_and(|version| version >= SAFE_SINCE)
}

impl Held {
    /// Finds the files that a process holds, sorted by vCPU number.
    fn look(procfs: &ProcFs, process: &ThreadRef, vcpus: usize) -> Result<Held, NoPoll> {
        // Descriptors can be duplicated from processes of this host only.
        if *procfs != ProcFs::host() {
            return Err(NoPoll::NotHeld);
        }
        let pid = i32::try_from(process.pid.0)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or(NoPoll::NotHeld)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        // If the process exited before, its number may be reused.
        if !process.is_alive(procfs) {
            return Err(NoPoll::NotHeld);
        }
        let folder = procfs.process(process.pid).join("fd");
        let mut files: Vec<(i32, u32)> = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let vcpu = vcpu_of(&fs::read_link(entry.path()).unwrap_or_default());
            let number = entry.file_name();
            if let (Some(vcpu), Some(number)) = (vcpu, number.to_str())
                && let Ok(number) = number.parse()
            {
                files.push((number, vcpu));
            }
        }
        files.sort_unstable_by_key(|(number, vcpu)| (*vcpu, *number));
        match files.len() {
            0 => Err(NoPoll::NotHeld),
            count if count != vcpus => Err(NoPoll::Unclear),
            _ if files.windows(2).any(|pair| pair[0].1 == pair[1].1) => Err(NoPoll::Unclear),
            _ => Ok(Held { process: pidfd, files, layout: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Creates a file in KVM's format: header, id, descriptors, data.
    fn file(figures: &[(&str, u32, i16, u64)]) -> File {
        const NAME: usize = 32;
        let descriptors = 24 + NAME;
        let data = descriptors + figures.len() * (16 + NAME);
        let mut bytes = Vec::new();
        for word in [0, NAME, figures.len(), 24, descriptors, data] {
            bytes.extend((word as u32).to_ne_bytes());
        }
        bytes.resize(descriptors, b'i');
        for (index, (name, flags, exponent, _)) in figures.iter().enumerate() {
            bytes.extend(flags.to_ne_bytes());
            bytes.extend(exponent.to_ne_bytes());
            bytes.extend(1u16.to_ne_bytes());
            bytes.extend((index as u32 * 8).to_ne_bytes());
            bytes.extend(0u32.to_ne_bytes());
            let mut padded = name.as_bytes().to_vec();
            padded.resize(NAME, 0);
            bytes.extend(padded);
        }
        for (.., value) in figures {
            bytes.extend(value.to_ne_bytes());
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    #[test]
    fn figures_are_found_by_name_and_summed() {
        let file = file(&[
            ("exits", 0, 0, 77),
            ("halt_poll_fail_ns", 0x20, -9, 5_000),
            ("halt_poll_success_hist", 0x24, -9, 9),
            ("halt_poll_success_ns", 0x20, -9, 1_000_000),
        ]);
        let layout = Layout::read(&file).unwrap();
        assert_eq!(layout.polled(&file).unwrap(), Nanos(1_005_000));
    }

    #[test]
    fn invalid_files_are_refused() {
        let error = |figures: &[(&str, u32, i16, u64)]| {
            let read = Layout::read(&file(figures));
            read.unwrap_err().to_string()
        };
        let success = ("halt_poll_success_ns", 0x20, -9, 1);
        assert_eq!(error(&[success]), "no halt polling");
        let micro = ("halt_poll_fail_ns", 0x20, -6, 1);
        assert_eq!(error(&[success, micro]), "unit");
        let cycles = ("halt_poll_fail_ns", 0x30, -9, 1);
        assert_eq!(error(&[success, cycles]), "unit");
        assert!(Layout::read(&File::open("/dev/null").unwrap()).is_err());
        let zero = Layout::read(&File::open("/dev/zero").unwrap());
        assert_eq!(zero.unwrap_err().to_string(), "no halt polling");
        let mut text = tempfile::tempfile().unwrap();
        text.write_all(&[0xff; 64]).unwrap();
        assert_eq!(Layout::read(&text).unwrap_err().to_string(), "header");
    }

    #[test]
    fn process_without_files_has_no_poll() {
        let procfs = ProcFs::host();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = tandem_linux::thread::Pid(child.id());
        let process = ThreadRef::of_process(&procfs, pid).unwrap();
        let mut polls = Polls { is_safe: true, looked: BTreeMap::new() };
        let read = polls.of(&procfs, &process, 1).map(drop);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read, Err(NoPoll::NotHeld));
        polls.retain(|_| false);
        assert!(polls.looked.is_empty());
    }

    /// Pretends that this process holds such a file.
    fn pretended(number: i32) -> Held {
        let me = rustix::process::getpid();
        Held {
            process: pidfd_open(me, PidfdFlags::empty()).unwrap(),
            files: vec![(number, 0)],
            layout: None,
        }
    }

    #[test]
    fn pipe_with_a_stale_number_is_not_read() {
        // Reading it would block forever, without a writer.
        let (reader, _writer) = std::io::pipe().unwrap();
        let mut held = pretended(reader.as_raw_fd());
        let mut reader = Reader { held: &mut held };
        assert_eq!(reader.polled(0), Err(NoPoll::Unclear));
        assert_eq!(reader.polled(1), Err(NoPoll::Unclear));
    }

    #[test]
    fn links_of_other_files_are_not_vcpus() {
        let vcpu = |link: &str| vcpu_of(Path::new(link));
        assert_eq!(vcpu("anon_inode:kvm-vcpu-stats:17"), Some(17));
        for link in [
            "/tmp/anon_inode:kvm-vcpu-stats:17",
            "anon_inode:kvm-vcpu:17",
            "anon_inode:kvm-vcpu-stats:",
            "anon_inode:kvm-vcpu-stats:1 (deleted)",
            "pipe:[17]",
        ] {
            assert_eq!(vcpu(link), None, "{link}");
        }
    }

    #[test]
    fn kernels_without_the_fix_are_refused() {
        for release in ["6.5.0", "6.12.9-amd64", "7.0", "10.1.2"] {
            assert!(is_safe(release), "{release}");
        }
        for release in ["6.4.16", "5.14.0-503.el9.x86_64", "6", "", "linux"] {
            assert!(!is_safe(release), "{release}");
        }
        let mut polls = Polls { is_safe: false, looked: BTreeMap::new() };
        let me = tandem_linux::thread::Pid(std::process::id());
        let me = ThreadRef::of_process(&ProcFs::host(), me).unwrap();
        let read = polls.of(&ProcFs::host(), &me, 1).map(drop);
        assert_eq!(read, Err(NoPoll::UnsafeKernel));
    }

    #[test]
    fn file_limit_is_not_attributed_to_the_vmm() {
        let of = |errno: rustix::io::Errno| NoPoll::from(io::Error::from(errno));
        assert_eq!(of(rustix::io::Errno::MFILE), NoPoll::TooManyFiles);
        assert_eq!(of(rustix::io::Errno::PERM), NoPoll::NotPermitted);
        assert_eq!(of(rustix::io::Errno::SRCH), NoPoll::NotHeld);
    }
}
