//! `tandem bench changes`: how soon VMs are fair again after one of them starts, sleeps, wakes, stops.
//!
//! Two VMs burn (2 vCPUs and 1, pinned to two pCPUs as operators do) under the daemon. A third starts;
//! later it sleeps for a while (it is stopped by SIGSTOP, which to the host looks as a sleeping guest
//! does), wakes, and in the end stops. After each change the VMs' shares are read every 100 ms.
//!
//! *Fair after* is the earliest moment from which on every VM's share over the following second is
//! within 5 % of what it is due; "not within the phase" if there is none. *Least share of the others*
//! is the smallest share, relative to what it is due, that any other VM had over the first second: it
//! shows whether a VM that slept starves the others.

use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use rustix::process::Pid as RawPid;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde::Serialize;
use tandem_linux::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_policy::PcpuSet;
use tandem_report::experiment::Host;
use tandem_report::table::Table;

use super::write_json;
use crate::console::check_writable;
use crate::console::print;
use crate::demo::DaemonArgs;
use crate::demo::cpu_time::Reading;
use crate::demo::daemon_process::DaemonProcess;
use crate::demo::daemon_process::Selected;
use crate::demo::host_facts;
use crate::demo::plan::Backend;
use crate::demo::plan::VmPlan;
use crate::demo::state_dir;
use crate::demo::state_dir::StateDir;
use crate::demo::vm_process::VmProcess;
use crate::demo::vm_process::stop_all;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

/// Names of this bench's VMs, for the daemon's selection.
const NAMES: &str = "chg*";
/// Time between two readings.
const STEP: Duration = Duration::from_millis(100);
/// Readings that make up the second over which shares are judged.
const JUDGED: usize = 10;
/// How close to what it is due a share must be.
const NEAR: f64 = 0.05;
/// vCPUs of the VMs; the last one is the one that comes and goes.
const VCPUS: [u32; 3] = [2, 1, 1];

/// `tandem bench changes`
#[derive(Debug, Args)]
pub struct ChangesArgs {
    /// Repetitions, 1 … 100
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Seconds after each change, 2 … 600; the third VM sleeps that long
    #[arg(long, default_value_t = 5, value_name = "S")]
    seconds: u32,
    /// What runs the vCPUs
    #[arg(long, value_enum, default_value = "kvm")]
    backend: Backend,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// What one change led to, in one run.
#[derive(Clone, Debug, Serialize)]
struct Change {
    run: u32,
    change: &'static str,
    /// Seconds until all are fair; none if not within the phase.
    fair_after: Option<f64>,
    /// Smallest share ÷ due of the VMs that did not change, over the first second.
    least_of_others: f64,
}

#[derive(Serialize)]
struct Changes {
    host: Host,
    backend: &'static str,
    seconds: u32,
    changes: Vec<Change>,
}

/// Runs the measurement.
pub fn main(args: &ChangesArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=100).contains(&args.runs),
        "--runs {} is not possible: 1 … 100",
        args.runs
    );
    ensure!(
        (2..=600).contains(&args.seconds),
        "--seconds {} is not possible: 2 … 600",
        args.seconds
    );
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let pcpus = host_facts::usable_pcpus()?;
    let uid = rustix::process::getuid().as_raw();
    let path = args
        .state_dir
        .clone()
        .unwrap_or_else(|| state_dir::default_for(uid));
    let dir = StateDir::open(&path)?;
    let progress = Progress::begin(u64::from(args.runs) * 4);
    let mut changes = Vec::new();
    for run in 1..=args.runs {
        let world = World {
            args,
            pcpus: &pcpus,
            dir: &dir,
            interrupt: &interrupt,
        };
        changes.extend(world.run(run, &progress)?);
    }
    dir.finish();
    drop(progress);
    let backend = args.backend.name();
    let figures = Changes {
        host: host_facts::read(),
        backend,
        seconds: args.seconds,
        changes,
    };
    print(&table(&figures).to_string())?;
    args.json
        .as_ref()
        .map_or(Ok(()), |path| write_json(path, &figures))
}

struct World<'a> {
    args: &'a ChangesArgs,
    pcpus: &'a PcpuSet,
    dir: &'a StateDir,
    interrupt: &'a Interrupt,
}

impl World<'_> {
    fn run(&self, run: u32, progress: &Progress) -> anyhow::Result<Vec<Change>> {
        let mut vms = vec![self.boot(0)?, self.boot(1)?];
        let daemon_plan = self.args.daemon.plan()?;
        let selected = Selected::Names(NAMES.to_owned());
        let daemon = DaemonProcess::start(&selected, &daemon_plan, &[], &self.dir.daemon())?;
        self.interrupt.sleep(Duration::from_secs(3))?;
        let mut changes = Vec::new();
        let mut note = |change, judged: (Option<f64>, f64)| {
            let (fair_after, least_of_others) = judged;
            changes.push(Change {
                run,
                change,
                fair_after,
                least_of_others,
            });
            progress.step();
        };

        progress.say(&format!("run {run}: a VM starts"));
        vms.push(self.boot(2)?);
        note("starts", self.phase(&vms, &[0, 1, 2])?);

        progress.say(&format!("run {run}: it sleeps"));
        let sleeper = RawPid::from_raw(vms[2].pid().0 as i32).context("the VM's process id")?;
        kill_process(sleeper, Signal::STOP).context("cannot stop the VM")?;
        let asleep = self.phase(&vms, &[0, 1]);
        // Also where the phase was interrupted: a stopped process would never end.
        kill_process(sleeper, Signal::CONT).context("cannot wake the VM")?;
        note("sleeps", asleep?);

        progress.say(&format!("run {run}: it wakes"));
        note("wakes", self.phase(&vms, &[0, 1, 2])?);

        progress.say(&format!("run {run}: it stops"));
        if let Some(last) = vms.pop() {
            last.stop()?;
        }
        note("stops", self.phase(&vms, &[0, 1])?);
        daemon.stop()?;
        stop_all(vms)?;
        Ok(changes)
    }

    fn boot(&self, index: usize) -> anyhow::Result<VmProcess> {
        let all: Vec<_> = self.pcpus.iter().take(2).collect();
        let plan = VmPlan {
            name: format!("chg{index}"),
            vcpus: VCPUS[index],
            weight: 1.0,
            workload: "burn".to_owned(),
            settings: Vec::new(),
            // Each VM starts one pCPU further than the one before, but for the first two, whose
            // meeting on one pCPU is what makes equal weights unfair.
            pins: (0..VCPUS[index] as usize)
                .map(|vcpu| all[(vcpu + index / 2) % all.len()])
                .collect(),
        };
        let mut vm = VmProcess::start(&plan, self.args.backend, index as u64, self.dir.logs())?;
        vm.ready()?;
        Ok(vm)
    }

    /// Reads shares for the length of a phase; returns when the `awake` VMs were fair, and the least
    /// that the first two had, relative to what they were due, in the first second.
    fn phase(&self, vms: &[VmProcess], awake: &[usize]) -> anyhow::Result<(Option<f64>, f64)> {
        let mut sampler = Sampler::new(ProcFs::host());
        let begin = Instant::now();
        let steps = self.args.seconds * 10;
        let mut readings = vec![Reading::take(&mut sampler, vms, self.pcpus)?];
        for step in 1..=steps {
            self.interrupt.sleep_until(begin + STEP * step)?;
            readings.push(Reading::take(&mut sampler, vms, self.pcpus)?);
        }
        Ok(judge(&readings, awake))
    }
}

/// What each of `awake` had of what it was due, between two readings. All have the same weight, and
/// on two pCPUs nobody's share is infeasible: what they received is due in equal parts.
fn parts(from: &Reading, to: &Reading, awake: &[usize]) -> Vec<f64> {
    let shares = to.shares_since(from);
    let due = awake.iter().map(|&vm| shares[vm]).sum::<f64>() / awake.len() as f64;
    awake.iter().map(|&vm| shares[vm] / due).collect()
}

fn judge(readings: &[Reading], awake: &[usize]) -> (Option<f64>, f64) {
    let seconds: Vec<Vec<f64>> = readings
        .windows(JUDGED + 1)
        .map(|window| parts(&window[0], &window[JUDGED], awake))
        .collect();
    let fair = |parts: &Vec<f64>| parts.iter().all(|part| (part - 1.0).abs() <= NEAR);
    let unfair_for = seconds
        .iter()
        .rposition(|parts| !fair(parts))
        .map_or(0, |last| last + 1);
    let fair_after = (unfair_for < seconds.len()).then(|| unfair_for as f64 * STEP.as_secs_f64());
    let least = seconds.first().map_or(0.0, |first| first[0].min(first[1]));
    (fair_after, least)
}

fn table(figures: &Changes) -> Table {
    let mut table = Table::new(&[
        "run",
        "the third VM",
        "fair after s",
        "least share of the others",
    ]);
    for change in &figures.changes {
        table.row([
            change.run.to_string(),
            change.change.to_owned(),
            change
                .fair_after
                .map_or("not within the phase".to_owned(), |after| {
                    format!("{after:.1}")
                }),
            format!("{:.2}", change.least_of_others),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use tandem_linux::sampler::VcpuSample;
    use tandem_policy::Nanos;

    use super::*;

    /// Readings of two VMs whose shares per step are given in milliseconds.
    fn readings(steps: &[(u64, u64)]) -> Vec<Reading> {
        let begin = Instant::now();
        let mut ran = (0, 0);
        let mut readings = Vec::new();
        for (n, step) in std::iter::once(&(0, 0)).chain(steps).enumerate() {
            ran = (ran.0 + step.0, ran.1 + step.1);
            let vcpu = |ms| {
                vec![VcpuSample {
                    ran: Nanos::from_millis(ms),
                    waited: Nanos::ZERO,
                }]
            };
            readings.push(Reading {
                at: begin + STEP * n as u32,
                vms: vec![vcpu(ran.0), vcpu(ran.1)],
                idle: Nanos::ZERO,
            });
        }
        readings
    }

    #[test]
    fn fair_is_from_when_on_every_second_is_fair() {
        let mut steps = vec![(80, 20); 5];
        steps.extend([(50, 50); 30]);
        let (after, least) = judge(&readings(&steps), &[0, 1]);
        // Half a second of 80:20 is forgotten when less than 17 ms of it are left in the second.
        assert_eq!(after, Some(0.5));
        assert!((least - 0.7).abs() < 1e-9, "{least}");
    }

    #[test]
    fn never_fair_is_said_so() {
        let (after, least) = judge(&readings(&[(80, 20); 30]), &[0, 1]);
        assert_eq!(after, None);
        assert!((least - 0.4).abs() < 1e-9, "{least}");
    }
}
