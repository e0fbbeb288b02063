//! The daemon: observes, decides and acts once per accounting period.
//!
//! Life: read the settings → open the cgroup controller and the journal (which first reverts the changes of a
//! killed run) → report readiness to the service manager → each period: take in the latest scan for VMs,
//! let the [`Controller`] observe, decide and apply → on SIGTERM, SIGINT or an error revert all changes.
//! Another thread scans for VMs (`scanner`).
//!
//! Periods are measured, not assumed: the run time of a vCPU is scaled to the nominal period.
//! Periods that were missed because the host was busy are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use tandem_model::{Decision, VmId};
use tandem_policy::flexw::VcpuDemand;
use tandem_policy::host::{Controller, Period, flexs, registry};
use tandem_policy::{Assessment, assess};
use thiserror::Error;
use tracing::{Level, enabled, error, info, warn};

use crate::apply::{Applied, Refused};
use crate::config::{ConfigError, HostConfig};
use crate::control::Control;
use crate::daemon::deeds::Deeds;
pub use crate::daemon::deeds::NoEffect;
use crate::discovery::{Discovery, DiscoveryError, Scan, Vm};
use crate::fleet::{Backend, Fleet};
use crate::metrics::{MAX_VMS, Metrics, VmLabels};
use crate::origin::Origin;
use crate::scanner::Scanner;
use crate::select::Selector;
use crate::spins::Spins;
use crate::status::{Due, Wanted};
use crate::turns::TurnStats;
use crate::unseen::Unseen;
use crate::{hint, spins, status};
use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::CgroupError;
use tandem_linux::claims::{Claims, HOST_CLAIMS};
use tandem_linux::exporter::{Exporter, MetricsError};
use tandem_linux::journal::check_state_dir;
use tandem_linux::log::RESULT;
use tandem_linux::procfs::ProcFs;
use tandem_linux::real_time::go_before_others;
use tandem_linux::sampler::Sampler;
use tandem_linux::service::{ServiceManager, report_restore};
use tandem_linux::signals::{Signals, Wake};
use tandem_linux::thread::ThreadRef;
use tandem_linux::{branch_counters, cgroup};

mod deeds;
mod intent;
mod reload;
mod service;
mod words;

pub use reload::Reload;

/// An error that prevents the daemon from starting or going on.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A setting is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The host has no usable cpu controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The journal is unusable, or another daemon runs.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// Processes cannot be scanned.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Metrics cannot be published.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be caught.
    #[error("cannot catch SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
    /// The scanner thread cannot start.
    #[error("cannot start the thread that looks for VMs: {0}")]
    Scanner(std::io::Error),
    /// The scanner thread has ended.
    #[error("the thread that looks for VMs has ended: please report what it said before")]
    ScannerEnded,
    /// The daemon could not do any of its work.
    #[error(transparent)]
    NoEffect(#[from] NoEffect),
}

/// Duration of a scan for VMs from which it is reported as slow.
const SLOW_SCAN: Duration = Duration::from_secs(10);

/// A running daemon.
pub struct Daemon {
    config: HostConfig,
    selector: Selector,
    scanner: Scanner,
    fleet: Fleet,
    controller: Controller,
    metrics: Metrics,
    exporter: Option<Exporter>,
    signals: Signals,
    /// Whether the names of VMs that are selected by name alone are trusted.
    believed: BTreeMap<VmId, bool>,
    /// VMs with series in the metrics.
    published: BTreeSet<VmLabels>,
    /// The VMs of the last rotation.
    rotation: BTreeSet<VmId>,
    /// Findings from vCPUs' branch counters.
    spins: Spins,
    /// Whether the hint on turns without effect was logged.
    hinted: bool,
    /// Requested VMs and processes that cannot be seen.
    unseen: Unseen,
    deeds: Deeds,
    /// The last scan.
    scan: Scan,
    /// The newest accounts of VMs and demands of vCPUs.
    due: BTreeMap<VmId, Due>,
    wanted: BTreeMap<VmId, BTreeMap<u32, Wanted>>,
    /// The processes of paused VMs.
    paused: BTreeSet<ThreadRef>,
    /// Reads the settings again; `None` without a settings file.
    reload: Option<Reload>,
    control: Option<Control>,
    began: (Instant, SystemTime),
}

impl Daemon {
    /// Checks the settings like [`Daemon::open`], without opening anything.
    pub fn check(config: &HostConfig) -> Result<(), DaemonError> {
        Daemon::checked(config, &ProcFs::default()).map(drop)
    }

    fn checked(config: &HostConfig, proc: &ProcFs) -> Result<(Selector, Discovery), DaemonError> {
        config.check()?;
        check_state_dir(&config.state_dir).map_err(ActuatorError::from)?;
        let selector = Selector::from_config(&config.select)?;
        let discovery = Discovery::new(config.discovery_options(), proc.clone())?;
        Ok((selector, discovery))
    }

    /// Checks the settings, opens all resources, and reverts the changes of an earlier run.
    ///
    /// `watchdog` runs [`crate::turns::watchdog::watch`] in a process of its own, if VMs take turns.
    pub fn open(config: HostConfig, watchdog: Option<Command>) -> Result<Daemon, DaemonError> {
        let proc = ProcFs::default();
        let (selector, discovery) = Daemon::checked(&config, &proc)?;
        let scanner = Scanner::start(discovery, !config.dry_run).map_err(DaemonError::Scanner)?;
        let controller = cgroup::open(&proc)?;
        let metrics = Metrics::default();
        let exporter = Exporter::open(
            metrics.registry(),
            config.metrics_listen,
            config.metrics_file.as_deref(),
        )?;
        let signals = Signals::catch(false).map_err(DaemonError::Signals)?;
        let backend = if config.dry_run {
            Backend::Dry(controller)
        } else {
            let (actuator, restored) = Actuator::open(controller, &config.state_dir)?;
            report_restore(&restored);
            Backend::Live(Box::new(actuator))
        };
        let fleet = Fleet::new(backend, Sampler::new(proc), config.rule.clone(), config.policies.0)
            .with_weight_per_vcpu(config.weight_per_vcpu);
        let fleet = match watchdog {
            Some(command) => fleet.with_watchdog(command),
            None => fleet,
        };
        let claims = (!config.dry_run).then(|| Claims::open(Path::new(HOST_CLAIMS)));
        let fleet = match claims {
            None => fleet,
            Some(Ok(claims)) => fleet.with_claims(claims),
            Some(Err(error)) => {
                error!(
                    "{error}; other Tandem daemons of this host cannot see which VMs this one manages"
                );
                fleet
            }
        };
        let mut spins = Spins::default();
        let fleet = with_counters(fleet, &config, &mut spins);
        let paused = service::read_paused(&config);
        Ok(Daemon {
            controller: Controller::new(config.controller()),
            selector,
            scanner,
            fleet,
            metrics,
            exporter,
            signals,
            believed: BTreeMap::new(),
            published: BTreeSet::new(),
            rotation: BTreeSet::new(),
            spins,
            hinted: false,
            unseen: Unseen::default(),
            deeds: Deeds::default(),
            scan: Scan::default(),
            due: BTreeMap::new(),
            wanted: BTreeMap::new(),
            paused,
            reload: None,
            control: None,
            began: (Instant::now(), SystemTime::now()),
            config,
        })
    }

    /// Runs until a signal, an error or the end of `limit`, then reverts all changes.
    pub fn run(mut self, limit: Option<Duration>) -> Result<(), DaemonError> {
        let end = limit.map(|limit| Instant::now() + limit);
        let outcome = self.periods(end);
        // All changes are reverted after a stop request and after an error.
        ServiceManager::stopping();
        self.control = None;
        if let Backend::Live(mut actuator) = self.fleet.into_backend() {
            report_restore(&actuator.restore());
        }
        // In a dry run, a status there belongs to another daemon.
        if !self.config.dry_run {
            status::remove(&self.config.state_dir);
        }
        outcome.and_then(|()| Ok(self.deeds.end(self.config.dry_run)?))
    }

    fn periods(&mut self, end: Option<Instant>) -> Result<(), DaemonError> {
        self.open_control();
        if !self.config.dry_run {
            if let Err(error) = go_before_others() {
                warn!(
                    "cannot run before other threads of this host (nice -20): {error}; on a busy host, decisions come late"
                );
            }
            // Before the first change, so that `tandem host status` shows this daemon even after kill -9.
            self.write_status(None);
        }
        let found = self.scanner.look().ok_or(DaemonError::ScannerEnded)??;
        self.announce(&found);
        self.take_in(found);
        let mut scanned = Instant::now();
        let mut begun = scanned;
        let mut longest = Duration::ZERO;
        self.controller.begin(&mut self.fleet);
        let service_manager = ServiceManager::ready();
        let mut next = Instant::now() + self.period();
        let mut accounts = Accounts::default();
        while end.is_none_or(|end| next < end) {
            match self.signals.wait_until(next) {
                Wake::Stop => break,
                Wake::Reload => {
                    self.reload();
                    continue;
                }
                Wake::Time | Wake::Child | Wake::Other => {}
            }
            self.answer();
            let period = self.period();
            let scan_every = Duration::from_millis(self.config.scan_ms);
            let woke = Instant::now();
            longest = longest.max(woke.duration_since(begun));
            self.metrics.longest_gap.set(longest.as_secs_f64());
            begun = woke;
            if woke.duration_since(next) >= period {
                self.metrics.periods_late.inc();
            }
            if let Some(decided) = self.controller.period(&mut self.fleet) {
                let took = woke.elapsed().as_secs_f64();
                self.metrics.decision.0.observe(took);
                self.account(&decided);
                accounts = Accounts::of(decided);
            }
            match self.scanner.take() {
                Some(Ok(scan)) => self.take_in(scan),
                // It may be temporary, such as too many open files; the known VMs stay managed.
                Some(Err(error)) => error!(once = true, "{error}"),
                None => {}
            }
            if woke.duration_since(scanned) >= scan_every {
                scanned = woke;
                self.ask_for_vms()?;
                self.publish(&accounts);
                service_manager.alive();
            }
            self.metrics.periods.inc();
            next += period;
            // Whole periods that were missed on a busy host are skipped.
            while next <= Instant::now() {
                next += period;
            }
        }
        Ok(())
    }

    /// Logs and counts the changes of a period, made or (in a dry run) only decided.
    fn account(&mut self, period: &Period<Applied>) {
        self.account_turns(period);
        self.account_spins(period);
        if period.applied.is_none() || enabled!(Level::DEBUG) {
            self.log_decisions(period);
        }
        let Some(applied) = &period.applied else {
            self.log_demands(period);
            return;
        };
        self.deeds.did(applied);
        self.metrics.weights_written.inc_by(applied.weights);
        self.metrics.vcpus_moved.inc_by(applied.moved.len() as u64);
        self.refused(&applied.refused);
        for decision in &period.round.decisions {
            if let Decision::SetAffinity { vm, vcpu, pcpus, because } = decision
                && applied.moved.contains(&(*vm, *vcpu))
                && let Some(managed) = self.fleet.vm(*vm)
            {
                let name = &managed.vm.name;
                info!("VM {name} vCPU {vcpu} moved to pCPU {pcpus}: {because}");
            }
        }
    }

    /// Counts the findings from branch counters; a dry run also logs them.
    fn account_spins(&mut self, period: &Period<Applied>) {
        for error in self.fleet.counter_errors() {
            error!(once = true, "{error}");
        }
        self.spins.retain(|vm| self.fleet.vm(vm).is_some());
        let reports = &period.round.spins;
        let made = period.applied.as_ref().map(|applied| &*applied.swaps);
        self.spins.count(reports, made.unwrap_or_default());
        self.metrics.count_spins(reports, made.unwrap_or_default());
        if !self.config.dry_run {
            return;
        }
        for report in reports {
            if let Some(managed) = self.fleet.vm(report.vm) {
                let subject = ("spins", report.vm, report.vcpu);
                let state = spins::consequence(report);
                info!(?subject, ?state, "VM {} {report}", managed.vm.name);
            }
        }
    }

    /// Logs the VMs that take turns, when they change.
    fn account_turns(&mut self, period: &Period<Applied>) {
        for error in self.fleet.turn_errors() {
            error!(once = true, "{error}");
        }
        let Some(rotation) = &period.round.rotation else {
            return;
        };
        let left_out = period.round.left_out_of_turns.iter();
        let left_out: Vec<&str> =
            left_out.filter_map(|vm| Some(self.fleet.vm(*vm)?.vm.name.as_str())).collect();
        if !left_out.is_empty() {
            info!(subject = "left out of turns", "{}", hint::left_out_of_turns(&left_out));
        }
        // A VM that could not be prepared takes no turns.
        let takes_turns = |vm: &VmId| {
            let managed = self.fleet.vm(*vm);
            self.config.dry_run || managed.is_some_and(|managed| managed.takes_turns())
        };
        let members = rotation.members.iter().map(|member| member.vm);
        let now: BTreeSet<VmId> = members.filter(takes_turns).collect();
        if now == self.rotation {
            return;
        }
        let names: Vec<&str> =
            now.iter().filter_map(|vm| Some(self.fleet.vm(*vm)?.vm.name.as_str())).collect();
        let names = names.join(", ");
        let line = if now.is_empty() {
            "no VMs take turns any more".to_owned()
        } else {
            format!(
                "VMs {names} never sleep: they take turns in a rotation of {} ms",
                rotation.length.as_secs_f64() * 1e3
            )
        };
        if self.config.dry_run {
            info!(target: RESULT, "{}", line.replace("they take turns", "they would take turns"));
        } else {
            self.deeds.changed_something();
            info!("{line}");
        }
        self.rotation = now;
    }

    /// Requests a scan for VMs, and logs a slow scan or too few open files.
    fn ask_for_vms(&mut self) -> Result<(), DaemonError> {
        if !self.scanner.ask() {
            return Err(DaemonError::ScannerEnded);
        }
        if self.scanner.looking() > SLOW_SCAN {
            error!(
                once = true,
                "looking for VMs takes more than 10 s: until it is done, only the known VMs are managed"
            );
        }
        if let Some(most) = self.fleet.overflow() {
            error!(
                once = true,
                "there are more than {most} vCPUs, and this process may not keep two files of each open: those of the others are opened at every \
                 read, which costs more; raise the limit (LimitNOFILE= in the service, or ulimit -n)"
            );
        }
        Ok(())
    }

    fn period(&self) -> Duration {
        Duration::from_nanos(self.config.period().0)
    }

    /// Takes in a scan.
    fn take_in(&mut self, scan: Scan) {
        let present: BTreeSet<VmId> = scan.vms.iter().map(|vm| vm.id).collect();
        self.believed.retain(|vm, _| present.contains(vm));
        let processes: BTreeSet<ThreadRef> = scan.vms.iter().map(|vm| vm.process).collect();
        self.paused.retain(|process| processes.contains(process));
        self.scan = scan;
        self.follow_scan();
    }

    /// Brings the fleet in line with the last scan, the selection and pauses.
    fn follow_scan(&mut self) {
        let scan = std::mem::take(&mut self.scan);
        let selected: Vec<Vm> = scan
            .vms
            .iter()
            .filter(|vm| self.is_selected(vm) && !self.paused.contains(&vm.process))
            .cloned()
            .collect();
        let is_root = rustix::process::geteuid().is_root();
        for line in self.unseen.news(&scan, &self.config, is_root) {
            info!("{line}");
        }
        let (notes, refused) = self.fleet.update(&selected, &scan.vms);
        self.deeds.took |= self.fleet.vms().next().is_some();
        if self.fleet.vms().any(|managed| managed.made) {
            self.deeds.changed_something();
        }
        for note in notes {
            if self.config.dry_run && note.0.starts_with("would") {
                info!(target: RESULT, "{}", note.0);
            } else {
                info!("{}", note.0);
            }
        }
        self.refused(&refused);
        self.hint();
        for problem in &scan.problems {
            error!(once = true, "{problem}");
        }
        self.scan = scan;
    }

    /// Whether a VM is selected.
    /// One that is selected by its name alone must belong to the host's operator, since tenants choose VM names.
    fn is_selected(&mut self, vm: &Vm) -> bool {
        let controller = self.fleet.controller();
        if !self.selector.matches_by_name_alone(vm, controller) {
            return self.selector.matches(vm, controller);
        }
        *self.believed.entry(vm.id).or_insert_with(|| {
            let origin = Origin::of(vm, &ProcFs::host(), controller);
            if !origin.is_operators {
                info!(
                    "VM {} (pid {}, {origin}) is left alone: a name selects only root's VMs and those in /machine.slice; select this one by its cgroup or process",
                    vm.name, vm.process.pid);
            }
            origin.is_operators
        })
    }

    /// Logs once if turns can have no effect.
    fn hint(&mut self) {
        if self.hinted {
            return;
        }
        let vms = self.fleet.vms().map(|managed| {
            let allowed = managed.allowed().into_iter();
            let allowed = allowed.map(|(_, pcpus)| pcpus).collect();
            (managed.policies, allowed)
        });
        if let Some(line) = hint::on_turns(self.config.placement, vms) {
            info!("{line}");
            self.hinted = true;
        }
    }

    fn refused(&mut self, refused: &[Refused]) {
        self.deeds.could_not(refused);
        for refused in refused {
            self.metrics.errors.inc();
            if refused.is_others {
                warn!(once = true, "{refused}");
            } else {
                error!(once = true, "{refused}");
            }
        }
    }

    /// Updates status and metrics.
    fn publish(&mut self, accounts: &Accounts) {
        let per_period = self.config.period().0 as f64;
        let waits = self.fleet.mark_waits();
        let turns = self.fleet.turn_stats();
        if let Some(turns) = &turns {
            self.metrics.set_turns(turns);
        }
        let mut due = BTreeMap::new();
        let mut present = BTreeSet::new();
        let mut vms = 0;
        let mut vcpus = 0;
        for managed in self.fleet.vms() {
            vms += 1;
            vcpus += managed.vcpu_count() as i64;
        }
        self.metrics.vms.set(vms);
        self.metrics.vcpus.set(vcpus);
        let beyond = accounts.vms.len().saturating_sub(MAX_VMS);
        self.metrics.without_series.set(beyond as i64);
        for account in accounts.vms.iter().take(MAX_VMS) {
            let Some(managed) = self.fleet.vm(account.vm) else {
                continue;
            };
            let labels = VmLabels { vm: managed.vm.name.clone(), pid: managed.vm.process.pid.0 };
            let set = |family: &prometheus_client::metrics::family::Family<_, _>, value: f64| {
                let gauge: &prometheus_client::metrics::gauge::Gauge<f64, _> =
                    &*family.get_or_create(&labels);
                gauge.set(value);
            };
            set(&self.metrics.received, account.received.0 as f64 / per_period);
            set(&self.metrics.fair, account.fair.0 as f64 / per_period);
            set(&self.metrics.lag, account.lag);
            set(&self.metrics.weight, managed.weight().value());
            let flag = |flag: bool| f64::from(u8::from(flag));
            set(&self.metrics.takes_turns, flag(managed.takes_turns()));
            set(&self.metrics.apart, flag(managed.is_divided()));
            let wait_ms = waits.get(&account.vm).map(|wait| wait.0 as f64 / 1e6);
            match wait_ms {
                Some(wait_ms) => set(&self.metrics.wait, wait_ms),
                None => drop(self.metrics.wait.remove(&labels)),
            }
            let account = Due {
                due: account.fair.0 as f64 / per_period,
                received: account.received.0 as f64 / per_period,
                lag: account.lag,
                wait_ms,
            };
            due.insert(managed.vm.id, account);
            present.insert(labels);
        }
        for gone in self.published.difference(&present) {
            self.metrics.forget(gone);
        }
        self.published = present;
        (self.due, self.wanted) = (due, accounts.vcpus.clone());
        if !self.config.dry_run {
            self.write_status(turns);
        }
        if let Some(exporter) = &self.exporter
            && let Err(error) = exporter.publish()
        {
            error!(once = true, "{error}");
        }
    }

    /// Writes the status; a failure is logged only.
    fn write_status(&mut self, turns: Option<TurnStats>) {
        let dir = &self.config.state_dir;
        let written = status::write(dir, &self.fleet, &self.due, &self.wanted, turns, &self.spins);
        if let Err(error) = written {
            error!(once = true, "{error}");
        }
    }
}

/// Adds branch counters to the fleet, if a policy uses them and the host has them.
fn with_counters(fleet: Fleet, config: &HostConfig, spins: &mut Spins) -> Fleet {
    let policies = config.controller().policies;
    if !registry::find(flexs::ENTRY.name).is_ok_and(|flexs| policies.contains(flexs)) {
        return fleet;
    }
    match branch_counters::open(config.counters, ProcFs::host()) {
        Ok(source) => {
            info!("{}", spins::opened(source.source(), config.placement));
            fleet.with_counters(source)
        }
        Err(error) => {
            error!("the policy flexs is off: {error}");
            spins.off = Some(error.to_string());
            fleet
        }
    }
}

/// The accounts of a period.
#[derive(Debug, Default)]
struct Accounts {
    /// Accounts of VMs: smoothed by the policy that keeps them, or else of the period alone.
    vms: Vec<Assessment>,
    /// Demands of single vCPUs, if a policy computes them.
    vcpus: BTreeMap<VmId, BTreeMap<u32, Wanted>>,
}

impl Accounts {
    fn of(decided: Period<Applied>) -> Accounts {
        let Period { observation, round, .. } = decided;
        let period = observation.period.0 as f64;
        let vms = if round.groups.is_empty() {
            assess(observation.period, &observation.vms)
        } else {
            round.groups.into_iter().flat_map(|group| group.vms).collect()
        };
        let wanted = |demand: &VcpuDemand| Wanted {
            due: demand.allocation.0 as f64 / period,
            demand: demand.demand.0 as f64 / period,
            urgency: demand.urgency,
        };
        let vcpus = round.vcpus.iter().map(|(vm, demands)| {
            let of_vm = demands.iter();
            (*vm, of_vm.map(|d| (d.vcpu.0, wanted(d))).collect())
        });
        Accounts { vms, vcpus: vcpus.collect() }
    }
}
