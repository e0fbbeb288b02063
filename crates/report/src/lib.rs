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
//! - [`perfetto`]: traces for ui.perfetto.dev.
//! - [`timeline`]: a picture of a short piece of a trace, as SVG.
//! - [`record_page`]: what happened on a host over some time, from recorded intervals.
//! - [`waits_matrix`]: who waited for whom in an interval, live, recorded or simulated.
//! - [`host_trace`]: some seconds of a host, switch by switch, for Perfetto and as a page.
//! - [`json`]: figures as JSON files.
//! - [`terminal`]: whether there is colour, and whether anything but results is said.
//! - [`writable`]: whether a file could be written.
//! - [`mod@explain`]: an error and its causes on one line.
//!
//! Nothing here measures, and nothing here rounds before it must: figures are kept as measured and
//! rounded where they are shown. A figure that was not measured is absent, never zero.

pub mod chart;
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
pub mod service;
pub mod table;
pub mod terminal;
pub mod timeline;
pub mod waits_matrix;
pub mod writable;

pub use experiment::Experiment;
pub use explain::explain;
pub use table::Table;
pub use writable::check_writable;
