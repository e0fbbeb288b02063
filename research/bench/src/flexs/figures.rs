//! The figures of the bench in its JSON form: medians and ranges over runs, sums of verdicts over runs, and targets.
//!
//! Work is relative to the same VM alone.
//! CPU time is in pCPUs; the fair share is the VM's part, by weight, of the CPU time that all VMs received.
//! Verdicts count periods of a vCPU since the daemon of a mode started, settling included.
//! Detection counts only VMs that spin, because a detector that never fires is always right about the others.
//! Unmeasured figures are absent.

use serde::Serialize;
use tandem_report::experiment::{Experiment, Host, VmFigures};
use tandem_report::service::SpinFigures;

use super::mix::Mix;
use crate::flexs::verdicts::Verdicts;
use crate::spread::Spread;
use crate::work::figures::mode_name;
use tandem_demo::mode::Mode;
use tandem_demo::plan::Plan;

/// Figures of the bench.
#[derive(Clone, Debug, Serialize)]
pub struct Flexs {
    /// The host.
    pub host: Host,
    /// Backend of the vCPUs.
    pub backend: String,
    /// Source of the branch counters.
    pub counters: &'static str,
    /// Runs of each mix.
    pub runs: u32,
    /// Seconds counted per mode and run.
    pub seconds: f64,
    /// Seconds of settling before, not counted.
    pub settle_seconds: f64,
    /// Seconds for which each distinct VM was measured alone.
    pub alone_seconds: f64,
    /// Figures with a target, over all mixes.
    pub promised: Promised,
    /// The mixes.
    pub mixes: Vec<MixFigures>,
    /// Caveats of the figures.
    pub notes: Vec<String>,
}

/// Target for the recall of spinning periods in each mix.
pub const RECALL: f64 = 0.95;

/// Detection of spinning, over VMs that spin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Detection {
    /// Fraction of the spinning periods that were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall: Option<f64>,
    /// The same over periods in which the vCPU ran for long enough to be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_of_judged: Option<f64>,
    /// Fraction of the working periods that were taken for spinning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_alarm_rate: Option<f64>,
}

impl Detection {
    fn of(verdicts: &SpinFigures) -> Detection {
        Detection {
            recall: verdicts.recall(),
            recall_of_judged: verdicts.recall_of_judged(),
            false_alarm_rate: verdicts.false_alarm_rate(),
        }
    }
}

/// The mix with the worst value of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Its name.
    pub mix: &'static str,
    /// Its value.
    pub value: f64,
}

/// Figures of FlexS that have a target, over all mixes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Promised {
    /// Detection over all spinning VMs of all mixes.
    #[serde(flatten)]
    pub detection: Detection,
    /// The mix with the least recall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_recall: Option<Worst>,
    /// The mix with the greatest rate of false alarms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest_false_alarm_rate: Option<Worst>,
    /// Whether the recall meets the target in each mix; absent if none was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall_met: Option<bool>,
    /// Verdicts on the spinning VMs.
    pub verdicts: SpinFigures,
    /// Minimum work of a spinning VM relative to stock, over mixes in which a swap gains work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_work_vs_stock: Option<f64>,
    /// Minimum CPU time of a VM relative to its fair share; each VM counts with the median of its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_of_due: Option<f64>,
}

/// One mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixFigures {
    /// Its name.
    pub mix: &'static str,
    /// Description of the VMs.
    pub what: &'static str,
    /// The VMs, spinning ones first.
    pub vms: Vec<MixVm>,
    /// The modes.
    pub modes: Vec<MixMode>,
    /// Errors of failed runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// A VM of a mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixVm {
    /// Its name.
    pub name: String,
    /// Its workload.
    pub workload: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Whether it waits by spinning.
    pub spins: bool,
}

/// A mode of a mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixMode {
    /// Its name.
    pub mode: &'static str,
    /// Runs in which it was measured.
    pub measured_runs: usize,
    /// Reasons why other runs have no figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_measured: Vec<String>,
    /// Detection of spinning; absent if branches were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The VMs in the order of the mix; empty if no run measured them.
    pub vms: Vec<ModeVm>,
}

/// A VM in a mode, over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct ModeVm {
    /// Its name.
    pub name: String,
    /// Work relative to the VM alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_of_alone: Option<Spread>,
    /// Its median relative to the median of stock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_vs_stock: Option<f64>,
    /// CPU time received, in pCPUs.
    pub share: Spread,
    /// Fair share, in pCPUs.
    pub due: Spread,
    /// CPU time relative to the fair share.
    pub of_due: Spread,
    /// Verdicts from branch counters, over all runs; absent if they were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<SpinFigures>,
}

/// Computes a mix's figures from its runs.
pub fn summarize(mix: Mix, plan: &Plan, runs: &[Experiment], failures: Vec<String>) -> MixFigures {
    let vms = plan.vms.iter().map(|vm| MixVm {
        name: vm.name.clone(),
        workload: vm.workload.clone(),
        vcpus: vm.vcpus,
        spins: vm.workload == "barrier",
    });
    let vms: Vec<MixVm> = vms.collect();
    let modes = plan.modes.iter();
    let mut modes: Vec<MixMode> = modes.map(|&mode| of_mode(mode, &vms, runs)).collect();
    let stock = mode_name(Mode::EqualWeights);
    let stock = modes.iter().find(|mode| mode.mode == stock);
    let stock: Vec<Option<f64>> = match stock {
        Some(stock) => stock.vms.iter().map(work).collect(),
        None => Vec::new(),
    };
    for mode in &mut modes {
        for (vm, stock) in mode.vms.iter_mut().zip(&stock) {
            let stock = stock.filter(|stock| *stock > 0.0);
            vm.work_vs_stock = work(vm).zip(stock).map(|(work, stock)| work / stock);
        }
    }
    MixFigures { mix: mix.name(), what: mix.what(), vms, modes, failures }
}

fn work(vm: &ModeVm) -> Option<f64> {
    Some(vm.work_of_alone?.median)
}

fn of_mode(mode: Mode, vms: &[MixVm], runs: &[Experiment]) -> MixMode {
    let name = mode.name();
    let measured: Vec<_> = runs.iter().filter_map(|run| run.figures(name)).collect();
    let reasons = runs.iter().flat_map(|run| &run.modes);
    let reasons = reasons.filter(|result| result.mode == name);
    let reasons = reasons.filter_map(|result| result.outcome.as_ref().err());
    let vm = |(i, vm): (usize, &MixVm)| {
        let of_runs: Vec<&VmFigures> = measured.iter().filter_map(|run| run.vms.get(i)).collect();
        let verdicts = of_runs.iter().filter_map(|vm| vm.spins.clone());
        let due = of_runs.iter().filter(|vm| vm.fair > 0.0);
        Some(ModeVm {
            name: vm.name.clone(),
            work_of_alone: Spread::of(of_runs.iter().filter_map(|vm| vm.work_of_alone)),
            work_vs_stock: None,
            share: Spread::of(of_runs.iter().map(|vm| vm.share))?,
            due: Spread::of(of_runs.iter().map(|vm| vm.fair))?,
            of_due: Spread::of(due.map(|vm| vm.share / vm.fair))?,
            verdicts: verdicts.reduce(SpinFigures::plus),
        })
    };
    let of_vms: Vec<ModeVm> = vms.iter().enumerate().filter_map(vm).collect();
    MixMode {
        mode: mode_name(mode),
        measured_runs: measured.len(),
        not_measured: reasons.cloned().collect(),
        detection: on_spinning(&of_vms, vms).as_ref().map(Detection::of),
        vms: of_vms,
    }
}

/// Sums the verdicts on the spinning VMs.
fn on_spinning(vms: &[ModeVm], described: &[MixVm]) -> Option<SpinFigures> {
    let spinning = vms.iter().zip(described).filter(|(_, vm)| vm.spins);
    let verdicts = spinning.filter_map(|(vm, _)| vm.verdicts.clone());
    verdicts.reduce(SpinFigures::plus)
}

/// Computes the figures with a target from the mode `flexs` of all mixes.
/// The work in [`Mix::Even`] does not count, because a swap gains nothing there.
pub fn promised(mixes: &[MixFigures]) -> Promised {
    let mut verdicts = SpinFigures::default();
    let (mut works, mut dues) = (Vec::new(), Vec::new());
    let (mut recalls, mut alarms) = (Vec::new(), Vec::new());
    for mix in mixes {
        let modes = mix.modes.iter();
        for mode in modes.filter(|mode| mode.mode == mode_name(Mode::Flexs)) {
            let worst = |value| Worst { mix: mix.mix, value };
            let detection = mode.detection.clone().unwrap_or_default();
            recalls.extend(detection.recall.map(worst));
            alarms.extend(detection.false_alarm_rate.map(worst));
            verdicts = verdicts.plus(on_spinning(&mode.vms, &mix.vms).unwrap_or_default());
            for (vm, described) in mode.vms.iter().zip(&mix.vms) {
                dues.push(vm.of_due.median);
                if described.spins && mix.mix != Mix::Even.name() {
                    works.extend(vm.work_vs_stock);
                }
            }
        }
    }
    let by_value = |a: &Worst, b: &Worst| a.value.total_cmp(&b.value);
    let least_recall = recalls.into_iter().min_by(by_value);
    Promised {
        detection: Detection::of(&verdicts),
        recall_met: least_recall.as_ref().map(|least| least.value >= RECALL),
        least_recall,
        greatest_false_alarm_rate: alarms.into_iter().max_by(by_value),
        verdicts,
        least_work_vs_stock: works.into_iter().min_by(f64::total_cmp),
        least_of_due: dues.into_iter().min_by(f64::total_cmp),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use tandem_policy::flexs::Basis;
    use tandem_policy::host::flexs::Refusal;
    use tandem_report::experiment::{Figures, ModeResult};
    use tandem_report::service::Waits;

    use super::*;
    use crate::flexs::mix::WORK;
    use tandem_demo::test_plan;

    /// A run with the spinning VM's work relative to alone in stock and with FlexS, and the CPU time of the other relative to its fair share.
    fn run(stock: f64, flexs: Result<f64, &str>, of_due: f64, found: u64) -> Experiment {
        let figures = |work: f64, has_spins: bool| {
            let vm = |i: usize| VmFigures {
                name: ["spin", "burn"][i].to_owned(),
                vcpus: 2,
                weight: 1.0,
                share: if i == 0 { 2.0 - of_due } else { of_due },
                fair: 1.0,
                lag: 0.0,
                work: 1,
                work_per_second: 1.0,
                work_of_alone: Some(if i == 0 { work } else { 0.5 }),
                windows: Vec::new(),
                waits: Waits { runs: 1, mean_ns: None },
                completion: None,
                spins: has_spins.then(|| SpinFigures {
                    judged: 100,
                    called_spinning: found,
                    decided: 8,
                    swaps: 7,
                    failed: 1,
                    refused: BTreeMap::from([(Refusal::Spins, 1)]),
                    spun: if i == 0 { 40 } else { 0 },
                    found: if i == 0 { found } else { 0 },
                    missed: match 40 - found {
                        missed if i == 0 && missed > 0 => {
                            BTreeMap::from([(Basis::TooFew, 1), (Basis::Alike, missed - 1)])
                        }
                        _ => BTreeMap::new(),
                    },
                    worked: if i == 0 { 60 } else { 100 },
                    false_alarms: if i == 0 { 3 } else { 0 },
                    ..SpinFigures::default()
                }),
            };
            Figures {
                vms: vec![vm(0), vm(1)],
                idle: 0.0,
                mean_abs_lag: 0.0,
                max_abs_lag: 0.0,
                total_work_per_second: 1.0,
                work_vs_stock: None,
                series: Vec::new(),
            }
        };
        let mode = |mode: &str, outcome| ModeResult { mode: mode.to_owned(), outcome };
        Experiment {
            backend: "threads".to_owned(),
            pcpus: 2,
            seconds: 3.0,
            settle_seconds: 1.0,
            mix: vec![2, 1],
            weights: vec![1.0; 2],
            pinned: true,
            host: Host::default(),
            vms: Vec::new(),
            notes: Vec::new(),
            modes: vec![
                mode("equal-weights", Ok(figures(stock, false))),
                mode("flexs", flexs.map(|work| figures(work, true)).map_err(str::to_owned)),
            ],
        }
    }

    /// Three runs of one mix, one of them without figures for FlexS, and two of [`Mix::Even`].
    pub(crate) fn mixes() -> Vec<MixFigures> {
        let plan = |mix: Mix| Plan {
            vms: mix.vms(&"0-1".parse().unwrap(), WORK).unwrap(),
            modes: vec![Mode::EqualWeights, Mode::Flexs],
            window: Duration::from_secs(3),
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        let one = [
            run(0.30, Ok(0.45), 0.99, 30),
            run(0.32, Ok(0.48), 0.96, 40),
            run(0.34, Err("the daemon said: no"), 1.0, 0),
        ];
        let even = [run(0.5, Ok(0.49), 1.0, 40), run(0.5, Ok(0.49), 1.0, 40)];
        vec![
            summarize(Mix::OneBurner, &plan(Mix::OneBurner), &one, Vec::new()),
            summarize(Mix::Even, &plan(Mix::Even), &even, vec!["a VM ended".to_owned()]),
        ]
    }

    #[test]
    fn runs_yield_medians_and_verdict_sums() {
        let mixes = mixes();
        let flexs = &mixes[0].modes[1];
        assert_eq!((flexs.measured_runs, flexs.not_measured.len()), (2, 1));
        let spin = &flexs.vms[0];
        assert!((spin.work_vs_stock.unwrap() - 0.465 / 0.32).abs() < 1e-9);
        let verdicts = spin.verdicts.clone().unwrap();
        assert_eq!((verdicts.spun, verdicts.found, verdicts.swaps), (80, 70, 14));
        let missed: Vec<_> = verdicts.missed.into_iter().collect();
        assert_eq!(missed, [(Basis::Alike, 9), (Basis::TooFew, 1)]);
        let detection = flexs.detection.clone().unwrap();
        assert_eq!(detection.recall, Some(70.0 / 80.0));
        assert_eq!(detection.recall_of_judged, Some(70.0 / 79.0));
        // The computing VM does not count.
        assert_eq!(detection.false_alarm_rate, Some(6.0 / 120.0));
        assert_eq!(mixes[0].modes[0].vms[0].verdicts, None);
        assert_eq!(mixes[0].modes[0].detection, None);
        assert!((flexs.vms[1].of_due.median - 0.975).abs() < 1e-9);
        assert_eq!(mixes[1].failures, ["a VM ended"]);
    }

    #[test]
    fn targets_cover_all_mixes_except_even_work() {
        let promised = promised(&mixes());
        // Four runs with 40 spinning periods each.
        assert_eq!(promised.detection.recall, Some(150.0 / 160.0));
        assert_eq!(promised.detection.false_alarm_rate, Some(12.0 / 240.0));
        let worst = promised.least_recall.clone().unwrap();
        assert_eq!((worst.mix, worst.value), ("one-burner", 70.0 / 80.0));
        // The target is 95 % in each mix.
        assert_eq!(promised.recall_met, Some(false));
        assert!((promised.least_work_vs_stock.unwrap() - 0.465 / 0.32).abs() < 1e-9);
        assert!((promised.least_of_due.unwrap() - 0.975).abs() < 1e-9);
        let none = super::promised(&[]);
        assert_eq!(none.detection, Detection::default());
        assert_eq!((none.recall_met, none.least_of_due), (None, None));
    }
}
