//! BPF programs that measure vCPU states in nanoseconds, and the threads that vCPUs wait for.
//!
//! The programs (`bpf/tandem.bpf.c`) attach to tracepoints of the scheduler and of KVM.
//! They sum up in the kernel and emit no events.
//! Use of [`Bpf`]:
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
//! - A vCPU is a thread; each call of [`Bpf::watch`] passes the full set, and a thread's time counts from the first call that names it.
//!   A thread is identified by its number and start time: after it exits, the next reading reports it as ended, even if the number is reused.
//! - [`Bpf::read`] returns the changes since the last call. The times of a vCPU sum exactly to its [`VcpuReading::wall`].
//! - [`Bpf::missing`] lists the events that this kernel does not provide.
//!
//! [`BpfSource`] implements [`crate::Source`] on top of it.
//!
//! Limits of the figures:
//! - A vCPU on a pCPU is RUN until KVM reports a guest exit. A thread that is no vCPU is therefore RUN whenever it runs.
//! - A sleeping vCPU thread is HALT, even if it sleeps in the VMM's own code.
//! - CSTP is a lower-bound estimate: the part of a halt that a sibling ended during which that sibling waited for a pCPU (its last wait).
//!   Without that wait, the halt would have ended earlier.
//!   CSTP excludes spinning for a sibling, since no event distinguishes it from work, and halts that posted interrupts end without the host.
//! - LIM begins when a throttled vCPU is switched out, or with the next switch on its pCPU.
//! - Edges are read up to some ms after the states; waits in between count in the next reading.
//! - Time that a hypervisor below this host takes looks like running.
//! - Two threads that use the same number within one reading count as one culprit.
//!
//! It needs root (CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN), BTF of the kernel, Linux 5.11 or newer, and clang at build time.
//! [`BpfError`] names the missing requirement.

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

/// Size and scope of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of watched threads. Each costs about 5 KiB of kernel memory. Default 2048.
    pub max_vcpus: u32,
    /// Whether to attach to every guest entry and exit, which separates RUN from VMM.
    /// This is the most expensive part for guests that exit often. Default true.
    pub exits: bool,
    /// A program that the kernel is made to refuse, for tests. Default none.
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
    /// The caller's number for the thread, used in readings; unique among the watched threads.
    pub index: u32,
    /// The thread on the host with its start time, which distinguishes it from a later thread of the same number.
    pub thread: ThreadRef,
    /// Its VM.
    pub vm: VmId,
    /// Its number in the VM, which is also that of its APIC.
    pub vcpu: VcpuId,
}

/// Error of [`Bpf`].
#[derive(Debug, Error)]
pub enum BpfError {
    /// The programs are not in this binary.
    #[error("built without BPF: {missing}")]
    BuiltWithout {
        /// The missing build requirement.
        missing: &'static str,
    },
    /// The process lacks capabilities.
    #[error("BPF needs {missing}, which this process does not have: run as root")]
    NotPermitted {
        /// The missing capabilities.
        missing: String,
    },
    /// The process is not in the host's user namespace, so its capabilities do not suffice.
    #[error(
        "{path} is not the host's user namespace, so no capability here lets programs into the kernel: run as root of the host, not in \
         a rootless container"
    )]
    UserNamespace {
        /// The namespace of this process.
        path: PathBuf,
    },
    /// Thread numbers of this process differ from the kernel's.
    #[error(
        "{path} is not the host's PID namespace, so thread numbers are not the kernel's: run on the host, or in a container that \
         shares its PIDs"
    )]
    PidNamespace {
        /// The namespace of this process.
        path: PathBuf,
    },
    /// Lockdown forbids BPF programs to read kernel memory.
    #[error(
        "{path} says [confidentiality]: the kernel lets no BPF program read it; boot with lockdown=integrity or none"
    )]
    Lockdown {
        /// The lockdown file.
        path: PathBuf,
    },
    /// The kernel has no BTF.
    #[error(
        "no BTF of the kernel at {path}: {source}; it needs CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels have"
    )]
    NoBtf {
        /// The expected path.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel lacks an event that the programs require.
    #[error("this kernel has no {event}; Linux 5.11 or newer with BPF and tracepoints is needed")]
    NoEvent {
        /// The event.
        event: String,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused the BPF programs: {source}{log}")]
    Load {
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// The messages of libbpf, each line after a line break.
        log: String,
    },
    /// The kernel refused to attach a program.
    #[error("cannot attach to {event}: {source}")]
    Attach {
        /// The event.
        event: String,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map cannot be read or written.
    #[error("cannot {action} the BPF map {map}: {source}")]
    Map {
        /// The map.
        map: &'static str,
        /// The operation.
        action: &'static str,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program that user space runs failed.
    #[error("cannot run the BPF program {program}: {source}")]
    Run {
        /// The program.
        program: &'static str,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More threads than [`Options::max_vcpus`].
    #[error("{given} threads to watch, of at most {most}: raise Options::max_vcpus")]
    TooMany {
        /// Number of threads.
        given: usize,
        /// Maximum number of threads.
        most: u32,
    },
    /// Too few free slots, since slots of replaced threads are free only after the next reading.
    #[error(
        "{new} new threads to watch, and {free} free places: read before more threads are replaced"
    )]
    ReadFirst {
        /// Number of new threads.
        new: usize,
        /// Number of free slots until the next reading.
        free: usize,
    },
    /// An index or a thread is given twice.
    #[error(
        "{what} is given twice among the threads to watch; each index and each thread must be there once"
    )]
    Twice {
        /// The index or thread.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(with_bpf))]
    #[test]
    fn open_without_programs_names_the_cause() {
        let error = Bpf::open(Options::default()).expect_err("no programs");
        let text = error.to_string();
        assert!(
            text.starts_with("built without BPF: ") && text.ends_with(" at build time"),
            "{text}"
        );
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = BpfError::TooMany { given: 9, most: 8 };
        assert!(error.to_string().contains("raise Options::max_vcpus"));
        let error = BpfError::NotPermitted { missing: "CAP_BPF".to_owned() };
        assert!(error.to_string().ends_with("run as root"), "{error}");
    }
}
