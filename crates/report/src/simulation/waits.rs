//! Which vCPU waited for which: heat maps of waiter against holder for spin locks, and of asker against
//! answerer for TLB flushes, each split by whether the other was on a pCPU meanwhile.
//!
//! Maps of one VM have one scale in all combinations, so that policies can be compared by eye. Every
//! cell is an element of the page: beyond [`MOST_CELLS`] maps are left out, and said to be. The table
//! has all of them.

use maud::Markup;
use maud::html;

use crate::chart::HeatMap;
use crate::chart::heat::HeatCell;
use crate::figure;
use crate::table::Align;
use crate::table::Cell;
use crate::table::Table;
use crate::table::Tone;

/// Cells of all maps of a page.
pub const MOST_CELLS: usize = 20_000;

/// Time waited, ns, by who waited (rows) and for whom (columns).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Square {
    /// While the other was on a pCPU.
    pub running: Vec<Vec<u64>>,
    /// While it waited for one.
    pub off: Vec<Vec<u64>>,
}

impl Square {
    fn largest(&self) -> u64 {
        let cells = self.running.iter().chain(&self.off).flatten();
        cells.copied().max().unwrap_or(0)
    }

    fn cells(&self) -> usize {
        let cells = self.running.iter().chain(&self.off).flatten();
        cells.filter(|&&ns| ns > 0).count()
    }
}

/// The waits of one VM under one combination.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitsOf {
    /// The combination; empty where there is only one.
    pub combination: String,
    /// The VM.
    pub vm: String,
    /// For spin locks.
    pub locks: Square,
    /// For spin locks that nobody held, ns.
    pub free: u64,
    /// For answers to TLB flushes.
    pub flushes: Square,
    /// How long was measured, ns.
    pub measured: u64,
}

impl WaitsOf {
    fn is_empty(&self) -> bool {
        self.free == 0 && self.locks.largest() == 0 && self.flushes.largest() == 0
    }
}

/// The whole section; nothing if nobody waited.
pub fn section(waits: &[WaitsOf]) -> Markup {
    let mut waits: Vec<&WaitsOf> = waits.iter().filter(|waits| !waits.is_empty()).collect();
    let mut vms: Vec<&str> = Vec::new();
    for of in &waits {
        if !vms.contains(&of.vm.as_str()) {
            vms.push(&of.vm);
        }
    }
    waits.sort_by_key(|of| vms.iter().position(|vm| *vm == of.vm));
    let mut room = MOST_CELLS;
    let mut left_out: Vec<String> = Vec::new();
    let mut shown: Vec<(&str, Vec<Markup>)> = Vec::new();
    for &vm in &vms {
        let of: Vec<&WaitsOf> = waits.iter().copied().filter(|of| of.vm == vm).collect();
        let cells: usize = of
            .iter()
            .map(|of| of.locks.cells() + of.flushes.cells())
            .sum();
        match room.checked_sub(cells) {
            Some(rest) => {
                room = rest;
                shown.push((vm, maps(&of)));
            }
            None => left_out.push(vm.to_owned()),
        }
    }
    html! {
        @if !waits.is_empty() {
            h2 { "Who waited for whom" }
            p.faint {
                "Time that each vCPU (row) waited for each other one (column), from one run. Where "
                "the holder of a lock was off its pCPU, waiting is what overcommit adds; where it ran, "
                "it is contention of the workload's own."
            }
            (table(&waits).html("Time waited for spin locks and TLB flushes"))
            @for (vm, maps) in &shown {
                figure {
                    figcaption {
                        (vm)
                        div.faint { "all maps of a kind have one scale; point at a cell for its value" }
                    }
                    div.maps { @for map in maps { (map) } }
                }
            }
            @if !left_out.is_empty() {
                p.faint {
                    "Without maps, as the page would be too large: " (left_out.join(", "))
                    ". A page of one run has them."
                }
            }
        }
    }
}

fn maps(waits: &[&WaitsOf]) -> Vec<Markup> {
    let locks = waits.iter().map(|of| of.locks.largest()).max().unwrap_or(0);
    let flushes = waits
        .iter()
        .map(|of| of.flushes.largest())
        .max()
        .unwrap_or(0);
    let mut maps = Vec::new();
    for of in waits {
        let mut own = Vec::new();
        let kinds = [
            (
                &of.locks.running,
                locks,
                "spin locks, holder ran",
                "holder's vCPU",
                0,
            ),
            (
                &of.locks.off,
                locks,
                "spin locks, holder off its pCPU",
                "holder's vCPU",
                7,
            ),
            (
                &of.flushes.running,
                flushes,
                "TLB flushes, answerer ran",
                "vCPU that answers",
                0,
            ),
            (
                &of.flushes.off,
                flushes,
                "TLB flushes, answerer off its pCPU",
                "vCPU that answers",
                7,
            ),
        ];
        for (values, most, what, columns, series) in kinds {
            if most == 0 {
                continue;
            }
            let name = match of.combination.as_str() {
                "" => what.to_owned(),
                combination => format!("{combination}: {what}"),
            };
            let map = HeatMap {
                title: format!("{}, {name}: time waited by waiter and {columns}", of.vm),
                rows: "waiting vCPU".to_owned(),
                columns: columns.to_owned(),
                cells: cells(values, what),
                most: (most as f64, figure::time(most as f64)),
                series,
            };
            own.push(html! { div { div.faint { (name) } (map.svg()) } });
        }
        // Those of a kind, holder running and off, stay side by side.
        maps.push(html! { div.pair { @for map in own { (map) } } });
    }
    maps
}

fn cells(values: &[Vec<u64>], what: &str) -> Vec<Vec<Option<HeatCell>>> {
    let cell = |waiter: usize, (other, &ns): (usize, &u64)| {
        (ns > 0).then(|| HeatCell {
            value: ns as f64,
            tooltip: format!(
                "vCPU {waiter} waited {} for vCPU {other} ({what})",
                figure::time(ns as f64)
            ),
        })
    };
    let row = |(waiter, row): (usize, &Vec<u64>)| {
        row.iter().enumerate().map(|of| cell(waiter, of)).collect()
    };
    values.iter().enumerate().map(row).collect()
}

fn table(waits: &[&WaitsOf]) -> Table {
    let several = waits.iter().any(|of| !of.combination.is_empty());
    let mut table = Table::new(&[
        ("VM", Align::Left),
        (if several { "settings" } else { "" }, Align::Left),
        ("wait for locks", Align::Right),
        ("holder ran", Align::Right),
        ("holder off", Align::Right),
        ("nobody held", Align::Right),
        ("wait for flushes", Align::Right),
        ("answerer off", Align::Right),
    ]);
    let mut last = "";
    let sum = |rows: &[Vec<u64>]| rows.iter().flatten().sum::<u64>();
    for of in waits {
        let [ran, off] = [&of.locks.running, &of.locks.off].map(|rows| sum(rows));
        let [answered, late] = [&of.flushes.running, &of.flushes.off].map(|rows| sum(rows));
        let (all, flushes) = (ran + off + of.free, answered + late);
        let vm = match last == of.vm {
            true => Cell::default(),
            false => Cell::toned(of.vm.as_str(), Tone::Strong),
        };
        last = &of.vm;
        table.row([
            vm,
            of.combination.as_str().into(),
            vcpus(all, of.measured),
            part(ran, all),
            part(off, all),
            part(of.free, all),
            vcpus(flushes, of.measured),
            part(late, flushes),
        ]);
    }
    table
}

/// Time as so many vCPUs that wait all the time.
fn vcpus(ns: u64, measured: u64) -> Cell {
    match ns {
        0 => Cell::default(),
        ns => format!("{:.3} vCPUs", ns as f64 / measured.max(1) as f64).into(),
    }
}

fn part(ns: u64, all: u64) -> Cell {
    match all {
        0 => Cell::default(),
        all => figure::percent(ns as f64 / all as f64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(combination: &str, vm: &str, vcpus: usize, ns: u64) -> WaitsOf {
        let square = |ns: u64| vec![vec![ns; vcpus]; vcpus];
        WaitsOf {
            combination: combination.to_owned(),
            vm: vm.to_owned(),
            locks: Square {
                running: square(ns),
                off: square(3 * ns),
            },
            free: 0,
            flushes: Square::default(),
            measured: 1_000_000,
        }
    }

    #[test]
    fn maps_of_a_vm_have_one_scale_whatever_the_combination() {
        let all = [waits("stock", "a", 2, 1000), waits("aple", "a", 2, 500)];
        let page = section(&all).into_string();
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches(">3.00 µs<").count(), 4, "the legend's end");
        assert!(page.contains("aple: spin locks, holder off its pCPU"));
        assert!(page.contains("vCPU 1 waited 500 ns for vCPU 0 (spin locks, holder ran)"));
        assert!(page.contains("75.0 %"), "{page}");
    }

    #[test]
    fn what_would_be_too_large_is_left_out_and_named() {
        let all = [
            waits("", "a", 64, 10),
            waits("", "b", 64, 10),
            waits("", "c", 64, 10),
        ];
        let page = section(&all).into_string();
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(
            page.contains("too large: c."),
            "{}",
            &page[page.len() - 400..]
        );
    }

    #[test]
    fn nothing_is_said_where_nobody_waited() {
        let mut none = waits("", "a", 2, 0);
        assert_eq!(section(&[none.clone()]).into_string(), "");
        none.free = 5;
        assert!(section(&[none]).into_string().contains("nobody held"));
    }
}
