//! Charts as inline SVG: [`bar::BarChart`] and [`line::LineChart`].
//!
//! An SVG here is part of an HTML page: its colours are the page's CSS variables (`--s0` … `--s7`
//! for series, `--ink`, `--grid`, `--mark`; see [`crate::page`]), so that one picture suits light and
//! dark. It scales with the page through its view box; text sizes are in the box's units. Every chart
//! has a title and a description for screen readers, every bar and line a tooltip, every axis its
//! unit, and colour is never the only way to tell two things apart: bars carry their names, lines
//! are labelled at their end.
//!
//! What it does not do: interaction, log scales, negative values (a value below zero is drawn as
//! zero; the label still says it).

pub mod bar;
pub mod line;
mod scale;

pub use bar::BarChart;
pub use line::LineChart;

/// How many series have a colour of their own; the next ones begin anew.
pub const COLOURS: usize = 8;

/// The CSS class that gives series `index` its colour.
pub(crate) fn colour(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// A coordinate with at most one decimal: a tenth of a unit is below a pixel.
pub(crate) fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// About how wide a text is, in units of the view box, at a font size: digits and lower-case letters
/// of the usual sans-serif fonts are a little over half as wide as high.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}
