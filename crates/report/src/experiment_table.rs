//! Tables of an experiment: every VM in every mode, and a comparison of the modes.
//!
//! A lag up to [`FAIR`] is shown as good and one from [`UNFAIR`] as bad; a lag in between is plain.
//! The text is the same with and without colour.

use crate::experiment::{Experiment, Figures, STOCK, VmFigures};
use crate::figure;
use crate::table::{Align, Cell, Table, Tone};

/// Maximum fair lag: scheduling in time slices is hardly more precise.
pub const FAIR: f64 = 0.05;

/// Minimum unfair lag, which this project aims to reduce.
pub const UNFAIR: f64 = 0.10;

/// Returns a table with a row for each VM in each mode; the first row of a mode names it, and VMs without `cells` are omitted.
fn by_vm(
    columns: &[&'static str],
    experiment: &Experiment,
    cells: impl Fn(usize, &VmFigures) -> Option<Vec<Cell>>,
) -> Table {
    let names = ["mode", "VM"].map(|name| (name, Align::Left));
    let figures = columns.iter().map(|&name| (name, Align::Right));
    let mut table = Table::new(&names.into_iter().chain(figures).collect::<Vec<_>>());
    for result in &experiment.modes {
        let mut mode = Some(Cell::toned(result.mode.clone(), Tone::Strong));
        let Ok(figures) = &result.outcome else {
            table.row([mode.unwrap_or_default(), absent()]);
            continue;
        };
        for (i, vm) in figures.vms.iter().enumerate() {
            let Some(cells) = cells(i, vm) else {
                continue;
            };
            let names = [mode.take().unwrap_or_default(), vm.name.clone().into()];
            table.row(names.into_iter().chain(cells));
        }
    }
    table
}

/// Returns the table of every VM in every mode.
pub fn per_vm(experiment: &Experiment) -> Table {
    let columns = ["vCPUs", "weight", "received", "fair", "lag", "work/s", "of alone", "deserved"];
    by_vm(&columns, experiment, |i, vm| {
        let deserved = experiment.vms.get(i).and_then(|vm| Some(vm.alone?.deserved));
        Some(vec![
            vm.vcpus.to_string().into(),
            figure::plain(vm.weight).into(),
            figure::pcpus(vm.share).into(),
            figure::pcpus(vm.fair).into(),
            Cell::toned(figure::signed_percent(vm.lag), tone(vm.lag)),
            figure::rate(vm.work_per_second).into(),
            part(vm.work_of_alone),
            part(deserved),
        ])
    })
}

/// Caption of [`service`].
pub const SERVICE: &str = "Least and greatest part of its due that a VM received in windows of 250 ms and of 1 s in which it wanted CPU; \
                           wait: mean time that a vCPU waited before it ran. Percentiles of waits: not measured.";

/// Returns the table of every VM's service in every mode: short windows and waits.
pub fn service(experiment: &Experiment) -> Table {
    by_vm(&["250 ms", "1 s", "wait", "runs/s"], experiment, |_, vm| {
        Some(vec![
            window(vm, 0.25),
            window(vm, 1.0),
            time(vm.waits.mean_ns),
            figure::rate(vm.waits.runs as f64 / experiment.seconds).into(),
        ])
    })
}

/// Caption of [`completion`].
pub const COMPLETION: &str = "Completion: how long bursts and requests took, each from when it was due to begin until it was done. Those given \
                              up were late by too much and are in no other column.";

/// Returns the table of completion times in every mode; `None` if no VM has bursts or requests.
pub fn completion(experiment: &Experiment) -> Option<Table> {
    let measured = experiment.modes.iter().flat_map(|result| &result.outcome);
    if !measured.flat_map(|figures| &figures.vms).any(|vm| vm.completion.is_some()) {
        return None;
    }
    Some(by_vm(&["done", "given up", "mean", "p50", "p99"], experiment, |_, vm| {
        let times = vm.completion.as_ref()?;
        Some(vec![
            times.count.to_string().into(),
            times.dropped.to_string().into(),
            time(times.mean_ns),
            time(times.p50_ns),
            time(times.p99_ns),
        ])
    }))
}

fn time(ns: Option<f64>) -> Cell {
    ns.map(figure::time).map_or_else(absent, Cell::from)
}

fn window(vm: &VmFigures, seconds: f64) -> Cell {
    let windows = vm.windows.iter().find(|window| window.seconds == seconds);
    match windows.map(|windows| (windows.windows, windows.least, windows.greatest)) {
        None => absent(),
        Some((_, Some(least), Some(greatest))) => format!("{least:.2} … {greatest:.2}").into(),
        Some(_) => Cell::toned("slept", Tone::Faint),
    }
}

fn part(value: Option<f64>) -> Cell {
    value.map_or_else(absent, |value| format!("{value:.2}").into())
}

fn absent() -> Cell {
    Cell::toned(figure::NOT_MEASURED, Tone::Faint)
}

/// Returns the table that compares the modes.
pub fn per_mode(experiment: &Experiment) -> Table {
    let mut table = Table::new(&[
        ("mode", Align::Left),
        ("mean |lag|", Align::Right),
        ("max |lag|", Align::Right),
        ("idle pCPUs", Align::Right),
        ("work/s", Align::Right),
        ("work vs stock", Align::Right),
    ]);
    for result in &experiment.modes {
        let name = Cell::toned(result.mode.clone(), Tone::Strong);
        match &result.outcome {
            Ok(figures) => {
                table.row([
                    name,
                    Cell::toned(figure::percent(figures.mean_abs_lag), tone(figures.mean_abs_lag)),
                    Cell::toned(figure::percent(figures.max_abs_lag), tone(figures.max_abs_lag)),
                    figure::pcpus(figures.idle).into(),
                    total_work(experiment, figures),
                    against_stock(&result.mode, figures),
                ]);
            }
            Err(_) => {
                table.row([name, absent()]);
            }
        }
    }
    table
}

/// Returns the total work rate, or "mixed" because items of different workloads do not add up.
fn total_work(experiment: &Experiment, figures: &Figures) -> Cell {
    if experiment.one_workload() {
        figure::rate(figures.total_work_per_second).into()
    } else {
        Cell::toned("mixed", Tone::Faint)
    }
}

fn against_stock(mode: &str, figures: &Figures) -> Cell {
    match figures.work_vs_stock {
        _ if mode == STOCK => Cell::toned("stock", Tone::Faint),
        Some(ratio) => figure::signed_percent(ratio - 1.0).into(),
        None => absent(),
    }
}

/// Returns the reasons for modes without figures, one line each.
pub fn reasons(experiment: &Experiment) -> Vec<String> {
    let reason = |mode: &str, reason: &str| format!("{mode}: {}: {reason}", figure::NOT_MEASURED);
    experiment
        .modes
        .iter()
        .filter_map(|result| Some(reason(&result.mode, result.outcome.as_ref().err()?)))
        .collect()
}

/// Returns the tone of a lag.
pub fn tone(lag: f64) -> Tone {
    match lag.abs() {
        size if size <= FAIR => Tone::Good,
        size if size >= UNFAIR => Tone::Bad,
        _ => Tone::Plain,
    }
}
