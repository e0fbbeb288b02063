//! HTML page of a host over time: states of each VM per step, waits between VMs, and totals.
//!
//! The page is made from intervals of a record or a trace.
//! A time without an interval has no bar.
//! A state that is not measured is listed in the notes, and its time is part of the state that contains it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maud::html;
use tandem_model::states::interval::{Interval, VmInterval};
use tandem_model::{Nanos, State, VcpuTimes, VmId};

use crate::chart::StackChart;
use crate::chart::over_time::{TimeBar, TimeStack};
use crate::chart::stack::{Part, Whole};
use crate::table::{Align, Cell, Table, Tone};
use crate::{figure, page, waits_matrix};

/// Maximum number of VMs with a chart over time: those with the longest waits.
pub const MAX_VMS: usize = 16;

/// Maximum number of rows of the chart of totals.
const MAX_ROWS: usize = 40;

/// Maximum number of ticks on the time axis.
const TICKS: usize = 5;

/// Colours of states; those of lost time stand out.
const COLOURS: [(State, Option<usize>); 7] = [
    (State::Run, Some(0)),
    (State::Poll, Some(5)),
    (State::Vmm, Some(4)),
    (State::Ready, Some(7)),
    (State::Limited, Some(1)),
    (State::Costop, Some(3)),
    (State::Halted, None),
];

/// Data of a page.
#[derive(Clone, Debug)]
pub struct RecordPage<'a> {
    /// Title.
    pub title: &'a str,
    /// Steps: wall-clock time of the begin, and the sum of the intervals.
    pub steps: &'a [(Nanos, Interval)],
    /// The sum of all steps.
    pub whole: &'a Interval,
    /// The names of all VMs.
    pub names: &'a BTreeMap<VmId, String>,
    /// The VMs that are shown; any VM may be a culprit.
    pub selected: &'a [VmId],
    /// Notes: gaps, damage, lost events.
    pub notes: Vec<String>,
    /// Formats a wall-clock time.
    pub moment: fn(Nanos) -> String,
}

impl RecordPage<'_> {
    /// Returns the whole page; `command` is the command line that produced it.
    pub fn html(&self, command: &str, footer: &str) -> String {
        let whole = self.whole;
        let mut shown: Vec<&VmInterval> =
            whole.vms.iter().filter(|vm| self.selected.contains(&vm.vm)).collect();
        let waited = |vm: &VmInterval| vm.times().map_or(0.0, |times| lost(&times));
        shown.sort_by(|one, two| waited(two).total_cmp(&waited(one)));
        let mut notes = self.notes.clone();
        notes.extend(whole.missing.iter().map(ToString::to_string));
        if shown.len() > MAX_VMS {
            notes.push(format!(
                "of {} VMs, the {MAX_VMS} with the longest waits are shown over time",
                shown.len()
            ));
        }
        let from = self.steps.first().map(|(at, _)| (self.moment)(*at));
        let body = html! {
            h1 { (self.title) }
            p.faint {
                "From " (from.unwrap_or_default()) " on, " (figure::time(whole.length.0 as f64))
                " in " (self.steps.len()) " steps; measured by " (whole.source) "."
            }
            @if !notes.is_empty() { ul.notes { @for note in &notes { li { (note) } } } }
            div.tiles { @for (name, value, remark) in self.tiles() {
                (page::tile(name, html! { (value) }, &remark))
            } }
            h2 { "Time of each VM by state" }
            p.faint {
                "Fractions of the time of a VM's vCPUs. RDY: waiting for a pCPU; LIM: throttled by a quota; hollow: halted. "
                "Times without a measurement have no bar."
            }
            @for vm in shown.iter().take(MAX_VMS) {
                figure {
                    figcaption { (self.name(vm.vm)) }
                    div.wide { (self.over_time(vm.vm).svg()) }
                }
            }
            @if shown.is_empty() { p { "No VM was measured." } }
            @if !shown.is_empty() {
                figure {
                    figcaption { "All the time, by VM" }
                    div.wide { (self.totals(&shown).svg()) }
                }
            }
            (waits_matrix::section(whole, self.names))
            h2 { "Figures" }
            (self.table(&shown).html("Total time of each VM by state"))
            @if !whole.host.top_tasks.is_empty() {
                h3 { "Host processes" }
                (self.processes().html("CPU time of processes that are not VMs"))
            }
            h2 { "How it was made" }
            dl { dt { "Command" } dd { pre { (command) } } }
        };
        page::page(self.title, body, footer)
    }

    fn name(&self, vm: VmId) -> String {
        let name = self.names.get(&vm);
        name.map_or_else(|| format!("VM {vm}"), String::clone)
    }

    /// Returns the chart of a VM's states over time.
    fn over_time(&self, vm: VmId) -> TimeStack {
        let begin = self.steps.first().map_or(0, |(_, step)| step.start.0);
        let seconds = |at: u64| at.saturating_sub(begin) as f64 / 1e9;
        let end = |step: &Interval| seconds(step.start.0.saturating_add(step.length.0));
        let bars = self.steps.iter().filter_map(|(at, step)| {
            let times = step.vms.iter().find(|other| other.vm == vm)?.times()?;
            Some(TimeBar {
                time: (seconds(step.start.0), end(step)),
                values: COLOURS.iter().map(|(state, _)| percent(&times, *state)).collect(),
                tooltip: format!("{}: {}", (self.moment)(*at), state_list(&times)),
            })
        });
        let every = self.steps.len().div_ceil(TICKS).max(1);
        let ticks = self.steps.iter().step_by(every);
        TimeStack {
            title: format!("{}: states over time", self.name(vm)),
            unit: "% of its vCPUs' time".to_owned(),
            parts: parts(),
            bars: bars.collect(),
            time: (0.0, self.steps.last().map_or(1.0, |(_, step)| end(step))),
            ticks: ticks.map(|(at, step)| (seconds(step.start.0), self.tick(*at))).collect(),
            most: 100.0,
            size: (1000.0, 170.0),
        }
    }

    /// Returns the label of a tick: only the time of day if all steps are on one day, which the text above the charts names.
    fn tick(&self, at: Nanos) -> String {
        let text = (self.moment)(at);
        let day = |step: Option<&(Nanos, _)>| {
            let moment = step.map(|(at, _)| (self.moment)(*at))?;
            Some(moment.split_once('T')?.0.to_owned())
        };
        let is_one_day = day(self.steps.first()) == day(self.steps.last());
        match text.split_once('T') {
            Some((_, time)) if is_one_day => {
                let time = time.trim_end_matches('Z');
                time.strip_suffix(".000").unwrap_or(time).to_owned()
            }
            _ => text,
        }
    }

    fn totals(&self, shown: &[&VmInterval]) -> StackChart {
        let wholes = shown.iter().take(MAX_ROWS).filter_map(|vm| {
            let times = vm.times()?;
            let values = COLOURS.iter().map(|(state, _)| percent(&times, *state));
            let label = |(state, _): &(State, Option<usize>)| {
                let time = times.get(*state);
                time.map_or_else(|| figure::NOT_MEASURED.to_owned(), |t| figure::time(t.0 as f64))
            };
            Some(Whole {
                name: self.name(vm.vm),
                values: values.collect(),
                labels: COLOURS.iter().map(label).collect(),
            })
        });
        StackChart {
            title: "Total time of each VM by state".to_owned(),
            unit: "% of its vCPUs' time".to_owned(),
            parts: parts(),
            wholes: wholes.collect(),
            width: 1000.0,
        }
    }

    fn tiles(&self) -> Vec<(&'static str, String, String)> {
        let (host, length) = (&self.whole.host, self.whole.length.0.max(1) as f64);
        let pcpus = |time: Nanos| figure::pcpus(time.0 as f64 / length);
        let of = format!("of {} pCPUs", host.pcpus);
        let times: Vec<VcpuTimes> = self.whole.vms.iter().filter_map(VmInterval::times).collect();
        let all = VcpuTimes::sum(&times);
        let ready = all.and_then(|times| times.get(State::Ready));
        let not = || figure::NOT_MEASURED.to_owned();
        vec![
            ("vCPUs ran", pcpus(host.vcpus), of.clone()),
            (
                "vCPUs waited",
                ready.map_or_else(not, pcpus),
                "mean unmet demand, in pCPUs".to_owned(),
            ),
            ("Idle", host.idle.map_or_else(not, pcpus), of),
            ("Host processes", pcpus(host.tasks), format!("kernel threads {}", pcpus(host.kernel))),
        ]
    }

    fn table(&self, shown: &[&VmInterval]) -> Table {
        let mut headings = vec![("VM", Align::Left), ("vCPUs", Align::Right)];
        headings.extend(State::ALL.map(|state| (state.name(), Align::Right)));
        headings.push(("vCPUs' time", Align::Right));
        let mut table = Table::new(&headings);
        for vm in shown {
            let Some(times) = vm.times() else { continue };
            let mut row = vec![
                Cell::toned(self.name(vm.vm), Tone::Strong),
                vm.vcpus.len().to_string().into(),
            ];
            row.extend(State::ALL.map(|state| match times.share(state) {
                Some(share) => figure::percent(share).into(),
                None => Cell::toned("–", Tone::Faint),
            }));
            row.push(figure::time(times.wall().0 as f64).into());
            table.row(row);
        }
        table
    }

    fn processes(&self) -> Table {
        let mut table = Table::new(&[
            ("process", Align::Left),
            ("pid", Align::Right),
            ("cgroup", Align::Left),
            ("time", Align::Right),
        ]);
        let mut processes: Vec<_> = self.whole.host.top_tasks.iter().collect();
        processes.sort_by_key(|process| Reverse(process.time));
        for process in processes.into_iter().take(MAX_ROWS) {
            table.row([
                process.name.clone(),
                process.pid.to_string(),
                process.cgroup.clone().unwrap_or_default(),
                figure::time(process.time.0 as f64),
            ]);
        }
        table
    }
}

fn parts() -> Vec<Part> {
    let part = |(state, series): &(State, Option<usize>)| Part {
        name: state.name().to_owned(),
        series: *series,
    };
    COLOURS.iter().map(part).collect()
}

fn percent(times: &VcpuTimes, state: State) -> f64 {
    times.share(state).unwrap_or(0.0) * 100.0
}

/// Returns the fraction of a VM's time that it lost: ready, throttled or co-stopped.
fn lost(times: &VcpuTimes) -> f64 {
    let states = [State::Ready, State::Limited, State::Costop];
    states.iter().filter_map(|state| times.share(*state)).sum()
}

/// Lists the measured states with their percentages.
fn state_list(times: &VcpuTimes) -> String {
    let measured = State::ALL.iter().filter_map(|state| {
        let share = times.share(*state)?;
        Some(format!("{state} {}", figure::percent(share)))
    });
    measured.collect::<Vec<String>>().join(", ")
}

/// Returns the footer of a page.
pub fn footer() -> String {
    format!("tandem {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use tandem_model::VcpuId;
    use tandem_model::states::edges::EdgesBuilder;
    use tandem_model::states::interval::{Column, HostTotals, Missing, SourceName, VcpuInterval};
    use tandem_model::states::sum::IntervalSum;

    use super::*;

    fn step(start: u64, ready: u64, vms: u64) -> Interval {
        let ms = Nanos::from_millis;
        let vcpu = VcpuInterval {
            vcpu: VcpuId(0),
            times: VcpuTimes::from_parts(
                ms(1_000),
                [(State::Run, ms(500)), (State::Ready, ms(ready))],
            )
            .unwrap(),
            ran: ms(500),
            waited: ms(ready),
            runs: 3,
            wakeups: None,
            runnable: true,
            allowed: "0".parse().unwrap(),
        };
        Interval {
            source: SourceName::Plain,
            start: Nanos::from_secs(start),
            length: ms(1_000),
            vms: (1..=vms)
                .map(|vm| VmInterval {
                    vm: VmId(vm),
                    vcpus: vec![vcpu.clone()],
                    threads: Vec::new(),
                })
                .collect(),
            edges: EdgesBuilder::new().all(),
            host: HostTotals { pcpus: 2, ..HostTotals::default() },
            missing: vec![Missing::of_all(Column::State(State::Poll), "run as root")],
            programs: None,
        }
    }

    fn page(vms: u64, names: &BTreeMap<VmId, String>, selected: &[VmId]) -> String {
        let steps: Vec<(Nanos, Interval)> = [(100, 100), (101, 250), (105, 500)]
            .iter()
            .map(|(start, ready)| (Nanos(*start), step(*start, *ready, vms)))
            .collect();
        let mut whole = IntervalSum::new();
        steps.iter().for_each(|(_, step)| whole.add(step));
        let whole = whole.finish().unwrap();
        let page = RecordPage {
            title: "night",
            steps: &steps,
            whole: &whole,
            names,
            selected,
            notes: vec!["a gap <here>".to_owned()],
            moment: |at| format!("at {}", at.0),
        };
        page.html("tandem host replay night", "tandem")
    }

    #[test]
    fn ticks_omit_common_day() {
        let ends = |one: u64, two: u64| {
            let steps = [(Nanos(one), step(1, 100, 2)), (Nanos(two), step(1, 102, 2))];
            let page = RecordPage {
                title: "night",
                steps: &steps,
                whole: &steps[0].1,
                names: &BTreeMap::new(),
                selected: &[],
                notes: Vec::new(),
                moment: |at| format!("2026-11-{:02}T02:14:00.{:03}Z", at.0 / 1000, at.0 % 1000),
            };
            [page.tick(Nanos(one)), page.tick(Nanos(two))]
        };
        assert_eq!(ends(23_000, 23_250), ["02:14:00", "02:14:00.250"]);
        let two_days = ["2026-11-23T02:14:00.000Z", "2026-11-24T02:14:00.000Z"];
        assert_eq!(ends(23_000, 24_000), two_days);
    }

    #[test]
    fn steps_have_bars_and_missing_states_notes() {
        let names = BTreeMap::from([(VmId(1), "db".to_owned())]);
        let page = page(1, &names, &[VmId(1)]);
        for expected in [
            "at 100: RUN 50.0 %, RDY 10.0 %, HALT 40.0 %",
            "at 105: RUN 50.0 %, RDY 50.0 %, HALT 0.0 %",
            "a gap &lt;here&gt;",
            "POLL not measured: run as root",
            "28.3 %",
            "not measured",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        // No measurement from 102 to 105: the third bar starts at five sixths of the axis.
        assert_eq!(page.matches("<g><title>at ").count(), 3);
        for outside in ["http:", "https:", "src=", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn charts_are_limited_to_selected_vms() {
        let names: BTreeMap<VmId, String> =
            (1..=40).map(|n| (VmId(n), format!("vm{n}-"))).collect();
        let selected: Vec<VmId> = names.keys().copied().collect();
        let all = page(40, &names, &selected);
        assert_eq!(all.matches(": states over time").count(), MAX_VMS);
        assert!(all.contains("of 40 VMs, the 16 with the longest waits"));
        let one = page(40, &names, &[VmId(7)]);
        assert_eq!(one.matches(": states over time").count(), 1);
        assert!(one.contains("vm7-") && !one.contains("vm8-"));
        let none = page(3, &names, &[]);
        assert!(none.contains("No VM was measured."));
    }
}
