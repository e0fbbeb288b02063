//! Charts as inline SVG: [`BarChart`] and [`RowChart`] compare, [`StackChart`] shows what a whole
//! consists of, [`LineChart`] and [`TimeStack`] what happens over time, [`Matrix`] who has to do with whom, [`NumberChart`]
//! figures over a number that was varied. [`picture`] makes a file of its own out of
//! one, and [`drawing`] writes it.
//!
//! An SVG here is part of an HTML page: its colours are the page's CSS variables (`--s0` … `--s7`
//! for series, `--ink`, `--grid`, `--mark`; see [`crate::page`]), so that one picture suits light and
//! dark. It scales with the page through its view box; text sizes are in the box's units. Every chart
//! has a title and a description for screen readers, every bar and line a tooltip, every axis its
//! unit, and colour is never the only way to tell two things apart: bars carry their names, lines
//! are labelled at their end.
//!
//! What it does not do: interaction, log scales (but for the numbers of [`NumberChart`]), negative values (a value below zero is drawn as
//! zero; the label still says it).

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
