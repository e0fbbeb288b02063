//! `tandem bench fairness`: lags over named mixes of VMs, several runs each, stock against Tandem.
//!
//! Every run is a demo of its own with fresh VMs ([`crate::demo::stage`]). Per mix: mean and maximum
//! of |lag| over all VMs and runs, for stock weights and for Tandem; useful work of Tandem against
//! stock; idle pCPU time under a hard cap. Lags and comparisons are fractions in the JSON form.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use tandem_report::experiment::Experiment;
use tandem_report::experiment::Host;
use tandem_report::experiment::STOCK;
use tandem_report::experiment::VmFigures;
use tandem_report::experiment::mean_and_max;
use tandem_report::experiment_table::tone;
use tandem_report::figure;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;

use super::mixes;
use super::mixes::Mix;
use super::write_json;
use crate::console::check_writable;
use crate::console::print;
use crate::demo::DaemonArgs;
use crate::demo::host_facts;
use crate::demo::mode::Mode;
use crate::demo::plan;
use crate::demo::plan::Backend;
use crate::demo::plan::Plan;
use crate::demo::stage;
use crate::demo::state_dir;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

const SETTLE: Duration = Duration::from_secs(2);

/// `tandem bench fairness`
#[derive(Debug, Args)]
pub struct FairnessArgs {
    /// Runs of each mix, 1 … 100
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Seconds counted per mode and run, 0.5 … 3600
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Mixes to run [default: all]; an unknown name lists them
    #[arg(long, value_name = "NAME,…")]
    mixes: Option<String>,
    /// Modes to measure [default: equal-weights,hard-cap,tandem]
    #[arg(
        long,
        value_name = "NAME,…",
        default_value = "equal-weights,hard-cap,tandem"
    )]
    modes: String,
    /// What runs the vCPUs [default: kvm, or threads where there is no KVM]
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Serialize)]
struct Suite {
    host: Host,
    pcpus: usize,
    runs: u32,
    seconds: f64,
    settle_seconds: f64,
    mixes: Vec<MixFigures>,
}

#[derive(Serialize)]
struct MixFigures {
    mix: &'static str,
    what: &'static str,
    pinned: bool,
    backend: String,
    modes: Vec<ModeSummary>,
    notes: Vec<String>,
}

/// One mode over all runs of a mix; what no run measured is absent.
#[derive(Serialize)]
struct ModeSummary {
    mode: &'static str,
    measured_runs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_abs_lag: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_abs_lag: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    work_vs_stock: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_measured: Vec<String>,
    runs: Vec<Vec<VmFigures>>,
}

/// Runs the suite.
pub fn main(args: &FairnessArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=100).contains(&args.runs),
        "--runs {} is not possible: 1 … 100",
        args.runs
    );
    let window = plan::seconds("--seconds", args.seconds, 0.5, 3600.0)?;
    let chosen = mixes::chosen(args.mixes.as_deref())?;
    let modes = crate::demo::mode::list(&args.modes)?;
    let pcpus = host_facts::usable_pcpus()?;
    let uid = rustix::process::getuid().as_raw();
    let mut plans = Vec::new();
    for mix in chosen {
        let plan = Plan {
            vms: mix.vms(&pcpus)?,
            modes: modes.clone(),
            window,
            settle: SETTLE,
            backend: args.backend,
            seed: 1,
            daemon: args.daemon.plan()?,
            state_dir: args
                .state_dir
                .clone()
                .unwrap_or_else(|| state_dir::default_for(uid)),
            pcpus: pcpus.clone(),
        };
        plans.push((mix, plan));
    }
    if let Some(path) = &args.json {
        check_writable(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let steps = plans
        .iter()
        .map(|(_, plan)| stage::steps(plan))
        .sum::<u64>();
    let progress = Progress::begin(steps * u64::from(args.runs));
    let mut figures = Vec::new();
    for (mix, plan) in plans {
        figures.push(measure(&mix, plan, args.runs, &progress, &interrupt)?);
    }
    drop(progress);
    let suite = Suite {
        host: host_facts::read(),
        pcpus: pcpus.len(),
        runs: args.runs,
        seconds: args.seconds,
        settle_seconds: SETTLE.as_secs_f64(),
        mixes: figures,
    };
    print(&table(&suite).to_string())?;
    for mix in &suite.mixes {
        for note in mix
            .notes
            .iter()
            .chain(mix.modes.iter().flat_map(|mode| &mode.not_measured))
        {
            eprintln!("{}: {note}", mix.mix);
        }
    }
    args.json
        .as_ref()
        .map_or(Ok(()), |path| write_json(path, &suite))
}

fn measure(
    mix: &Mix,
    mut plan: Plan,
    runs: u32,
    progress: &Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<MixFigures> {
    let mut experiments = Vec::new();
    for run in 1..=runs {
        plan.seed = u64::from(run);
        let part = progress.within(&format!("{} run {run}", mix.name));
        experiments.push(stage::run(&plan, &part, interrupt)?);
    }
    let mut notes: Vec<String> = experiments.iter().flat_map(|e| e.notes.clone()).collect();
    notes.sort();
    notes.dedup();
    Ok(MixFigures {
        mix: mix.name,
        what: mix.what,
        pinned: mix.pinned(),
        backend: experiments
            .first()
            .map(|e| e.backend.clone())
            .unwrap_or_default(),
        modes: plan
            .modes
            .iter()
            .map(|&mode| summary(mode, &experiments))
            .collect(),
        notes,
    })
}

fn summary(mode: Mode, experiments: &[Experiment]) -> ModeSummary {
    let name = mode.name();
    let measured: Vec<_> = experiments.iter().filter_map(|e| e.figures(name)).collect();
    let lags = measured
        .iter()
        .flat_map(|figures| figures.vms.iter().map(|vm| vm.lag));
    let (mean, max) = mean_and_max(lags);
    let some = |value: f64| (!measured.is_empty()).then_some(value);
    let not_measured = experiments
        .iter()
        .flat_map(|e| &e.modes)
        .filter(|result| result.mode == name);
    ModeSummary {
        mode: name,
        measured_runs: measured.len(),
        mean_abs_lag: some(mean),
        max_abs_lag: some(max),
        idle: average(measured.iter().map(|figures| figures.idle)),
        work_vs_stock: average(measured.iter().filter_map(|figures| figures.work_vs_stock)),
        not_measured: not_measured
            .filter_map(|result| Some(format!("{name}: {}", result.outcome.as_ref().err()?)))
            .collect(),
        runs: measured.iter().map(|figures| figures.vms.clone()).collect(),
    }
}

fn average(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn table(suite: &Suite) -> Table {
    let mut table = Table::new(&[
        "mix",
        "stock mean",
        "stock max",
        "Tandem mean",
        "Tandem max",
        "work vs stock",
        "hard cap idle",
    ]);
    for mix in &suite.mixes {
        let of = |name: &str| mix.modes.iter().find(|mode| mode.mode == name);
        let (stock, tandem) = (of(STOCK), of(Mode::Tandem.name()));
        let lag = |lag: Option<f64>| match lag {
            Some(lag) => Cell::toned(figure::percent(lag), tone(lag)),
            None => absent(),
        };
        let work = tandem.and_then(|mode| mode.work_vs_stock);
        let idle = of(Mode::HardCap.name()).and_then(|mode| mode.idle);
        table.row([
            Cell::toned(mix.mix, Tone::Strong),
            lag(stock.and_then(|mode| mode.mean_abs_lag)),
            lag(stock.and_then(|mode| mode.max_abs_lag)),
            lag(tandem.and_then(|mode| mode.mean_abs_lag)),
            lag(tandem.and_then(|mode| mode.max_abs_lag)),
            work.map_or_else(absent, |ratio| figure::signed_percent(ratio - 1.0).into()),
            idle.map_or_else(absent, |idle| figure::pcpus(idle).into()),
        ]);
    }
    table
}

fn absent() -> Cell {
    Cell::toned(figure::NOT_MEASURED, Tone::Faint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::experiment::Figures;
    use tandem_report::experiment::ModeResult;

    fn experiment(lags: Result<[f64; 2], &str>) -> Experiment {
        let vm = |lag: f64| VmFigures {
            name: "vm".to_owned(),
            vcpus: 1,
            weight: 1.0,
            share: 1.0 - lag,
            fair: 1.0,
            lag,
            work: 1,
            work_per_second: 1.0,
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
    fn mean_and_maximum_are_over_vms_and_runs() {
        let runs = [experiment(Ok([0.01, -0.01])), experiment(Ok([0.04, -0.02]))];
        let summary = summary(Mode::Tandem, &runs);
        assert_eq!(summary.mean_abs_lag, Some(0.02));
        assert_eq!(summary.max_abs_lag, Some(0.04));
        assert_eq!((summary.measured_runs, summary.work_vs_stock), (2, None));
    }

    #[test]
    fn what_was_not_measured_is_absent() {
        let summary = summary(Mode::Tandem, &[experiment(Err("no root"))]);
        assert_eq!(summary.mean_abs_lag, None);
        assert_eq!(summary.not_measured, ["tandem: no root"]);
        assert!(
            !serde_json::to_string(&summary)
                .unwrap()
                .contains("max_abs_lag")
        );
    }
}
