//! Horizontal bar charts: one row per item, with its name to the left, its value to the right, and an optional line at a reference value.
//!
//! They suit many items with long names, and VMs whose values need separate scales.
//! Intervals are drawn as whiskers.
//! A name that is too long for its column is cut with an ellipsis.

use maud::{Markup, html};

use super::colour::colour;
use super::horizontal::{Frame, GAP, Plot, ROW, SIZE, TOP, each, middle_and_base};
use super::scale::Scale;
use super::text::{at, column_width};
use crate::figure::NOT_MEASURED;

const BAR: f64 = 14.0;
/// Maximum width of names, as a fraction of the whole width.
const NAMES: f64 = 0.38;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name.
    pub name: String,
    /// Colour index.
    pub series: usize,
    /// Value; `None`: not measured.
    pub value: Option<f64>,
    /// Half the width of the interval.
    pub half_width: Option<f64>,
    /// Text of the value, to the right.
    pub label: String,
    /// Tooltip.
    pub tooltip: String,
}

/// A chart of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChart {
    /// Title for screen readers.
    pub title: String,
    /// Unit of the values, written above the rows.
    pub unit: String,
    /// The rows, from top to bottom.
    pub rows: Vec<Row>,
    /// Reference value.
    pub reference: Option<f64>,
    /// Width of the view box; the height follows from the number of rows.
    pub width: f64,
}

impl RowChart {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let frame = Frame { title: &self.title, unit: &self.unit, width: self.width };
        let over = html! {
            (each(&self.rows, |row, top| draw(&plot, row, top)))
            @if let Some(reference) = self.reference {
                (plot.reference(reference))
            }
        };
        frame.svg(&plot, &html! {}, &over)
    }

    fn plot(&self) -> Plot {
        let widest = |text: fn(&Row) -> &str| column_width(self.rows.iter().map(text), SIZE);
        let names = widest(|row| &row.name).min(self.width * NAMES);
        let labels = widest(|row| &row.label);
        let ends =
            self.rows.iter().filter_map(|row| Some(row.value? + row.half_width.unwrap_or(0.0)));
        let left = names + GAP;
        Plot {
            left,
            right: (self.width - labels - GAP).max(left + 40.0),
            bottom: TOP + ROW * self.rows.len() as f64,
            scale: Scale::up_to(ends.fold(self.reference.unwrap_or(0.0), f64::max), 4),
        }
    }
}

fn draw(plot: &Plot, row: &Row, top: f64) -> Markup {
    let (middle, base) = middle_and_base(top);
    html! {
        g {
            title { (row.tooltip) }
            (plot.name(&row.name, base))
            @if let Some(value) = row.value {
                rect.bar.(colour(row.series)) x=(at(plot.left)) y=(at(middle - BAR / 2.0))
                    width=(at(plot.x(value) - plot.left)) height=(at(BAR)) {}
                @if let Some(half) = row.half_width {
                    (whisker(plot, (value - half, value + half), middle))
                }
                text.value x=(at(plot.right + GAP)) y=(at(base)) { (row.label) }
            } @else {
                text.absent x=(at(plot.left + 6.0)) y=(at(base)) { (NOT_MEASURED) }
            }
        }
    }
}

/// Draws a horizontal interval with caps.
fn whisker(plot: &Plot, (from, to): (f64, f64), y: f64) -> Markup {
    let (top, bottom) = (at(y - 4.0), at(y + 4.0));
    let (from, to) = (at(plot.x(from)), at(plot.x(to)));
    let path = format!("M{from},{top}V{bottom}M{from},{}H{to}M{to},{top}V{bottom}", at(y));
    html! { path.whisker d=(path) {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[Option<f64>]) -> RowChart {
        let row = |(i, &value): (usize, &Option<f64>)| Row {
            name: format!("host.pause_loop.policy=aple vm.*.weight=10{i}"),
            series: i,
            value,
            half_width: Some(0.5),
            label: "12.35 k".to_owned(),
            tooltip: "a & b".to_owned(),
        };
        RowChart {
            title: "work".to_owned(),
            unit: "1/s".to_owned(),
            rows: values.iter().enumerate().map(row).collect(),
            reference: Some(1.0),
            width: 460.0,
        }
    }

    #[test]
    fn long_names_are_cut() {
        let chart = chart(&[Some(1.0), Some(2.0)]);
        let plot = chart.plot();
        assert!(plot.right - plot.left > 150.0);
        assert!(chart.svg().into_string().contains('…'));
    }

    #[test]
    fn extreme_values_are_drawn() {
        let svg = chart(&[None, Some(f64::NAN), Some(-1.0), Some(f64::INFINITY)]).svg();
        let svg = svg.into_string();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains(NOT_MEASURED) && !svg.contains("width=\"-"), "{svg}");
    }
}
