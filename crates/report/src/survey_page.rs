//! A survey of policies as a page: how each does over all programs, as bars, and every table beneath.
//!
//! There is a chart for each overcommit, so that a policy that gains on a host twice overcommitted and
//! loses on one four times overcommitted is seen to. Bars are relative to stock, whose bar is 1; what
//! a mean hides is in the tables, where losses are red and gains green.

use maud::Markup;
use maud::html;

use crate::chart::RowChart;
use crate::chart::rows::Row;
use crate::figure::NOT_MEASURED;
use crate::page;
use crate::table::Table;

const TITLE: &str = "Every policy with every program";

/// Width of a chart.
const WIDTH: f64 = 760.0;

/// Policies by one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Where: such as `2×`.
    pub place: String,
    /// Each policy, and its mean throughput relative to stock.
    pub policies: Vec<(String, Option<f64>)>,
}

/// A table with its title, and what is to be said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Its title.
    pub title: String,
    /// What is to be said; may be empty.
    pub remark: String,
    /// The table, if there is one.
    pub table: Option<Table>,
}

/// The whole page; `command` made it.
pub fn html(rankings: &[Ranking], sections: &[Section], command: &str, footer: &str) -> String {
    let body = html! {
        h1 { (TITLE) }
        @if let Some(lead) = lead(rankings) { p.lead { (lead) } }
        @for ranking in rankings {
            (page::figure(
                &format!("Throughput at {}", ranking.place),
                "Geometric mean over all programs, relative to stock: the dashed line.",
                chart(ranking),
            ))
        }
        @for section in sections {
            h2 { (section.title) }
            @if !section.remark.is_empty() { p { (section.remark) } }
            @if let Some(table) = &section.table { (table.html(&section.title)) }
        }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (command) } } }
    };
    page::page(TITLE, body, footer)
}

/// The best policy where there is most overcommit.
fn lead(rankings: &[Ranking]) -> Option<String> {
    let ranking = rankings.last()?;
    let measured = ranking.policies.iter();
    let (policy, value) = measured
        .filter_map(|(policy, value)| Some((policy, (*value)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!(
        "At {} {policy} has the highest mean: {value:.2} times the throughput of stock.",
        ranking.place
    ))
}

fn chart(ranking: &Ranking) -> Markup {
    let row = |(policy, value): &(String, Option<f64>)| {
        let label = value.map_or_else(|| NOT_MEASURED.to_owned(), |value| format!("{value:.2}"));
        Row {
            name: policy.clone(),
            series: 0,
            value: *value,
            half_width: None,
            tooltip: format!("{policy} at {}: {label}", ranking.place),
            label,
        }
    };
    RowChart {
        title: format!("Throughput of each policy at {}", ranking.place),
        unit: "× stock".to_owned(),
        rows: ranking.policies.iter().map(row).collect(),
        reference: Some(1.0),
        width: WIDTH,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_named_and_every_table_is_there() {
        let ranking = |place: &str, values: [Option<f64>; 2]| Ranking {
            place: place.to_owned(),
            policies: ["stock", "hvs"]
                .map(str::to_owned)
                .into_iter()
                .zip(values)
                .collect(),
        };
        let mut table = Table::new(&["program"]);
        table.row(["ebizzy"]);
        let section = Section {
            title: "Cells".to_owned(),
            remark: "Read so.".to_owned(),
            table: Some(table),
        };
        let rankings = [
            ranking("1×", [Some(1.0), None]),
            ranking("4×", [Some(1.0), Some(1.25)]),
        ];
        let page = html(&rankings, &[section], "tandem sim survey", "f");
        assert!(
            page.contains("At 4× hvs has the highest mean: 1.25 times"),
            "{page}"
        );
        for text in [
            "Read so.",
            "ebizzy",
            NOT_MEASURED,
            "tandem sim survey",
            "Cells",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("class=\"chart").count(), 2);
    }
}
