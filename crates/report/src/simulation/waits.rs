//! Which vCPU waited for which: heat maps of waiter against holder for spin locks, and of asker against
//! answerer for TLB flushes, each split by whether the other was on a pCPU meanwhile.
//!
//! Maps of one VM have one scale in all combinations, so that policies can be compared by eye. Every
//! cell is an element of the page: beyond [`MOST_CELLS`] maps are left out, and said to be. The table
//! has all of them.

use maud::Markup;
use maud::html;
use tandem_policy::Nanos;
use tandem_sim::Results;
use tandem_sim::results::VmResults;
use tandem_sim::results::WaitMatrix;
use tandem_sim::results::Waits;

use super::MOST_VMS;
use crate::chart::HeatMap;
use crate::chart::heat::HeatCell;
use crate::figure;
use crate::table::Align;
use crate::table::Cell;
use crate::table::Table;
use crate::table::Tone;

/// Cells of all maps of a page.
pub const MOST_CELLS: usize = 20_000;

/// The waits of one VM under one combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitsOf<'a> {
    /// The combination; empty where there is only one.
    pub combination: &'a str,
    /// The VM.
    pub vm: &'a str,
    /// What its vCPUs waited for.
    pub waits: &'a Waits,
    /// How long was measured.
    pub measured: Nanos,
}

impl<'a> WaitsOf<'a> {
    /// Who waited for whom in the first VMs.
    pub fn all(combination: &'a str, results: &'a Results) -> Vec<WaitsOf<'a>> {
        let of = |vm: &'a VmResults| {
            Some(WaitsOf {
                combination,
                vm: &vm.name,
                waits: vm.waits.as_ref()?,
                measured: results.measured,
            })
        };
        results.vms.iter().take(MOST_VMS).filter_map(of).collect()
    }

    /// Waits for locks that nobody held.
    fn free(&self) -> Nanos {
        self.waits.free.iter().copied().sum()
    }

    fn is_empty(&self) -> bool {
        let longest = [&self.waits.locks, &self.waits.flushes].map(longest);
        self.free() == Nanos::ZERO && longest == [Nanos::ZERO; 2]
    }

    fn cells(&self) -> usize {
        let matrices = [&self.waits.locks, &self.waits.flushes];
        let cells = matrices.into_iter().flat_map(cells_of);
        cells.filter(|&time| time > Nanos::ZERO).count()
    }
}

fn cells_of(matrix: &WaitMatrix) -> impl Iterator<Item = Nanos> {
    let rows = matrix.running.iter().chain(&matrix.off);
    rows.flatten().copied()
}

fn longest(matrix: &WaitMatrix) -> Nanos {
    cells_of(matrix).max().unwrap_or(Nanos::ZERO)
}

/// The whole section; nothing if nobody waited.
pub fn section(waits: &[WaitsOf<'_>]) -> Markup {
    let mut waits: Vec<&WaitsOf<'_>> = waits.iter().filter(|waits| !waits.is_empty()).collect();
    let mut vms: Vec<&str> = Vec::new();
    for of in &waits {
        if !vms.contains(&of.vm) {
            vms.push(of.vm);
        }
    }
    waits.sort_by_key(|of| vms.iter().position(|vm| *vm == of.vm));
    let mut room = MOST_CELLS;
    let mut left_out: Vec<String> = Vec::new();
    let mut shown: Vec<(&str, Vec<Markup>)> = Vec::new();
    for &vm in &vms {
        let of: Vec<&WaitsOf<'_>> = waits.iter().copied().filter(|of| of.vm == vm).collect();
        let cells: usize = of.iter().map(|of| of.cells()).sum();
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

fn maps(waits: &[&WaitsOf<'_>]) -> Vec<Markup> {
    let most = |matrix: fn(&Waits) -> &WaitMatrix| {
        let longest = waits.iter().map(|of| longest(matrix(of.waits)));
        longest.max().unwrap_or(Nanos::ZERO)
    };
    let (locks, flushes) = (most(|waits| &waits.locks), most(|waits| &waits.flushes));
    let mut maps = Vec::new();
    for of in waits {
        let mut own = Vec::new();
        let kinds = [
            (
                &of.waits.locks.running,
                locks,
                "spin locks, holder ran",
                "holder's vCPU",
                0,
            ),
            (
                &of.waits.locks.off,
                locks,
                "spin locks, holder off its pCPU",
                "holder's vCPU",
                7,
            ),
            (
                &of.waits.flushes.running,
                flushes,
                "TLB flushes, answerer ran",
                "vCPU that answers",
                0,
            ),
            (
                &of.waits.flushes.off,
                flushes,
                "TLB flushes, answerer off its pCPU",
                "vCPU that answers",
                7,
            ),
        ];
        for (values, most, what, columns, series) in kinds {
            if most == Nanos::ZERO {
                continue;
            }
            let name = match of.combination {
                "" => what.to_owned(),
                combination => format!("{combination}: {what}"),
            };
            let map = HeatMap {
                title: format!("{}, {name}: time waited by waiter and {columns}", of.vm),
                rows: "waiting vCPU".to_owned(),
                columns: columns.to_owned(),
                cells: cells(values, what),
                most: (most.0 as f64, figure::time(most.0 as f64)),
                series,
            };
            own.push(html! { div { div.faint { (name) } (map.svg()) } });
        }
        // Those of a kind, holder running and off, stay side by side.
        maps.push(html! { div.pair { @for map in own { (map) } } });
    }
    maps
}

fn cells(values: &[Vec<Nanos>], what: &str) -> Vec<Vec<Option<HeatCell>>> {
    let cell = |waiter: usize, (other, &Nanos(ns)): (usize, &Nanos)| {
        (ns > 0).then(|| HeatCell {
            value: ns as f64,
            tooltip: format!(
                "vCPU {waiter} waited {} for vCPU {other} ({what})",
                figure::time(ns as f64)
            ),
        })
    };
    let row = |(waiter, row): (usize, &Vec<Nanos>)| {
        row.iter().enumerate().map(|of| cell(waiter, of)).collect()
    };
    values.iter().enumerate().map(row).collect()
}

fn table(waits: &[&WaitsOf<'_>]) -> Table {
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
    for of in waits {
        let ((ran, off), free) = (of.waits.locks.total(), of.free());
        let (answered, late) = of.waits.flushes.total();
        let (all, flushes) = (ran + off + free, answered + late);
        let vm = match last == of.vm {
            true => Cell::default(),
            false => Cell::toned(of.vm, Tone::Strong),
        };
        last = of.vm;
        table.row([
            vm,
            of.combination.into(),
            vcpus(all, of.measured),
            part(ran, all),
            part(off, all),
            part(free, all),
            vcpus(flushes, of.measured),
            part(late, flushes),
        ]);
    }
    table
}

/// Time as so many vCPUs that wait all the time.
fn vcpus(time: Nanos, measured: Nanos) -> Cell {
    match time {
        Nanos::ZERO => Cell::default(),
        time => format!("{:.3} vCPUs", time.0 as f64 / measured.0.max(1) as f64).into(),
    }
}

fn part(time: Nanos, all: Nanos) -> Cell {
    match all {
        Nanos::ZERO => Cell::default(),
        all => figure::percent(time.0 as f64 / all.0 as f64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(vcpus: usize, ns: u64) -> Waits {
        let square = |ns: u64| vec![vec![Nanos(ns); vcpus]; vcpus];
        Waits {
            locks: WaitMatrix {
                running: square(ns),
                off: square(3 * ns),
            },
            ..Waits::default()
        }
    }

    fn of<'a>(combination: &'a str, vm: &'a str, waits: &'a Waits) -> WaitsOf<'a> {
        WaitsOf {
            combination,
            vm,
            waits,
            measured: Nanos(1_000_000),
        }
    }

    #[test]
    fn maps_of_a_vm_have_one_scale_whatever_the_combination() {
        let (stock, aple) = (waits(2, 1000), waits(2, 500));
        let all = [of("stock", "a", &stock), of("aple", "a", &aple)];
        let page = section(&all).into_string();
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches(">3.00 µs<").count(), 4, "the legend's end");
        assert!(page.contains("aple: spin locks, holder off its pCPU"));
        assert!(page.contains("vCPU 1 waited 500 ns for vCPU 0 (spin locks, holder ran)"));
        assert!(page.contains("75.0 %"), "{page}");
    }

    #[test]
    fn what_would_be_too_large_is_left_out_and_named() {
        let waits = waits(64, 10);
        let all = ["a", "b", "c"].map(|vm| of("", vm, &waits));
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
        let mut none = waits(2, 0);
        assert_eq!(section(&[of("", "a", &none)]).into_string(), "");
        none.free = vec![Nanos(2), Nanos(3)];
        let page = section(&[of("", "a", &none)]).into_string();
        assert!(page.contains("nobody held"));
    }
}
