//! Charts as inline SVG.
//!
//! - [`BarChart`] and [`RowChart`]: comparison of values.
//! - [`StackChart`]: composition of a whole; [`TimeStack`]: composition over time.
//! - [`LineChart`]: values over time; [`NumberChart`]: values over a varied number.
//! - [`Matrix`]: relations between rows and columns.
//! - [`picture`]: charts as a standalone SVG file, which [`drawing`] writes.
//!
//! A chart is part of an HTML page and uses its CSS variables (`--s0` … `--s7`
//! for series, `--ink`, `--grid`, `--mark`; see [`crate::page`]), so it suits light and dark pages.
//! It scales with the page through its view box; text sizes are in the box's units.
//! Every chart has a title for screen readers, every bar and line a tooltip, and every axis its unit.
//! Colour is never the only distinction: bars have names, and lines have labels at their ends.
//!
//! Out of scope: interaction, log scales (except for the numbers of [`NumberChart`]) and negative values.
//! A value below zero is drawn as zero, with the value in its label.

pub mod bar;
pub mod colour;
pub mod drawing;
pub mod horizontal;
mod labels;
pub mod line;
pub mod matrix;
pub mod number;
pub mod over_time;
pub mod picture;
pub mod rows;
pub mod scale;
pub mod stack;
pub mod text;

pub use bar::BarChart;
pub use colour::COLOURS;
pub use line::LineChart;
pub use matrix::Matrix;
pub use number::NumberChart;
pub use over_time::TimeStack;
pub use rows::RowChart;
pub use stack::StackChart;
