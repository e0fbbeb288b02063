//! HTML page of an experiment: the finding in one sentence, key figures, charts, tables, and the set-up.
//!
//! The sentence at the top follows from the figures and also reports if Tandem did not help.

use std::cmp::Ordering;

use maud::{Markup, html};
use tandem_model::averages::geometric_mean;

use crate::chart::bar::{Bar, BarGroup};
use crate::chart::line::LineSeries;
use crate::chart::{BarChart, LineChart};
use crate::experiment::{Experiment, Figures, ModeResult, STOCK, VmFigures};
use crate::table::Tone;
use crate::{experiment_table, figure, page};

const TITLE: &str = "Work and CPU shares of VMs on one host";

/// Returns a description of a mode.
pub fn describe(mode: &str) -> &'static str {
    match mode {
        "as-is" => "the host as it is: no cgroups of the VMs' own",
        "equal-weights" => "stock practice: a cgroup per VM, with the VM's weight",
        "hard-cap" => "the same, and a CPU quota at the fair share",
        "pinning" => "stock practice, and vCPU i pinned to pCPU i mod P",
        "nice" => "no cgroups; vCPU threads of all VMs but the first at nice 5",
        "batch" => "stock practice, and vCPU threads of all VMs but the first in SCHED_BATCH",
        "tandem" => "Tandem's daemon beside the VMs",
        _ => "",
    }
}

/// Returns the whole page.
pub fn html(experiment: &Experiment, footer: &str) -> String {
    let body = html! {
        h1 { (TITLE) }
        p.lead { (finding(experiment)) }
        @if !experiment.notes.is_empty() {
            ul.notes { @for note in &experiment.notes { li { (note) } } }
        }
        (tiles(experiment))
        @if experiment.vms.iter().any(|vm| vm.alone.is_some()) {
            (page::figure(
                "Work of each VM, relative to alone",
                "1 is what the VM does alone on the host; the line across a bar is what its share deserves",
                of_alone(experiment).svg(),
            ))
        }
        (page::figure(
            "CPU time each VM received",
            "the line across a bar is the VM's fair share",
            shares(experiment).svg(),
        ))
        div.grid.three {
            (page::figure("Largest lag of a VM", "less is fairer", lags(experiment).svg()))
            (page::figure("Useful work against stock", "100 % is as much", work(experiment).svg()))
            (page::figure("Idle pCPU time", "CPU time that nobody got", idle(experiment).svg()))
        }
        h2 { "Shares over time" }
        p.faint {
            "Each line is one VM's share of the host, sampled several times a second. Dashed: its "
            "fair share. Shaded: settling after the change of mode, not counted."
        }
        div.grid {
            @for result in &experiment.modes {
                @if let Ok(figures) = &result.outcome {
                    @let caption = describe(&result.mode);
                    (page::figure(
                        &result.mode, caption, over_time(experiment, &result.mode, figures).svg(),
                    ))
                }
            }
        }
        h2 { "Figures" }
        p.faint {
            "Shares in pCPUs. Lag is (fair − received) ÷ fair: positive where a VM received too "
            "little, negative where it received more than its due."
        }
        (experiment_table::per_mode(experiment).html("The modes against each other"))
        (experiment_table::per_vm(experiment).html("Every VM in every mode"))
        (experiment_table::service(experiment).html("Service over short windows"))
        p.faint { (experiment_table::SERVICE) }
        @if let Some(completion) = experiment_table::completion(experiment) {
            (completion.html("Completion times"))
            p.faint { (experiment_table::COMPLETION) }
        }
        (how(experiment))
    };
    page::page(TITLE, body, footer)
}

/// Returns the finding as text.
pub fn finding(experiment: &Experiment) -> String {
    let vms = match experiment.vms.len() {
        1 => "one VM".to_owned(),
        n => format!("{n} VMs"),
    };
    let pcpus = match experiment.pcpus {
        1 => "one pCPU".to_owned(),
        n => format!("{n} pCPUs"),
    };
    let (stock, tandem) = (experiment.figures(STOCK), experiment.figures("tandem"));
    let (Some(stock), Some(tandem)) = (stock, tandem) else {
        return format!("{vms} on {pcpus}. Not both of {STOCK} and tandem were measured.");
    };
    let (before, after) = (stock.max_abs_lag, tandem.max_abs_lag);
    if let Some(work) = work_finding(experiment) {
        return format!(
            "{vms} on {pcpus}. {work} Shares: the VM furthest from its fair share was off by {} with stock, and by {} with Tandem.",
            figure::percent(before),
            figure::percent(after),
        );
    }
    let verdict = match () {
        () if before <= experiment_table::FAIR && after <= experiment_table::FAIR => {
            "The host was fair, and Tandem left it so"
        }
        () if after < before => "Tandem brought the VMs closer to their fair shares",
        () => "Tandem did not bring the VMs closer to their fair shares",
    };
    format!(
        "{vms} on {pcpus}. {verdict}: the VM furthest from its fair share was off by {} with a \
         cgroup weight per VM, and by {} with Tandem.",
        figure::percent(before),
        figure::percent(after),
    )
}

/// Returns the finding on deserved work, with the worst VM; `None` if VMs were not measured alone.
fn work_finding(experiment: &Experiment) -> Option<String> {
    let (stock, tandem) = (experiment.deserved_work(STOCK)?, experiment.deserved_work("tandem")?);
    let before = geometric_mean(stock.iter().copied())?;
    let after = geometric_mean(tandem.iter().copied())?;
    let (worst, least) = tandem.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1))?;
    let verdict = match compared_as_shown(before, after) {
        Ordering::Less => "VMs got more of their deserved work done with Tandem",
        Ordering::Equal => "VMs got as much of their deserved work done with Tandem",
        Ordering::Greater => "VMs got less of their deserved work done with Tandem",
    };
    Some(format!(
        "{verdict}: {} of it with a cgroup weight per VM (stock), {} with Tandem (geometric means over the VMs). The worst VM with Tandem \
         is {}, with {}; in stock it did {}.",
        figure::percent(before),
        figure::percent(after),
        experiment.vms.get(worst)?.name,
        figure::percent(*least),
        figure::percent(*stock.get(worst)?),
    ))
}

/// Compares two fractions; those that are displayed alike are equal.
fn compared_as_shown(before: f64, after: f64) -> Ordering {
    if figure::percent(before) == figure::percent(after) {
        Ordering::Equal
    } else {
        before.total_cmp(&after)
    }
}

fn of_alone(experiment: &Experiment) -> BarChart {
    let bar = |(series, vm): (usize, &VmFigures)| {
        let value = vm.work_of_alone?;
        let described = experiment.vms.get(series);
        let deserved = described.and_then(|vm| Some(vm.alone?.deserved));
        let suffix = deserved.map_or_else(String::new, |part| format!(", deserved {part:.2}"));
        Some(Bar {
            series,
            value,
            label: format!("{value:.2}"),
            marker: deserved,
            half_width: None,
            tooltip: format!("{}: {value:.2} of its work alone{suffix}", vm.name),
        })
    };
    let group = |result: &ModeResult| BarGroup {
        label: result.mode.clone(),
        bars: match &result.outcome {
            Ok(figures) => Ok(figures.vms.iter().enumerate().filter_map(bar).collect()),
            Err(reason) => Err(reason.clone()),
        },
    };
    BarChart {
        title: format!("Work of each VM per mode, relative to alone. {}", finding(experiment)),
        unit: "of its work alone".to_owned(),
        series: experiment.vms.iter().map(|vm| format!("{}: {}", vm.name, vm.workload)).collect(),
        marker: Some("deserved".to_owned()),
        reference: None,
        groups: experiment.modes.iter().map(group).collect(),
        size: (1000.0, 320.0),
    }
}

fn tiles(experiment: &Experiment) -> Markup {
    let deserved = |mode: &str| {
        let work = experiment.deserved_work(mode)?;
        geometric_mean(work)
    };
    let tile = |name: &str, mode: &str| {
        let part = deserved(mode);
        page::tile(
            name,
            part.map_or_else(absent, |part| html! { (figure::percent(part)) }),
            "geometric mean over the VMs",
        )
    };
    let lag = |mode: &str| match experiment.figures(mode) {
        Some(figures) => html! {
            span.(class(experiment_table::tone(figures.max_abs_lag))) {
                (figure::percent(figures.max_abs_lag))
            }
        },
        None => absent(),
    };
    let mean = |mode: &str| match experiment.figures(mode) {
        Some(figures) => format!("mean over the VMs {}", figure::percent(figures.mean_abs_lag)),
        None => String::new(),
    };
    let work = experiment.figures("tandem").and_then(|figures| figures.work_vs_stock);
    html! {
        div.tiles {
            @if deserved(STOCK).or(deserved("tandem")).is_some() {
                (tile("Deserved work done, stock", STOCK))
                (tile("Deserved work done, Tandem", "tandem"))
            }
            (page::tile("Largest lag, equal weights", lag(STOCK), &mean(STOCK)))
            (page::tile("Largest lag, Tandem", lag("tandem"), &mean("tandem")))
            @if deserved(STOCK).or(deserved("tandem")).is_none() {
                (page::tile(
                    "Useful work, Tandem",
                    work.map_or_else(absent, |ratio| html! { (figure::percent(ratio)) }),
                    "of what stock finishes",
                ))
                (page::tile(
                    "Idle under a hard cap",
                    experiment
                        .figures("hard-cap")
                        .map_or_else(absent, |figures| html! { (figure::pcpus(figures.idle)) }),
                    &format!("of {} pCPUs", experiment.pcpus),
                ))
            }
        }
    }
}

fn absent() -> Markup {
    html! { span.absent { (figure::NOT_MEASURED) } }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        _ => "plain",
    }
}

fn shares(experiment: &Experiment) -> BarChart {
    let group = |result: &ModeResult| BarGroup {
        label: result.mode.clone(),
        bars: result.outcome.as_ref().map_err(Clone::clone).map(share_bars),
    };
    BarChart {
        title: format!("Shares of each VM per mode. {}", finding(experiment)),
        unit: "pCPUs".to_owned(),
        series: experiment
            .vms
            .iter()
            .map(|vm| format!("{} ({} vCPU{})", vm.name, vm.vcpus, plural(vm.vcpus)))
            .collect(),
        marker: Some("fair share".to_owned()),
        reference: None,
        groups: experiment.modes.iter().map(group).collect(),
        size: (1000.0, 320.0),
    }
}

fn share_bars(figures: &Figures) -> Vec<Bar> {
    let bar = |(series, vm): (usize, &VmFigures)| Bar {
        series,
        value: vm.share,
        label: figure::pcpus(vm.share),
        marker: Some(vm.fair),
        half_width: None,
        tooltip: format!(
            "{}: received {} pCPUs of a fair {}, lag {}",
            vm.name,
            figure::pcpus(vm.share),
            figure::pcpus(vm.fair),
            figure::signed_percent(vm.lag),
        ),
    };
    figures.vms.iter().enumerate().map(bar).collect()
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Returns a chart with one bar per mode.
fn one_bar(
    experiment: &Experiment,
    title: &str,
    unit: &str,
    value: impl Fn(&Figures) -> Option<(f64, String)>,
) -> BarChart {
    let bar = |result: &ModeResult, (value, label): (f64, String)| Bar {
        series: 0,
        value,
        tooltip: format!("{}: {label}", result.mode),
        label,
        marker: None,
        half_width: None,
    };
    let group = |result: &ModeResult| BarGroup {
        label: result.mode.clone(),
        bars: match &result.outcome {
            Ok(figures) => value(figures)
                .map(|value| vec![bar(result, value)])
                .ok_or_else(|| format!("{STOCK} was not measured")),
            Err(reason) => Err(reason.clone()),
        },
    };
    BarChart {
        title: title.to_owned(),
        unit: unit.to_owned(),
        series: Vec::new(),
        marker: None,
        reference: None,
        groups: experiment.modes.iter().map(group).collect(),
        size: (330.0, 220.0),
    }
}

fn lags(experiment: &Experiment) -> BarChart {
    one_bar(experiment, "Largest absolute lag per mode", "% of the fair share", |figures| {
        Some((figures.max_abs_lag * 100.0, figure::percent(figures.max_abs_lag)))
    })
}

fn work(experiment: &Experiment) -> BarChart {
    one_bar(experiment, "Useful work per mode against stock", "% of stock", |figures| {
        let ratio = figures.work_vs_stock?;
        Some((ratio * 100.0, figure::percent(ratio)))
    })
}

fn idle(experiment: &Experiment) -> BarChart {
    one_bar(experiment, "Idle pCPU time per mode", "pCPUs", |figures| {
        Some((figures.idle, figure::pcpus(figures.idle)))
    })
}

/// Returns the largest share in any mode, so that the charts of all modes have the same scale.
fn largest_share(experiment: &Experiment) -> f64 {
    experiment
        .modes
        .iter()
        .filter_map(|result| result.outcome.as_ref().ok())
        .flat_map(|figures| &figures.series)
        .flat_map(|sample| &sample.shares)
        .fold(0.0, |largest, share| largest.max(*share))
}

fn over_time(experiment: &Experiment, mode: &str, figures: &Figures) -> LineChart {
    let line = |(i, vm): (usize, &VmFigures)| LineSeries {
        name: vm.name.clone(),
        colour: i,
        points: figures
            .series
            .iter()
            .filter_map(|sample| Some((sample.t, *sample.shares.get(i)?)))
            .collect(),
        guide: Some(vm.fair),
    };
    LineChart {
        title: format!("Share of each VM over time, mode {mode}"),
        x_unit: "seconds".to_owned(),
        y_unit: "pCPUs".to_owned(),
        series: figures.vms.iter().enumerate().map(line).collect(),
        y_max: largest_share(experiment),
        before_zero: Some("settling, not counted".to_owned()),
        size: (500.0, 250.0),
    }
}

fn how(experiment: &Experiment) -> Markup {
    let pins = |pins: &[u32]| match pins {
        [] => "vCPUs free".to_owned(),
        pins => {
            let pins: Vec<String> = pins.iter().map(u32::to_string).collect();
            format!("vCPUs on pCPUs {}", pins.join(", "))
        }
    };
    html! {
        h2 { "How it was measured" }
        dl {
            dt { "Backend" } dd { (experiment.backend) }
            dt { "Host" }
            dd {
                (experiment.pcpus) " pCPUs, " (experiment.host.cpu) ", Linux "
                (experiment.host.kernel) ", cgroup " (experiment.host.cgroup)
            }
            dt { "Windows" }
            dd {
                (figure::plain(experiment.seconds)) " s per mode, after "
                (figure::plain(experiment.settle_seconds)) " s of settling; the same VMs run "
                "through all modes"
            }
            @for vm in &experiment.vms {
                dt { (vm.name) }
                dd {
                    (vm.vcpus) " vCPU" (plural(vm.vcpus)) ", weight " (figure::plain(vm.weight))
                    ", " (vm.workload) ", " (pins(&vm.pins)) "; by weight alone due "
                    (figure::pcpus(vm.entitlement)) " pCPUs"
                    @if let Some(alone) = vm.alone {
                        "; alone " (figure::rate(alone.work_per_second)) " items/s with "
                        (figure::pcpus(alone.share)) " pCPUs"
                    }
                }
            }
            @for result in &experiment.modes {
                dt { (result.mode) }
                dd {
                    (describe(&result.mode))
                    @if let Err(reason) = &result.outcome {
                        " — " span.bad { (figure::NOT_MEASURED) } ": " (reason)
                    }
                }
            }
        }
    }
}
