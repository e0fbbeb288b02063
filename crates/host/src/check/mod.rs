//! `tandem host check`: which knobs act on this kernel, measured.
//!
//! A kernel accepts a write and may still do nothing with it: another scheduler class is loaded, a controller is shadowed, a
//! feature is switched off. So each knob is turned on threads that burn, in cgroups made for that, and what they received is compared with what
//! they should have.
//!
//! ```text
//! run ──► Ground: the cgroup /tandem-check-PID ──► a process of its own in it ──► measure::run: groups and threads below
//!  │                                                       │ a line per finding
//!  └──────────── removes the cgroups, however it ended ◄───┘
//! ```
//!
//! Nothing of anybody else is touched. The threads burn two pCPUs for some seconds, with the weight of any one cgroup at the root, so
//! on a busy host others get a little less for that long. [`judge`] holds what a figure means; it is pure.

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

/// The process that measures takes some seconds; one that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const ENDED_EARLY: &str = "the process that measures ended early";

/// How long it is looked which pCPUs are idle.
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
    /// Not everything was put back.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// pCPUs cannot be chosen.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// pCPUs cannot be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The process that measures could not be started or spoken to.
    #[error("cannot {action} the process that measures: {source}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A signal came.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// What may be done for the check beside making cgroups of its own.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// On cgroup v2, let the cpu controller into the cgroups below the root for as long as the check takes, if nobody has yet. All of
    /// them then compete by weight for so long.
    pub enable_controller: bool,
    /// The state directory, where that is journaled.
    pub state_dir: PathBuf,
}

/// Puts back what checks left that were killed: their cgroups, and the cpu controller where they let it down. One that runs does so
/// itself.
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

/// What should have been measured by the process and was not, and why.
fn missing(found: &[Finding], why: &str) -> Vec<Finding> {
    let has = |subject| found.iter().any(|finding| finding.subject == subject);
    Subject::IN_PROCESS
        .into_iter()
        .filter(|subject| !has(*subject))
        .map(|subject| Finding::new(subject, Verdict::NotMeasured(why.to_owned())))
        .collect()
}

/// The two pCPUs that are idle for longest, of those that this process may use; one where there is no second.
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

/// The process that measures. Dropped, it is killed and waited for, so that its cgroups are empty.
struct Helper {
    child: Child,
    /// It ends when this does.
    input: ChildStdin,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets the process measure; returns what it found, and why the rest is missing.
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
    let end = Instant::now() + PATIENCE;
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
                let why =
                    format!("the process that measures took longer than {} s", PATIENCE.as_secs());
                return Ok((found, why));
            }
        }
    }
}
