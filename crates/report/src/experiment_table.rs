//! An experiment as tables: every VM in every mode, and the modes against each other.
//!
//! A lag within [`FAIR`] is shown as good, one beyond [`UNFAIR`] as bad; between them it is plain.
//! The words and numbers are the same with and without colour.

use crate::experiment::Experiment;
use crate::experiment::Figures;
use crate::experiment::STOCK;
use crate::figure;
use crate::table::Align;
use crate::table::Cell;
use crate::table::Table;
use crate::table::Tone;

/// Lags up to here are as fair as scheduling in time slices gets.
pub const FAIR: f64 = 0.05;

/// Lags from here on are what this project is about.
pub const UNFAIR: f64 = 0.10;

/// Every VM in every mode.
pub fn per_vm(experiment: &Experiment) -> Table {
    let mut table = Table::new(&[
        ("mode", Align::Left),
        ("VM", Align::Left),
        ("vCPUs", Align::Right),
        ("weight", Align::Right),
        ("received", Align::Right),
        ("fair", Align::Right),
        ("lag", Align::Right),
        ("work/s", Align::Right),
    ]);
    for result in &experiment.modes {
        let name = Cell::toned(result.mode.clone(), Tone::Strong);
        match &result.outcome {
            Ok(figures) => vm_rows(&mut table, name, figures),
            Err(_) => {
                table.row([name, Cell::toned(figure::NOT_MEASURED, Tone::Faint)]);
            }
        }
    }
    table
}

fn vm_rows(table: &mut Table, mode: Cell, figures: &Figures) {
    let mut mode = Some(mode);
    for vm in &figures.vms {
        table.row([
            mode.take().unwrap_or_default(),
            vm.name.clone().into(),
            vm.vcpus.to_string().into(),
            figure::plain(vm.weight).into(),
            figure::pcpus(vm.share).into(),
            figure::pcpus(vm.fair).into(),
            Cell::toned(figure::signed_percent(vm.lag), tone(vm.lag)),
            figure::rate(vm.work_per_second).into(),
        ]);
    }
}

/// The modes against each other.
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
                    Cell::toned(
                        figure::percent(figures.mean_abs_lag),
                        tone(figures.mean_abs_lag),
                    ),
                    Cell::toned(
                        figure::percent(figures.max_abs_lag),
                        tone(figures.max_abs_lag),
                    ),
                    figure::pcpus(figures.idle).into(),
                    total_work(experiment, figures),
                    against_stock(&result.mode, figures),
                ]);
            }
            Err(_) => {
                table.row([name, Cell::toned(figure::NOT_MEASURED, Tone::Faint)]);
            }
        }
    }
    table
}

/// Items of different workloads cannot be added up.
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
        None => Cell::toned(figure::NOT_MEASURED, Tone::Faint),
    }
}

/// The reasons for which modes have no figures, one line each.
pub fn reasons(experiment: &Experiment) -> Vec<String> {
    let reason = |mode: &str, reason: &str| format!("{mode}: {}: {reason}", figure::NOT_MEASURED);
    experiment
        .modes
        .iter()
        .filter_map(|result| Some(reason(&result.mode, result.outcome.as_ref().err()?)))
        .collect()
}

/// What a lag is worth.
pub fn tone(lag: f64) -> Tone {
    match lag.abs() {
        size if size <= FAIR => Tone::Good,
        size if size >= UNFAIR => Tone::Bad,
        _ => Tone::Plain,
    }
}
