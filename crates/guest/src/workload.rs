//! The workload of the agent: a command that it starts, a process, or a cgroup.
//!
//! A command starts in a new cgroup.
//! On v1 that is a child of the agent's cgroup; on v2, where processes live in leaves, it is a sibling.
//! On v1 a process moves to a new child of its cgroup, with its descendants in the same cgroup.
//! On v2 a process stays in its cgroup, whose own vCPUs are set, if it holds no other processes.
//! Processes that a workload starts later inherit its cgroup.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::{fmt, io};

use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupError, CgroupPath, Version};
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, Tid};
use tandem_model::PcpuSet;
use thiserror::Error;

use crate::actuator::{Actuator, ActuatorError};
use crate::cpusets::Cpusets;

/// The requested workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program to start, and its arguments.
    Command(Vec<OsString>),
    /// A process and its descendants.
    Process(Pid),
    /// All processes in a cgroup.
    Cgroup(CgroupPath),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Command(words) => match words.first() {
                Some(program) => write!(f, "{}", program.to_string_lossy()),
                None => f.write_str("no command"),
            },
            Target::Process(pid) => write!(f, "process {pid}"),
            Target::Cgroup(cgroup) => write!(f, "cgroup {cgroup}"),
        }
    }
}

/// Reason why there is no workload.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// The VM cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// A cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The process cannot be read.
    #[error("--pid {pid}: {source}; give the number of a running process")]
    Process {
        /// The process.
        pid: Pid,
        /// Reason.
        source: ThreadError,
    },
    /// The process's cgroup holds other processes.
    #[error(
        "--pid {pid}: its cgroup {cgroup} holds other processes too ({others}), and cgroup v2 keeps \
         processes in leaves; name the whole cgroup with --cgroup, or start the program with \
         'tandem guest run -- COMMAND'"
    )]
    NotAlone {
        /// The process.
        pid: Pid,
        /// Its cgroup.
        cgroup: CgroupPath,
        /// Some of the others.
        others: String,
    },
    /// The number of vCPUs exceeds those of the workload.
    #[error("--vcpus {held}: the workload may use {all} only; give a number up to that, or 'all'")]
    TooMany {
        /// Requested number.
        held: u32,
        /// Number of vCPUs of the workload.
        all: u32,
    },
    /// The target is the root cgroup.
    #[error("the root cgroup cannot be limited to some vCPUs; name one below it with --cgroup")]
    Root,
    /// The command could not be started.
    #[error("cannot start '{program}': {source}")]
    Start {
        /// The program.
        program: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The command is empty.
    #[error("no command was given; write one after '--', such as 'tandem guest run -- make -j8'")]
    NoCommand,
}

/// A running workload.
#[derive(Debug)]
pub struct Workload {
    /// The request.
    pub target: Target,
    /// Its cgroup; `None` in a dry run of a command or a process.
    pub cgroup: Option<CgroupPath>,
    /// The vCPUs that it could use; `None` without a cgroup.
    pub vcpus: Option<PcpuSet>,
    /// Process of the command.
    pub child: Option<Child>,
    root: Option<ThreadRef>,
}

impl Workload {
    /// Starts or finds the workload, in a cgroup whose vCPUs can be set.
    ///
    /// With `held`, it is restricted to that number of vCPUs, a command from its first instruction on.
    pub fn open(
        target: Target,
        held: Option<u32>,
        procfs: &ProcFs,
        actuator: &mut Actuator,
    ) -> Result<Workload, WorkloadError> {
        let agent = Pid(std::process::id());
        match &target {
            Target::Command(words) => {
                let me = process(procfs, agent)?;
                let home = actuator.cpusets().cgroup_of(&me)?;
                let parent = match actuator.cpusets().version() {
                    Version::V1 => home.clone(),
                    Version::V2 => home.parent().unwrap_or_else(CgroupPath::root),
                };
                let cgroup = actuator.make_group(&parent, &name(agent), &home)?;
                let all = hold(actuator, &cgroup, held)?;
                let entrance = actuator.cpusets().entrance(&cgroup);
                let child = start(words, Some(entrance))?;
                Ok(Workload {
                    cgroup: Some(cgroup),
                    vcpus: Some(all),
                    root: process(procfs, Pid(child.id())).ok(),
                    child: Some(child),
                    target,
                })
            }
            Target::Process(pid) => {
                let root = process(procfs, *pid)?;
                let home = actuator.cpusets().cgroup_of(&root)?;
                let family = actuator.cpusets().family(*pid);
                let family = family.map_err(ActuatorError::Processes)?;
                let cgroup = match actuator.cpusets().version() {
                    Version::V1 => {
                        let cgroup = actuator.make_group(&home, &name(agent), &home)?;
                        move_family(actuator, *pid, &home, &cgroup)?;
                        cgroup
                    }
                    Version::V2 => {
                        alone(actuator.cpusets(), *pid, &home, &family)?;
                        actuator.enable_down_to(&home)?;
                        home
                    }
                };
                Ok(Workload {
                    target,
                    vcpus: Some(hold(actuator, &cgroup, held)?),
                    cgroup: Some(cgroup),
                    child: None,
                    root: Some(root),
                })
            }
            Target::Cgroup(cgroup) => {
                if cgroup.is_root() {
                    return Err(WorkloadError::Root);
                }
                actuator.cpusets().id(cgroup)?;
                actuator.enable_down_to(cgroup)?;
                Ok(Workload {
                    vcpus: Some(hold(actuator, cgroup, held)?),
                    cgroup: Some(cgroup.clone()),
                    target,
                    child: None,
                    root: None,
                })
            }
        }
    }

    /// Starts or finds the workload without changes: a command starts in the agent's cgroup.
    pub fn watch(
        target: Target,
        procfs: &ProcFs,
        cpusets: &Cpusets,
    ) -> Result<Workload, WorkloadError> {
        let mut workload = Workload { cgroup: None, vcpus: None, child: None, root: None, target };
        match &workload.target {
            Target::Command(words) => {
                let child = start(words, None)?;
                workload.root = process(procfs, Pid(child.id())).ok();
                workload.child = Some(child);
            }
            Target::Process(pid) => workload.root = Some(process(procfs, *pid)?),
            Target::Cgroup(cgroup) => {
                cpusets.id(cgroup)?;
                workload.vcpus = Some(cpusets.vcpus(cgroup)?);
                workload.cgroup = Some(cgroup.clone());
            }
        }
        Ok(workload)
    }

    /// Returns its current processes; none after its end.
    pub fn processes(&self, cpusets: &Cpusets) -> Vec<Pid> {
        let found = match (&self.cgroup, &self.root) {
            (Some(cgroup), _) => cpusets.processes_within(cgroup).ok(),
            (None, Some(root)) => cpusets.family(root.pid).ok(),
            (None, None) => None,
        };
        found.unwrap_or_default()
    }

    /// Returns its current threads; without a cgroup, only the main thread of each process.
    pub fn threads(&self, cpusets: &Cpusets, processes: &[Pid]) -> Vec<Tid> {
        match &self.cgroup {
            Some(cgroup) => cpusets.threads_within(cgroup).unwrap_or_default(),
            None => processes.iter().map(|pid| Tid(pid.0)).collect(),
        }
    }

    /// Returns its current threads, from a new list of its processes.
    pub fn threads_now(&self, cpusets: &Cpusets) -> Vec<Tid> {
        self.threads(cpusets, &self.processes(cpusets))
    }

    /// Returns true if the process has exited or the cgroup was removed.
    /// A command ends with its exit status, so this returns false for it.
    pub fn is_over(&self, procfs: &ProcFs, cpusets: &Cpusets) -> bool {
        match (&self.target, &self.root, &self.cgroup) {
            (Target::Command(_), ..) => false,
            (Target::Process(_), Some(root), _) => !root.is_alive(procfs),
            (_, _, Some(cgroup)) => !cpusets.exists(cgroup),
            (_, _, None) => true,
        }
    }
}

/// Checks that the number of held vCPUs does not exceed the available ones.
pub(crate) fn check_held(held: Option<u32>, all: &PcpuSet) -> Result<(), WorkloadError> {
    let all = all.len() as u32;
    match held {
        Some(held) if held > all => Err(WorkloadError::TooMany { held, all }),
        _ => Ok(()),
    }
}

/// Restricts the cgroup to the held vCPUs and returns all that it could use.
/// It first journals the affinities of its bound threads.
fn hold(
    actuator: &mut Actuator,
    cgroup: &CgroupPath,
    held: Option<u32>,
) -> Result<PcpuSet, WorkloadError> {
    let all = actuator.cpusets().vcpus(cgroup)?;
    check_held(held, &all)?;
    actuator.note_bound_threads(cgroup, &all)?;
    if let Some(held) = held {
        let first = all.iter().take(held as usize).collect();
        actuator.set_vcpus(cgroup, &first)?;
    }
    Ok(all)
}

fn name(agent: Pid) -> String {
    format!("tandem-guest-{agent}")
}

pub(crate) fn process(procfs: &ProcFs, pid: Pid) -> Result<ThreadRef, WorkloadError> {
    ThreadRef::of_process(procfs, pid).map_err(|source| WorkloadError::Process { pid, source })
}

/// Moves a process and its descendants, repeatedly as they may fork meanwhile.
fn move_family(
    actuator: &mut Actuator,
    pid: Pid,
    home: &CgroupPath,
    cgroup: &CgroupPath,
) -> Result<(), WorkloadError> {
    for _ in 0..100 {
        let family = actuator.cpusets().family(pid);
        let mut left = family.map_err(ActuatorError::Processes)?;
        let here = actuator.cpusets().processes(home)?;
        left.retain(|pid| here.contains(pid));
        if left.is_empty() {
            break;
        }
        actuator.admit(&left, cgroup)?;
    }
    Ok(())
}

fn alone(
    cpusets: &Cpusets,
    pid: Pid,
    cgroup: &CgroupPath,
    family: &[Pid],
) -> Result<(), WorkloadError> {
    if cgroup.is_root() {
        return Err(WorkloadError::Root);
    }
    let mut others = cpusets.processes_within(cgroup)?;
    others.retain(|other| !family.contains(other));
    if others.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = others.iter().take(3).map(ToString::to_string).collect();
    Err(WorkloadError::NotAlone { pid, cgroup: cgroup.clone(), others: shown.join(", ") })
}

/// Starts the command, from its first instruction on in the cgroup with this `cgroup.procs` file.
pub(crate) fn start(words: &[OsString], entrance: Option<PathBuf>) -> Result<Child, WorkloadError> {
    let (program, arguments) = words.split_first().ok_or(WorkloadError::NoCommand)?;
    let failed =
        |source| WorkloadError::Start { program: program.to_string_lossy().into_owned(), source };
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(entrance) = entrance {
        let entrance = OpenOptions::new().write(true).open(entrance);
        let entrance = entrance.map_err(failed)?;
        let enter = move || {
            let zero = b"0";
            // SAFETY: the pointer is to one readable byte, and the closure owns the open file.
            match unsafe { libc::write(entrance.as_raw_fd(), zero.as_ptr().cast(), zero.len()) } {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec the closure only calls write(2), which is async-signal-safe.
        unsafe { command.pre_exec(enter) };
    }
    command.spawn().map_err(failed)
}
