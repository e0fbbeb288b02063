//! Whose threads the agent is to help: a command that it starts, a process, or a cgroup.
//!
//! A command starts in a cgroup of its own. On v1 that is below the cgroup which the agent is in; on v2, where
//! processes live in leaves, beside it. A process moves to such a cgroup below its own on v1, with all that
//! descend from it and are in the same one. On v2 a process stays where its unit put it, and that cgroup's own
//! vCPUs are set, if nobody else is in it. What a workload starts later is in its cgroup from the beginning.

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

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A program and its arguments, to be started.
    Command(Vec<OsString>),
    /// A process and what descends from it.
    Process(Pid),
    /// Everything in a cgroup.
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

/// Why there is no workload.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// The VM cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// A cgroup cannot be looked at.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The process cannot be looked at.
    #[error("--pid {pid}: {source}; give the number of a running process")]
    Process {
        /// Which.
        pid: Pid,
        /// Why.
        source: ThreadError,
    },
    /// Others are in the process's cgroup.
    #[error(
        "--pid {pid}: its cgroup {cgroup} holds other processes too ({others}), and cgroup v2 keeps \
         processes in leaves; name the whole cgroup with --cgroup, or start the program with \
         'tandem guest run -- COMMAND'"
    )]
    NotAlone {
        /// Which.
        pid: Pid,
        /// Where it is.
        cgroup: CgroupPath,
        /// Some of the others.
        others: String,
    },
    /// More vCPUs are to be held than there are.
    #[error("--vcpus {held}: the workload may use {all} only; give a number up to that, or 'all'")]
    TooMany {
        /// Asked for.
        held: u32,
        /// There are.
        all: u32,
    },
    /// All of the VM.
    #[error("the root cgroup cannot be limited to some vCPUs; name one below it with --cgroup")]
    Root,
    /// The command could not be started.
    #[error("cannot start '{program}': {source}")]
    Start {
        /// Which program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// No command.
    #[error("no command was given; write one after '--', such as 'tandem guest run -- make -j8'")]
    NoCommand,
}

/// A workload that runs.
#[derive(Debug)]
pub struct Workload {
    /// What was asked for.
    pub target: Target,
    /// Where it is. `None` in a dry run of a command or a process.
    pub cgroup: Option<CgroupPath>,
    /// The vCPUs that it could use. `None` where it has no cgroup.
    pub vcpus: Option<PcpuSet>,
    /// The command.
    pub child: Option<Child>,
    root: Option<ThreadRef>,
}

impl Workload {
    /// Starts or finds it, in a cgroup whose vCPUs can be set.
    ///
    /// If so many vCPUs are `held`, it has only those: a command does from its first instruction on.
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

    /// The same to look at only: nothing is moved, a command starts where the agent is.
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

    /// Its processes now; none once it is over.
    pub fn processes(&self, cpusets: &Cpusets) -> Vec<Pid> {
        let found = match (&self.cgroup, &self.root) {
            (Some(cgroup), _) => cpusets.processes_within(cgroup).ok(),
            (None, Some(root)) => cpusets.family(root.pid).ok(),
            (None, None) => None,
        };
        found.unwrap_or_default()
    }

    /// Its threads now; without a cgroup of its own, only the first of each of these processes.
    pub fn threads(&self, cpusets: &Cpusets, processes: &[Pid]) -> Vec<Tid> {
        match &self.cgroup {
            Some(cgroup) => cpusets.threads_within(cgroup).unwrap_or_default(),
            None => processes.iter().map(|pid| Tid(pid.0)).collect(),
        }
    }

    /// Its threads now, its processes listed anew.
    pub fn threads_now(&self, cpusets: &Cpusets) -> Vec<Tid> {
        self.threads(cpusets, &self.processes(cpusets))
    }

    /// Whether it is over: the process ended, or the cgroup is gone. A command's end is told by its status.
    pub fn is_over(&self, procfs: &ProcFs, cpusets: &Cpusets) -> bool {
        match (&self.target, &self.root, &self.cgroup) {
            (Target::Command(_), ..) => false,
            (Target::Process(_), Some(root), _) => !root.is_alive(procfs),
            (_, _, Some(cgroup)) => !cpusets.exists(cgroup),
            (_, _, None) => true,
        }
    }
}

/// No more vCPUs can be held than there are.
pub(crate) fn check_held(held: Option<u32>, all: &PcpuSet) -> Result<(), WorkloadError> {
    let all = all.len() as u32;
    match held {
        Some(held) if held > all => Err(WorkloadError::TooMany { held, all }),
        _ => Ok(()),
    }
}

/// Lets what is in the cgroup use only as many vCPUs as are held; gives all that it could use. Which of its
/// threads were bound to some of them has to be noted before.
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

/// Moves a process and its descendants, until none is left behind: they may fork meanwhile.
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

/// Starts the command, in the cgroup with this entrance from its first instruction on.
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
            // SAFETY: the pointer is to one readable byte, and the file is open for as long as this closure
            // exists.
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
