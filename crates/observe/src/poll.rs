//! Halt polling of each vCPU: for how long the host polled for an interrupt after the guest halted.
//!
//! KVM counts it for each vCPU (`halt_poll_success_ns`, `halt_poll_fail_ns`) and shows it in a file that the VMM asks for with
//! KVM_GET_STATS_FD (Linux 5.14). Only the VMM's own process may ask: KVM answers EIO to any other, also on a duplicate of the
//! vCPU's descriptor (kvm_vcpu_ioctl() compares the address space). But a file that the VMM asked for and holds open, as QEMU
//! (since 8.1) and Tandem's microVMs do, can be duplicated with pidfd_getfd(2), by root, and then be read without disturbing
//! anybody. A VMM that holds none has no POLL.
//!
//! Such a file keeps the VM's memory in the kernel alive. So it is closed at the first interval without the VM.
//!
//! KVM numbers vCPUs by their APIC, which may leave gaps. The files in the order of these numbers are the vCPUs in the order
//! of theirs, where there are as many; else nobody can tell which is whose, and nothing is measured.
//!
//! Source: Documentation/virt/kvm/api.rst, 4.133 KVM_GET_STATS_FD: a header, descriptors, data; little else is used here.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::PidfdFlags;
use rustix::process::PidfdGetfdFlags;
use rustix::process::pidfd_getfd;
use rustix::process::pidfd_open;
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::ThreadRef;
use tandem_policy::Nanos;

/// What a descriptor of a vCPU's figures reads, before the vCPU's number.
const LINK: &str = "anon_inode:kvm-vcpu-stats:";

/// The figures whose sum is the time polled.
const FIGURES: [&str; 2] = ["halt_poll_success_ns", "halt_poll_fail_ns"];

/// While there is nothing to read, it is looked for again after so many intervals.
const RETRY: u32 = 16;

/// Longer names or more figures than this is no file of KVM's.
const MOST: u32 = 4096;

/// Why there is no POLL for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPoll {
    /// This process may not look into the VM's.
    NotPermitted,
    /// The VMM holds no such files.
    NotHeld,
    /// Which file is whose vCPU's cannot be told, or a file is not what it should be.
    Unclear,
}

impl NoPoll {
    /// For want of what.
    pub fn want(self) -> &'static str {
        match self {
            NoPoll::NotPermitted => "run as root to read KVM's figures of each vCPU",
            NoPoll::NotHeld => {
                "the VMM keeps no file of KVM's figures of its vCPUs open (KVM_GET_STATS_FD; QEMU \
                 does since 8.1)"
            }
            NoPoll::Unclear => "which file of KVM's figures is whose vCPU's is not clear",
        }
    }
}

/// The file of a vCPU's figures, and where in it the time polled is.
#[derive(Debug)]
struct Figures {
    file: File,
    offsets: [u64; 2],
}

impl Figures {
    /// Reads where things are.
    fn open(file: File) -> io::Result<Figures> {
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
            let Some(figure) = FIGURES
                .iter()
                .position(|wanted| name == Some(wanted.as_bytes()))
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
            [Some(success), Some(fail)] => Ok(Figures {
                file,
                offsets: [success, fail],
            }),
            _ => Err(bad("no halt polling")),
        }
    }

    /// The time polled so far.
    fn polled(&self) -> io::Result<Nanos> {
        let mut sum = Nanos::ZERO;
        for offset in self.offsets {
            let mut value = [0u8; 8];
            self.file.read_exact_at(&mut value, offset)?;
            sum += Nanos(u64::from_ne_bytes(value));
        }
        Ok(sum)
    }
}

/// The files of one process, or why there are none.
#[derive(Debug)]
struct Held {
    figures: Result<Vec<Figures>, NoPoll>,
    vcpus: usize,
    age: u32,
}

/// The time polled of the vCPUs of processes, as long as these are asked about.
#[derive(Debug, Default)]
pub struct Polls {
    held: BTreeMap<ThreadRef, Held>,
}

impl Polls {
    /// Nothing is open yet.
    pub fn new() -> Polls {
        Polls::default()
    }

    /// The time that each of a process's `vcpus` vCPUs polled so far, in their order.
    pub fn read(
        &mut self,
        procfs: &ProcFs,
        process: &ThreadRef,
        vcpus: usize,
    ) -> Result<Vec<Nanos>, NoPoll> {
        let open = || Held {
            figures: open_all(procfs, process, vcpus),
            vcpus,
            age: 0,
        };
        let held = self.held.entry(*process).or_insert_with(open);
        held.age += 1;
        if held.vcpus != vcpus || (held.figures.is_err() && held.age > RETRY) {
            *held = open();
        }
        let figures = held.figures.as_ref().map_err(|why| *why)?;
        let polled: io::Result<Vec<Nanos>> = figures.iter().map(Figures::polled).collect();
        polled.map_err(|_| NoPoll::Unclear)
    }

    /// Closes the files of all processes but these.
    pub fn retain(&mut self, mut keep: impl FnMut(&ThreadRef) -> bool) {
        self.held.retain(|process, _| keep(process));
    }
}

/// Duplicates the files that a process holds, in the order of the vCPUs' numbers.
fn open_all(procfs: &ProcFs, process: &ThreadRef, vcpus: usize) -> Result<Vec<Figures>, NoPoll> {
    // Descriptors can be duplicated from processes of this machine only.
    if *procfs != ProcFs::host() {
        return Err(NoPoll::NotHeld);
    }
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => NoPoll::NotPermitted,
        _ => NoPoll::NotHeld,
    };
    let folder = procfs.process(process.pid).join("fd");
    let mut numbers: Vec<(u32, i32)> = Vec::new();
    for entry in fs::read_dir(&folder).map_err(refused)?.flatten() {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        let vcpu = link.to_str().and_then(|link| link.strip_prefix(LINK));
        let number = entry.file_name();
        if let (Some(vcpu), Some(number)) = (vcpu, number.to_str())
            && let (Ok(vcpu), Ok(number)) = (vcpu.parse(), number.parse())
        {
            numbers.push((vcpu, number));
        }
    }
    numbers.sort_unstable();
    match numbers.len() {
        0 => return Err(NoPoll::NotHeld),
        count if count != vcpus => return Err(NoPoll::Unclear),
        _ if numbers.windows(2).any(|pair| pair[0].0 == pair[1].0) => return Err(NoPoll::Unclear),
        _ => {}
    }
    let pid = i32::try_from(process.pid.0)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or(NoPoll::NotHeld)?;
    let errno = |error: rustix::io::Errno| match error {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => NoPoll::NotPermitted,
        _ => NoPoll::NotHeld,
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(errno)?;
    let mut figures = Vec::with_capacity(numbers.len());
    for (_, number) in numbers {
        let file = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).map_err(errno)?;
        // The number may stand for another file by now.
        let opened = Figures::open(File::from(file)).map_err(|_| NoPoll::Unclear)?;
        figures.push(opened);
    }
    // Had the process ended in between, its number could be another's.
    match process.is_alive(procfs) {
        true => Ok(figures),
        false => Err(NoPoll::NotHeld),
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
        let figures = Figures::open(file).unwrap();
        assert_eq!(figures.polled().unwrap(), Nanos(1_005_000));
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let error = |figures: &[(&str, u32, i16, u64)]| {
            let opened = Figures::open(file(figures));
            opened.unwrap_err().to_string()
        };
        let success = ("halt_poll_success_ns", 0x20, -9, 1);
        assert_eq!(error(&[success]), "no halt polling");
        let micro = ("halt_poll_fail_ns", 0x20, -6, 1);
        assert_eq!(error(&[success, micro]), "unit");
        let cycles = ("halt_poll_fail_ns", 0x30, -9, 1);
        assert_eq!(error(&[success, cycles]), "unit");
        assert!(Figures::open(File::open("/dev/null").unwrap()).is_err());
        let zero = Figures::open(File::open("/dev/zero").unwrap());
        assert_eq!(zero.unwrap_err().to_string(), "no halt polling");
        let mut text = tempfile::tempfile().unwrap();
        text.write_all(&[0xff; 64]).unwrap();
        assert_eq!(Figures::open(text).unwrap_err().to_string(), "header");
    }

    #[test]
    fn a_process_that_holds_none_has_none() {
        let procfs = ProcFs::host();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = tandem_linux::thread::Pid(child.id());
        let process = ThreadRef::of_process(&procfs, pid).unwrap();
        let mut polls = Polls::new();
        let read = polls.read(&procfs, &process, 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read, Err(NoPoll::NotHeld));
        polls.retain(|_| false);
        assert!(polls.held.is_empty());
    }
}
