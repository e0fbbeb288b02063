//! What BPF programs see: the states of vCPUs to the nanosecond, and who waits for whom.
//!
//! The programs (`bpf/tandem.bpf.c`) are attached to tracepoints of the scheduler and of KVM and add up in the kernel; no event
//! comes out. The life of [`Bpf`]:
//!
//! ```no_run
//! use tandem_linux::ProcFs;
//! use tandem_linux::thread::Pid;
//! use tandem_linux::thread::ThreadRef;
//! use tandem_linux::thread::Tid;
//! use tandem_observe::bpf::Bpf;
//! use tandem_observe::bpf::Options;
//! use tandem_observe::bpf::Watch;
//! use tandem_model::VcpuId;
//! use tandem_model::VmId;
//!
//! let mut bpf = Bpf::open(Options::default())?;
//! for missing in bpf.missing() {
//!     println!("{missing}");
//! }
//! let thread = ThreadRef::read(&ProcFs::host(), Pid(4200), Tid(4242))?;
//! let vcpu = Watch { index: 0, thread, vm: VmId(1), vcpu: VcpuId(0) };
//! bpf.watch(&[vcpu])?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! let reading = bpf.read()?;
//! println!("{}", reading.vcpus[0].times.ready);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - A vCPU is a thread; [`Bpf::watch`] names all of them, each time. Its time counts from then on. A thread is known by number and start:
//!   one that is gone is said to have ended in the next reading, whoever has its number by then.
//! - [`Bpf::read`] answers what happened since the last time. The times of a vCPU sum to its [`VcpuReading::wall`], exactly.
//! - [`Bpf::missing`] says what this kernel does not tell.
//!
//! [`BpfSource`] makes of that what every [`crate::Source`] answers.
//!
//! What to know about the figures:
//! - A vCPU on a pCPU is RUN until KVM says that the guest was left. So a thread that is no vCPU is RUN whenever it runs.
//! - A vCPU's thread that sleeps is HALT, also where it sleeps in the VMM's own code.
//! - CSTP is an estimate from below: a halt that a sibling ended, for as long as that sibling had waited for a pCPU meanwhile (its last wait).
//!   Had the sibling not waited, the halt would have ended earlier. Spinning for a sibling is not in it: no event tells it from work. Nor are halts
//!   that hardware ends without the host (posted interrupts).
//! - LIM begins when a vCPU that its quota keeps off is switched out, or with the next switch on its pCPU.
//! - Edges are taken away a moment after the states are read, some ms at most; what falls between counts in the next reading.
//! - What the hypervisor under this host takes looks like running.
//! - Two threads that have the same number one after the other within one reading are one culprit.
//!
//! It needs root (CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN), BTF of the kernel, Linux 5.11 or newer, and clang when Tandem was built:
//! [`BpfError`] says which of them is missing.

mod columns;
pub(crate) mod parties;
mod reading;
mod source;

#[cfg(with_bpf)]
mod events;
#[cfg(with_bpf)]
pub(crate) mod kernel;
#[cfg(with_bpf)]
mod layout;
#[cfg(with_bpf)]
mod observer;
#[cfg(with_bpf)]
mod programs;
#[cfg(with_bpf)]
mod slots;
#[cfg(not(with_bpf))]
mod without;

use std::path::PathBuf;

use tandem_linux::thread::ThreadRef;
use tandem_model::{VcpuId, VmId};
use thiserror::Error;

#[cfg(with_bpf)]
pub use observer::Bpf;
pub use reading::{
    Absence, BpfCost, BpfReading, Culprit, EdgeReading, LinkReading, MissingEvent, StateTimes,
    VcpuReading,
};
pub use source::BpfSource;
#[cfg(not(with_bpf))]
pub use without::Bpf;

/// How much room the programs get, and what they look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that can be watched at once. Each costs about 5 KiB of the kernel's memory. Default 2048.
    pub max_vcpus: u32,
    /// Whether to look at every entry into a guest and every exit, which RUN and VMM are told apart by. The dearest part for
    /// guests that exit often. Default true.
    pub exits: bool,
    /// A program that the kernel is made to refuse: for tests. Default none.
    #[doc(hidden)]
    pub refused: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options { max_vcpus: 2048, exits: true, refused: None }
    }
}

/// A thread to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// A number of the caller's, which readings name it by; no other thread that is watched at the time has it.
    pub index: u32,
    /// The thread, as the host numbers it, and when it started: another thread that has its number later is not taken for it.
    pub thread: ThreadRef,
    /// Its VM.
    pub vm: VmId,
    /// Its number in the VM, which is also that of its APIC.
    pub vcpu: VcpuId,
}

/// Why there is nothing to read.
#[derive(Debug, Error)]
pub enum BpfError {
    /// The programs are not in this binary.
    #[error("built without BPF: {missing}")]
    BuiltWithout {
        /// What was missing.
        missing: &'static str,
    },
    /// The kernel would refuse.
    #[error("BPF needs {missing}, which this process does not have: run as root")]
    NotPermitted {
        /// Capabilities.
        missing: String,
    },
    /// Capabilities are of this namespace only.
    #[error(
        "{path} is not the host's user namespace, so no capability here lets programs into the kernel: run as root of the host, not in \
         a rootless container"
    )]
    UserNamespace {
        /// Which namespace was looked at.
        path: PathBuf,
    },
    /// Threads have other numbers here than in the kernel.
    #[error(
        "{path} is not the host's PID namespace, so thread numbers are not the kernel's: run on the host, or in a container that \
         shares its PIDs"
    )]
    PidNamespace {
        /// Which namespace was looked at.
        path: PathBuf,
    },
    /// The kernel keeps what it does to itself.
    #[error(
        "{path} says [confidentiality]: the kernel lets no BPF program read it; boot with lockdown=integrity or none"
    )]
    Lockdown {
        /// Which file says so.
        path: PathBuf,
    },
    /// The kernel does not describe itself.
    #[error(
        "no BTF of the kernel at {path}: {source}; it needs CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels have"
    )]
    NoBtf {
        /// Where it would be.
        path: PathBuf,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An event that nothing works without.
    #[error("this kernel has no {event}; Linux 5.11 or newer with BPF and tracepoints is needed")]
    NoEvent {
        /// Which.
        event: String,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused the BPF programs: {source}{log}")]
    Load {
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What libbpf said, each line after a line break.
        log: String,
    },
    /// The kernel refused to attach a program.
    #[error("cannot attach to {event}: {source}")]
    Attach {
        /// To what.
        event: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map cannot be read or written.
    #[error("cannot {action} the BPF map {map}: {source}")]
    Map {
        /// Which.
        map: &'static str,
        /// What was to be done.
        action: &'static str,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program that is run by hand failed.
    #[error("cannot run the BPF program {program}: {source}")]
    Run {
        /// Which.
        program: &'static str,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More threads than there is room for.
    #[error("{given} threads to watch, of at most {most}: raise Options::max_vcpus")]
    TooMany {
        /// As many.
        given: usize,
        /// As many have room.
        most: u32,
    },
    /// All were replaced, and replaced again, between two readings.
    #[error(
        "{new} new threads to watch, and {free} free places: read before more threads are replaced"
    )]
    ReadFirst {
        /// As many are new.
        new: usize,
        /// As many places are free until the next reading.
        free: usize,
    },
    /// The same index or thread twice.
    #[error(
        "{what} is given twice among the threads to watch; each index and each thread must be there once"
    )]
    Twice {
        /// Which.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(with_bpf))]
    #[test]
    fn without_programs_it_says_why() {
        let error = Bpf::open(Options::default()).expect_err("no programs");
        let text = error.to_string();
        assert!(
            text.starts_with("built without BPF: ") && text.ends_with(" at build time"),
            "{text}"
        );
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = BpfError::TooMany { given: 9, most: 8 };
        assert!(error.to_string().contains("raise Options::max_vcpus"));
        let error = BpfError::NotPermitted { missing: "CAP_BPF".to_owned() };
        assert!(error.to_string().ends_with("run as root"), "{error}");
    }
}
