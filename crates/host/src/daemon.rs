//! The daemon: once per accounting period, see, decide, act.
//!
//! Life: read the settings → open the cgroup controller and the journal (which first puts back what a
//! killed run left behind) → tell the service manager that it is ready → period after period: take in
//! what was found of VMs, let the [`Controller`] observe, decide and apply → on SIGTERM, SIGINT or an
//! error put everything back. VMs are looked for by a thread beside this (`scanner`).
//!
//! Periods are measured, not assumed: what a vCPU ran is scaled to the nominal period, and periods
//! that were missed because the host was busy are skipped, never made up for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use tandem_model::{Decision, VmId};
use tandem_policy::flexw::VcpuDemand;
use tandem_policy::host::{Controller, Period, flexs, registry};
use tandem_policy::{Assessment, assess};
use thiserror::Error;

use crate::apply::{Applied, Refused};
use crate::config::{ConfigError, HostConfig};
use crate::control::Control;
use crate::daemon::deeds::Deeds;
pub use crate::daemon::deeds::InVain;
use crate::demands::SaidDemands;
use crate::discovery::{Discovery, DiscoveryError, Scan, Vm};
use crate::fleet::{Backend, Fleet};
use crate::hint::LeftOutOfTurns;
use crate::metrics::{MOST_VMS, Metrics, VmLabels};
use crate::origin::Origin;
use crate::said::SaidChanges;
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
use tandem_linux::procfs::ProcFs;
use tandem_linux::real_time::go_before_others;
use tandem_linux::sampler::Sampler;
use tandem_linux::service::{ReportOnce, Reporter, ServiceManager, report_restore};
use tandem_linux::signals::{Signals, Wake};
use tandem_linux::thread::ThreadRef;
use tandem_linux::{branch_counters, cgroup};

mod deeds;
mod intent;
mod reload;
mod service;
mod words;

pub use reload::Reload;

/// Why the daemon cannot start or go on.
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
    /// Processes cannot be looked through.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Metrics cannot be offered.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be caught.
    #[error("cannot catch SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
    /// VMs cannot be looked for.
    #[error("cannot start the thread that looks for VMs: {0}")]
    Scanner(std::io::Error),
    /// VMs are not looked for any more.
    #[error("the thread that looks for VMs has ended: please report what it said before")]
    ScannerEnded,
    /// It was all in vain.
    #[error(transparent)]
    InVain(#[from] InVain),
}

/// Looking for VMs for longer than that is worth a line.
const LOOKING: Duration = Duration::from_secs(10);

/// The daemon between start and end.
pub struct Daemon {
    config: HostConfig,
    selector: Selector,
    scanner: Scanner,
    fleet: Fleet,
    controller: Controller,
    metrics: Metrics,
    exporter: Option<Exporter>,
    signals: Signals,
    /// What goes wrong at every scan is worth one line, not one per scan.
    errors: ReportOnce,
    /// Of VMs that are selected by their names alone, whether these count.
    believed: BTreeMap<VmId, bool>,
    /// VMs with series in the metrics.
    published: BTreeSet<VmLabels>,
    /// The VMs of the last rotation.
    rotation: BTreeSet<VmId>,
    /// What a dry run has said.
    said: SaidChanges,
    /// What a dry run has said of what vCPUs want.
    demands: SaidDemands,
    /// What vCPUs' branch counters told.
    spins: Spins,
    /// Whether it was said that turns act on nobody.
    hinted: bool,
    /// Who never sleeps and takes no turns.
    left_out: LeftOutOfTurns,
    /// What is asked for and not seen.
    unseen: Unseen,
    deeds: Deeds,
    /// The last scan.
    scan: Scan,
    /// Its newest accounts and demands of vCPUs.
    due: BTreeMap<VmId, Due>,
    wanted: BTreeMap<VmId, BTreeMap<u32, Wanted>>,
    /// The processes of paused VMs.
    paused: BTreeSet<ThreadRef>,
    /// How settings are read again; `None` without a settings file.
    reload: Option<Reload>,
    control: Option<Control>,
    began: (Instant, SystemTime),
}

impl Daemon {
    /// Checks what [`Daemon::open`] would check of the settings, and opens nothing.
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

    /// Checks the settings, opens what is needed, and puts back what an earlier run left.
    ///
    /// `watchdog` runs [`crate::turns::watchdog::watch`] in a process of its own, should VMs take turns.
    pub fn open(
        config: HostConfig,
        watchdog: Option<Command>,
        reporter: &mut dyn Reporter,
    ) -> Result<Daemon, DaemonError> {
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
            report_restore(&restored, reporter);
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
                reporter.error(&format!(
                    "{error}; other Tandem daemons of this host cannot be told which VMs this one looks after"
                ));
                fleet
            }
        };
        let mut spins = Spins::default();
        let fleet = with_counters(fleet, &config, &mut spins, reporter);
        let paused = service::read_paused(&config, reporter);
        Ok(Daemon {
            controller: Controller::new(config.controller()),
            selector,
            scanner,
            fleet,
            metrics,
            exporter,
            signals,
            errors: ReportOnce::default(),
            believed: BTreeMap::new(),
            published: BTreeSet::new(),
            rotation: BTreeSet::new(),
            said: SaidChanges::default(),
            demands: SaidDemands::default(),
            spins,
            hinted: false,
            left_out: LeftOutOfTurns::default(),
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

    /// Runs until a signal, an error or the end of `limit`, then puts everything back.
    pub fn run(
        mut self,
        limit: Option<Duration>,
        reporter: &mut dyn Reporter,
    ) -> Result<(), DaemonError> {
        let end = limit.map(|limit| Instant::now() + limit);
        let outcome = self.periods(end, reporter);
        // Told to go or failed: either way the host gets its own settings back.
        ServiceManager::stopping();
        self.control = None;
        if let Backend::Live(mut actuator) = self.fleet.into_backend() {
            report_restore(&actuator.restore(), reporter);
        }
        // What is there in a dry run is another daemon's.
        if !self.config.dry_run {
            status::remove(&self.config.state_dir);
        }
        outcome.and_then(|()| Ok(self.deeds.end(self.config.dry_run)?))
    }

    fn periods(
        &mut self,
        end: Option<Instant>,
        reporter: &mut dyn Reporter,
    ) -> Result<(), DaemonError> {
        self.open_control(reporter);
        if !self.config.dry_run {
            if let Err(error) = go_before_others() {
                reporter.info(&format!(
                    "cannot go before other threads of this host (nice -20): {error}; beside many that compute, decisions come late"
                ));
            }
            // Before the first change: whoever asks after kill -9 hears of this daemon.
            self.write_status(None, reporter);
        }
        let found = self.scanner.look().ok_or(DaemonError::ScannerEnded)??;
        self.announce(&found, reporter);
        self.take_in(found, reporter);
        let mut scanned = Instant::now();
        let mut begun = scanned;
        let mut longest = Duration::ZERO;
        self.controller.begin(&mut self.fleet);
        let service_manager = ServiceManager::ready(reporter);
        let mut next = Instant::now() + self.period();
        let mut accounts = Accounts::default();
        while end.is_none_or(|end| next < end) {
            match self.signals.wait_until(next) {
                Wake::Stop => break,
                Wake::Reload => {
                    self.reload(reporter);
                    continue;
                }
                Wake::Time | Wake::Child | Wake::Other => {}
            }
            self.answer(reporter);
            let period = self.period();
            let scan_every = Duration::from_millis(self.config.scan_ms);
            let woke = Instant::now();
            longest = longest.max(woke.duration_since(begun));
            self.metrics.longest_gap.set(longest.as_secs_f64());
            begun = woke;
            if woke.duration_since(next) >= period {
                self.metrics.late.inc();
            }
            if let Some(decided) = self.controller.period(&mut self.fleet) {
                let took = woke.elapsed().as_secs_f64();
                self.metrics.decision.0.observe(took);
                self.account(&decided, reporter);
                accounts = Accounts::of(decided);
            }
            match self.scanner.take() {
                Some(Ok(scan)) => self.take_in(scan, reporter),
                // It may pass, as a want of files does; until then the VMs that are known are looked after.
                Some(Err(error)) => self.errors.error(error, reporter),
                None => {}
            }
            if woke.duration_since(scanned) >= scan_every {
                scanned = woke;
                self.ask_for_vms(reporter)?;
                self.publish(&accounts, reporter);
                service_manager.alive();
            }
            self.metrics.periods.inc();
            next += period;
            // A busy host may have made us miss whole periods: they are over.
            while next <= Instant::now() {
                next += period;
            }
        }
        Ok(())
    }

    /// Says what was done, or would be, and counts it.
    fn account(&mut self, period: &Period<Applied>, reporter: &mut dyn Reporter) {
        self.account_turns(period, reporter);
        self.account_spins(period, reporter);
        if period.applied.is_none() || reporter.is_verbose() {
            self.say_decisions(period, reporter);
        }
        let Some(applied) = &period.applied else {
            self.say_demands(period, reporter);
            return;
        };
        self.deeds.did(applied);
        self.metrics.weights_written.inc_by(applied.weights);
        self.metrics.vcpus_moved.inc_by(applied.moved.len() as u64);
        self.refused(&applied.refused, reporter);
        for decision in &period.round.decisions {
            if let Decision::SetAffinity { vm, vcpu, pcpus, because } = decision
                && applied.moved.contains(&(*vm, *vcpu))
                && let Some(managed) = self.fleet.vm(*vm)
            {
                let name = &managed.vm.name;
                reporter.info(&format!("VM {name} vCPU {vcpu} moved to pCPU {pcpus}: {because}"));
            }
        }
    }

    /// Counts what branch counters told; a dry run says it, too.
    fn account_spins(&mut self, period: &Period<Applied>, reporter: &mut dyn Reporter) {
        for error in self.fleet.counter_errors() {
            self.errors.error(error, reporter);
        }
        self.spins.retain(|vm| self.fleet.vm(vm).is_some());
        let reports = &period.round.spins;
        let made = period.applied.as_ref().map(|applied| &*applied.swaps);
        self.spins.count(reports, made.unwrap_or_default());
        self.metrics.spins.count(reports, made.unwrap_or_default());
        if !self.config.dry_run {
            return;
        }
        for report in self.spins.news(Instant::now(), reports) {
            if let Some(managed) = self.fleet.vm(report.vm) {
                reporter.info(&spins::in_words(&managed.vm.name, report));
            }
        }
    }

    /// Says who takes turns, when that changes.
    fn account_turns(&mut self, period: &Period<Applied>, reporter: &mut dyn Reporter) {
        for error in self.fleet.turn_errors() {
            self.errors.error(error, reporter);
        }
        let Some(rotation) = &period.round.rotation else {
            return;
        };
        let left_out = period.round.left_out_of_turns.iter();
        let left_out: Vec<&str> =
            left_out.filter_map(|vm| Some(self.fleet.vm(*vm)?.vm.name.as_str())).collect();
        if let Some(line) = self.left_out.news(&left_out) {
            reporter.info(&line);
        }
        // One that could not be made ready takes none.
        let takes_turns = |vm: &VmId| {
            let managed = self.fleet.vm(*vm);
            self.config.dry_run || managed.is_some_and(|managed| managed.in_force.rotating)
        };
        let members = rotation.members.iter().map(|member| member.vm);
        let now: BTreeSet<VmId> = members.filter(takes_turns).collect();
        if now == self.rotation {
            return;
        }
        let names: Vec<&str> =
            now.iter().filter_map(|vm| Some(self.fleet.vm(*vm)?.vm.name.as_str())).collect();
        let names = names.join(", ");
        let line = match now.is_empty() {
            true => "no VMs take turns any more".to_owned(),
            false => format!(
                "VMs {names} never sleep: they take turns of {} ms",
                rotation.turn.as_secs_f64() * 1e3
            ),
        };
        match self.config.dry_run {
            true => reporter.would(&line.replace("they take turns", "they would take turns")),
            false => {
                self.deeds.changed_something();
                reporter.info(&line);
            }
        }
        self.rotation = now;
    }

    /// Has VMs looked for, and says what is in the way.
    fn ask_for_vms(&mut self, reporter: &mut dyn Reporter) -> Result<(), DaemonError> {
        if !self.scanner.ask() {
            return Err(DaemonError::ScannerEnded);
        }
        if self.scanner.looking() > LOOKING {
            let line = "looking for VMs takes more than 10 s: until it is done, those that are known are looked after, and new ones are not";
            self.errors.error(line, reporter);
        }
        if let Some(most) = self.fleet.overflow() {
            let line = format!(
                "there are more than {most} vCPUs, and for two open files of each this process may have too few: those of the others are opened at every \
                 reading, which costs more; raise the limit (LimitNOFILE= in the service, or ulimit -n)"
            );
            self.errors.error(line, reporter);
        }
        Ok(())
    }

    fn period(&self) -> Duration {
        Duration::from_nanos(self.config.period().0)
    }

    /// Takes in what VMs there are now.
    fn take_in(&mut self, scan: Scan, reporter: &mut dyn Reporter) {
        let present: BTreeSet<VmId> = scan.vms.iter().map(|vm| vm.id).collect();
        self.believed.retain(|vm, _| present.contains(vm));
        let processes: BTreeSet<ThreadRef> = scan.vms.iter().map(|vm| vm.process).collect();
        self.paused.retain(|process| processes.contains(process));
        self.scan = scan;
        self.follow_scan(reporter);
    }

    /// Brings the fleet in line with the last scan, the selection and pauses.
    fn follow_scan(&mut self, reporter: &mut dyn Reporter) {
        let scan = std::mem::take(&mut self.scan);
        let selected: Vec<Vm> = scan
            .vms
            .iter()
            .filter(|vm| self.is_selected(vm, reporter) && !self.paused.contains(&vm.process))
            .cloned()
            .collect();
        let is_root = rustix::process::geteuid().is_root();
        for line in self.unseen.news(&scan, &self.config, is_root) {
            reporter.info(&line);
        }
        let (notes, refused) = self.fleet.update(&selected, &scan.vms);
        self.deeds.took |= self.fleet.vms().next().is_some();
        if self.fleet.vms().any(|managed| managed.made) {
            self.deeds.changed_something();
        }
        for note in notes {
            match self.config.dry_run && note.0.starts_with("would") {
                true => reporter.would(&note.0),
                false => reporter.info(&note.0),
            }
        }
        self.refused(&refused, reporter);
        self.hint(reporter);
        for problem in &scan.problems {
            self.errors.error(problem, reporter);
        }
        self.scan = scan;
    }

    /// Whether to act on a VM. One that is selected by its name alone must come from who runs this host.
    fn is_selected(&mut self, vm: &Vm, reporter: &mut dyn Reporter) -> bool {
        let controller = self.fleet.controller();
        if !self.selector.matches_by_name_alone(vm, controller) {
            return self.selector.matches(vm, controller);
        }
        *self.believed.entry(vm.id).or_insert_with(|| {
            let origin = Origin::of(vm, &ProcFs::host(), controller);
            if !origin.is_operators {
                reporter.info(&format!(
                    "VM {} (pid {}, {origin}) is left alone: names count of root's VMs and in /machine.slice; select this one by its cgroup or process",
                    vm.name, vm.process.pid
                ));
            }
            origin.is_operators
        })
    }

    /// Says once that turns have nobody to act on.
    fn hint(&mut self, reporter: &mut dyn Reporter) {
        if self.hinted {
            return;
        }
        let vms = self.fleet.vms().map(|managed| {
            let allowed = managed.allowed().into_iter();
            let allowed = allowed.map(|(_, pcpus)| pcpus).collect();
            (managed.policies, allowed)
        });
        if let Some(line) = hint::on_turns(self.config.placement, vms) {
            reporter.info(line);
            self.hinted = true;
        }
    }

    fn refused(&mut self, refused: &[Refused], reporter: &mut dyn Reporter) {
        self.deeds.could_not(refused);
        for refused in refused {
            self.metrics.errors.inc();
            match refused.is_others {
                true => self.errors.warning(refused.in_words(), reporter),
                false => self.errors.error(refused.in_words(), reporter),
            }
        }
    }

    /// Brings status and metrics up to date.
    fn publish(&mut self, accounts: &Accounts, reporter: &mut dyn Reporter) {
        let per_period = self.config.period().0 as f64;
        let waits = self.fleet.mark_waits();
        let turns = self.fleet.turn_stats();
        if let Some(turns) = &turns {
            self.metrics.turns.set(turns);
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
        let beyond = accounts.vms.len().saturating_sub(MOST_VMS);
        self.metrics.without_series.set(beyond as i64);
        for account in accounts.vms.iter().take(MOST_VMS) {
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
            set(&self.metrics.weight, managed.in_force.weight.value());
            let flag = |flag: bool| f64::from(u8::from(flag));
            set(&self.metrics.takes_turns, flag(managed.in_force.rotating));
            set(&self.metrics.apart, flag(managed.is_apart()));
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
            self.write_status(turns, reporter);
        }
        if let Some(exporter) = &self.exporter
            && let Err(error) = exporter.publish()
        {
            self.errors.error(error, reporter);
        }
    }

    /// Without a status others know less; that is no reason to end.
    fn write_status(&mut self, turns: Option<TurnStats>, reporter: &mut dyn Reporter) {
        let dir = &self.config.state_dir;
        let written = status::write(dir, &self.fleet, &self.due, &self.wanted, turns, &self.spins);
        if let Err(error) = written {
            self.errors.error(error, reporter);
        }
    }
}

/// The fleet with branch counters, if a policy asks for them and there are any.
fn with_counters(
    fleet: Fleet,
    config: &HostConfig,
    spins: &mut Spins,
    reporter: &mut dyn Reporter,
) -> Fleet {
    let policies = config.controller().policies;
    if !registry::find(flexs::ENTRY.name).is_ok_and(|flexs| policies.contains(flexs)) {
        return fleet;
    }
    match branch_counters::open(config.counters, ProcFs::host()) {
        Ok(source) => {
            reporter.info(&spins::opened(source.source(), config.placement));
            fleet.with_counters(source)
        }
        Err(error) => {
            reporter.error(&format!("the policy flexs is off: {error}"));
            spins.off = Some(error.to_string());
            fleet
        }
    }
}

/// The accounts of a period.
#[derive(Debug, Default)]
struct Accounts {
    /// Each VM's: smoothed, from a policy that keeps it, or else of that period alone.
    vms: Vec<Assessment>,
    /// What single vCPUs want, where a policy looks at them.
    vcpus: BTreeMap<VmId, BTreeMap<u32, Wanted>>,
}

impl Accounts {
    fn of(decided: Period<Applied>) -> Accounts {
        let Period { observation, round, .. } = decided;
        let period = observation.period.0 as f64;
        let vms = match round.groups.is_empty() {
            true => assess(observation.period, &observation.vms),
            false => round.groups.into_iter().flat_map(|group| group.vms).collect(),
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
