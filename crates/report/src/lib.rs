//! How Tandem shows what it measured: tables for the terminal, charts, and HTML pages that open
//! offline.
//!
//! - [`table`]: one table model, written as text or as HTML.
//! - [`chart`]: bar and line charts as inline SVG.
//! - [`page`]: the shell of a self-contained HTML page (no script, font or address from elsewhere).
//! - [`experiment`]: the figures of one experiment, several modes of one host side by side; its JSON
//!   form is what `tandem demo --json` prints.
//! - [`service`]: how each VM was served: windows, waits, work relative to alone.
//! - [`experiment_table`] and [`experiment_page`]: that experiment for the terminal and as a page.
//! - [`simulation`]: simulated runs and comparisons as tables, pages and pictures.
//! - [`survey`]: a survey of policies as tables, a document and a page.
//! - [`claims_table`] and [`claims_page`]: published claims against our figures.
//! - [`section`]: what pages and documents consist of.
//! - [`bench_page`]: any bench against stock, as a page.
//! - [`perfetto`]: traces for ui.perfetto.dev.
//! - [`timeline`]: a picture of a short piece of a trace, as SVG.
//! - [`document`]: figures in Markdown documents, from files of data.
//! - [`record_page`]: what happened on a host over some time, from recorded intervals.
//! - [`waits_matrix`]: who waited for whom in an interval, live, recorded or simulated.
//! - [`host_trace`]: some seconds of a host, switch by switch, for Perfetto and as a page.
//! - [`json`]: figures as JSON files.
//! - [`terminal`]: whether there is colour, and whether anything but results is said.
//! - [`mod@argument`]: whether an error is about an option.
//! - [`writable`]: whether a file could be written.
//! - [`mod@explain`]: an error and its causes on one line.
//!
//! Nothing here measures, and nothing here rounds before it must: figures are kept as measured and
//! rounded where they are shown. A figure that was not measured is absent, never zero.

pub mod argument;
pub mod bench_page;
pub mod chart;
pub mod claims_page;
pub mod claims_table;
pub mod document;
pub mod experiment;
pub mod experiment_page;
pub mod experiment_table;
pub mod explain;
pub mod figure;
pub mod host_trace;
pub mod json;
pub mod page;
pub mod perfetto;
pub mod progress;
pub mod record_page;
pub mod section;
pub mod service;
pub mod simulation;
pub mod survey;
pub mod table;
pub mod terminal;
pub mod timeline;
pub mod waits_matrix;
pub mod writable;

pub use argument::is_of_an_argument;
pub use experiment::Experiment;
pub use explain::explain;
pub use section::Section;
pub use table::Table;
pub use writable::check_writable;

/// The former place of [`Section`].
pub mod survey_page {
    pub use crate::section::Section;
}
