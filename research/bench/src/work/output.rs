//! The output of the bench: tables, a closing line, and a page with one chart.
//!
//! Every VM of every cell has a row; tables of completion times have only VMs with bursts or requests.
//! A value is the median of the runs, with their range if there were several.

use crate::bench_page::{self, BenchPage, Pairs, Tile};
use crate::pairs::Pair;
use tandem_papers::section::Section;
use tandem_report::figure;
use tandem_report::table::{Align, Cell as TableCell, Table, Tone};

use super::figures::{CellFigures, ModeVm, Ratios, WORSE, Work};
use crate::spread::Spread;

/// Returns the tables with titles and explanations.
pub fn sections(work: &Work) -> Vec<Section> {
    let section = |title: &str, remark: &str, table: Table| Section {
        title: title.to_owned(),
        remark: format!("{remark} {}", runs(work)),
        table: Some(table),
    };
    let mut sections = vec![
        section(
            "Work relative to alone",
            "Deserved: the work that the VM's share by weight deserves, relative to alone.",
            table(work, Baseline::Deserved, |vm| Some(vm.work_of_alone?.text())),
        ),
        section(
            "CPU time received",
            "In pCPUs.",
            table(work, Baseline::None, |vm| Some(vm.share.text())),
        ),
        section(
            "Wait per run",
            "Mean ready time of a vCPU before each run, in milliseconds; percentiles are not measured.",
            table(work, Baseline::None, |vm| Some(ms(vm.wait_ns?))),
        ),
    ];
    if has_bursts(work) {
        sections.extend(completion(work));
    }
    sections
}

fn has_bursts(work: &Work) -> bool {
    let modes = work.cells.iter().flat_map(|cell| &cell.modes);
    modes.flat_map(|mode| &mode.vms).any(|vm| vm.completion.is_some())
}

/// Returns the tables of completion times.
fn completion(work: &Work) -> [Section; 3] {
    let of = |title: &str, remark: String, value: Value| Section {
        title: title.to_owned(),
        remark,
        table: Some(timed_table(work, value)),
    };
    let what = "Time from the scheduled start of a burst or request to its end, in milliseconds:";
    let runs = runs(work);
    [
        of("Completion time, p50", format!("{what} the median. {runs}"), |vm| {
            Some(ms(vm.completion.as_ref()?.p50_ns?))
        }),
        of(
            "Completion time, p99",
            format!(
                "{what} the 99th percentile; in brackets the number dropped because they were too late. {runs}"
            ),
            |vm| {
                let times = vm.completion.as_ref()?;
                let p99 = ms(times.p99_ns?);
                Some(match times.dropped {
                    0 => p99,
                    dropped => format!("{p99} [{dropped}]"),
                })
            },
        ),
        of(
            "Completion time, p99, against stock",
            "Ratio of the medians of the runs: 2 is twice as long as in stock.".to_owned(),
            |vm| Some(two(vm.completion.as_ref()?.p99_vs_stock?)),
        ),
    ]
}

/// Formats a figure of a VM in a mode; `None` if it was not measured.
type Value = fn(&ModeVm) -> Option<String>;

fn ms(ns: Spread) -> String {
    ns.scaled(1e-6).text()
}

fn runs(work: &Work) -> String {
    match work.runs {
        1 => "One run.".to_owned(),
        runs => format!("Median of {runs} runs (their range)."),
    }
}

/// Returns the modes of all cells, in order.
fn modes(work: &Work) -> Vec<&'static str> {
    let mut modes: Vec<&'static str> = Vec::new();
    let most = work.cells.iter().max_by_key(|cell| cell.modes.len());
    for mode in most.into_iter().chain(&work.cells).flat_map(|cell| &cell.modes) {
        if !modes.contains(&mode.mode) {
            modes.push(mode.mode);
        }
    }
    modes
}

/// Column before the figures of the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Baseline {
    /// Work that the VM's share deserves relative to alone, for figures in that unit only.
    Deserved,
    /// No column.
    None,
}

/// Tabulates every VM of every cell.
fn table(work: &Work, baseline: Baseline, value: Value) -> Table {
    let modes = modes(work);
    let mut headings = vec![("cell", Align::Left), ("VM", Align::Left)];
    if baseline == Baseline::Deserved {
        headings.push(("deserved", Align::Right));
    }
    headings.extend(modes.iter().map(|&mode| (mode, Align::Right)));
    let mut table = Table::new(&headings);
    for cell in &work.cells {
        for (i, vm) in cell.vms.iter().enumerate() {
            let name = match i {
                0 => TableCell::toned(cell.cell.clone(), Tone::Strong),
                _ => TableCell::default(),
            };
            let mut row = vec![name, vm.workload.into()];
            if baseline == Baseline::Deserved {
                let deserved = vm.alone.map(|alone| two(alone.deserved));
                row.push(deserved.map_or_else(absent, TableCell::from));
            }
            row.extend(modes.iter().map(|mode| in_mode(cell, mode, i, value)));
            table.row(row);
        }
    }
    table
}

/// Tabulates every VM that has bursts or requests in some mode.
fn timed_table(work: &Work, value: Value) -> Table {
    let modes = modes(work);
    let mut headings = vec![("cell", Align::Left), ("VM", Align::Left)];
    headings.extend(modes.iter().map(|&mode| (mode, Align::Right)));
    let mut table = Table::new(&headings);
    for cell in &work.cells {
        for (i, vm) in cell.vms.iter().enumerate() {
            let mut in_modes = cell.modes.iter().filter_map(|mode| mode.vms.get(i));
            if !in_modes.any(|vm| vm.completion.is_some()) {
                continue;
            }
            let mut row =
                vec![TableCell::toned(cell.cell.clone(), Tone::Strong), vm.workload.into()];
            row.extend(modes.iter().map(|mode| in_mode(cell, mode, i, value)));
            table.row(row);
        }
    }
    table
}

fn in_mode(cell: &CellFigures, mode: &str, vm: usize, value: Value) -> TableCell {
    if !cell.modes.iter().any(|known| known.mode == mode) {
        return TableCell::toned("as stock", Tone::Faint);
    }
    match cell.vm_in(mode, vm).and_then(value) {
        Some(text) => text.into(),
        None => absent(),
    }
}

fn absent() -> TableCell {
    TableCell::toned(figure::NOT_MEASURED, Tone::Faint)
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

/// Returns the closing line, which compares Tandem with stock.
pub fn verdict(work: &Work) -> String {
    let Some(figures) = &work.tandem_vs_stock else {
        return "Tandem against stock: not measured; it takes both modes, and VMs measured alone."
            .to_owned();
    };
    let group = |name: &str, ratios: &Ratios| {
        let (mean, median) = (ratios.geometric_mean, ratios.median);
        let (below, vms) = (ratios.below, ratios.vms);
        format!(" {name}: {mean:.2}, median {median:.2}, {below} of {vms} below {WORSE}.")
    };
    let groups = [
        ("All VMs, neighbours too", Some(&figures.all)),
        ("Those that wait by spinning", figures.spinning.as_ref()),
        ("The others", figures.not_spinning.as_ref()),
    ];
    let groups = groups.into_iter();
    let groups: String = groups.filter_map(|(name, ratios)| Some(group(name, ratios?))).collect();
    format!(
        "Tandem against stock: work {:.2} times as much (geometric mean over {} cells; a pair counts for each of its VMs); {} below \
         {WORSE}; least {:.2} ({}).{groups}",
        figures.geometric_mean, figures.cells, figures.below, figures.least, figures.least_cell
    )
}

/// Reasons and notes, one line each.
pub fn notes(work: &Work) -> Vec<String> {
    let mut lines = work.notes.clone();
    for cell in &work.cells {
        for mode in &cell.modes {
            let reasons = mode.not_measured.iter();
            lines.extend(reasons.map(|reason| {
                let (cell, mode) = (&cell.cell, mode.mode);
                format!("{cell}, {mode}: {}: {reason}", figure::NOT_MEASURED)
            }));
        }
    }
    lines.dedup();
    lines
}

/// Renders the page.
pub fn html(work: &Work, command: &str, footer: &str) -> String {
    let tile = |name: &str, figure: String, beside: &str| Tile {
        name: name.to_owned(),
        figure,
        beside: beside.to_owned(),
    };
    let tiles = work.tandem_vs_stock.iter().flat_map(|figures| {
        [
            tile(
                "Work against stock",
                format!("× {:.2}", figures.geometric_mean),
                &format!("geometric mean over {} cells", figures.cells),
            ),
            tile(
                "All VMs, neighbours too",
                format!("× {:.2}", figures.all.geometric_mean),
                &format!(
                    "median {:.2}, {} of {} below {WORSE}",
                    figures.all.median, figures.all.below, figures.all.vms
                ),
            ),
            tile(
                &format!("Cells below {WORSE}"),
                figures.below.to_string(),
                &format!("of {}", figures.cells),
            ),
            tile("Least", format!("× {:.2}", figures.least), &figures.least_cell),
        ]
    });
    let how = |term: &str, what: String| (term.to_owned(), what);
    let page = BenchPage {
        title: "Work of VMs that share a host".to_owned(),
        lead: verdict(work),
        notes: notes(work),
        tiles: tiles.collect(),
        bars: Vec::new(),
        pairs: vec![picture(work)],
        sections: sections(work),
        how: vec![
            how("Command", command.to_owned()),
            how(
                "Host",
                format!(
                    "{} pCPUs, {}, Linux {}, cgroup {}, backend {}",
                    work.pcpus, work.host.cpu, work.host.kernel, work.host.cgroup, work.backend
                ),
            ),
            how(
                "Windows",
                format!(
                    "{} s per mode and run, where a server takes part whole rounds of it, after {} s of settling; fresh VMs in each \
                     run, the same in all its modes",
                    figure::plain(work.seconds),
                    figure::plain(work.settle_seconds)
                ),
            ),
            how("stock", "a cgroup per VM, all of equal weight, as libvirt makes them".to_owned()),
            how("hard-cap", "the same, and a CPU quota at the fair share".to_owned()),
            how("pinning", "stock, and vCPU i pinned to pCPU i mod P".to_owned()),
            how("nice", "no cgroups; the neighbours' vCPU threads have nice 5".to_owned()),
            how("batch", "stock, and the neighbours' vCPU threads are SCHED_BATCH".to_owned()),
            how("tandem", "Tandem's daemon".to_owned()),
        ],
    };
    bench_page::html(&page, footer)
}

/// Charts every subject of every cell: stock, Tandem, and deserved work.
fn picture(work: &Work) -> Pairs {
    let mut rows = Vec::new();
    for cell in &work.cells {
        for (vm, name) in cell.subjects() {
            let (before, after) = (cell.work("stock", vm), cell.work("tandem", vm));
            let due = cell.vms.get(vm).and_then(|vm| Some(vm.alone?.deserved));
            let text = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), two);
            let words =
                |value: Option<f64>| value.map_or_else(|| figure::NOT_MEASURED.to_owned(), two);
            rows.push(Pair {
                label: format!("{} → {}", text(before), text(after)),
                tooltip: format!(
                    "{name}: stock {}, Tandem {}, deserved {}",
                    words(before),
                    words(after),
                    words(due)
                ),
                name,
                before,
                after,
                due,
            });
        }
    }
    Pairs {
        title: "Work relative to alone: stock and Tandem".to_owned(),
        remark: "Ring: stock. Dot: Tandem. Tick: the work that the VM's share deserves. Medians of the runs; 1 is the VM's work alone.".to_owned(),
        unit: "of its work alone".to_owned(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use tandem_report::experiment::Host;
    use tandem_report::table::Look;

    use super::*;
    use crate::work::figures;
    use crate::work::figures::against_stock;

    fn work() -> Work {
        let cells = figures::tests::cells();
        Work {
            host: Host::default(),
            backend: "kvm".to_owned(),
            pcpus: 2,
            runs: 3,
            seconds: 3.0,
            settle_seconds: 1.0,
            alone_seconds: 2.0,
            tandem_vs_stock: against_stock(&cells),
            cells,
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn table_has_a_row_per_vm() {
        let sections = sections(&work());
        let text = sections[0].table.as_ref().unwrap().text(Look::Plain);
        assert!(text.contains("| barrier-spin, 2 vCPUs, free, beside 1 burn | barrier-spin |     0.50 | 0.10 (0.02 … 0.25) | 0.43 (0.42 … 0.44) |"), "{text}");
        assert_eq!(text.lines().count(), 2 + 4);
        let first_row = |section: usize| {
            let text = sections[section].table.as_ref().unwrap().text(Look::Plain);
            (text.contains("deserved"), text.lines().nth(2).unwrap().matches('|').count())
        };
        assert_eq!(first_row(0), (true, 6));
        // Tables in pCPUs and milliseconds have no column of deserved work.
        assert_eq!([first_row(1), first_row(2)], [(false, 5); 2]);
        let waits = sections[2].table.as_ref().unwrap().text(Look::Plain);
        assert!(waits.contains("1.00"), "{waits}");
    }

    #[test]
    fn vms_with_bursts_have_completion_times_per_mode() {
        let sections = sections(&work());
        let table = |at: usize| {
            let table = sections[at].table.as_ref().unwrap();
            table.text(Look::Plain)
        };
        assert_eq!(sections.len(), 6);
        // The first VM of each cell.
        assert_eq!(table(3).lines().count(), 2 + 2);
        assert!(
            table(4).contains("| 10.00 (4.00 … 50.00) [3] | 2.33 (2.27 … 2.38) [2] |"),
            "{}",
            table(4)
        );
        assert!(table(5).contains("|  1.00 |   0.23 |"), "{}", table(5));
        let mut none = work();
        let modes = none.cells.iter_mut().flat_map(|cell| &mut cell.modes);
        for vm in modes.flat_map(|mode| &mut mode.vms) {
            vm.completion = None;
        }
        assert_eq!(super::sections(&none).len(), 3);
    }

    #[test]
    fn verdict_has_mean_count_and_minimum() {
        let text = verdict(&work());
        assert_eq!(
            text,
            "Tandem against stock: work 1.57 times as much (geometric mean over 3 cells; a pair counts for each of its VMs); 1 below \
             0.97; least 0.90 (mutex, 4 vCPUs, pinned, beside mutex). All VMs, neighbours too: 1.40, median 1.00, 1 of 4 below 0.97. \
             Those that wait by spinning: 4.30, median 4.30, 0 of 1 below 0.97. The others: 0.97, median 1.00, 1 of 3 below 0.97."
        );
        let mut none = work();
        none.tandem_vs_stock = None;
        assert!(verdict(&none).contains("not measured"));
    }

    #[test]
    fn notes_name_their_cell() {
        let lines = notes(&work());
        assert_eq!(lines[0], "a note");
        assert!(lines.contains(&"barrier-spin, 2 vCPUs, free, beside 1 burn, tandem: not measured: the daemon said: no".to_owned()), "{lines:?}");
    }

    #[test]
    fn page_has_one_chart() {
        let page = html(&work(), "tandem-lab bench work", "f");
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(page.contains("0.10 → 0.43") && page.contains("× 1.57"));
    }
}
