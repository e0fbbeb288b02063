//! HTML page of a survey: a bar chart of each policy's mean over all programs, and every table below.
//!
//! There is one chart per overcommit, because a policy may gain at 2× and lose at 4×.
//! Bars are relative to stock, whose bar is 1.
//! The tables show the single figures behind the means, with losses in red and gains in green.

use crate::survey::entry::Survey;
use maud::{Markup, html};

use super::tables;
use tandem_report::chart::RowChart;
use tandem_report::chart::rows::Row;
use tandem_report::figure::NOT_MEASURED;
use tandem_report::page;

const TITLE: &str = "Every policy with every program";

/// Width of a chart.
const WIDTH: f64 = 760.0;

/// Returns the whole page; `command` is the command line that produced it.
pub fn html(survey: &Survey, command: &str, footer: &str) -> String {
    let body = html! {
        h1 { (TITLE) }
        @if let Some(lead) = lead(survey) { p.lead { (lead) } }
        @for &times in &survey.overcommit {
            (page::figure(
                &format!("Throughput at {times}×"),
                "Geometric mean over all programs, relative to stock: the dashed line.",
                chart(survey, times),
            ))
        }
        @for section in tables::parts(survey, usize::MAX) {
            h2 { (section.title) }
            @if !section.remark.is_empty() { p { (section.remark) } }
            @if let Some(table) = &section.table { (table.html(&section.title)) }
        }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (command) } } }
    };
    page::page(TITLE, body, footer)
}

/// Returns a sentence about the best policy at the last overcommit.
fn lead(survey: &Survey) -> Option<String> {
    let &times = survey.overcommit.last()?;
    let policies = survey.policies.iter();
    let (policy, value) = policies
        .filter_map(|policy| Some((policy, survey.mean_of(policy, times)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!(
        "At {times}× {policy} has the highest mean: {value:.2} times the throughput of stock."
    ))
}

fn chart(survey: &Survey, times: u32) -> Markup {
    let row = |policy: &String| {
        let value = survey.mean_of(policy, times);
        let label = value.map_or_else(|| NOT_MEASURED.to_owned(), |value| format!("{value:.2}"));
        Row {
            name: policy.clone(),
            series: 0,
            value,
            half_width: None,
            tooltip: format!("{policy} at {times}×: {label}"),
            label,
        }
    };
    RowChart {
        title: format!("Throughput of each policy at {times}×"),
        unit: "× stock".to_owned(),
        rows: survey.policies.iter().map(row).collect(),
        reference: Some(1.0),
        width: WIDTH,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::entry::Entry;

    #[test]
    fn page_names_winner_and_has_all_tables() {
        let entry = |policy: &str, overcommit: u32, throughput: Option<f64>| Entry {
            workload: "ebizzy".to_owned(),
            overcommit,
            policy: policy.to_owned(),
            throughput,
            unfairness: throughput.map(|_| 1.5),
            worst: throughput,
            victim: throughput.map(|_| "program".to_owned()),
            pcpus: 16,
            worst_by_due: None,
            victim_by_due: None,
        };
        let survey = Survey {
            entries: vec![
                entry("stock", 1, Some(1.0)),
                entry("hvs", 1, None),
                entry("stock", 4, Some(1.0)),
                entry("hvs", 4, Some(1.25)),
            ],
            policies: ["stock", "hvs"].map(str::to_owned).to_vec(),
            workloads: vec!["ebizzy".to_owned()],
            overcommit: vec![1, 4],
            pcpus: 16,
        };
        let page = html(&survey, "tandem-lab survey", "f");
        assert!(page.contains("At 4× hvs has the highest mean: 1.25 times"), "{page}");
        for text in [
            "Each policy over all programs",
            "Geometric mean over all VMs.",
            "ebizzy",
            NOT_MEASURED,
            "tandem-lab survey",
            "Unfairness, 4×",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("class=\"chart").count(), 2);
    }
}
