//! Measures lags of named mixes of VMs, several runs each, with Tandem and in stock.
//!
//! Every run is a separate demo with fresh VMs ([`tandem_demo::demo`]).
//! Figures of a mix:
//!
//! - mean and maximum of |lag| over all VMs and runs, in each mode;
//! - useful work of each mode relative to stock;
//! - idle pCPU time;
//! - the worst windows of any VM;
//! - work relative to the work that the share deserves;
//! - completion times of bursts.
//!
//! Lags and ratios are fractions in the JSON form.

use serde::Serialize;
use tandem_linux::interrupt::Interrupt;
use tandem_model::averages::geometric_mean;
use tandem_report::experiment::{Experiment, Figures, Host, STOCK, VmFigures, mean_and_max};
use tandem_report::progress::Progress;
use tandem_report::service::WindowFigures;

use crate::mixes::{Mix, MixError};
use crate::spread::{CompletionOfRuns, windows_over_runs};
use tandem_demo::alone::AloneResults;
use tandem_demo::demo::DemoError;
use tandem_demo::mode::Mode;
use tandem_demo::plan::Plan;
use tandem_demo::{demo, host_facts};

/// Settings of the suite: mixes, each with its plan on this host.
#[derive(Clone, Debug)]
pub struct Settings {
    runs: u32,
    /// Settings shared by all mixes.
    plan: Plan,
    mixes: Vec<(Mix, Plan)>,
}

impl Settings {
    /// `runs` runs of each of these mixes; the VMs of a mix replace those of `plan`.
    pub fn new(runs: u32, mixes: Vec<Mix>, plan: Plan) -> Result<Settings, MixError> {
        let with_plan = |mix: Mix| {
            let vms = mix.vms(&plan.pcpus)?;
            Ok((mix, Plan { vms, ..plan.clone() }))
        };
        let mixes = mixes.into_iter().map(with_plan);
        Ok(Settings { runs, mixes: mixes.collect::<Result<_, MixError>>()?, plan })
    }

    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        let plans = self.mixes.iter().map(|(_, plan)| demo::steps(plan));
        let alone = demo::steps_alone(self.mixes.iter().map(|(_, plan)| plan));
        alone + plans.sum::<u64>() * u64::from(self.runs)
    }
}

/// The figures of the suite.
#[derive(Clone, Debug, Serialize)]
pub struct Suite {
    /// The host.
    pub host: Host,
    /// Number of usable pCPUs.
    pub pcpus: usize,
    /// Runs of each mix.
    pub runs: u32,
    /// Seconds counted per mode and run.
    pub seconds: f64,
    /// Seconds of settling before, not counted.
    pub settle_seconds: f64,
    /// The mixes.
    pub mixes: Vec<MixFigures>,
}

/// The figures of a mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixFigures {
    /// Its name.
    pub mix: &'static str,
    /// Description of the VMs.
    pub what: &'static str,
    /// Whether vCPUs are pinned.
    pub pinned: bool,
    /// Backend of the vCPUs.
    pub backend: String,
    /// The modes.
    pub modes: Vec<ModeSummary>,
    /// Caveats of the figures.
    pub notes: Vec<String>,
}

/// One mode over all runs of a mix; figures that no run measured are absent.
#[derive(Clone, Debug, Serialize)]
pub struct ModeSummary {
    /// Its name.
    pub mode: &'static str,
    /// Runs in which it was measured.
    pub measured_runs: usize,
    /// Mean of |lag| over VMs and runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_abs_lag: Option<f64>,
    /// Maximum |lag|.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_abs_lag: Option<f64>,
    /// Idle time in pCPUs, mean of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
    /// Useful work relative to stock, mean of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_vs_stock: Option<f64>,
    /// Work relative to the work that the VMs' shares deserve, geometric mean over VMs and runs; absent if VMs were not measured alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deserved_work: Option<f64>,
    /// CPU time relative to the fair share over short windows: minimum and maximum of any VM in any run.
    pub windows: Vec<WindowFigures>,
    /// Completion times of bursts and requests, for VMs that have any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completion: Vec<VmCompletion>,
    /// Reasons why other runs have no figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_measured: Vec<String>,
    /// The VMs of each run.
    pub runs: Vec<Vec<VmFigures>>,
}

/// Completion times of one VM of a mix in a mode, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmCompletion {
    /// Its name.
    pub vm: String,
    /// The times.
    #[serde(flatten)]
    pub times: CompletionOfRuns,
}

/// Runs the suite.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Suite, DemoError> {
    let mut alone = AloneResults::default();
    let measure = |(mix, plan): &(Mix, Plan)| {
        let runs = settings.runs;
        measure_mix(mix, plan.clone(), runs, &mut alone, progress, interrupt)
    };
    let mixes = settings.mixes.iter().map(measure);
    let mixes = mixes.collect::<Result<_, _>>()?;
    Ok(Suite {
        host: host_facts::read(),
        pcpus: settings.plan.pcpus.len(),
        runs: settings.runs,
        seconds: settings.plan.window.as_secs_f64(),
        settle_seconds: settings.plan.settle.as_secs_f64(),
        mixes,
    })
}

fn measure_mix(
    mix: &Mix,
    mut plan: Plan,
    runs: u32,
    alone: &mut AloneResults,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<MixFigures, DemoError> {
    let mut experiments = Vec::new();
    for run in 1..=runs {
        plan.seed = u64::from(run);
        let part = progress.within(&format!("{} run {run}", mix.name));
        experiments.push(demo::run(&plan, alone, &part, interrupt)?);
    }
    let mut notes: Vec<String> = experiments.iter().flat_map(|e| e.notes.clone()).collect();
    notes.sort();
    notes.dedup();
    let mut modes: Vec<ModeSummary> =
        plan.modes.iter().map(|&mode| summary(mode, &experiments)).collect();
    compare_completion(&mut modes);
    Ok(MixFigures {
        mix: mix.name,
        what: mix.what,
        pinned: mix.pinned(),
        backend: experiments.first().map(|e| e.backend.clone()).unwrap_or_default(),
        modes,
        notes,
    })
}

fn summary(mode: Mode, experiments: &[Experiment]) -> ModeSummary {
    let name = mode.name();
    let measured: Vec<_> = experiments.iter().filter_map(|e| e.figures(name)).collect();
    let lags = measured.iter().flat_map(|figures| figures.vms.iter().map(|vm| vm.lag));
    let (mean, max) = mean_and_max(lags);
    let some = |value: f64| (!measured.is_empty()).then_some(value);
    let not_measured =
        experiments.iter().flat_map(|e| &e.modes).filter(|result| result.mode == name);
    ModeSummary {
        mode: name,
        measured_runs: measured.len(),
        mean_abs_lag: some(mean),
        max_abs_lag: some(max),
        idle: average(measured.iter().map(|figures| figures.idle)),
        work_vs_stock: average(measured.iter().filter_map(|figures| figures.work_vs_stock)),
        deserved_work: geometric_mean(
            experiments.iter().filter_map(|e| e.deserved_work(name)).flatten(),
        ),
        windows: windows_over_runs(
            measured.iter().flat_map(|figures| figures.vms.iter().map(|vm| vm.windows.as_slice())),
        ),
        completion: completion_of(&measured),
        not_measured: not_measured
            .filter_map(|result| Some(format!("{name}: {}", result.outcome.as_ref().err()?)))
            .collect(),
        runs: measured.iter().map(|figures| figures.vms.clone()).collect(),
    }
}

/// Returns the completion times of each VM that has any, over the runs.
fn completion_of(runs: &[&Figures]) -> Vec<VmCompletion> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let of_vm = |(i, vm): (usize, &VmFigures)| {
        let of_runs = runs.iter().filter_map(|run| run.vms.get(i));
        Some(VmCompletion {
            vm: vm.name.clone(),
            times: CompletionOfRuns::of(of_runs.filter_map(|vm| vm.completion.as_ref()))?,
        })
    };
    first.vms.iter().enumerate().filter_map(of_vm).collect()
}

/// Sets [`CompletionOfRuns::p99_vs_stock`] of every mode.
fn compare_completion(modes: &mut [ModeSummary]) {
    let stock = modes.iter().find(|mode| mode.mode == STOCK);
    let Some(stock) = stock.map(|mode| mode.completion.clone()) else {
        return;
    };
    for vm in modes.iter_mut().flat_map(|mode| &mut mode.completion) {
        let stock = stock.iter().find(|stock| stock.vm == vm.vm);
        vm.times.p99_vs_stock = stock.and_then(|stock| vm.times.against(&stock.times));
    }
}

fn average(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::experiment::ModeResult;
    use tandem_report::service::{Completion, Waits};

    fn experiment(lags: Result<[f64; 2], &str>) -> Experiment {
        let vm = |lag: f64| VmFigures {
            spins: None,
            name: "vm".to_owned(),
            vcpus: 1,
            weight: 1.0,
            share: 1.0 - lag,
            fair: 1.0,
            lag,
            work: 1,
            work_per_second: 1.0,
            work_of_alone: None,
            windows: Vec::new(),
            waits: Waits { runs: 0, mean_ns: None },
            // Here only VMs with a positive lag have bursts: one for each hundredth of lag.
            completion: (lag > 0.0).then_some(Completion {
                count: (lag * 100.0) as u64,
                dropped: 0,
                mean_ns: None,
                p50_ns: Some(lag * 1e8),
                p99_ns: Some(lag * 2e8),
            }),
        };
        let figures = |lags: [f64; 2]| Figures {
            vms: lags.map(vm).to_vec(),
            idle: 0.1,
            mean_abs_lag: 0.0,
            max_abs_lag: 0.0,
            total_work_per_second: 2.0,
            work_vs_stock: None,
            series: Vec::new(),
        };
        Experiment {
            backend: "kvm".to_owned(),
            pcpus: 2,
            seconds: 10.0,
            settle_seconds: 2.0,
            mix: vec![1, 1],
            weights: vec![1.0, 1.0],
            pinned: true,
            host: Host::default(),
            vms: Vec::new(),
            notes: Vec::new(),
            modes: vec![ModeResult {
                mode: "tandem".to_owned(),
                outcome: lags.map(figures).map_err(str::to_owned),
            }],
        }
    }

    #[test]
    fn lags_cover_vms_and_runs() {
        let runs = [experiment(Ok([0.01, -0.01])), experiment(Ok([0.04, -0.02]))];
        let summary = summary(Mode::Tandem, &runs);
        assert_eq!(summary.mean_abs_lag, Some(0.02));
        assert_eq!(summary.max_abs_lag, Some(0.04));
        assert_eq!((summary.measured_runs, summary.work_vs_stock), (2, None));
    }

    #[test]
    fn completion_times_are_medians_over_runs() {
        let runs = [
            experiment(Ok([0.01, -0.01])),
            experiment(Ok([0.04, -0.02])),
            experiment(Err("no root")),
        ];
        let tandem = summary(Mode::Tandem, &runs);
        let [times] = tandem.completion.as_slice() else {
            panic!("one VM has bursts: {:?}", tandem.completion)
        };
        assert_eq!((times.times.count, times.vm.as_str()), (5, "vm"));
        assert_eq!(times.times.p50_ns.unwrap().median, 2.5e6);
        let mut stock = summary(Mode::Tandem, &runs[..1]);
        stock.mode = STOCK;
        let mut modes = [stock, tandem];
        compare_completion(&mut modes);
        let ratio = |mode: usize| modes[mode].completion[0].times.p99_vs_stock;
        assert_eq!((ratio(0), ratio(1)), (Some(1.0), Some(2.5)));
        assert!(summary(Mode::Tandem, &runs[2..]).completion.is_empty());
    }

    #[test]
    fn unmeasured_figures_are_absent() {
        let summary = summary(Mode::Tandem, &[experiment(Err("no root"))]);
        assert_eq!(summary.mean_abs_lag, None);
        assert_eq!(summary.not_measured, ["tandem: no root"]);
        assert!(!serde_json::to_string(&summary).unwrap().contains("max_abs_lag"));
    }
}
