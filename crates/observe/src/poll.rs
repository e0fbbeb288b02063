//! Halt polling of each vCPU: for how long the host polled for an interrupt after the guest halted.
//!
//! KVM counts it for each vCPU (`halt_poll_success_ns`, `halt_poll_fail_ns`) and shows it in a file that the VMM asks for with
//! KVM_GET_STATS_FD (Linux 5.14). Only the VMM's own process may ask: KVM answers EIO to any other, also on a duplicate of the
//! vCPU's descriptor (kvm_vcpu_ioctl() compares the address space). But a file that the VMM asked for and holds open, as QEMU
//! (since 8.1) and Tandem's microVMs do, can be duplicated with pidfd_getfd(2), by root, and then be read without disturbing
//! anybody. A VMM that holds none has no POLL.
//!
//! Such a file keeps the VM's memory in the kernel alive. So it is duplicated, read and closed again, each time.
//!
//! What a number of another process stands for is that process's choice, and may change at any moment: reading a pipe of a tenant
//! would block for as long as the tenant likes. So the duplicate's own link is compared before it is read, with the vCPU's number; only
//! the kernel can make a file whose link begins with `anon_inode:`.
//!
//! Before Linux 6.5 such a file did not keep the VM alive, and reading it after the VM's end read memory that was another's by then
//! (mended by commit eed3013faa40, "KVM: Grab a reference to KVM for VM and vCPU stats file descriptors"). Whether an older kernel has the
//! mend cannot be told from outside, so nothing is read on one.
//!
//! KVM numbers vCPUs by their APIC, which may leave gaps. The files in the order of these numbers are the vCPUs in the order
//! of theirs, where there are as many; else nobody can tell which is whose, and nothing is measured.
//!
//! Source: Documentation/virt/kvm/api.rst, 4.133 KVM_GET_STATS_FD: a header, descriptors, data; little else is used here.

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

/// What a descriptor of a vCPU's figures reads, before the vCPU's number.
const LINK: &str = "anon_inode:kvm-vcpu-stats:";

/// The first kernel on which such a file may be read at any time.
const SAFE_SINCE: (u32, u32) = (6, 5);

/// The figures whose sum is the time polled.
const FIGURES: [&str; 2] = ["halt_poll_success_ns", "halt_poll_fail_ns"];

/// While there is nothing to read, it is looked for again after so many intervals.
const RETRY: u32 = 16;

/// Longer names or more figures than this is no file of KVM's.
const MOST: u32 = 4096;

/// Why there is no POLL for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPoll {
    /// Reading is not safe on this kernel.
    UnsafeKernel,
    /// This process may not look into the VM's.
    NotPermitted,
    /// This process may not open another file.
    TooManyFiles,
    /// The VMM holds no such files.
    NotHeld,
    /// Which file is whose vCPU's cannot be told, or a file is not what it should be.
    Unclear,
}

impl NoPoll {
    /// All, in the order in which they are said.
    pub const ALL: [NoPoll; 5] = [
        NoPoll::UnsafeKernel,
        NoPoll::NotPermitted,
        NoPoll::TooManyFiles,
        NoPoll::NotHeld,
        NoPoll::Unclear,
    ];

    /// For want of what.
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

/// Where in a file of a vCPU's figures the time polled is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    offsets: [u64; 2],
}

impl Layout {
    /// Reads where things are.
    fn read(file: &File) -> io::Result<Layout> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        // Flags, name size, number of descriptors, offsets of id, descriptors and data.
        let mut header = [0u8; 24];
        file.read_exact_at(&mut header, 0)?;
        let word = |bytes: &[u8], at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let [name_size, count, descriptors, data] = [4, 8, 16, 20].map(|at| word(&header, at));
        if name_size > MOST || count > MOST {
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

    /// The time polled so far.
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

/// The files that a process holds: the number of each, and KVM's number of the vCPU.
#[derive(Debug)]
struct Held {
    process: OwnedFd,
    files: Vec<(i32, u32)>,
    /// The same for all vCPUs; none before the first was read.
    layout: Option<Layout>,
}

/// What was found out about a process.
#[derive(Debug)]
struct Looked {
    held: Result<Held, NoPoll>,
    vcpus: usize,
    age: u32,
}

/// The time polled of the vCPUs of processes, as long as these are asked about. No file of KVM's is open between two readings.
#[derive(Debug)]
pub struct Polls {
    is_safe: bool,
    looked: BTreeMap<ThreadRef, Looked>,
}

impl Polls {
    /// Nothing is looked at yet.
    pub fn new() -> Polls {
        Polls { is_safe: is_safe(&kernel_release::running()), looked: BTreeMap::new() }
    }

    /// Why nothing can be read of any VM, as far as that is known beforehand.
    pub fn never(&self) -> Option<NoPoll> {
        (!self.is_safe).then_some(NoPoll::UnsafeKernel)
    }

    /// The vCPUs of a process of which there are `vcpus`, to be read one by one.
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

    /// Why there is nothing of a process, as far as it was looked at.
    pub fn why_not(&self, process: &ThreadRef) -> Option<NoPoll> {
        let looked = self.looked.get(process);
        self.never().or_else(|| looked?.held.as_ref().err().copied())
    }

    /// A file was not what it was when it was found: all are looked for again.
    pub fn look_again(&mut self, process: &ThreadRef) {
        self.looked.remove(process);
    }

    /// Forgets all processes but these.
    pub fn retain(&mut self, mut keep: impl FnMut(&ThreadRef) -> bool) {
        self.looked.retain(|process, _| keep(process));
    }
}

impl Default for Polls {
    fn default() -> Polls {
        Polls::new()
    }
}

/// Reads vCPUs of a process.
#[derive(Debug)]
pub struct Reader<'a> {
    held: &'a mut Held,
}

impl Reader<'_> {
    /// For how long the host polled for the vCPU at this place in the order of numbers, so far.
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

/// Whether a file of this process is that of a vCPU's figures, by the link that the kernel made.
fn is_of(file: &File, vcpu: u32) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| vcpu_of(&link) == Some(vcpu))
}

/// The vCPU of a link such as `anon_inode:kvm-vcpu-stats:3`.
fn vcpu_of(link: &Path) -> Option<u32> {
    link.to_str()?.strip_prefix(LINK)?.parse().ok()
}

/// Whether this release of the kernel keeps the VM alive while the file is open.
fn is_safe(release: &str) -> bool {
    kernel_release::numbers(release).is_some_and(|version| version >= SAFE_SINCE)
}

impl Held {
    /// Finds the files that a process holds, in the order of the vCPUs' numbers.
    fn look(procfs: &ProcFs, process: &ThreadRef, vcpus: usize) -> Result<Held, NoPoll> {
        // Descriptors can be duplicated from processes of this machine only.
        if *procfs != ProcFs::host() {
            return Err(NoPoll::NotHeld);
        }
        let pid = i32::try_from(process.pid.0)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or(NoPoll::NotHeld)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        // Had the process ended before, its number could be another's.
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

    /// A file as KVM makes it: header, id, descriptors, data.
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
    fn both_figures_are_found_by_name_and_summed() {
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
    fn what_is_no_such_file_is_refused() {
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
    fn a_process_that_holds_none_has_none() {
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

    /// A process of which this one only pretends to know that it holds such a file.
    fn pretended(number: i32) -> Held {
        let me = rustix::process::getpid();
        Held {
            process: pidfd_open(me, PidfdFlags::empty()).unwrap(),
            files: vec![(number, 0)],
            layout: None,
        }
    }

    #[test]
    fn a_number_that_stands_for_a_pipe_by_now_is_not_read() {
        // Reading it would block for ever: nobody writes.
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
    fn kernels_without_the_mend_are_refused() {
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
    fn a_limit_of_files_is_no_fault_of_the_vmm() {
        let of = |errno: rustix::io::Errno| NoPoll::from(io::Error::from(errno));
        assert_eq!(of(rustix::io::Errno::MFILE), NoPoll::TooManyFiles);
        assert_eq!(of(rustix::io::Errno::PERM), NoPoll::NotPermitted);
        assert_eq!(of(rustix::io::Errno::SRCH), NoPoll::NotHeld);
    }
}
