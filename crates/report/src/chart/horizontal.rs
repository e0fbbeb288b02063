//! Common parts of charts with horizontal rows: frame, names, plot, and the axis below the rows.

use maud::{Markup, html};

use super::scale::Scale;
use super::text::{at, cut};

/// Size of text.
pub const SIZE: f64 = 12.0;
/// Height of a row.
pub const ROW: f64 = 22.0;
/// Space above the first row, for the unit.
pub const TOP: f64 = 20.0;
/// Space below the last row, for the axis' labels.
const BELOW: f64 = 22.0;
/// Space between names, plot and values.
pub const GAP: f64 = 10.0;

/// Title, unit and width of a chart.
pub struct Frame<'a> {
    /// Title for screen readers.
    pub title: &'a str,
    /// Unit of the values, written above the rows.
    pub unit: &'a str,
    /// Width of the view box.
    pub width: f64,
}

impl Frame<'_> {
    /// Returns the chart as an `<svg>` element, with markup `under` and `over` the axis.
    pub fn svg(&self, plot: &Plot, under: &Markup, over: &Markup) -> Markup {
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(self.width), at(plot.bottom + BELOW)))
                role="img" aria-label=(self.title) {
                (under)
                (plot.axis(self.unit))
                (over)
            }
        }
    }
}

/// Draws all rows; `draw` receives the top of each.
pub fn each<R>(rows: &[R], draw: impl Fn(&R, f64) -> Markup) -> Markup {
    html! {
        @for (i, row) in rows.iter().enumerate() {
            (draw(row, TOP + ROW * i as f64))
        }
    }
}

/// Returns the middle of a row that begins at `top`, and the baseline of its text.
pub fn middle_and_base(top: f64) -> (f64, f64) {
    (top + ROW / 2.0, top + ROW / 2.0 + SIZE * 0.35)
}

/// Plot area.
pub struct Plot {
    /// Left end of the axis.
    pub left: f64,
    /// Right end of the axis.
    pub right: f64,
    /// Lower end of the rows.
    pub bottom: f64,
    /// Scale of the axis.
    pub scale: Scale,
}

impl Plot {
    /// Returns the position of a value, clamped to the axis; NaN and infinity are at its left end.
    pub fn x(&self, value: f64) -> f64 {
        let part = value / self.scale.max();
        let part = if part.is_finite() { part } else { 0.0 };
        self.left + (self.right - self.left) * part.clamp(0.0, 1.0)
    }

    /// Draws a row's name to the left.
    pub fn name(&self, name: &str, base: f64) -> Markup {
        html! {
            text x=(at(self.left - GAP + 2.0)) y=(at(base)) text-anchor="end" {
                (cut(name, self.left - GAP, SIZE))
            }
        }
    }

    /// Draws the grid and labels, with the unit above.
    fn axis(&self, unit: &str) -> Markup {
        html! {
            text.tick x=(at(self.left)) y="12" { (unit) }
            @for tick in self.scale.ticks() {
                line.(if tick == 0.0 { "base" } else { "grid" }) x1=(at(self.x(tick)))
                    x2=(at(self.x(tick))) y1=(at(TOP)) y2=(at(self.bottom)) {}
                text.tick x=(at(self.x(tick))) y=(at(self.bottom + 16.0)) text-anchor="middle" {
                    (self.scale.label(tick))
                }
            }
        }
    }

    /// Draws the line at a reference value.
    pub fn reference(&self, value: f64) -> Markup {
        html! {
            line.reference x1=(at(self.x(value))) x2=(at(self.x(value))) y1=(at(TOP))
                y2=(at(self.bottom)) {}
        }
    }
}
