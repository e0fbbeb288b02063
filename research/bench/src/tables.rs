//! Tables of the benches on live hosts, for the terminal.

use tandem_report::experiment::STOCK;
use tandem_report::experiment_table::tone;
use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

use crate::changes::Changes;
use crate::churn::Churn;
use crate::fairness::Suite;
use crate::overhead::Overhead;
use crate::spread::{CompletionOfRuns, Spread};
use crate::traces::Quarters;
use tandem_demo::mode::Mode;

/// Tabulates lags of every mix, in stock and with Tandem.
pub fn fairness(suite: &Suite) -> Table {
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

/// Tabulates work and windows of every mix, in stock and with Tandem.
pub fn fairness_service(suite: &Suite) -> Table {
    let mut table = Table::new(&[
        "mix",
        "stock, deserved work",
        "Tandem, deserved work",
        "stock, least in 1 s",
        "Tandem, least in 1 s",
        "stock, least in 250 ms",
        "Tandem, least in 250 ms",
    ]);
    for mix in &suite.mixes {
        let of = |name: &str| mix.modes.iter().find(|mode| mode.mode == name);
        let modes = [of(STOCK), of(Mode::Tandem.name())];
        let part = |part: Option<f64>| part.map_or_else(absent, |part| format!("{part:.2}").into());
        let mut row = vec![Cell::toned(mix.mix, Tone::Strong)];
        row.extend(modes.map(|mode| part(mode.and_then(|mode| mode.deserved_work))));
        for seconds in [1.0, 0.25] {
            row.extend(modes.map(|mode| {
                let mut windows = mode.into_iter().flat_map(|mode| &mode.windows);
                part(
                    windows
                        .find(|window| window.seconds == seconds)
                        .and_then(|window| window.least),
                )
            }));
        }
        table.row(row);
    }
    table
}

/// Tabulates completion times of every VM with bursts, in stock and with Tandem, in milliseconds; `None` if no mix has such a VM.
pub fn fairness_completion(suite: &Suite) -> Option<Table> {
    let mut table = Table::new(&[
        "mix",
        "VM",
        "stock p50",
        "Tandem p50",
        "stock p99",
        "Tandem p99",
        "p99 vs stock",
        "stock, dropped",
        "Tandem, dropped",
    ]);
    let mut any = false;
    for mix in &suite.mixes {
        let modes = mix.modes.iter();
        let mut vms: Vec<&str> =
            modes.flat_map(|mode| mode.completion.iter().map(|vm| vm.vm.as_str())).collect();
        vms.sort_unstable();
        vms.dedup();
        for vm in vms {
            let of = |name: &str| {
                let mode = mix.modes.iter().find(|mode| mode.mode == name)?;
                let found = mode.completion.iter().find(|known| known.vm == vm)?;
                Some(&found.times)
            };
            let (stock, tandem) = (of(STOCK), of(Mode::Tandem.name()));
            let time = |spread: Option<Spread>| {
                spread.map_or_else(absent, |spread| spread.scaled(1e-6).text().into())
            };
            let ratio = tandem.and_then(|times| times.p99_vs_stock);
            let dropped = |times: Option<&CompletionOfRuns>| {
                times.map_or_else(absent, |times| times.dropped.to_string().into())
            };
            any = true;
            table.row([
                Cell::toned(mix.mix, Tone::Strong),
                vm.into(),
                time(stock.and_then(|times| times.p50_ns)),
                time(tandem.and_then(|times| times.p50_ns)),
                time(stock.and_then(|times| times.p99_ns)),
                time(tandem.and_then(|times| times.p99_ns)),
                ratio.map_or_else(absent, |ratio| format!("{ratio:.2}").into()),
                dropped(stock),
                dropped(tandem),
            ]);
        }
    }
    any.then_some(table)
}

fn absent() -> Cell {
    Cell::toned(figure::NOT_MEASURED, Tone::Faint)
}

/// Tabulates the cost of the daemon.
pub fn overhead(figures: &Overhead) -> Table {
    let mut table = Table::new(&["figure", "value"]);
    let usage = &figures.daemon;
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let within = match (figures.decisions_in_5_ms, figures.decisions) {
        (Some(quick), Some(all)) => format!("{quick} of {all}"),
        _ => figure::NOT_MEASURED.to_owned(),
    };
    let rows = [
        ("VMs", figures.vms.to_string()),
        ("vCPUs", figures.vcpus.to_string()),
        ("period", format!("{} ms", figures.period_ms)),
        ("window", format!("{:.1} s", figures.seconds)),
        ("daemon CPU time", format!("{:.2} % of one pCPU", figures.daemon_cpu * 100.0)),
        ("daemon CPU time per period", format!("{:.3} ms", figures.daemon_cpu_per_period * 1e3)),
        ("CPU time of the VMs", format!("{} pCPUs", figure::pcpus(figures.vms_cpu))),
        ("decisions within 5 ms", within),
        ("daemon memory, peak", mib(usage.peak_rss_kib)),
        ("daemon memory, now", mib(usage.rss_kib)),
        ("daemon open files", usage.fds.to_string()),
        ("daemon threads", usage.threads.to_string()),
        ("errors reported by the daemon", figures.daemon_errors.len().to_string()),
    ];
    for (name, value) in rows {
        table.row([name.to_owned(), value]);
    }
    table
}

/// Tabulates the times after which VMs were fair again.
pub fn changes(figures: &Changes) -> Table {
    let mut table =
        Table::new(&["run", "the third VM", "fair after s", "least share of the others"]);
    for change in &figures.changes {
        table.row([
            change.run.to_string(),
            change.change.to_owned(),
            change
                .fair_after
                .map_or("not within the phase".to_owned(), |after| format!("{after:.1}")),
            format!("{:.2}", change.least_of_others),
        ]);
    }
    table
}

/// Tabulates the daemon's resources before and after.
pub fn churn(figures: &Churn) -> Table {
    let mut table = Table::new(&["figure", "before", "after"]);
    let (before, after) = (&figures.before, &figures.after);
    let kib = |kib: u64| format!("{kib} KiB");
    let rows = [
        ("VM starts and stops", String::new(), figures.starts.to_string()),
        ("most cgroups at a time", String::new(), figures.most_cgroups.to_string()),
        ("errors reported by the daemon", String::new(), figures.daemon_errors.len().to_string()),
        ("daemon open files", before.open_files.to_string(), after.open_files.to_string()),
        ("daemon memory", kib(before.daemon.rss_kib), kib(after.daemon.rss_kib)),
        ("daemon threads", before.daemon.threads.to_string(), after.daemon.threads.to_string()),
        ("Tandem's cgroups", before.cgroups.to_string(), after.cgroups.to_string()),
        (
            "journal",
            format!("{} bytes", before.journal_bytes),
            format!("{} bytes", after.journal_bytes),
        ),
    ];
    for (name, before, after) in rows {
        table.row([name.to_owned(), before, after]);
    }
    table
}

/// Tabulates the daemon's resources in the first and in the last quarter of the time.
pub fn churn_quarters(quarters: &[Quarters]) -> Table {
    let mut table = Table::new(&[
        "figure while VMs come and go",
        "first quarter, mean",
        "most",
        "last quarter, mean",
        "most",
    ]);
    for row in quarters {
        let value = |value: f64| format!("{value:.1} {}", row.unit).trim_end().to_owned();
        table.row([
            row.figure.to_owned(),
            value(row.first.mean),
            value(row.first.most),
            value(row.last.mean),
            value(row.last.most),
        ]);
    }
    table
}
