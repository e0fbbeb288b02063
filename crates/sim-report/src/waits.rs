//! Who waited for whom in a simulated run, in the same section that a live host's interval has ([`waits_matrix`]), and what only a simulation
//! knows: what was waited for spin locks and TLB flushes, split by whether the other was on a pCPU meanwhile.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tandem_model::{Nanos, VmId};
use tandem_sim::Results;
use tandem_sim::results::{VmResults, Waits};

use super::MOST_VMS;
use tandem_report::table::{Align, Cell, Table, Tone};
use tandem_report::{figure, waits_matrix};

/// Combinations of a page whose matrices are shown; the table has all of them.
pub const MOST_COMBINATIONS: usize = 12;

/// The names of a run's VMs by their numbers.
fn names(results: &Results) -> BTreeMap<VmId, String> {
    let names = results.vms.iter().map(|vm| vm.name.clone());
    (0..).map(VmId).zip(names).collect()
}

/// The whole section, of each combination's first run; nothing if nobody waited. A combination that is the only one has no name.
pub fn section(watched: &[(&str, &Results)]) -> Markup {
    let shown = watched.iter().take(MOST_COMBINATIONS);
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
            @else { details open { summary { "Who waited for whom: " (combination) } (matrix) } }
        }
        @if watched.len() > MOST_COMBINATIONS {
            p.faint {
                "Who waited for whom is shown of the first " (MOST_COMBINATIONS) " combinations of " (watched.len())
                ". A page of one run has it."
            }
        }
        @if !within.is_empty() {
            h2 { "Spin locks and TLB flushes" }
            p.faint {
                "What vCPUs of a VM waited for each other, on a pCPU or off it. Where the holder of a lock was off its pCPU, waiting is what \
                 overcommit adds; where it ran, it is contention of the workload's own."
            }
            (table(&within).html("Time waited for spin locks and TLB flushes"))
        }
    }
}

/// What the vCPUs of one VM waited for under one combination.
struct Within<'a> {
    combination: &'a str,
    vm: &'a str,
    waits: &'a Waits,
    measured: Nanos,
}

impl<'a> Within<'a> {
    /// Of the first VMs.
    fn all(combination: &'a str, results: &'a Results) -> Vec<Within<'a>> {
        let of = |vm: &'a VmResults| {
            Some(Within {
                combination,
                vm: &vm.name,
                waits: vm.waits.as_ref()?,
                measured: results.measured,
            })
        };
        results.vms.iter().take(MOST_VMS).filter_map(of).collect()
    }

    /// For locks that nobody held.
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
        ("nobody held", Align::Right),
        ("wait for flushes", Align::Right),
        ("answerer off", Align::Right),
    ]);
    // The combinations of a VM stand below each other.
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
    use tandem_sim::World;
    use tandem_sim::results::WaitMatrix;
    use tandem_sim::scenario::load;

    use super::*;

    /// Two VMs that compute share a pCPU.
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
    fn one_run_has_the_section_of_a_live_interval_by_the_names_of_its_vms() {
        let page = section(&[("", &run(true))]).into_string();
        assert!(page.contains("db waited "), "{page}");
        assert!(page.contains(" for web, 48.0 %"), "about half: {page}");
        assert!(!page.contains("<details") && !page.contains("Spin locks"));
    }

    #[test]
    fn each_combination_has_its_own_and_what_is_left_out_is_said() {
        let results = run(true);
        let names: Vec<String> = (0..14).map(|n| format!("slice {n}")).collect();
        let all: Vec<(&str, &Results)> = names.iter().map(|n| (n.as_str(), &results)).collect();
        let page = section(&all).into_string();
        assert_eq!(page.matches("<details open").count(), MOST_COMBINATIONS);
        assert!(page.contains("first 12 combinations of 14"), "{page}");
    }

    #[test]
    fn locks_are_split_by_whether_their_holder_ran() {
        let mut results = run(false);
        results.vms[0].waits = Some(waits(1_000_000));
        let page = section(&[("stock", &results), ("aple", &results)]).into_string();
        assert!(page.contains("75.0 %") && page.contains("aple"), "{page}");
        assert_eq!(page.matches("0.160 vCPUs").count(), 2, "{page}");
        let mut free = waits(0);
        free.free = vec![Nanos(2), Nanos(3)];
        results.vms[0].waits = Some(free);
        assert!(section(&[("", &results)]).into_string().contains("nobody held"));
    }

    #[test]
    fn nothing_is_said_where_nothing_was_recorded_or_nobody_waited() {
        let mut results = run(false);
        assert_eq!(section(&[("", &results)]).into_string(), "");
        results.vms[0].waits = Some(waits(0));
        assert_eq!(section(&[("", &results)]).into_string(), "");
    }
}
