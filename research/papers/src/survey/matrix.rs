//! Tables of the whole survey, programs by policies, one for each measure and overcommit.
//!
//! `crate::survey` defines the measures.
//! A cell of *worst* names its VM by the first letter of its name and its number: p2 is `program-2`, m the only `matmul`.
//! At 1× the VM is alone and unfairness is 1 by definition, so that table is omitted.
//! A figure that was not measured is a dash.
//! Stock has no column of throughput and worst, as both are 1 by definition.

use std::collections::BTreeMap;

use crate::survey::entry::{Entry, HURT, STOCK, Survey};

use crate::section::Section;
use tandem_report::table::{Align, Cell, Table, Tone};

/// Mark of a figure that was not measured.
const DASH: &str = "–";

/// Threshold from which a figure relative to stock counts as a gain.
const GAIN: f64 = 1.05;

/// Measure of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Throughput,
    Unfairness,
    Worst,
    WorstByDue,
}

impl Measure {
    const ALL: [Measure; 4] =
        [Measure::Throughput, Measure::Unfairness, Measure::Worst, Measure::WorstByDue];

    fn title(self) -> &'static str {
        match self {
            Measure::Throughput => "Throughput relative to stock",
            Measure::Unfairness => "Unfairness",
            Measure::Worst => "Worst victim: its work relative to stock",
            Measure::WorstByDue => "Worst victim by due: its work relative to stock's with its due",
        }
    }

    fn remark(self) -> &'static str {
        match self {
            Measure::Throughput => "Geometric mean over all VMs.",
            Measure::Unfairness => {
                "Largest slowdown of a VM relative to the least; the baseline of a slowdown is the VM alone."
            }
            Measure::Worst => {
                "Names of VMs: p the program, m the VM that only computes (matmul), p2 the second of its kind."
            }
            Measure::WorstByDue => {
                "The baseline excludes the time that stock gave a VM beyond its fair share."
            }
        }
    }

    fn has(self, policy: &str, overcommit: u32) -> bool {
        match self {
            Measure::Unfairness => overcommit > 1,
            _ => policy != STOCK,
        }
    }

    fn cell(self, entry: &Entry) -> Cell {
        let suffix = |victim: Option<&str>| format!(" {}", short(victim.unwrap_or_default()));
        let (value, name) = match self {
            Measure::Throughput => (entry.throughput, String::new()),
            Measure::Unfairness => (entry.unfairness, String::new()),
            Measure::Worst => (entry.worst, suffix(entry.victim.as_deref())),
            Measure::WorstByDue => (entry.worst_by_due, suffix(entry.victim_by_due.as_deref())),
        };
        let Some(value) = value else {
            return Cell::toned(DASH, Tone::Faint);
        };
        let tone = match self {
            Measure::Unfairness => Tone::Plain,
            _ if value < HURT => Tone::Bad,
            _ if value >= GAIN => Tone::Good,
            _ => Tone::Plain,
        };
        Cell::toned(format!("{value:.2}{name}"), tone)
    }
}

/// Abbreviates a VM's name to its first letter and its number.
fn short(vm: &str) -> String {
    let number = vm.rsplit_once('-').map_or("", |(_, number)| number);
    vm.chars().take(1).chain(number.chars()).collect()
}

/// Returns the tables, each with at most `most` policies.
pub fn tables(survey: &Survey, most: usize) -> Vec<Section> {
    let at: BTreeMap<(&str, u32, &str), &Entry> = survey
        .entries
        .iter()
        .map(|entry| {
            let place = (entry.workload.as_str(), entry.overcommit);
            ((place.0, place.1, entry.policy.as_str()), entry)
        })
        .collect();
    let mut tables = Vec::new();
    let is_measured = |measure: &Measure| *measure != Measure::WorstByDue || survey.is_by_due();
    for measure in Measure::ALL.into_iter().filter(is_measured) {
        for &times in &survey.overcommit {
            let columns: Vec<&str> = survey
                .policies
                .iter()
                .map(String::as_str)
                .filter(|policy| measure.has(policy, times))
                .collect();
            for columns in columns.chunks(most.max(1)) {
                let mut headings = vec![("program", Align::Left)];
                headings.extend(columns.iter().map(|&policy| (policy, Align::Right)));
                let mut table = Table::new(&headings);
                for workload in &survey.workloads {
                    let cell = |&policy: &&str| match at.get(&(workload, times, policy)) {
                        Some(entry) => measure.cell(entry),
                        None => Cell::toned(DASH, Tone::Faint),
                    };
                    let name = Cell::toned(workload, Tone::Strong);
                    table.row(std::iter::once(name).chain(columns.iter().map(cell)));
                }
                tables.push(Section {
                    title: format!("{}, {times}×", measure.title()),
                    remark: measure.remark().to_owned(),
                    table: Some(table),
                });
            }
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::table::Look;

    fn entry(policy: &str, overcommit: u32, throughput: Option<f64>) -> Entry {
        Entry {
            workload: "a".to_owned(),
            overcommit,
            policy: policy.to_owned(),
            throughput,
            unfairness: throughput.map(|_| 1.25),
            worst: throughput.map(|value| value - 0.5),
            victim: throughput.map(|_| "program-2".to_owned()),
            pcpus: 16,
            worst_by_due: None,
            victim_by_due: None,
        }
    }

    fn survey(entries: Vec<Entry>, policies: &[&str], overcommit: &[u32]) -> Survey {
        Survey {
            entries,
            policies: policies.iter().map(|&policy| policy.to_owned()).collect(),
            workloads: vec!["a".to_owned()],
            overcommit: overcommit.to_vec(),
            pcpus: 16,
        }
    }

    #[test]
    fn each_measure_has_a_table_for_each_overcommit() {
        let entries = vec![
            entry("stock", 1, Some(1.0)),
            entry("hvs", 1, Some(1.1)),
            entry("stock", 4, Some(1.0)),
            entry("hvs", 4, None),
        ];
        let tables = tables(&survey(entries, &["stock", "hvs"], &[1, 4]), 8);
        let titles: Vec<&str> = tables.iter().map(|t| t.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "Throughput relative to stock, 1×",
                "Throughput relative to stock, 4×",
                "Unfairness, 4×",
                "Worst victim: its work relative to stock, 1×",
                "Worst victim: its work relative to stock, 4×",
            ]
        );
        let rows: Vec<String> = tables
            .iter()
            .filter_map(|section| section.table.as_ref())
            .filter_map(|table| table.text(Look::Plain).lines().last().map(str::to_owned))
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            rows,
            ["| a | 1.10 |", "| a | – |", "| a | 1.25 | – |", "| a | 0.60 p2 |", "| a | – |",]
        );
    }

    #[test]
    fn wide_tables_are_split() {
        let policies = ["stock", "aple", "hvs", "flexw"];
        let entries = policies.map(|policy| entry(policy, 1, Some(1.0)));
        let tables = tables(&survey(entries.to_vec(), &policies, &[1]), 2);
        // Two measures of three policies other than stock.
        assert_eq!(tables.len(), 2 * 2);
        let second = tables[1].table.as_ref().map(|table| table.text(Look::Plain));
        assert!(second.is_some_and(|text| text.contains("flexw")));
    }

    #[test]
    fn victims_have_short_names() {
        assert_eq!(short("program-2"), "p2");
        assert_eq!(short("matmul"), "m");
        assert_eq!(short(""), "");
    }
}
