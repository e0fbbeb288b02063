//! The agent: once a period, see, decide, act, until the workload is over.
//!
//! Life: put back what a killed agent left → find or start the workload → measure what a halt and its wake-up
//! cost → period after period: sample, let [`Controller`] decide, set vCPUs and time-out → when the workload is
//! over, on SIGTERM, SIGINT or an error, put everything back.
//!
//! In a dry run nothing is set, and [`Preview`] stands for the controller: what it would have changed has no effect
//! that could be judged.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::ExitStatus;
use std::time::Duration;
use std::time::Instant;

use rustix::time::ClockId;
use rustix::time::clock_gettime;
use tandem_host::config::ConfigError;
use tandem_host::daemon::Reporter;
use tandem_host::daemon::report_restore;
use tandem_host::metrics::Exporter;
use tandem_host::metrics::MetricsError;
use tandem_linux::ProcFs;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::Version;
use tandem_linux::signals::Signals;
use tandem_linux::signals::Wake;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::gleaner::Averages;
use tandem_policy::gleaner::Controller;
use tandem_policy::gleaner::Decision;
use tandem_policy::gleaner::Observation;
use tandem_policy::gleaner::controller;
use thiserror::Error;

use crate::actuator::Actuator;
use crate::actuator::ActuatorError;
use crate::awake::Haltpoll;
use crate::awake::KeepAwake;
use crate::awake::Means;
use crate::config::GuestConfig;
use crate::config::Stay;
use crate::config::Vcpus;
use crate::counters::CounterError;
use crate::cpusets::Cpusets;
use crate::dry_run::Preview;
use crate::metrics::Found;
use crate::metrics::Metrics;
use crate::pinning::Pinning;
use crate::profiler::Profiler;
use crate::round_trip;
use crate::sampler::Sample;
use crate::sampler::Sampler;
use crate::status;
use crate::status::Changed;
use crate::status::Report;
use crate::status::Setting;
use crate::status::Status;
use crate::status::StatusError;
use crate::workload::Target;
use crate::workload::Workload;
use crate::workload::WorkloadError;
use crate::workload::check_held;

/// So many decisions are kept for the report.
const MOST_DECISIONS: usize = 1000;

/// So many periods pass between two looks at a workload for which nothing can be done now.
const CALM_PERIODS: u32 = 4;

/// With less of the vCPUs' time idle, nobody waits to be woken.
const NO_IDLE: f64 = 0.1;

/// With more, the workload sleeps.
const ALL_IDLE: f64 = 0.97;

/// The status is written this often.
const PUBLISH: Duration = Duration::from_secs(1);

/// A time-out below this is not worth a halt's cost anywhere.
const LEAST_TIMEOUT: Nanos = Nanos(50_000);

/// Round trips beyond this were measured beside other work.
const MOST_TIMEOUT: Nanos = Nanos(500_000);

/// Threads that were bound as they were born.
const BORN: Found = Found { at: "birth" };

/// Threads that were bound at a period.
const LATER: Found = Found { at: "period" };

/// Why the agent cannot start or go on.
#[derive(Debug, Error)]
pub enum AgentError {
    /// A setting is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The VM cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Cgroups cannot be looked at.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There is no workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Nothing can be observed.
    #[error(transparent)]
    Sample(#[from] CounterError),
    /// The status cannot be written.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Metrics cannot be offered.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Idle vCPUs cannot be kept awake as asked for.
    #[error("retention: {0}")]
    Awake(String),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
    /// The command cannot be waited for.
    #[error("cannot wait for the command: {0}")]
    Wait(std::io::Error),
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// What was done.
    pub report: Report,
    /// The command's exit status, if there was a command and it ended.
    pub command: Option<ExitStatus>,
}

/// What the agent may change: nothing in a dry run.
enum Hands {
    Live {
        actuator: Box<Actuator>,
        awake: Option<KeepAwake>,
        pinning: Option<Pinning>,
    },
    Dry(Cpusets),
}

impl Hands {
    /// A file that can be read once threads were born that are to be bound.
    fn news(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Hands::Live {
                pinning: Some(pinning),
                ..
            } => pinning.news(),
            _ => None,
        }
    }

    fn cpusets(&self) -> &Cpusets {
        match self {
            Hands::Live { actuator, .. } => actuator.cpusets(),
            Hands::Dry(cpusets) => cpusets,
        }
    }
}

/// Who decides.
enum Mind {
    Live(Box<Controller>),
    Dry(Box<Preview>),
}

impl Mind {
    fn decide(&mut self, observed: &Observation) -> Decision {
        match self {
            Mind::Live(controller) => controller.decide(observed),
            Mind::Dry(preview) => preview.decide(observed),
        }
    }
}

/// Whether it is known where the workload's threads are.
enum Look {
    /// Nobody has asked yet.
    Unopened,
    /// Samples are not being taken.
    Open(Box<Profiler>),
    /// Samples have been taken since then.
    Taking(Box<Profiler>, Instant),
    /// That cannot be known here.
    Blind,
}

/// The agent between start and end.
pub struct Agent {
    config: GuestConfig,
    procfs: ProcFs,
    hands: Hands,
    workload: Workload,
    signals: Signals,
    all: Vec<tandem_policy::PcpuId>,
    active: PcpuSet,
    timeout: Nanos,
    mind: Mind,
    sampler: Sampler,
    look: Look,
    metrics: Metrics,
    exporter: Option<Exporter>,
    began: Instant,
    report: Report,
    /// Working time for which each setting was in force, and since when.
    in_force: BTreeMap<(u32, u64), (u64, u64)>,
    /// Errors already reported.
    reported: Vec<String>,
    /// When the status was written last.
    published: Option<Instant>,
    /// What a dry run said last.
    said: Option<(PcpuSet, Nanos)>,
}

impl Agent {
    /// Checks the settings, puts back what an earlier agent left, and starts or finds the workload.
    pub fn open(
        mut config: GuestConfig,
        target: Target,
        reporter: &mut dyn Reporter,
    ) -> Result<Agent, AgentError> {
        config.check()?;
        let procfs = ProcFs::host();
        let signals = Signals::catch(true).map_err(AgentError::Signals)?;
        let metrics = Metrics::default();
        let exporter = Exporter::open(
            metrics.registry(),
            config.metrics_listen,
            config.metrics_file.as_deref(),
        )?;
        // Before a command starts, which would be disturbed by it, and disturb it.
        let own = tandem_linux::affinity::affinity(Tid(0)).map_err(ActuatorError::from)?;
        let cost = match config.retention {
            Stay::Auto => round_trip::measure(&own),
            Stay::Held(_) => None,
        };
        // What can be known to fail does so before a command is started.
        let held = match config.vcpus {
            Vcpus::Held(held) => Some(held),
            Vcpus::Auto | Vcpus::All => None,
        };
        if let Target::Command(_) = target {
            check_held(held, &own)?;
        }
        let is_awake = config.retention != Stay::Held(Nanos::ZERO);
        if config.means == Means::Haltpoll && is_awake {
            Haltpoll::find(&procfs).map_err(AgentError::Awake)?;
        }
        let began = Instant::now();
        let (mut hands, workload) = match config.dry_run {
            true => {
                let cpusets = Cpusets::open(&procfs)?;
                let workload = Workload::watch(target, &procfs, &cpusets)?;
                check_held(held, workload.vcpus.as_ref().unwrap_or(&own))?;
                (Hands::Dry(cpusets), workload)
            }
            false => {
                let (mut actuator, restored) = Actuator::open(&procfs, &config.state_dir)?;
                report_restore(&restored, reporter);
                let workload = Workload::open(target, held, &procfs, &mut actuator)?;
                let hands = Hands::Live {
                    actuator: Box::new(actuator),
                    awake: None,
                    pinning: None,
                };
                (hands, workload)
            }
        };
        let vcpus = workload.vcpus.clone().unwrap_or(own);
        if let Hands::Live { awake, pinning, .. } = &mut hands {
            if is_awake {
                let opened = KeepAwake::open(&procfs, config.means, &vcpus);
                *awake = Some(opened.map_err(AgentError::Awake)?);
            }
            if config.per_thread {
                let opened = Pinning::new(&procfs, &vcpus);
                if let Some(error) = opened.deaf() {
                    reporter.info(&format!(
                        "threads are found once a period, not as they are born: the kernel's \
                         process connector cannot be heard: {error}"
                    ));
                }
                *pinning = Some(opened);
            }
        }
        let settings = &mut config.controller;
        settings.consolidate = config.vcpus == Vcpus::Auto && !config.per_thread;
        settings.retain = config.retention == Stay::Auto;
        if let Some(cost) = cost {
            let twice = Nanos(cost.0 * 2);
            settings.retention.timeout = twice.clamp(LEAST_TIMEOUT, MOST_TIMEOUT);
            reporter.info(&format!(
                "waking a halted vCPU takes {:.1} us here",
                cost.0 as f64 / 1e3
            ));
        }
        let cpu_stat = workload.cgroup.as_ref().and_then(|cgroup| {
            let cpusets = hands.cpusets();
            let is_v2 = cpusets.version() == Version::V2;
            is_v2.then(|| cpusets.entrance(cgroup).with_file_name("cpu.stat"))
        });
        let (count, settings) = (vcpus.len() as u32, config.controller.clone());
        let mut agent = Agent {
            mind: match config.dry_run {
                true => Mind::Dry(Box::new(Preview::new(count, settings))),
                false => Mind::Live(Box::new(Controller::new(count, settings))),
            },
            sampler: Sampler::new(&procfs, &vcpus, cpu_stat),
            look: Look::Unopened,
            all: vcpus.iter().collect(),
            active: vcpus,
            timeout: Nanos::ZERO,
            config,
            procfs,
            hands,
            workload,
            signals,
            metrics,
            exporter,
            began,
            report: Report::default(),
            in_force: BTreeMap::new(),
            reported: Vec::new(),
            published: None,
            said: None,
        };
        agent.hold()?;
        Ok(agent)
    }

    /// What the settings hold fixed, and the time-out at the start, which the kernel may have otherwise. The
    /// workload has the vCPUs that are held already.
    fn hold(&mut self) -> Result<(), AgentError> {
        if let Vcpus::Held(held) = self.config.vcpus {
            self.active = self.first(held);
        }
        if let Stay::Held(timeout) = self.config.retention {
            self.timeout = timeout;
        }
        let held_off = self.config.retention == Stay::Held(Nanos::ZERO);
        if let Hands::Live {
            actuator, awake, ..
        } = &mut self.hands
        {
            if held_off && let Ok(mut kernel) = KeepAwake::kernel(&self.procfs) {
                kernel.set(actuator, Nanos::ZERO, &self.active)?;
            }
            if let Some(awake) = awake {
                awake.set(actuator, self.timeout, &self.active)?;
                self.report.means = awake.name().to_owned();
            }
        }
        Ok(())
    }

    /// Works until the workload is over, `limit` has passed, or a signal comes; then puts everything back.
    pub fn run(
        mut self,
        limit: Option<Duration>,
        reporter: &mut dyn Reporter,
    ) -> Result<Ended, AgentError> {
        let command = self.go_on(limit, reporter);
        // Who was made last has inherited its binding, and must be known to be rid of it.
        let left = self.workload.processes(self.hands.cpusets());
        if let Err(error) = self.bind(Some(&left)) {
            reporter.error(&error.to_string());
        }
        self.report.periods = self.metrics.periods.get();
        let bound = |when| self.metrics.bound.get(when).map_or(0, |count| count.get());
        self.report.bound_at_birth = bound(&BORN);
        self.report.bound_later = bound(&LATER);
        self.report.agent_cpu_ns = own_cpu_time().0;
        self.report.lasted_ns = nanos(self.began.elapsed());
        let most = self.in_force.iter().max_by_key(|(_, (worked, _))| *worked);
        if let Some((&(vcpus, retention_ns), &(_, since))) = most {
            self.report.choice = Setting {
                vcpus,
                retention_ns,
            };
            self.report.settled_ms = since;
        }
        if let Hands::Live {
            mut actuator,
            awake,
            ..
        } = self.hands
        {
            drop(awake);
            status::remove(&self.config.state_dir);
            let restored = actuator.restore()?;
            if !restored.is_complete() {
                reporter.error(&restored.to_string());
            }
        }
        Ok(Ended {
            report: self.report,
            command: command?,
        })
    }

    fn go_on(
        &mut self,
        limit: Option<Duration>,
        reporter: &mut dyn Reporter,
    ) -> Result<Option<ExitStatus>, AgentError> {
        reporter.ready();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let watchdog = sd_notify::watchdog_enabled().is_some();
        let period = self.config.period();
        let end = limit.map(|limit| Instant::now() + limit);
        let mut is_stopping = false;
        let mut next = Instant::now() + period;
        let processes = self.workload.processes(self.hands.cpusets());
        self.bind(Some(&processes))?;
        self.sample(&processes)?;
        loop {
            match self.signals.wait_until_or(next, self.hands.news()) {
                Wake::Time => {}
                Wake::Other => {
                    self.bind(None)?;
                    continue;
                }
                Wake::Stop if is_stopping || self.workload.child.is_none() => return Ok(None),
                Wake::Stop => {
                    // The command ends as if the agent were not there, and then the agent does.
                    is_stopping = true;
                    if let Some(child) = &self.workload.child {
                        end_process(Pid(child.id()));
                    }
                    continue;
                }
                Wake::Child => {
                    if let Some(child) = &mut self.workload.child
                        && let Some(status) = child.try_wait().map_err(AgentError::Wait)?
                    {
                        return Ok(Some(status));
                    }
                    continue;
                }
            }
            let is_calm = self.period(reporter)?;
            if watchdog {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            let is_over = self.workload.is_over(&self.procfs, self.hands.cpusets());
            if is_over || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
            // Periods that were missed are skipped, never made up for.
            let periods = if is_calm { CALM_PERIODS } else { 1 };
            next = (next + period * periods).max(Instant::now());
        }
    }

    fn sample(&mut self, processes: &[Pid]) -> Result<Option<Sample>, CounterError> {
        let threads = self.workload.threads(self.hands.cpusets(), processes);
        self.sampler.sample(&self.active, processes, &threads)
    }

    /// One period. True if nothing is set and nothing can be gained now: with no time idle, or all of it.
    fn period(&mut self, reporter: &mut dyn Reporter) -> Result<bool, AgentError> {
        let processes = self.workload.processes(self.hands.cpusets());
        self.bind(Some(&processes))?;
        let Some(sample) = self.sample(&processes)? else {
            return Ok(false);
        };
        let averages = Averages::of(&sample.observed);
        if let Err(error) = self.look_up(&processes) {
            self.go_blind(&error, reporter);
        }
        let decision = self.mind.decide(&sample.observed);
        if let Err(error) = self.look_out() {
            self.go_blind(&error, reporter);
        }
        self.account(&sample, &averages);
        self.apply(&decision, reporter);
        self.publish(&decision, &averages)?;
        let is_set = self.active.len() < self.all.len() || self.timeout > Nanos::ZERO;
        let is_bound = self.config.per_thread;
        let is_looking = matches!(self.look, Look::Taking(..));
        Ok(!is_set && !is_bound && !is_looking && !(NO_IDLE..=ALL_IDLE).contains(&averages.idle))
    }

    /// Lets the controller know where threads were, if it asked a period ago.
    fn look_up(&mut self, processes: &[Pid]) -> std::io::Result<()> {
        match std::mem::replace(&mut self.look, Look::Blind) {
            Look::Taking(mut profiler, since) => {
                let code = profiler.stop(processes, Nanos(nanos(since.elapsed())))?;
                if let Mind::Live(controller) = &mut self.mind {
                    controller.saw(&code);
                }
                self.look = Look::Open(profiler);
            }
            other => self.look = other,
        }
        Ok(())
    }

    /// Takes samples until the next period, if the controller asks for them.
    fn look_out(&mut self) -> std::io::Result<()> {
        let wanted = match &self.mind {
            Mind::Live(controller) => controller.wants_code(),
            Mind::Dry(_) => None,
        };
        let Some(closely) = wanted else {
            return Ok(());
        };
        let mut profiler = match std::mem::replace(&mut self.look, Look::Blind) {
            Look::Open(profiler) => profiler,
            Look::Unopened => {
                let all = self.all.iter().copied().collect();
                Box::new(Profiler::open(&self.procfs, &all, &self.config.state_dir)?)
            }
            // Nothing is left in Taking at the end of a period.
            Look::Blind | Look::Taking(..) => return Ok(()),
        };
        profiler.start(closely)?;
        self.look = Look::Taking(profiler, Instant::now());
        Ok(())
    }

    fn go_blind(&mut self, error: &std::io::Error, reporter: &mut dyn Reporter) {
        self.look = Look::Blind;
        reporter.info(&format!(
            "programs that wait for locks without sleeping cannot be told from those that compute: {error}"
        ));
    }

    /// With a vCPU for each thread: binds those that were born, and of these processes all that are new.
    fn bind(&mut self, processes: Option<&[Pid]>) -> Result<(), AgentError> {
        let Hands::Live {
            actuator,
            pinning: Some(pinning),
            ..
        } = &mut self.hands
        else {
            return Ok(());
        };
        let born = pinning.bind_born(actuator)?;
        let found = match processes {
            Some(processes) => pinning.bind_new(actuator, processes)?,
            None => 0,
        };
        for (when, bound) in [(BORN, born), (LATER, found)] {
            self.metrics.bound.get_or_create(&when).inc_by(bound);
        }
        Ok(())
    }

    fn account(&mut self, sample: &Sample, averages: &Averages) {
        self.metrics.periods.inc();
        self.metrics.stolen.set(averages.stolen);
        let polled = match &self.hands {
            Hands::Live {
                awake: Some(awake), ..
            } => match awake.burnt() {
                Some(burnt) => Nanos(burnt.0 - self.report.retention_burnt_ns),
                None => sample.polled,
            },
            _ => sample.polled,
        };
        self.report.retention_burnt_ns += polled.0;
        self.metrics.awake.inc_by(polled.as_secs_f64());
        let cpu = own_cpu_time().as_secs_f64() - self.metrics.agent.get();
        self.metrics.agent.inc_by(cpu.max(0.0));
        let worked = (averages.utilization * sample.observed.period.0 as f64) as u64;
        let since =
            nanos(self.began.elapsed()) - sample.observed.period.0.min(nanos(self.began.elapsed()));
        let setting = (self.active.len() as u32, self.timeout.0);
        let entry = self
            .in_force
            .entry(setting)
            .or_insert((0, since / 1_000_000));
        entry.0 += worked;
    }

    fn apply(&mut self, decision: &Decision, reporter: &mut dyn Reporter) {
        let active = match self.config.vcpus {
            Vcpus::Auto => self.first(decision.active),
            Vcpus::All | Vcpus::Held(_) => self.active.clone(),
        };
        let timeout = match self.config.retention {
            Stay::Auto => decision.timeout,
            Stay::Held(timeout) => timeout,
        };
        let is_dry = matches!(self.hands, Hands::Dry(_));
        let is_news = matches!(decision.awake, controller::Because::Kept { .. });
        if !is_dry && !is_news && active == self.active && timeout == self.timeout {
            return;
        }
        let because = reasons(decision);
        let what = format!(
            "vCPUs {active} of {}, idle ones stay awake for {:.0} us: {}",
            self.all.len(),
            timeout.0 as f64 / 1e3,
            because.join("; ")
        );
        let Hands::Live {
            actuator, awake, ..
        } = &mut self.hands
        else {
            if self.said.as_ref() != Some(&(active.clone(), timeout)) {
                reporter.would(&what);
                self.said = Some((active, timeout));
            }
            return;
        };
        if active != self.active
            && let Some(cgroup) = &self.workload.cgroup
        {
            let is_wider = active.len() > self.active.len();
            match actuator.set_vcpus(cgroup, &active) {
                Ok(()) if is_wider && active.len() == self.all.len() => actuator.rebind_threads(),
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => report_once(&mut self.reported, &self.metrics, reporter, &error),
            }
        }
        if let Some(awake) = awake
            && let Err(error) = awake.set(actuator, timeout, &active)
        {
            report_once(&mut self.reported, &self.metrics, reporter, &error);
        }
        (self.active, self.timeout) = (active, timeout);
        self.metrics.changes.inc();
        if self.report.decisions.len() < MOST_DECISIONS {
            self.report.decisions.push(Changed {
                at_ms: nanos(self.began.elapsed()) / 1_000_000,
                vcpus: self.active.len() as u32,
                retention_ns: self.timeout.0,
                because,
            });
        }
        reporter.info(&what);
    }

    fn publish(&mut self, decision: &Decision, averages: &Averages) -> Result<(), AgentError> {
        self.metrics.active.set(self.active.len() as i64);
        self.metrics.retention.set(self.timeout.as_secs_f64());
        if let Some(exporter) = &self.exporter {
            exporter.publish()?;
        }
        if self.config.dry_run || self.published.is_some_and(|at| at.elapsed() < PUBLISH) {
            return Ok(());
        }
        self.published = Some(Instant::now());
        let Ok(agent) = ThreadRef::of_process(&self.procfs, Pid(std::process::id())) else {
            return Ok(());
        };
        let because = reasons(decision);
        let all: PcpuSet = self.all.iter().copied().collect();
        let status = Status {
            agent,
            workload: self.workload.target.to_string(),
            cgroup: self.workload.cgroup.as_ref().map(ToString::to_string),
            vcpus: all.to_string(),
            active: self.active.to_string(),
            retention_ns: self.timeout.0,
            means: self.report.means.clone(),
            packing: because.first().cloned().unwrap_or_default(),
            awake: because.last().cloned().unwrap_or_default(),
            stolen: averages.stolen,
            utilization: averages.utilization,
            periods: self.metrics.periods.get(),
            agent_cpu_ns: own_cpu_time().0,
        };
        Ok(status::write(&self.config.state_dir, &status)?)
    }

    fn first(&self, count: u32) -> PcpuSet {
        self.all.iter().copied().take(count as usize).collect()
    }
}

/// Why so many vCPUs, and why they stay awake or not.
fn reasons(decision: &Decision) -> Vec<String> {
    vec![
        match &decision.packing {
            Some(because) => because.to_string(),
            None => "the number of vCPUs is held".to_owned(),
        },
        decision.awake.to_string(),
    ]
}

/// An error that comes again every period is said once.
fn report_once(
    reported: &mut Vec<String>,
    metrics: &Metrics,
    reporter: &mut dyn Reporter,
    error: &ActuatorError,
) {
    metrics.errors.inc();
    let text = error.to_string();
    if !reported.contains(&text) {
        reporter.error(&text);
        reported.push(text);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the agent's own thread; yielding threads burn theirs on purpose.
fn own_cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn end_process(pid: Pid) {
    // SAFETY: kill has no memory effects; the process is a child that was not waited for, so that its number
    // cannot be another's.
    unsafe {
        libc::kill(pid.0 as libc::pid_t, libc::SIGTERM);
    }
}

/// Log lines on stderr, what a dry run would do on stdout.
#[derive(Debug, Default)]
pub struct Console {
    /// Print `ready` on stdout once acting.
    pub print_ready: bool,
    /// Say nothing but errors.
    pub quiet: bool,
}

impl Reporter for Console {
    fn info(&mut self, line: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "tandem guest: {line}");
        }
    }

    fn error(&mut self, line: &str) {
        let _ = writeln!(std::io::stderr(), "tandem guest: error: {line}");
    }

    fn ready(&mut self) {
        if self.print_ready {
            println!("ready");
        }
    }

    fn would(&mut self, line: &str) {
        println!("would set {line}");
    }
}
