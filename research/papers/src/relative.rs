//! Chart of figures relative to their published values, one figure a row.
//!
//! The line at 1 is the published value; the shaded band is the range that counts as reproduced, open to one side if the value is a bound.
//! The dot is our figure and the whisker its interval.
//! A value beyond the scale is an arrow at the end of the scale; the label to the right shows the number.
//! Values are relative because one claim may have percentages, microseconds and ratios.

use maud::{Markup, html};

use tandem_report::chart::horizontal::{Frame, GAP, Plot, ROW, SIZE, TOP, each, middle_and_base};
use tandem_report::chart::scale::Scale;
use tandem_report::chart::text::{at, column_width};
use tandem_report::figure::NOT_MEASURED;

const NAMES: f64 = 0.36;
/// Maximum end of the scale, as a multiple of the published value.
const MAX_SCALE: f64 = 3.0;

/// One figure, relative to the published one.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeRow {
    /// Name of the figure.
    pub name: String,
    /// Lower end of the band; `None`: unbounded.
    pub low: Option<f64>,
    /// Upper end of the band; `None`: unbounded.
    pub high: Option<f64>,
    /// Our figure; `None`: not measured.
    pub ours: Option<f64>,
    /// Half the width of the interval of our figure.
    pub half_width: Option<f64>,
    /// Whether our figure is in the band.
    pub is_near: bool,
    /// Text to the right of the plot: both values.
    pub label: String,
    /// Tooltip of the row.
    pub tooltip: String,
}

/// A chart of relative figures.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeChart {
    /// Title for screen readers.
    pub title: String,
    /// Unit of the axis, written above the rows.
    pub unit: String,
    /// The rows.
    pub rows: Vec<RelativeRow>,
    /// Width of the view box; the height follows from the number of rows.
    pub width: f64,
}

impl RelativeChart {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let frame = Frame { title: &self.title, unit: &self.unit, width: self.width };
        let bands = each(&self.rows, |row, top| band(&plot, row, top));
        let over = html! {
            (plot.reference(1.0))
            (each(&self.rows, |row, top| dot(&plot, row, top)))
        };
        frame.svg(&plot, &bands, &over)
    }

    fn plot(&self) -> Plot {
        let widest =
            |text: fn(&RelativeRow) -> &str| column_width(self.rows.iter().map(text), SIZE);
        let names = widest(|row| &row.name).min(self.width * NAMES);
        let left = names + GAP;
        let ends = self.rows.iter().flat_map(|row| [row.ours, row.high]);
        let most = ends.flatten().filter(|end| end.is_finite()).fold(1.5, f64::max);
        Plot {
            left,
            right: (self.width - widest(|row| &row.label) - GAP).max(left + 60.0),
            bottom: TOP + ROW * self.rows.len() as f64,
            scale: Scale::up_to(most.min(MAX_SCALE), 6),
        }
    }
}

fn band(plot: &Plot, row: &RelativeRow, top: f64) -> Markup {
    let (from, to) =
        (plot.x(row.low.unwrap_or(0.0)), row.high.map_or(plot.right, |high| plot.x(high)));
    html! {
        rect.band x=(at(from)) y=(at(top + 3.0)) width=(at((to - from).max(0.0)))
            height=(at(ROW - 6.0)) {}
    }
}

fn dot(plot: &Plot, row: &RelativeRow, top: f64) -> Markup {
    let (middle, base) = middle_and_base(top);
    let class = if row.is_near { "near" } else { "far" };
    html! {
        g {
            title { (row.tooltip) }
            (plot.name(&row.name, base))
            @match row.ours.filter(|ours| ours.is_finite()) {
                None => text.absent x=(at(plot.left + 6.0)) y=(at(base)) { (NOT_MEASURED) },
                Some(ours) if ours > plot.scale.max() => {
                    path.dot.(class) d=(arrow(plot.right, middle, 1.0)) {}
                }
                Some(ours) if ours < 0.0 => {
                    path.dot.(class) d=(arrow(plot.left, middle, -1.0)) {}
                }
                Some(ours) => {
                    @if let Some(half) = row.half_width.filter(|half| half.is_finite()) {
                        line.whisker x1=(at(plot.x(ours - half))) x2=(at(plot.x(ours + half)))
                            y1=(at(middle)) y2=(at(middle)) {}
                    }
                    circle.dot.(class) cx=(at(plot.x(ours))) cy=(at(middle)) r="5" {}
                }
            }
            text.value x=(at(plot.right + GAP)) y=(at(base)) { (row.label) }
        }
    }
}

/// Returns the path of a triangle with its tip at x, pointing right (`way` 1) or left (−1).
fn arrow(x: f64, y: f64, way: f64) -> String {
    let back = at(x - 9.0 * way);
    let (top, bottom) = (at(y - 6.0), at(y + 6.0));
    format!("M{},{}L{back},{top}V{bottom}Z", at(x), at(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(ours: &[f64]) -> RelativeChart {
        let row = |&ours: &f64| RelativeRow {
            name: "dedup[0]".to_owned(),
            low: Some(0.85),
            high: None,
            ours: Some(ours),
            half_width: Some(0.1),
            is_near: (0.85..=1.15).contains(&ours),
            label: "1.34 / 1.30".to_owned(),
            tooltip: "a & b".to_owned(),
        };
        RelativeChart {
            title: "claim".to_owned(),
            unit: "ours ÷ published".to_owned(),
            rows: ours.iter().map(row).collect(),
            width: 640.0,
        }
    }

    #[test]
    fn out_of_scale_value_is_an_arrow() {
        let svg = chart(&[1.0, 40.0, -3.0]).svg().into_string();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert_eq!(svg.matches("class=\"dot far\"").count(), 2);
        assert!(svg.contains(">3.0<") && !svg.contains(">4.0<"), "{svg}");
    }

    #[test]
    fn unmeasured_value_is_labelled() {
        let svg = chart(&[f64::NAN, f64::INFINITY]).svg().into_string();
        assert_eq!(svg.matches(NOT_MEASURED).count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
