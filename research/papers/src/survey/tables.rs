//! Tables of a survey: each policy over all programs, the best policy of each program, and every cell.
//!
//! `crate::survey` defines the measures.
//! A policy hurts in a place if some VM does less than 95 % of its work under stock ([`HURT`]).
//! By due it hurts if some VM does less than 95 % of stock's work scaled to the VM's fair share.
//! Stored figures without the second measure are marked as such.

use crate::survey::entry::{Entry, HURT, Survey};
use tandem_model::averages::geometric_mean;

use super::matrix;
use crate::section::Section;
use tandem_report::table::{Cell, Table, Tone};

/// Maximum number of policies in a printed table.
const MAX_COLUMNS: usize = 8;

/// Number of places that are named where a policy hurts.
const NAMED: usize = 3;

/// Returns the tables as text.
pub fn show(survey: &Survey) -> String {
    let part = |part: &Section| {
        let remark = match part.remark.as_str() {
            "" => String::new(),
            remark => format!("{remark}\n\n"),
        };
        let table = part.table.as_ref().map(|table| format!("{table}\n"));
        format!("{}\n\n{remark}{}", part.title, table.unwrap_or_default())
    };
    let parts: Vec<String> = parts(survey, MAX_COLUMNS).iter().map(part).collect();
    parts.join("\n")
}

/// Returns all sections, with at most `columns` policies in a table of the matrix.
pub fn parts(survey: &Survey, columns: usize) -> Vec<Section> {
    let places = survey.workloads.len() * survey.overcommit.len();
    let by_due = if survey.is_by_due() {
        "\"By due\" is relative to stock's work scaled to the VM's fair share: a loss of time beyond that share does not count."
    } else {
        "Fair shares were not measured."
    };
    let mut parts = vec![
        Section {
            title: "Each policy over all programs".to_owned(),
            remark: format!(
                "On {} pCPUs. Throughput is the geometric mean. \"Best where\" and \"hurts where\" count places, of {places}; \
                 the {NAMED} worst are named with their victim. {by_due}",
                survey.pcpus
            ),
            table: Some(by_policy(survey)),
        },
        Section {
            title: "The best policy of each program".to_owned(),
            remark: String::new(),
            table: Some(by_workload(survey)),
        },
    ];
    parts.extend(matrix::tables(survey, columns));
    let missing: Vec<String> = survey
        .entries
        .iter()
        .filter(|entry| entry.throughput.is_none())
        .map(|entry| format!("{} {}", entry.place(), entry.policy))
        .collect();
    if !missing.is_empty() {
        parts.push(Section {
            title: "Not measured".to_owned(),
            remark: format!(
                "A VM completed no unit of work in the simulated time: {}.",
                missing.join(", ")
            ),
            table: None,
        });
    }
    parts
}

fn two_digits(value: Option<f64>) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2}"))
}

fn by_policy(survey: &Survey) -> Table {
    let times: Vec<String> = survey.overcommit.iter().map(|times| format!("{times}×")).collect();
    let mut headings = vec!["policy"];
    headings.extend(times.iter().map(String::as_str));
    headings.extend(["unfairness", "worst", "best where", "hurts where"]);
    if survey.is_by_due() {
        headings.extend(["worst by due", "hurts by due where"]);
    }
    let mut table = Table::new(&headings);
    let best = survey.winners();
    for policy in &survey.policies {
        let own = || survey.entries.iter().filter(|entry| entry.policy == *policy);
        let mut cells: Vec<Cell> = vec![Cell::toned(policy, Tone::Strong)];
        for &times in &survey.overcommit {
            cells.push(two_digits(survey.mean_of(policy, times)).into());
        }
        cells.push(two_digits(geometric_mean(own().filter_map(|e| e.unfairness))).into());
        let worst = own().filter_map(|entry| entry.worst).reduce(f64::min);
        cells.push(two_digits(worst).into());
        let wins = best.values().filter(|winner| winner.policy == *policy);
        cells.push(format!("{}", wins.count()).into());
        cells.push(hurt(own().map(|entry| (entry, entry.worst, entry.victim.as_deref()))).into());
        if survey.is_by_due() {
            let worst = own().filter_map(|entry| entry.worst_by_due).reduce(f64::min);
            cells.push(two_digits(worst).into());
            let victims = own().map(|e| (e, e.worst_by_due, e.victim_by_due.as_deref()));
            cells.push(hurt(victims).into());
        }
        table.row(cells);
    }
    table
}

/// Returns the number of places with a hurt VM, and the worst of them.
fn hurt<'a>(victims: impl Iterator<Item = (&'a Entry, Option<f64>, Option<&'a str>)>) -> String {
    let mut hurt: Vec<(&Entry, f64, &str)> = victims
        .filter_map(|(entry, worst, victim)| Some((entry, worst?, victim.unwrap_or_default())))
        .filter(|(_, worst, _)| *worst < HURT)
        .collect();
    hurt.sort_by(|a, b| a.1.total_cmp(&b.1));
    let named: Vec<String> = hurt
        .iter()
        .take(NAMED)
        .map(|(entry, worst, victim)| {
            format!("{} ({victim} {})", entry.place(), two_digits(Some(*worst)))
        })
        .collect();
    match hurt.len() {
        0 => "nowhere".to_owned(),
        count => format!("{count}: {}", named.join(", ")),
    }
}

fn by_workload(survey: &Survey) -> Table {
    let times: Vec<String> = survey.overcommit.iter().map(|times| format!("{times}×")).collect();
    let mut headings = vec!["program"];
    headings.extend(times.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    let best = survey.winners();
    for workload in &survey.workloads {
        let mut cells: Vec<Cell> = vec![Cell::toned(workload, Tone::Strong)];
        for &times in &survey.overcommit {
            cells.push(match best.get(&(workload.as_str(), times)) {
                Some(entry) => format!(
                    "{} {}, unfairness {}, worst {}",
                    entry.policy,
                    two_digits(entry.throughput),
                    two_digits(entry.unfairness),
                    two_digits(entry.worst)
                )
                .into(),
                None => Cell::toned("not measured", Tone::Faint),
            });
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_of(workload: &str, policy: &str, throughput: f64, worst: f64) -> Entry {
        Entry {
            workload: workload.to_owned(),
            overcommit: 2,
            policy: policy.to_owned(),
            throughput: Some(throughput),
            unfairness: Some(1.5),
            worst: Some(worst),
            victim: Some("matmul".to_owned()),
            pcpus: 16,
            worst_by_due: None,
            victim_by_due: None,
        }
    }

    fn survey_of(entries: Vec<Entry>) -> Survey {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Survey {
            entries,
            policies: names(&["stock", "hvs"]),
            workloads: names(&["a", "b"]),
            overcommit: vec![2],
            pcpus: 16,
        }
    }

    #[test]
    fn tables_show_winners_and_hurt_places() {
        let entries = vec![
            entry_of("a", "stock", 1.0, 1.0),
            entry_of("a", "hvs", 1.2, 0.9),
            entry_of("b", "stock", 1.0, 1.0),
            entry_of("b", "hvs", 0.8, 0.7),
        ];
        let text = show(&survey_of(entries));
        assert!(text.contains("2: b 2× (matmul 0.70), a 2× (matmul 0.90)"), "{text}");
        assert!(text.contains("nowhere"), "{text}");
        assert!(text.contains("0.98"), "the geometric mean of 1.2 and 0.8: {text}");
    }

    #[test]
    fn loss_above_fair_share_hurts_only_without_due() {
        let mut entries = vec![entry_of("a", "stock", 1.0, 1.0), entry_of("a", "hvs", 1.2, 0.7)];
        let text = show(&survey_of(entries.clone()));
        assert!(text.contains("Fair shares were not measured."), "{text}");
        assert!(!text.contains("by due"), "{text}");
        for (entry, worst) in entries.iter_mut().zip([1.0, 0.96]) {
            entry.worst_by_due = Some(worst);
            entry.victim_by_due = Some("program".to_owned());
        }
        let text = show(&survey_of(entries));
        let row = text.lines().find(|line| line.contains("hvs")).unwrap();
        assert!(row.contains("1: a 2× (matmul 0.70)"), "{row}");
        assert!(row.contains("0.96") && row.contains("nowhere"), "{row}");
        assert!(text.contains("Worst victim by due: its work relative to stock's with its due"));
    }

    #[test]
    fn unmeasured_entries_are_listed() {
        let mut entry = entry_of("a", "stock", 1.0, 1.0);
        (entry.throughput, entry.worst) = (None, None);
        let text = show(&survey_of(vec![entry]));
        assert!(text.contains("simulated time: a 2× stock."), "{text}");
    }
}
