//! The agent's main loop: once per period it observes, decides and acts, until the workload ends.
//!
//! Life cycle: revert the changes of a killed agent → find or start the workload → measure the cost of a halt and wake-up
//! → in each period, sample, ask the controller, set vCPUs and retention.
//! When the workload ends, on SIGTERM, SIGINT or an error, it reverts all changes.
//!
//! A dry run sets nothing and replaces the controller by [`crate::dry_run`], because its decisions have no effect to judge.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupError, Version};
use tandem_linux::exporter::{Exporter, MetricsError};
use tandem_linux::log::RESULT;
use tandem_linux::service::{ServiceManager, report_failures, report_restore};
use tandem_linux::settings::SettingsError;
use tandem_linux::signals::{Signals, Wake};
use tandem_linux::status_file::StatusFileError;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Nanos, PcpuId, PcpuSet};
use tandem_policy::gleaner::{Averages, Decision, controller};
use thiserror::Error;
use tracing::{error, info};

use crate::account::Account;
use crate::actuator::{Actuator, ActuatorError};
use crate::config::{GuestConfig, RetentionSetting, Vcpus};
use crate::controller::Controller;
use crate::counters::CounterError;
use crate::cpusets::Cpusets;
use crate::delayed::Delayed;
use crate::knobs::Knobs;
use crate::metrics::{Found, Metrics};
use crate::pinning::Pinning;
use crate::profiler::Profiler;
use crate::profiling::Profiling;
use crate::retention::{Haltpoll, Means, Retention};
use crate::sampler::{Sample, Sampler};
use crate::status::{Report, Setting, Status};
use crate::workload::{Target, Workload, WorkloadError, check_held};
use crate::{delayed, round_trip, status};

/// Periods between two samples of a workload without a pending decision.
const CALM_PERIODS: u32 = 4;

/// Idle fraction of the vCPUs' time below which wake-ups are too rare to matter.
const NO_IDLE: f64 = 0.1;

/// Idle fraction above which the workload counts as asleep.
const ALL_IDLE: f64 = 0.97;

/// Interval of status updates.
const PUBLISH: Duration = Duration::from_secs(1);

/// Minimum retention; a shorter one never saves the cost of a halt.
const MIN_RETENTION: Nanos = Nanos(50_000);

/// Maximum retention; a longer round trip was disturbed by other work.
const MAX_RETENTION: Nanos = Nanos(500_000);

/// Label of threads that were bound when they were created.
const BORN: Found = Found { at: "birth" };

/// Label of threads that were bound at the end of a period.
const LATER: Found = Found { at: "period" };

/// Reason why the agent cannot start or continue.
#[derive(Debug, Error)]
pub enum AgentError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The VM cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Cgroups cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There is no workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Kernel counters cannot be read.
    #[error(transparent)]
    Sample(#[from] CounterError),
    /// The status cannot be written.
    #[error(transparent)]
    Status(#[from] StatusFileError),
    /// Metrics cannot be served or written.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The requested means of retention is unavailable.
    #[error("retention: {0}")]
    Retention(String),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
    /// The command cannot be waited for.
    #[error("cannot wait for the command: {0}")]
    Wait(std::io::Error),
}

/// Result of a run.
#[derive(Debug)]
pub struct Ended {
    /// Report of the run.
    pub report: Report,
    /// Exit status of the command, if there is one and it has exited.
    pub command: Option<ExitStatus>,
}

/// A running agent.
pub struct Agent {
    config: GuestConfig,
    procfs: ProcFs,
    knobs: Knobs,
    workload: Workload,
    signals: Signals,
    all: Vec<PcpuId>,
    active: PcpuSet,
    retention: Nanos,
    controller: Controller,
    sampler: Sampler,
    profiling: Profiling,
    delay: Delayed,
    /// Last decision.
    decided: Option<Decision>,
    began: Instant,
    metrics: Metrics,
    exporter: Option<Exporter>,
    account: Account,
    /// Time of the last status update.
    published: Option<Instant>,
}

impl Agent {
    /// Checks the settings, reverts the changes of an earlier agent, and starts or finds the workload.
    pub fn open(mut config: GuestConfig, target: Target) -> Result<Agent, AgentError> {
        config.check()?;
        let procfs = ProcFs::host();
        let signals = Signals::catch(true).map_err(AgentError::Signals)?;
        let metrics = Metrics::default();
        let exporter = Exporter::open(
            metrics.registry(),
            config.metrics_listen,
            config.metrics_file.as_deref(),
        )?;
        // The measurement precedes the command, as each would disturb the other.
        let own = tandem_linux::affinity::affinity(Tid(0)).map_err(ActuatorError::from)?;
        let cost = match config.retention {
            RetentionSetting::Auto => round_trip::measure(&own),
            RetentionSetting::Held(_) => None,
        };
        // Predictable failures must occur before a command starts.
        let held = match config.vcpus {
            Vcpus::Held(held) => Some(held),
            Vcpus::Auto | Vcpus::All => None,
        };
        if let Target::Command(_) = target {
            check_held(held, &own)?;
        }
        let is_retaining = config.retention != RetentionSetting::Held(Nanos::ZERO);
        if config.means == Means::Haltpoll && is_retaining {
            Haltpoll::find(&procfs).map_err(AgentError::Retention)?;
        }
        let began = Instant::now();
        let (mut knobs, workload) = if config.dry_run {
            let cpusets = Cpusets::open(&procfs)?;
            let workload = Workload::watch(target, &procfs, &cpusets)?;
            check_held(held, workload.vcpus.as_ref().unwrap_or(&own))?;
            (Knobs::Dry(cpusets), workload)
        } else {
            let (mut actuator, restored) = Actuator::open(&procfs, &config.state_dir)?;
            report_restore(&restored);
            actuator.check_writable()?;
            let workload = Workload::open(target, held, &procfs, &mut actuator)?;
            if let Some(cgroup) = &workload.cgroup {
                actuator.workload_is_in(cgroup);
            }
            let knobs =
                Knobs::Live { actuator: Box::new(actuator), retention: None, pinning: None };
            (knobs, workload)
        };
        let vcpus = match (&workload.target, &workload.vcpus) {
            // A command inherits the agent's affinity.
            (Target::Command(_), Some(vcpus)) => within(vcpus, &own),
            (_, Some(vcpus)) => vcpus.clone(),
            (_, None) => own,
        };
        if let Knobs::Live { retention, pinning, .. } = &mut knobs {
            if is_retaining {
                let opened = Retention::open(&procfs, config.means, &vcpus);
                *retention = Some(opened.map_err(AgentError::Retention)?);
            }
            if config.per_thread {
                let opened = Pinning::new(&procfs, &vcpus);
                if let Some(error) = opened.births_error() {
                    info!(
                        "new threads are found once per period, not at their creation: the kernel's \
                         process connector is unavailable: {error}"
                    );
                }
                *pinning = Some(opened);
            }
        }
        if let Some(said) = delayed::without_effect(&config, vcpus.len()) {
            info!("{said}");
        }
        let settings = &mut config.controller;
        settings.consolidate = config.vcpus == Vcpus::Auto && !config.per_thread;
        settings.retain = config.retention == RetentionSetting::Auto;
        if cost.is_none() && settings.retain {
            info!(
                "the cost of waking a halted vCPU was not measured: there is only one vCPU, or they are busy with other work",
            );
        }
        if let Some(cost) = cost {
            let twice = Nanos(cost.0 * 2);
            settings.retention.round_trip = twice.clamp(MIN_RETENTION, MAX_RETENTION);
            info!("waking a halted vCPU takes {:.1} us here", cost.0 as f64 / 1e3);
        }
        let cpu_stat = workload.cgroup.as_ref().and_then(|cgroup| {
            let cpusets = knobs.cpusets();
            let is_v2 = cpusets.version() == Version::V2;
            is_v2.then(|| cpusets.entrance(cgroup).with_file_name("cpu.stat"))
        });
        let (count, settings) = (vcpus.len() as u32, config.controller.clone());
        let mut agent = Agent {
            controller: Controller::new(config.dry_run, count, settings),
            sampler: Sampler::new(&procfs, &vcpus, cpu_stat),
            profiling: Profiling::default(),
            delay: Delayed::new(config.delay.clone(), &procfs),
            decided: None,
            began,
            all: vcpus.iter().collect(),
            active: vcpus,
            retention: Nanos::ZERO,
            config,
            procfs,
            knobs,
            workload,
            signals,
            metrics,
            exporter,
            account: Account::new(began),
            published: None,
        };
        agent.hold()?;
        Ok(agent)
    }

    /// Applies fixed settings and the initial retention, from which the kernel's current value may differ.
    /// The workload is already restricted to the vCPUs that are held.
    fn hold(&mut self) -> Result<(), AgentError> {
        if let Vcpus::Held(held) = self.config.vcpus {
            self.active = self.first(held);
        }
        if let RetentionSetting::Held(time) = self.config.retention {
            self.retention = time;
        }
        let held_off = self.config.retention == RetentionSetting::Held(Nanos::ZERO);
        if let Knobs::Live { actuator, retention, .. } = &mut self.knobs {
            if held_off && let Ok(mut kernel) = Retention::kernel(&self.procfs) {
                kernel.set(actuator, Nanos::ZERO, &self.active)?;
            }
            if let Some(retention) = retention {
                retention.set(actuator, self.retention, &self.active)?;
                self.account.report().means = retention.name().to_owned();
            }
        }
        Ok(())
    }

    /// Runs until the workload ends, `limit` has passed, or a signal arrives, then reverts all changes.
    pub fn run(mut self, limit: Option<Duration>) -> Result<Ended, AgentError> {
        let command = self.periods(limit);
        // Journal threads created since the last period: they inherited our affinity, timer slack and scheduling.
        let left = self.workload.processes(self.knobs.cpusets());
        if let Err(error) = self.bind(Some(&left)) {
            error!("{error}");
        }
        if let Knobs::Live { actuator, .. } = &mut self.knobs {
            let list = |cpusets: &Cpusets| self.workload.threads_now(cpusets);
            if let Err(error) = self.delay.revert(actuator, list) {
                error!("{error}");
            }
        }
        let bound = |when| self.metrics.bound.get(when).map_or(0, |count| count.get());
        let report = self.account.report();
        report.periods = self.metrics.periods.get();
        report.bound_at_birth = bound(&BORN);
        report.bound_later = bound(&LATER);
        report.agent_cpu_ns = own_cpu_time().0;
        report.delay_slack_ns = self.delay.held().slack.0;
        report.delay_batch = self.delay.held().batch;
        report.delays = self.delay.take_changes();
        let report = self.account.finish();
        if let Knobs::Live { mut actuator, retention, .. } = self.knobs {
            drop(retention);
            status::file(&self.config.state_dir).remove();
            report_failures(&actuator.restore());
        }
        info!("{report}");
        Ok(Ended { report, command: command? })
    }

    fn periods(&mut self, limit: Option<Duration>) -> Result<Option<ExitStatus>, AgentError> {
        let service_manager = ServiceManager::ready();
        let period = self.config.period();
        let end = limit.map(|limit| Instant::now() + limit);
        let mut is_stopping = false;
        let mut next = Instant::now() + period;
        let processes = self.workload.processes(self.knobs.cpusets());
        self.bind(Some(&processes))?;
        self.sample(&processes)?;
        loop {
            match self.signals.wait_until_or(next, self.knobs.births_file()) {
                Wake::Time | Wake::Reload => {}
                Wake::Other => {
                    self.bind(None)?;
                    continue;
                }
                Wake::Stop if is_stopping || self.workload.child.is_none() => return Ok(None),
                Wake::Stop => {
                    // Terminate the command; the agent exits after it.
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
            let is_calm = self.period()?;
            service_manager.alive();
            let is_over = self.workload.is_over(&self.procfs, self.knobs.cpusets());
            if is_over || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
            // Missed periods are skipped.
            let periods = if is_calm { CALM_PERIODS } else { 1 };
            next = (next + period * periods).max(Instant::now());
        }
    }

    /// Returns the sample since the last call, and the current threads.
    fn sample(&mut self, processes: &[Pid]) -> Result<(Option<Sample>, Vec<Tid>), CounterError> {
        let threads = self.workload.threads(self.knobs.cpusets(), processes);
        self.sampler.look(self.delay.closeness(), &self.active);
        let sample = self.sampler.sample(&self.active, processes, &threads)?;
        Ok((sample, threads))
    }

    /// Runs one period and returns true if the next one may be longer.
    /// That needs all settings at their defaults, and almost no idle time or almost only idle time.
    /// With delayed scheduling, it needs finished trials instead of the idle time.
    fn period(&mut self) -> Result<bool, AgentError> {
        let processes = self.workload.processes(self.knobs.cpusets());
        self.bind(Some(&processes))?;
        let (Some(sample), threads) = self.sample(&processes)? else {
            return Ok(false);
        };
        // Without processes there is no load to decide on.
        if processes.is_empty() {
            return Ok(true);
        }
        let averages = Averages::of(&sample.observed);
        match self.profiling.finish(&processes) {
            Ok(None) => {}
            Ok(Some(code)) => self.controller.saw(&code),
            Err(error) => without_profiler(&error),
        }
        // One change at a time. Retention keeps the vCPU awake, so delaying threads would gain nothing.
        let is_delaying = self.delay.is_any();
        let decision = match self.decided.filter(|_| is_delaying) {
            Some(decision) => decision,
            None => self.controller.decide(&sample.observed),
        };
        self.decided = Some(decision);
        if let Some(closely) = self.controller.wants_code() {
            let all = self.all.iter().copied().collect();
            let open = || Profiler::open(&self.procfs, &all, &self.config.state_dir);
            if let Err(error) = self.profiling.start(closely, open) {
                without_profiler(&error);
            }
        }
        self.account(&sample, &averages);
        let before = self.setting();
        if !is_delaying {
            self.apply(&decision);
        }
        if self.setting() != before {
            self.delay.forget();
        }
        let may_decide = decision.retention != controller::Because::OnTrial;
        self.delay(&sample, &threads, may_decide);
        if let Err(error) = self.publish(&decision, &averages) {
            // A failed status or metrics update does not stop the agent.
            error!(once = true, "{error}");
        }
        let is_set = self.active.len() < self.all.len() || self.retention > Nanos::ZERO;
        let is_busy = is_set || self.config.per_thread || self.profiling.is_sampling();
        let is_calm = if self.delay.is_any() {
            self.delay.is_settled()
        } else {
            !self.delay.is_due() && !(NO_IDLE..=ALL_IDLE).contains(&averages.idle)
        };
        Ok(!is_busy && is_calm)
    }

    /// On a single vCPU, decides on delayed scheduling if `may_decide`, and applies it to these threads.
    fn delay(&mut self, sample: &Sample, threads: &[Tid], may_decide: bool) {
        let may_have_more = self.config.vcpus == Vcpus::Auto && self.all.len() > 1;
        if self.active.len() != 1 || may_have_more {
            return;
        }
        let Knobs::Live { actuator, .. } = &mut self.knobs else {
            if may_decide {
                self.delay.preview(&sample.observed);
            }
            return;
        };
        let at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_changed = may_decide && self.delay.decide(&sample.observed, at_ms);
        if is_changed {
            self.metrics.changes.inc();
        }
        let list = |cpusets: &Cpusets| self.workload.threads_now(cpusets);
        if (is_changed || self.delay.is_due())
            && let Err(error) = self.delay.apply(actuator, threads, list)
        {
            self.metrics.errors.inc();
            error!(once = true, "{error}");
        }
    }

    /// With `per_thread`, binds threads that were created, and all new ones of these processes.
    fn bind(&mut self, processes: Option<&[Pid]>) -> Result<(), AgentError> {
        if let Some(bound) = self.knobs.bind(processes)? {
            for (when, count) in [(BORN, bound.at_birth), (LATER, bound.later)] {
                self.metrics.bound.get_or_create(&when).inc_by(count);
            }
        }
        Ok(())
    }

    fn account(&mut self, sample: &Sample, averages: &Averages) {
        self.metrics.periods.inc();
        self.metrics.stolen.set(averages.stolen);
        let burnt = match self.knobs.burnt() {
            Some(total) => Nanos(total.0 - self.account.burnt_so_far().0),
            None => sample.polled,
        };
        self.account.burnt(burnt);
        self.metrics.retention_burnt.inc_by(burnt.as_secs_f64());
        let cpu = own_cpu_time().as_secs_f64() - self.metrics.agent.get();
        self.metrics.agent.inc_by(cpu.max(0.0));
        let period = sample.observed.period;
        let worked = Nanos((averages.utilization * period.0 as f64) as u64);
        self.account.period(self.setting(), period, worked);
    }

    /// Returns the current setting.
    fn setting(&self) -> Setting {
        Setting { vcpus: self.active.len() as u32, retention_ns: self.retention.0 }
    }

    fn apply(&mut self, decision: &Decision) {
        let active = match self.config.vcpus {
            Vcpus::Auto => self.first(decision.active),
            Vcpus::All | Vcpus::Held(_) => self.active.clone(),
        };
        let retention = match self.config.retention {
            RetentionSetting::Auto => decision.retention_time,
            RetentionSetting::Held(time) => time,
        };
        let is_news = matches!(decision.retention, controller::Because::Kept { .. });
        let is_same = active == self.active && retention == self.retention;
        if is_same && !is_news && !self.knobs.is_dry() {
            return;
        }
        let because = reasons(decision);
        let what = format!(
            "vCPUs {active} of {}, retention {:.0} us: {}",
            self.all.len(),
            retention.0 as f64 / 1e3,
            because.join("; ")
        );
        let Knobs::Live { actuator, retention: knob, .. } = &mut self.knobs else {
            info!(target: RESULT, subject = "setting", state = ?(active, retention), "would set {what}");
            return;
        };
        let mut refused: Vec<ActuatorError> = Vec::new();
        if active != self.active
            && let Some(cgroup) = &self.workload.cgroup
        {
            let is_wider = active.len() > self.active.len();
            match actuator.set_vcpus(cgroup, &active) {
                Ok(()) if is_wider && active.len() == self.all.len() => actuator.rebind_threads(),
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => refused.push(error),
            }
        }
        if let Some(knob) = knob
            && let Err(error) = knob.set(actuator, retention, &active)
        {
            refused.push(error);
        }
        for error in refused {
            self.metrics.errors.inc();
            error!(once = true, "{error}");
        }
        (self.active, self.retention) = (active, retention);
        self.metrics.changes.inc();
        self.account.changed(self.setting(), because);
        info!("{what}");
    }

    fn publish(&mut self, decision: &Decision, averages: &Averages) -> Result<(), AgentError> {
        self.metrics.active.set(self.active.len() as i64);
        self.metrics.retention.set(self.retention.as_secs_f64());
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
            retention_ns: self.retention.0,
            means: self.account.means().to_owned(),
            consolidation: because.first().cloned().unwrap_or_default(),
            retention: because.last().cloned().unwrap_or_default(),
            stolen: averages.stolen,
            utilization: averages.utilization,
            periods: self.metrics.periods.get(),
            agent_cpu_ns: own_cpu_time().0,
            delay: self.delay.text(),
        };
        Ok(status::file(&self.config.state_dir).write(&status)?)
    }

    fn first(&self, count: u32) -> PcpuSet {
        self.all.iter().copied().take(count as usize).collect()
    }
}

/// Returns the vCPUs in both sets, or `vcpus` if there are none.
fn within(vcpus: &PcpuSet, own: &PcpuSet) -> PcpuSet {
    let both: PcpuSet = vcpus.iter().filter(|&vcpu| own.contains(vcpu)).collect();
    if !both.is_empty() { both } else { vcpus.clone() }
}

/// Returns the reasons for the number of vCPUs and for the retention.
fn reasons(decision: &Decision) -> Vec<String> {
    vec![
        match &decision.consolidation {
            Some(because) => because.to_string(),
            None => "the number of vCPUs is held".to_owned(),
        },
        decision.retention.to_string(),
    ]
}

/// Logs that the agent continues without samples of code.
fn without_profiler(error: &std::io::Error) {
    info!("programs that spin on locks cannot be distinguished from those that compute: {error}");
}

/// Returns the CPU time of the agent's own thread, excluding yielding threads.
fn own_cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

pub(crate) fn end_process(pid: Pid) {
    // SAFETY: kill has no memory effects; the process is an unreaped child, so its PID is not reused.
    unsafe {
        libc::kill(pid.0 as libc::pid_t, libc::SIGTERM);
    }
}
