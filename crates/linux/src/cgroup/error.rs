//! What can go wrong between Tandem and the cgroup file system, each with what would be right.
//!
//! The kernel answers most misuse with one of three numbers; the variants here keep the case apart
//! that the caller can do something about (a thing that vanished, a cgroup in use) from those that
//! only the operator can.

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
        /// Which controller.
        controller: &'static str,
        /// The list of mounts.
        mounts: PathBuf,
        /// What was found instead.
        seen: String,
    },
    /// The hierarchy cannot be written.
    #[error(
        "the cgroup hierarchy at {mount} is mounted read-only; run Tandem outside of the container, \
         or remount it with 'mount -o remount,rw {mount}'"
    )]
    ReadOnly {
        /// Where it is mounted.
        mount: PathBuf,
    },
    /// The cgroup was removed, or never was.
    #[error("the cgroup {0} does not exist (any more)")]
    Gone(CgroupPath),
    /// The thread ended.
    #[error("thread {0} is gone")]
    ThreadGone(Tid),
    /// A thread's cgroup could not be found out.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// `/proc/PID/cgroup` has no line for the hierarchy.
    #[error("{path} does not list the hierarchy of the {controller} controller: '{text}'")]
    NotListed {
        /// Which file.
        path: PathBuf,
        /// Which controller.
        controller: &'static str,
        /// What it holds.
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
    /// A cgroup's name is no text, so that no path leads to it.
    #[error(
        "the cgroup {cgroup} in {path} has a name that is not UTF-8, so the VM is not looked after; move it to \
         another cgroup"
    )]
    NotText {
        /// Where it stands.
        path: PathBuf,
        /// Its path, as far as it is text; 400 characters at most.
        cgroup: CgroupPath,
    },
    /// A cgroup's path is longer than what is journaled of one.
    #[error(
        "the path of the cgroup {begin}… has {bytes} bytes, and no more than {} are journaled, so nothing is changed there; start the VM in a \
         cgroup with shorter names, or with fewer above it",
        crate::cgroup::LONGEST
    )]
    TooLong {
        /// How it begins: 100 characters.
        begin: String,
        /// How long it is.
        bytes: usize,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file could not be written, or a cgroup not made or removed.
    #[error("cannot {action} {path}: {source}{hint}")]
    Write {
        /// What was tried, such as `write '100' to`.
        action: String,
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
        /// What would be right, where the kernel's answer lets us tell.
        hint: &'static str,
    },
    /// A file of a list of numbers holds something else.
    #[error("{path} holds '{text}'; expected {wanted}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The line that is wrong.
        text: String,
        /// What should be there.
        wanted: &'static str,
    },
    /// A knob holds something else than documented.
    #[error("the {knob} of cgroup {cgroup} reads '{text}'; expected {wanted}")]
    BadKnob {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// Which knob.
        knob: Knob,
        /// What it holds.
        text: String,
        /// What should be there.
        wanted: &'static str,
    },
    /// The root has no weight and no cap: it has no siblings.
    #[error(
        "the root cgroup has no {0}: it competes with nothing; give the VM a cgroup of its own"
    )]
    RootHasNone(Knob),
    /// The kernel cannot put cgroups into the idle class.
    #[error(
        "this kernel has no idle class for cgroups (cpu.idle): Linux 5.15 is the first that has"
    )]
    NoIdleClass,
    /// A cap that the kernel does not take.
    #[error(
        "cannot cap cgroup {cgroup} at {} µs per {} µs; the quota must be 1000 µs or more, the \
         period 1000 … 1000000 µs", quota.quota_us, quota.period_us
    )]
    BadQuota {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// The cap.
        quota: Quota,
    },
    /// A name that no cgroup can have.
    #[error(
        "'{name}' cannot be the name of a cgroup below {parent}; use letters, digits, '-', '_' and \
         '.', and nothing that starts like one of the kernel's files"
    )]
    BadName {
        /// Where it was to be.
        parent: CgroupPath,
        /// The name.
        name: String,
    },
    /// There is such a cgroup already.
    #[error("the cgroup {0} exists already and is not Tandem's; remove it or choose another name")]
    Exists(CgroupPath),
    /// The cgroup still holds threads or cgroups.
    #[error("the cgroup {cgroup} cannot be removed: it still holds {held}")]
    Busy {
        /// Which cgroup.
        cgroup: CgroupPath,
        /// What is in it.
        held: String,
    },
    /// Somebody else uses the controller below this cgroup by now.
    #[error("the cpu controller stays enabled below {cgroup}: {user} uses it")]
    InUse {
        /// Whose children have the controller.
        cgroup: CgroupPath,
        /// Who needs it.
        user: String,
    },
    /// v2 cannot hold single threads below this cgroup.
    #[error("no cgroup for single threads can be made below {parent}: {reason}")]
    NotThreadable {
        /// Where it was to be.
        parent: CgroupPath,
        /// What is in the way, and what would be right.
        reason: String,
    },
}

impl CgroupError {
    /// Whether the cgroup or the thread merely ceased to exist.
    pub fn is_gone(&self) -> bool {
        match self {
            CgroupError::Gone(_) | CgroupError::ThreadGone(_) => true,
            CgroupError::Thread(error) => error.is_gone(),
            _ => false,
        }
    }
}
