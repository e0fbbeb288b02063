//! The waits of a simulated run.
//!
//! Waits between VMs have the same section as an interval of a live host ([`waits_matrix`]).
//! A second table has figures that only a simulation can provide: time waited for spin locks and TLB flushes,
//! split by whether the holder or answering vCPU was on a pCPU meanwhile.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tandem_model::{Nanos, VmId};
use tandem_sim::Results;
use tandem_sim::results::{VmResults, Waits};

use super::MAX_VMS;
use tandem_report::table::{Align, Cell, Table, Tone};
use tandem_report::{figure, waits_matrix};

/// Maximum number of combinations whose matrices a page shows; the table has all of them.
pub const MAX_COMBINATIONS: usize = 12;

/// Returns the names of a run's VMs by their numbers.
fn names(results: &Results) -> BTreeMap<VmId, String> {
    let names = results.vms.iter().map(|vm| vm.name.clone());
    (0..).map(VmId).zip(names).collect()
}

/// Returns the whole section, from the first run of each combination; empty if there were no waits.
/// A single combination has an empty name.
pub fn section(watched: &[(&str, &Results)]) -> Markup {
    let shown = watched.iter().take(MAX_COMBINATIONS);
    let matrices: Vec<(&str, Markup)> = shown
        .filter_map(|(combination, results)| {
            let interval = &results.observed.as_ref()?.interval;
            let section = waits_matrix::section(interval, &names(results));
            (!section.0.is_empty()).then_some((*combination, section))
        })
        .collect();
    let within: Vec<Within<'_>> = watched
        .iter()
        .flat_map(|(combination, results)| Within::all(combination, results))
        .filter(|within| !within.is_empty())
        .collect();
    html! {
        @for (combination, matrix) in &matrices {
            @if combination.is_empty() { (matrix) }
            @else { details open { summary { "Waits, longest first: " (combination) } (matrix) } }
        }
        @if watched.len() > MAX_COMBINATIONS {
            p.faint {
                "Waits are shown for the first " (MAX_COMBINATIONS) " combinations of " (watched.len())
                ". The page of a single run shows them for any combination."
            }
        }
        @if !within.is_empty() {
            h2 { "Spin locks and TLB flushes" }
            p.faint {
                "Time that vCPUs of a VM waited for each other, on a pCPU or off it. If the holder of a lock was off its pCPU, overcommit \
                 caused the wait; if it ran, the workload's own contention did."
            }
            (table(&within).html("Time waited for spin locks and TLB flushes"))
        }
    }
}

/// The waits of the vCPUs of one VM under one combination.
struct Within<'a> {
    combination: &'a str,
    vm: &'a str,
    waits: &'a Waits,
    measured: Nanos,
}

impl<'a> Within<'a> {
    /// Returns the waits of the first [`MAX_VMS`] VMs.
    fn all(combination: &'a str, results: &'a Results) -> Vec<Within<'a>> {
        let of = |vm: &'a VmResults| {
            Some(Within {
                combination,
                vm: &vm.name,
                waits: vm.waits.as_ref()?,
                measured: results.measured,
            })
        };
        results.vms.iter().take(MAX_VMS).filter_map(of).collect()
    }

    /// Time waited for locks without a holder.
    fn free(&self) -> Nanos {
        self.waits.free.iter().copied().sum()
    }

    fn is_empty(&self) -> bool {
        let [locks, flushes] = [&self.waits.locks, &self.waits.flushes].map(|matrix| {
            let (running, off) = matrix.total();
            running + off
        });
        locks + flushes + self.free() == Nanos::ZERO
    }
}

fn table(waits: &[Within<'_>]) -> Table {
    let several = waits.iter().any(|of| !of.combination.is_empty());
    let mut table = Table::new(&[
        ("VM", Align::Left),
        (if several { "settings" } else { "" }, Align::Left),
        ("wait for locks", Align::Right),
        ("holder ran", Align::Right),
        ("holder off", Align::Right),
        ("no holder", Align::Right),
        ("wait for flushes", Align::Right),
        ("answerer off", Align::Right),
    ]);
    // Rows are grouped by VM.
    let mut vms: Vec<&str> = Vec::new();
    for of in waits {
        if !vms.contains(&of.vm) {
            vms.push(of.vm);
        }
    }
    for vm in vms {
        let mut name = Cell::toned(vm, Tone::Strong);
        for of in waits.iter().filter(|of| of.vm == vm) {
            let ((ran, off), free) = (of.waits.locks.total(), of.free());
            let (answered, late) = of.waits.flushes.total();
            let (all, flushes) = (ran + off + free, answered + late);
            table.row([
                std::mem::take(&mut name),
                of.combination.into(),
                vcpus(all, of.measured),
                part(ran, all),
                part(off, all),
                part(free, all),
                vcpus(flushes, of.measured),
                part(late, flushes),
            ]);
        }
    }
    table
}

/// Formats a time as the average number of waiting vCPUs.
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
    use tandem_sim::World;
    use tandem_sim::results::WaitMatrix;
    use tandem_sim::scenario::load;

    use super::*;

    /// Runs two computing VMs that share a pCPU.
    fn run(waits: bool) -> Results {
        let text = "duration = \"100ms\"\n[machine]\npcpus = 1
            [[workload]]\nname = \"hog\"\n[[workload.role]]\nthreads = \"1 per vcpu\"
            program = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
            [[vm]]\nname = \"db\"\nvcpus = 1\nworkload = \"hog\"
            [[vm]]\nname = \"web\"\nvcpus = 1\nworkload = \"hog\"\n";
        let mut world = World::new(&load::from_text("test.toml", text).unwrap());
        if waits {
            world.record_waits();
        }
        world.run()
    }

    fn waits(ns: u64) -> Waits {
        let square = |ns: u64| vec![vec![Nanos(ns); 2]; 2];
        Waits { locks: WaitMatrix { running: square(ns), off: square(3 * ns) }, ..Waits::default() }
    }

    #[test]
    fn single_run_has_a_live_interval_section() {
        let page = section(&[("", &run(true))]).into_string();
        assert!(page.contains("db waited "), "{page}");
        assert!(page.contains(" for web, 48.0 %"), "about half: {page}");
        assert!(!page.contains("<details") && !page.contains("Spin locks"));
    }

    #[test]
    fn omitted_combinations_are_noted() {
        let results = run(true);
        let names: Vec<String> = (0..14).map(|n| format!("slice {n}")).collect();
        let all: Vec<(&str, &Results)> = names.iter().map(|n| (n.as_str(), &results)).collect();
        let page = section(&all).into_string();
        assert_eq!(page.matches("<details open").count(), MAX_COMBINATIONS);
        assert!(page.contains("first 12 combinations of 14"), "{page}");
    }

    #[test]
    fn lock_waits_are_split_by_holder_state() {
        let mut results = run(false);
        results.vms[0].waits = Some(waits(1_000_000));
        let page = section(&[("stock", &results), ("aple", &results)]).into_string();
        assert!(page.contains("75.0 %") && page.contains("aple"), "{page}");
        assert_eq!(page.matches("0.160 vCPUs").count(), 2, "{page}");
        let mut free = waits(0);
        free.free = vec![Nanos(2), Nanos(3)];
        results.vms[0].waits = Some(free);
        assert!(section(&[("", &results)]).into_string().contains("no holder"));
    }

    #[test]
    fn section_is_empty_without_waits() {
        let mut results = run(false);
        assert_eq!(section(&[("", &results)]).into_string(), "");
        results.vms[0].waits = Some(waits(0));
        assert_eq!(section(&[("", &results)]).into_string(), "");
    }
}
