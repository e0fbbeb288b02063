//! Output of Tandem's figures: tables for the terminal, charts, and HTML pages that open offline.
//!
//! - [`table`]: tables as text or HTML.
//! - [`chart`]: charts as inline SVG.
//! - [`page`]: frame of a self-contained HTML page, without external scripts, fonts or addresses.
//! - [`experiment`]: figures of an experiment with several modes of one host; `tandem demo --json` prints their JSON form.
//! - [`service`]: service of each VM: windows, waits, work relative to alone.
//! - [`experiment_table`] and [`experiment_page`]: an experiment for the terminal and as a page.
//! - [`perfetto`]: traces for ui.perfetto.dev.
//! - [`timeline`]: picture of a short piece of a trace, as SVG.
//! - [`record_page`]: page of a host over time, from recorded intervals.
//! - [`waits_matrix`]: waits in an interval by victim and culprit, live, recorded or simulated.
//! - [`host_trace`]: a host's trace with every context switch, for Perfetto and as a page.
//! - [`json`]: figures as JSON files.
//! - [`terminal`]: colour and quiet mode.
//! - [`progress`]: progress bars.
//! - [`writable`]: check that a file can be written.
//! - [`mod@explain`]: an error and its causes on one line.
//!
//! This crate does not measure.
//! Figures are stored as measured, and rounded only for output.
//! A figure that was not measured is absent, never zero.

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
