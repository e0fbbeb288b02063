//! One run as a page: where the time went, what APLE did, who waited for whom, and the tables.

use maud::html;

use super::Threshold;
use super::TimeOf;
use super::WaitsOf;
use super::time;
use super::waits;
use crate::page;
use crate::table::Table;

/// Everything on the page.
#[derive(Clone, Debug)]
pub struct Run {
    /// The scenario's name.
    pub scenario: String,
    /// What it is about.
    pub about: String,
    /// Seed and length, in words.
    pub in_words: String,
    /// The command that makes this page.
    pub command: String,
    /// Key figures: name, value, what stands below it.
    pub tiles: Vec<(String, String, String)>,
    /// Where the time went, a row for each VM.
    pub time: Vec<TimeOf>,
    /// Where the time of each vCPU went, by VM.
    pub vcpus: Vec<(String, Vec<TimeOf>)>,
    /// The windows, if APLE set them.
    pub threshold: Option<Threshold>,
    /// Who waited for whom.
    pub waits: Vec<WaitsOf>,
    /// Everything as tables, with their captions.
    pub tables: Vec<(String, Table)>,
    /// What is not shown, in words.
    pub notes: Vec<String>,
}

/// The whole page.
pub fn html(run: &Run, footer: &str) -> String {
    let body = html! {
        h1 { (run.scenario) }
        @if !run.about.is_empty() { p.lead { (run.about) } }
        p.faint { (run.in_words) }
        @if !run.notes.is_empty() {
            ul.notes { @for note in &run.notes { li { (note) } } }
        }
        div.tiles {
            @for (name, value, beside) in &run.tiles {
                (page::tile(name, html! { (value) }, beside))
            }
        }
        h2 { "Where the time went" }
        p.faint {
            "What the vCPUs of each VM did on pCPUs; hollow: how long they were runnable without one."
        }
        figure {
            figcaption { "by VM" }
            div.wide { (time::chart("Time of each VM", &run.time, 1000.0).svg()) }
        }
        @if !run.vcpus.is_empty() {
            div.grid {
                @for (vm, rows) in &run.vcpus {
                    @let title = format!("{vm}, by vCPU");
                    (page::figure(&title, "", time::chart(&title, rows, 520.0).svg()))
                }
            }
        }
        @if let Some(threshold) = &run.threshold {
            h2 { "APLE's threshold over time" }
            figure { div.wide { (threshold.chart(threshold.most(), 1000.0).svg()) } }
        }
        (waits::section(&run.waits))
        h2 { "Figures" }
        @for (caption, table) in &run.tables {
            h3 { (caption) }
            (table.html(caption))
        }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (run.command) } } }
    };
    page::page(&run.scenario, body, footer)
}
