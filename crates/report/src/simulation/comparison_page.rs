//! A comparison as a page: every metric under every combination, where the time went, what APLE did,
//! who waited for whom, the table, and the command that made it.

use maud::Markup;
use maud::html;

use super::Measure;
use super::Threshold;
use super::TimeOf;
use super::WaitsOf;
use super::time;
use super::waits;
use crate::chart::picture;
use crate::page;
use crate::table::Table;

/// Everything on the page.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    /// What it is about.
    pub about: String,
    /// Runs and seeds, in words.
    pub runs_in_words: String,
    /// Runs of each combination.
    pub runs: usize,
    /// The command that makes this page.
    pub command: String,
    /// The combinations.
    pub combinations: Vec<String>,
    /// What each sets, as `key=value`.
    pub settings: Vec<Vec<String>>,
    /// The metrics shown.
    pub measures: Vec<Measure>,
    /// Where the time of each VM went, a row for each combination.
    pub time: Vec<(String, Vec<TimeOf>)>,
    /// The windows of combinations with APLE.
    pub thresholds: Vec<Threshold>,
    /// Who waited for whom.
    pub waits: Vec<WaitsOf>,
    /// All figures shown.
    pub table: Table,
    /// What is not shown, in words.
    pub notes: Vec<String>,
}

/// The whole page.
pub fn html(comparison: &Comparison, footer: &str) -> String {
    let most = comparison
        .thresholds
        .iter()
        .map(Threshold::most)
        .fold(0.0, f64::max);
    let body = html! {
        h1 { (comparison.scenario) }
        @if !comparison.about.is_empty() { p.lead { (comparison.about) } }
        p.faint {
            (comparison.combinations.len()) " combinations, " (comparison.runs_in_words)
        }
        @if !comparison.notes.is_empty() {
            ul.notes { @for note in &comparison.notes { li { (note) } } }
        }
        @for measure in &comparison.measures {
            (measure.section(&comparison.combinations, comparison.runs))
        }
        (times(&comparison.time))
        @if !comparison.thresholds.is_empty() {
            h2 { "APLE's threshold over time" }
            p.faint { "The pause-loop window of each VM as APLE set it, from one run." }
            div.grid {
                @for threshold in &comparison.thresholds {
                    (page::figure(&threshold.combination, "", threshold.chart(most, 520.0).svg()))
                }
            }
        }
        (waits::section(&comparison.waits))
        h2 { "Figures" }
        (comparison.table.html("Every metric of every VM under every combination"))
        (how(comparison))
    };
    page::page(&comparison.scenario, body, footer)
}

/// The charts relative to the first combination as an SVG file; `None` where there are none.
pub fn picture(comparison: &Comparison) -> Option<String> {
    let panels: Vec<_> = comparison
        .measures
        .iter()
        .filter_map(|measure| measure.picture(&comparison.combinations))
        .collect();
    let title = match comparison.about.is_empty() {
        true => &comparison.scenario,
        false => &comparison.about,
    };
    let subtitle = format!(
        "simulated; {}; whiskers: 95 % intervals of the paired difference",
        comparison.runs_in_words
    );
    (!panels.is_empty()).then(|| picture::svg(title, &subtitle, &panels))
}

fn times(time: &[(String, Vec<TimeOf>)]) -> Markup {
    html! {
        @if !time.is_empty() {
            h2 { "Where the time went" }
            p.faint {
                "What the vCPUs of a VM did on pCPUs, means over the runs; hollow: how long they "
                "were runnable without one."
            }
            @for (vm, rows) in time {
                figure {
                    figcaption { (vm) }
                    div.wide { (time::chart(&format!("Time of {vm}"), rows, 1000.0).svg()) }
                }
            }
        }
    }
}

fn how(comparison: &Comparison) -> Markup {
    html! {
        h2 { "How it was made" }
        dl {
            dt { "Command" } dd { pre { (comparison.command) } }
            dt { "Runs" } dd { (comparison.runs_in_words) }
            @for (name, settings) in comparison.combinations.iter().zip(&comparison.settings) {
                dt { (name) }
                dd {
                    @if settings.is_empty() { "nothing is set" } @else { (settings.join(", ")) }
                }
            }
        }
    }
}
