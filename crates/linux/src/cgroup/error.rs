//! Errors of the cgroup file system, each with its remedy.
//!
//! The kernel answers most misuse with one of three error numbers.
//! The variants separate cases that the caller can handle (a vanished object, a cgroup in use) from those that need the operator.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cgroup::knob::{Knob, Quota};
use crate::cgroup::path::CgroupPath;
use crate::ids::Tid;
use crate::thread::ThreadError;

/// Why the CPU controller could not be read or set.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// No mount has the controller.
    #[error(
        "{mounts} shows no cgroup hierarchy with the {controller} controller ({seen}); mount one, \
         for example with 'mount -t cgroup2 cgroup2 /sys/fs/cgroup', and check that the kernel was \
         not started with cgroup_disable={controller}"
    )]
    NoController {
        /// The controller.
        controller: &'static str,
        /// The list of mounts.
        mounts: PathBuf,
        /// The mounts that were found instead.
        seen: String,
    },
    /// The hierarchy cannot be written.
    #[error(
        "the cgroup hierarchy at {mount} is mounted read-only; run Tandem outside of the container, \
         or remount it with 'mount -o remount,rw {mount}'"
    )]
    ReadOnly {
        /// The mount point.
        mount: PathBuf,
    },
    /// The cgroup was removed, or never existed.
    #[error("the cgroup {0} does not exist (any more)")]
    Gone(CgroupPath),
    /// The thread ended.
    #[error("thread {0} is gone")]
    ThreadGone(Tid),
    /// A thread's cgroup could not be read.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// `/proc/PID/cgroup` has no line for the hierarchy.
    #[error("{path} does not list the hierarchy of the {controller} controller: '{text}'")]
    NotListed {
        /// The file.
        path: PathBuf,
        /// The controller.
        controller: &'static str,
        /// The contents of the file.
        text: String,
    },
    /// The thread is outside of the part of the hierarchy that this process can see.
    #[error(
        "the cgroup {cgroup} lies outside of this cgroup namespace; run Tandem in the host's \
         (in a container: with --cgroupns=host)"
    )]
    OutsideNamespace {
        /// The path as the kernel shows it.
        cgroup: CgroupPath,
    },
    /// A cgroup's name is not UTF-8, so its path cannot be represented.
    #[error(
        "the cgroup {cgroup} in {path} has a name that is not UTF-8, so the VM is not managed; move it to \
         another cgroup"
    )]
    NotText {
        /// The file that names it.
        path: PathBuf,
        /// Its path with invalid bytes replaced; 400 characters at most.
        cgroup: CgroupPath,
    },
    /// A cgroup's path is too long for the journal.
    #[error(
        "the path of the cgroup {begin}… has {bytes} bytes, but the journal takes at most {}, so nothing is changed there; start the VM in a \
         cgroup with shorter names, or with fewer above it",
        crate::cgroup::MAX_PATH_LENGTH
    )]
    TooLong {
        /// The first 100 characters of the path.
        begin: String,
        /// Length of the path in bytes.
        bytes: usize,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be written, or a cgroup not created or removed.
    #[error("cannot {action} {path}: {source}{hint}")]
    Write {
        /// The operation, such as `write '100' to`.
        action: String,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
        /// The remedy, if the kernel's error implies one.
        hint: &'static str,
    },
    /// A file does not hold the expected list of numbers.
    #[error("{path} holds '{text}'; expected {wanted}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The malformed line.
        text: String,
        /// The expected format.
        wanted: &'static str,
    },
    /// A knob does not have the documented format.
    #[error("the {knob} of cgroup {cgroup} reads '{text}'; expected {wanted}")]
    BadKnob {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The knob.
        knob: Knob,
        /// Its text.
        text: String,
        /// The expected format.
        wanted: &'static str,
    },
    /// The root has neither weight nor cap, because it has no siblings.
    #[error(
        "the root cgroup has no {0}: it competes with nothing; give the VM a cgroup of its own"
    )]
    RootHasNone(Knob),
    /// The kernel has no idle class for cgroups.
    #[error("this kernel has no idle class for cgroups (cpu.idle); it needs Linux 5.15")]
    NoIdleClass,
    /// A cap that the kernel does not accept.
    #[error(
        "cannot cap cgroup {cgroup} at {} µs per {} µs; the quota must be 1000 µs or more, the \
         period 1000 … 1000000 µs", quota.quota_us, quota.period_us
    )]
    BadQuota {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The cap.
        quota: Quota,
    },
    /// An invalid name of a cgroup.
    #[error(
        "'{name}' cannot be the name of a cgroup below {parent}; use letters, digits, '-', '_' and \
         '.', and nothing that starts like one of the kernel's files"
    )]
    BadName {
        /// The intended parent.
        parent: CgroupPath,
        /// The name.
        name: String,
    },
    /// The cgroup exists already, and Tandem did not create it.
    #[error("the cgroup {0} exists already and is not Tandem's; remove it or choose another name")]
    Exists(CgroupPath),
    /// The cgroup still holds threads or cgroups.
    #[error("the cgroup {cgroup} cannot be removed: it still holds {held}")]
    Busy {
        /// The cgroup.
        cgroup: CgroupPath,
        /// Its contents.
        held: String,
    },
    /// Another cgroup uses the controller below this cgroup.
    #[error("the cpu controller stays enabled below {cgroup}: {user} uses it")]
    InUse {
        /// The parent of the cgroups with the controller.
        cgroup: CgroupPath,
        /// The cgroup that uses it.
        user: String,
    },
    /// v2 cannot hold single threads below this cgroup.
    #[error("no cgroup for single threads can be made below {parent}: {reason}")]
    NotThreadable {
        /// The intended parent.
        parent: CgroupPath,
        /// The obstacle and the remedy.
        reason: String,
    },
}

impl CgroupError {
    /// Whether the cgroup or thread no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            CgroupError::Gone(_) | CgroupError::ThreadGone(_) => true,
            CgroupError::Thread(error) => error.is_gone(),
            _ => false,
        }
    }
}
