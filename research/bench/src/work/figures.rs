//! The figures of the bench in its JSON form: medians and ranges over runs, and a comparison of Tandem with stock over all cells.
//!
//! Work is relative to the same VM alone, CPU time in pCPUs, waits and completion times in nanoseconds.
//! Unmeasured figures are absent.

use serde::Serialize;
use tandem_model::averages::geometric_mean;
use tandem_report::experiment::{Experiment, Host, VmFigures};
use tandem_report::service::{Alone, WindowFigures};

use super::cell::{Cell, waits_by_spinning};
use crate::spread::{CompletionOfRuns, Spread, windows_over_runs};
use tandem_demo::mode::Mode;
use tandem_demo::plan::Plan;

/// A cell is worse than stock if its work relative to stock is below this ratio.
pub const WORSE: f64 = 0.97;

/// Figures of the bench.
#[derive(Clone, Debug, Serialize)]
pub struct Work {
    /// The host.
    pub host: Host,
    /// Backend of the vCPUs.
    pub backend: String,
    /// Number of usable pCPUs.
    pub pcpus: usize,
    /// Runs of each cell.
    pub runs: u32,
    /// Seconds counted per mode and run; cells with a server cover whole rounds of it, see [`CellFigures::seconds`].
    pub seconds: f64,
    /// Seconds of settling before, not counted.
    pub settle_seconds: f64,
    /// Seconds for which each distinct VM was measured alone.
    pub alone_seconds: f64,
    /// The cells.
    pub cells: Vec<CellFigures>,
    /// Tandem compared with stock; absent if no cell has both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tandem_vs_stock: Option<AgainstStock>,
    /// Caveats of the figures.
    pub notes: Vec<String>,
}

/// One cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellFigures {
    /// Description of the cell.
    pub cell: String,
    /// The subject's workload.
    pub workload: &'static str,
    /// The subject's vCPUs.
    pub vcpus: u32,
    /// `free` or `pinned`.
    pub placement: &'static str,
    /// The neighbours.
    pub beside: String,
    /// Seconds counted per mode and run.
    pub seconds: f64,
    /// The VMs, the subject first.
    pub vms: Vec<CellVm>,
    /// The modes.
    pub modes: Vec<CellMode>,
}

/// A VM of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellVm {
    /// Its workload.
    pub workload: &'static str,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Whether it is a subject of the cell.
    pub is_subject: bool,
    /// Its work alone, and the part of it that its share deserves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
}

/// A mode of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellMode {
    /// Name of the mode; `stock` is the demo's `equal-weights`.
    pub mode: &'static str,
    /// Runs in which it was measured.
    pub measured_runs: usize,
    /// Reasons why other runs have no figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_measured: Vec<String>,
    /// The VMs in the order of the cell; empty if no run measured them.
    pub vms: Vec<ModeVm>,
}

/// A VM in a mode, over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct ModeVm {
    /// Work relative to the VM alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_of_alone: Option<Spread>,
    /// CPU time received, in pCPUs.
    pub share: Spread,
    /// Fair share of the CPU time that all VMs received, in pCPUs.
    pub fair: Spread,
    /// Mean wait of a vCPU before it ran, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<Spread>,
    /// CPU time relative to the fair share over short windows: minimum and maximum of all runs.
    pub windows: Vec<WindowFigures>,
    /// Completion times of its bursts or requests; absent if its workload has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<CompletionOfRuns>,
}

/// Work under Tandem relative to stock, over all subjects of all cells; a pair counts once for each of its two VMs.
/// Neighbours may lose the work that subjects gain, so `all` covers every VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgainstStock {
    /// Number of compared subjects: those with some work in stock.
    pub cells: usize,
    /// Geometric mean of the ratios of medians.
    pub geometric_mean: f64,
    /// Number of ratios below 0.97.
    pub below: usize,
    /// Minimum ratio.
    pub least: f64,
    /// The cell with the minimum ratio.
    pub least_cell: String,
    /// All VMs, including neighbours.
    pub all: Ratios,
    /// All VMs that wait by spinning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinning: Option<Ratios>,
    /// All other VMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_spinning: Option<Ratios>,
}

/// Ratios of several VMs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Number of VMs.
    pub vms: usize,
    /// Geometric mean; a VM with almost no work in stock can dominate it.
    pub geometric_mean: f64,
    /// Median.
    pub median: f64,
    /// Number of ratios below 0.97.
    pub below: usize,
    /// Minimum.
    pub least: f64,
}

impl Ratios {
    fn of(ratios: impl Iterator<Item = f64> + Clone) -> Option<Ratios> {
        let spread = Spread::of(ratios.clone())?;
        Some(Ratios {
            vms: ratios.clone().count(),
            geometric_mean: geometric_mean(ratios.clone())?,
            median: spread.median,
            below: ratios.filter(|ratio| *ratio < WORSE).count(),
            least: spread.least,
        })
    }
}

/// Returns a mode's name in this bench.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::EqualWeights => "stock",
        other => other.name(),
    }
}

/// Computes a cell's figures from its runs and the errors of failed runs.
pub fn summarize(
    cell: &Cell,
    plan: &Plan,
    runs: &[Experiment],
    failures: &[String],
) -> CellFigures {
    let described = runs.first().map(|run| run.vms.as_slice());
    let vm = |(i, workload): (usize, &'static str)| {
        let described = described.and_then(|vms| vms.get(i));
        CellVm {
            workload,
            vcpus: described.map_or(cell.vcpus, |vm| vm.vcpus),
            is_subject: i < cell.subjects(),
            alone: described.and_then(|vm| vm.alone),
        }
    };
    let vms: Vec<CellVm> = cell.workloads().into_iter().enumerate().map(vm).collect();
    let modes = plan.modes.iter();
    let mut modes: Vec<CellMode> =
        modes.map(|&mode| of_mode(mode, vms.len(), runs, failures)).collect();
    compare_completion(&mut modes);
    CellFigures {
        cell: cell.to_string(),
        workload: cell.subject.name,
        vcpus: cell.vcpus,
        placement: cell.freedom.name(),
        beside: cell.beside(),
        seconds: plan.window.as_secs_f64(),
        modes,
        vms,
    }
}

fn of_mode(mode: Mode, vms: usize, runs: &[Experiment], failures: &[String]) -> CellMode {
    let name = mode.name();
    let measured: Vec<_> = runs.iter().filter_map(|run| run.figures(name)).collect();
    let reasons = runs.iter().flat_map(|run| &run.modes);
    let reasons = reasons.filter(|result| result.mode == name);
    let reasons = reasons.filter_map(|result| result.outcome.as_ref().err());
    let vm = |i: usize| {
        let of_runs: Vec<&VmFigures> = measured.iter().filter_map(|run| run.vms.get(i)).collect();
        Some(ModeVm {
            work_of_alone: Spread::of(of_runs.iter().filter_map(|vm| vm.work_of_alone)),
            share: Spread::of(of_runs.iter().map(|vm| vm.share))?,
            fair: Spread::of(of_runs.iter().map(|vm| vm.fair))?,
            wait_ns: Spread::of(of_runs.iter().filter_map(|vm| vm.waits.mean_ns)),
            windows: windows_over_runs(of_runs.iter().map(|vm| vm.windows.as_slice())),
            completion: CompletionOfRuns::of(
                of_runs.iter().filter_map(|vm| vm.completion.as_ref()),
            ),
        })
    };
    CellMode {
        mode: mode_name(mode),
        measured_runs: measured.len(),
        not_measured: reasons.chain(failures).cloned().collect(),
        vms: (0..vms).filter_map(vm).collect(),
    }
}

/// Sets [`CompletionOfRuns::p99_vs_stock`] of every mode.
fn compare_completion(modes: &mut [CellMode]) {
    let stock = mode_name(Mode::EqualWeights);
    let Some(stock) = modes.iter().find(|mode| mode.mode == stock) else {
        return;
    };
    let stock: Vec<_> = stock.vms.iter().map(|vm| vm.completion.clone()).collect();
    for mode in modes {
        for (vm, stock) in mode.vms.iter_mut().zip(&stock) {
            if let (Some(times), Some(stock)) = (&mut vm.completion, stock) {
                times.p99_vs_stock = times.against(stock);
            }
        }
    }
}

impl CellFigures {
    /// Returns a VM's figures in a mode, by the mode's name in this bench.
    pub fn vm_in(&self, mode: &str, vm: usize) -> Option<&ModeVm> {
        self.modes.iter().find(|m| m.mode == mode)?.vms.get(vm)
    }

    /// Returns a VM's median work relative to alone in a mode.
    pub fn work(&self, mode: &str, vm: usize) -> Option<f64> {
        Some(self.vm_in(mode, vm)?.work_of_alone?.median)
    }

    /// Returns the indices of its subjects, and their names in a list of all cells.
    pub fn subjects(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        let subjects = self.vms.iter().enumerate().filter(|(_, vm)| vm.is_subject);
        subjects.map(|(i, vm)| match i {
            0 => (0, self.cell.clone()),
            _ => {
                let (vcpus, placement) = (self.vcpus, self.placement);
                let (own, other) = (vm.workload, self.workload);
                (i, format!("{own}, {vcpus} vCPUs, {placement}, beside {other}"))
            }
        })
    }
}

/// Compares Tandem with stock over all cells.
pub fn against_stock(cells: &[CellFigures]) -> Option<AgainstStock> {
    let mut subjects: Vec<(f64, String)> = Vec::new();
    let mut all: Vec<(f64, &'static str)> = Vec::new();
    for cell in cells {
        let ratio = |vm: usize| {
            let stock = cell.work(mode_name(Mode::EqualWeights), vm)?;
            (stock > 0.0).then_some(cell.work("tandem", vm)? / stock)
        };
        let subject = |(vm, name)| Some((ratio(vm)?, name));
        subjects.extend(cell.subjects().filter_map(subject));
        let vms = cell.vms.iter().enumerate();
        all.extend(vms.filter_map(|(i, vm)| Some((ratio(i)?, vm.workload))));
    }
    let (least, least_cell) = subjects.iter().min_by(|a, b| a.0.total_cmp(&b.0))?.clone();
    let of = |spins: bool| {
        let those = all.iter().filter(move |(_, name)| waits_by_spinning(name) == spins);
        Ratios::of(those.map(|(ratio, _)| *ratio))
    };
    Some(AgainstStock {
        cells: subjects.len(),
        geometric_mean: geometric_mean(subjects.iter().map(|(ratio, _)| *ratio))?,
        below: subjects.iter().filter(|(ratio, _)| *ratio < WORSE).count(),
        least,
        least_cell,
        all: Ratios::of(all.iter().map(|(ratio, _)| *ratio))?,
        spinning: of(true),
        not_spinning: of(false),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use tandem_report::experiment::{Figures, ModeResult, VmDescription};
    use tandem_report::service::{Completion, Waits};

    use super::*;
    use crate::work::cell::{Choice, SUBJECTS};
    use tandem_demo::test_plan;

    /// A run of a cell with the first VM's work relative to alone in stock and under Tandem; 0.5 for the others.
    fn run(vms: usize, stock: f64, tandem: Result<f64, &str>) -> Experiment {
        let figures = |work: f64| Figures {
            vms: (0..vms)
                .map(|i| VmFigures {
                    spins: None,
                    name: format!("vm{i}"),
                    vcpus: 2,
                    weight: 1.0,
                    share: 1.0,
                    fair: 1.0,
                    lag: 0.0,
                    work: 1,
                    work_per_second: 1.0,
                    work_of_alone: Some(if i == 0 { work } else { 0.5 }),
                    windows: vec![WindowFigures {
                        seconds: 1.0,
                        windows: 4,
                        least: Some(work),
                        greatest: Some(1.5),
                    }],
                    waits: Waits { runs: 1, mean_ns: Some(1e6) },
                    completion: (i == 0).then_some(Completion {
                        count: 50,
                        dropped: 1,
                        mean_ns: Some(1e6),
                        p50_ns: Some(1e6),
                        p99_ns: Some(1e6 / work),
                    }),
                })
                .collect(),
            idle: 0.0,
            mean_abs_lag: 0.0,
            max_abs_lag: 0.0,
            total_work_per_second: 1.0,
            work_vs_stock: None,
            series: Vec::new(),
        };
        let mode = |mode: &str, outcome| ModeResult { mode: mode.to_owned(), outcome };
        Experiment {
            backend: "kvm".to_owned(),
            pcpus: 2,
            seconds: 3.0,
            settle_seconds: 1.0,
            mix: vec![2; vms],
            weights: vec![1.0; vms],
            pinned: false,
            host: Host::default(),
            vms: (0..vms)
                .map(|i| VmDescription {
                    name: format!("vm{i}"),
                    vcpus: 2,
                    weight: 1.0,
                    workload: "burn".to_owned(),
                    pins: Vec::new(),
                    entitlement: 1.0,
                    alone: Some(Alone { work_per_second: 10.0, share: 2.0, deserved: 0.5 }),
                })
                .collect(),
            notes: Vec::new(),
            modes: vec![
                mode("equal-weights", Ok(figures(stock))),
                mode("tandem", tandem.map(figures).map_err(str::to_owned)),
            ],
        }
    }

    /// Three runs of the spinning barrier with one computing neighbour, and one of a pair of mutexes.
    pub(crate) fn cells() -> Vec<CellFigures> {
        let plan = Plan {
            modes: vec![Mode::EqualWeights, Mode::Tandem],
            window: Duration::from_secs(3),
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        let barrier = Choice::parse(&SUBJECTS, Some("barrier-spin"), "2", "free", "burn1");
        let barrier = barrier.unwrap().cells()[0];
        let runs = [
            run(2, 0.02, Ok(0.42)),
            run(2, 0.25, Ok(0.44)),
            run(2, 0.10, Err("the daemon said: no")),
        ];
        let mutex = Choice::parse(&SUBJECTS, Some("mutex"), "4", "pinned", "pairs");
        let mutex = mutex.unwrap().cells()[0];
        vec![
            summarize(&barrier, &plan, &runs, &[]),
            summarize(&mutex, &plan, &[run(2, 0.5, Ok(0.45))], &["a VM ended".to_owned()]),
        ]
    }

    #[test]
    fn runs_yield_medians_and_ranges() {
        let cells = cells();
        let stock = cells[0].vm_in("stock", 0).unwrap().work_of_alone.unwrap();
        assert_eq!((stock.median, stock.least, stock.greatest), (0.10, 0.02, 0.25));
        let tandem = &cells[0].modes[1];
        assert_eq!((tandem.measured_runs, tandem.not_measured.len()), (2, 1));
        assert!((cells[0].work("tandem", 0).unwrap() - 0.43).abs() < 1e-12);
        let windows = &cells[0].vm_in("stock", 0).unwrap().windows;
        assert_eq!((windows[0].windows, windows[0].least), (12, Some(0.02)));
        assert_eq!(cells[1].modes[0].not_measured, ["a VM ended"]);
    }

    #[test]
    fn completion_ratios_use_medians_of_p99() {
        let cells = cells();
        let of = |mode: &str, vm: usize| cells[0].vm_in(mode, vm).unwrap().completion.as_ref();
        let (stock, tandem) = (of("stock", 0).unwrap(), of("tandem", 0).unwrap());
        // The median of 50, 4 and 10 ms; the mean of 1/0.42 and 1/0.44 ms.
        assert!((stock.p99_ns.unwrap().median - 10e6).abs() < 1.0);
        assert_eq!((stock.count, stock.dropped), (150, 3));
        assert_eq!(stock.p99_vs_stock, Some(1.0));
        let expected = (1.0 / 0.42 + 1.0 / 0.44) / 2.0 / 10.0;
        assert!((tandem.p99_vs_stock.unwrap() - expected).abs() < 1e-9);
        assert_eq!(of("stock", 1), None, "a VM without bursts");
    }

    #[test]
    fn pairs_count_twice_in_ratios() {
        let figures = against_stock(&cells()).unwrap();
        assert_eq!((figures.cells, figures.below), (3, 1));
        // 0.43 ÷ 0.10, 0.45 ÷ 0.5, 1.
        let expected = (4.3f64 * 0.9).powf(1.0 / 3.0);
        assert!((figures.geometric_mean - expected).abs() < 1e-9);
        assert_eq!(figures.least_cell, "mutex, 4 vCPUs, pinned, beside mutex");
        assert!((figures.least - 0.9).abs() < 1e-9);
        assert_eq!(against_stock(&[]), None);
    }

    #[test]
    fn ratios_separate_spinning_vms() {
        let figures = against_stock(&cells()).unwrap();
        // The burning neighbour has a ratio of 1.
        assert_eq!((figures.all.vms, figures.all.below), (4, 1));
        let expected = (4.3f64 * 0.9).powf(0.25);
        assert!((figures.all.geometric_mean - expected).abs() < 1e-9);
        assert_eq!(figures.all.median, 1.0);
        let spinning = figures.spinning.unwrap();
        assert_eq!((spinning.vms, spinning.below), (1, 0));
        assert!((spinning.least - 4.3).abs() < 1e-9);
        let others = figures.not_spinning.unwrap();
        assert_eq!((others.vms, others.below), (3, 1));
        assert!((others.geometric_mean - 0.9f64.powf(1.0 / 3.0)).abs() < 1e-9);
        let alone = against_stock(&cells()[1..]).unwrap();
        assert_eq!(alone.spinning, None);
    }
}
