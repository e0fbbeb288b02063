//! `tandem host check`: which knobs act on this kernel, measured.
//!
//! A kernel may accept a write and do nothing with it: another scheduler class is loaded, a controller is shadowed, or a feature is off.
//! The check therefore changes each knob on burning threads, in cgroups made for that, and compares their times with the expected ones.
//!
//! ```text
//! run ──► Ground: the cgroup /tandem-check-PID ──► a process of its own in it ──► measure::run: groups and threads below
//!  │                                                       │ a line per finding
//!  └──────────── removes the cgroups, however it ended ◄───┘
//! ```
//!
//! Existing cgroups and processes are not changed.
//! The threads burn two pCPUs for some seconds, with the default weight of a cgroup at the root.
//! On a busy host other load receives a little less during that time.
//! [`judge`] interprets the figures; it is pure.

mod burner;
mod ground;
pub mod judge;
pub(crate) mod kernel;
pub mod measure;
mod real_time;
pub mod report;

use std::io;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tandem_linux::actuator::ActuatorError;
use tandem_linux::affinity::{AffinityError, affinity};
use tandem_linux::cgroup;
use tandem_linux::cgroup::{CgroupError, CpuController};
use tandem_linux::ids::{Pid, Tid};
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::procfs::ProcFs;
use tandem_linux::restore::RestoreReport;
use tandem_linux::sampler::{SampleError, Sampler};
use tandem_model::PcpuSet;
use thiserror::Error;

use self::ground::Ground;
pub use self::ground::GroundError;
use self::measure::Orders;
use self::report::{Finding, Report, Subject, Verdict};

/// Timeout of the measuring process, which takes some seconds.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);

const ENDED_EARLY: &str = "the process that measures ended early";

/// Time for finding the idle pCPUs.
const LOOK: Duration = Duration::from_millis(200);

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum CheckError {
    /// Not root.
    #[error("host check makes cgroups and turns their knobs: run it as root")]
    NotRoot,
    /// The host has no usable cpu controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Changes could not be made or reverted.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The affinity could not be read or set.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The idle times could not be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The measuring process failed.
    #[error("cannot {action} the process that measures: {source}")]
    Process {
        /// The action.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A signal arrived.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Permissions of the check beyond cgroups of its own.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// On cgroup v2, enable the cpu controller below the root during the check, if it is not enabled yet.
    /// All cgroups there then compete by weight.
    pub enable_controller: bool,
    /// The state directory, for the journal of that change.
    pub state_dir: PathBuf,
}

/// Reverts the changes of killed checks: their cgroups and the enabled cpu controller, but not those of a running check.
pub fn put_back(
    controller: Box<dyn CpuController>,
    state_dir: &Path,
) -> Result<RestoreReport, ActuatorError> {
    ground::put_back(&controller.into(), state_dir)
}

/// Measures everything. `helper` starts a process that calls [`measure::main`].
pub fn run(
    helper: Command,
    options: &CheckOptions,
    interrupt: &Interrupt,
) -> Result<Report, CheckError> {
    if !rustix::process::geteuid().is_root() {
        return Err(CheckError::NotRoot);
    }
    let begin = Instant::now();
    let procfs = ProcFs::host();
    let controller: Arc<dyn CpuController> = cgroup::open(&procfs)?.into();
    let kernel = kernel::read(&procfs, controller.as_ref());
    let pcpus = quietest(interrupt)?;
    let mut findings = vec![real_time::measure(&pcpus)];
    let CheckOptions { enable_controller, state_dir } = options;
    let mut ground = Ground::new(&procfs, controller, state_dir, *enable_controller);
    match ground.make() {
        Ok(top) => {
            let orders = Orders { top: top.clone(), pcpus: pcpus.clone() };
            let (found, ended) = in_process(helper, &ground, &orders, interrupt)?;
            let missing = missing(&found, &ended);
            findings.extend(found);
            findings.extend(missing);
        }
        Err(error) => findings.extend(missing(&[], &error.to_string())),
    }
    ground.clear()?;
    findings.push(kernel::sched_ext(&procfs));
    findings.sort_by_key(|finding| finding.subject);
    Ok(Report { kernel, pcpus, seconds: begin.elapsed().as_secs_f64(), findings })
}

/// Returns findings for the missing measurements of the process, with the reason.
fn missing(found: &[Finding], why: &str) -> Vec<Finding> {
    let has = |subject| found.iter().any(|finding| finding.subject == subject);
    Subject::IN_PROCESS
        .into_iter()
        .filter(|subject| !has(*subject))
        .map(|subject| Finding::new(subject, Verdict::NotMeasured(why.to_owned())))
        .collect()
}

/// Returns the two pCPUs with the most idle time that this process may use, or one if there is no second.
fn quietest(interrupt: &Interrupt) -> Result<PcpuSet, CheckError> {
    let sampler = Sampler::new(ProcFs::host());
    let allowed = affinity(Tid(std::process::id()))?;
    let before = sampler.pcpu_idle()?;
    interrupt.sleep(LOOK)?;
    let after = sampler.pcpu_idle()?;
    let idle = |pcpu| {
        let then = before.get(&pcpu).copied().unwrap_or_default();
        after.get(&pcpu).map(|now| now.saturating_sub(then))
    };
    let mut pcpus: Vec<_> = allowed.iter().collect();
    pcpus.sort_by_key(|pcpu| std::cmp::Reverse(idle(*pcpu)));
    Ok(pcpus.into_iter().take(2).collect())
}

/// The measuring process. On drop, it is killed and waited for, so that its cgroups are empty.
struct Helper {
    child: Child,
    /// Closing it ends the process.
    input: ChildStdin,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the process; returns its findings, and the reason why others are missing.
fn in_process(
    mut command: Command,
    ground: &Ground,
    orders: &Orders,
    interrupt: &Interrupt,
) -> Result<(Vec<Finding>, String), CheckError> {
    let failed = |action| move |source| CheckError::Process { action, source };
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed("start"))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("speak to")(io::ErrorKind::BrokenPipe.into()));
    };
    let mut helper = Helper { child, input };
    ground.take_in(Pid(helper.child.id()))?;
    let text = serde_json::to_string(orders).map_err(io::Error::from);
    match text.and_then(|text| writeln!(helper.input, "{text}")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Ok((Vec::new(), ENDED_EARLY.to_owned()));
        }
        told => told.map_err(failed("speak to"))?,
    }
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    listen(&lines, interrupt)
}

fn listen(
    lines: &Receiver<String>,
    interrupt: &Interrupt,
) -> Result<(Vec<Finding>, String), CheckError> {
    let end = Instant::now() + MEASURE_TIMEOUT;
    let mut found = Vec::new();
    loop {
        interrupt.check()?;
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(finding) => found.push(finding),
                Err(error) => return Ok((found, format!("it said '{line}': {error}"))),
            },
            Err(RecvTimeoutError::Disconnected) => {
                interrupt.check()?;
                return Ok((found, ENDED_EARLY.to_owned()));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
            Err(RecvTimeoutError::Timeout) => {
                let why = format!(
                    "the process that measures took longer than {} s",
                    MEASURE_TIMEOUT.as_secs()
                );
                return Ok((found, why));
            }
        }
    }
}
