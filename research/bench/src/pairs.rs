//! Chart of before-and-after pairs: one row per pair, a ring at the old value, a dot at the new value, a line between them, and a tick at the target.
//!
//! It suits many pairs of two settings in which the change matters.
//! Both values are printed to the right.

use maud::{Markup, html};

use tandem_report::chart::colour::colour;
use tandem_report::chart::horizontal::{Frame, GAP, Plot, ROW, SIZE, TOP, each, middle_and_base};
use tandem_report::chart::scale::Scale;
use tandem_report::chart::text::{at, column_width};
use tandem_report::figure::NOT_MEASURED;

const NAMES: f64 = 0.42;

/// A value before and after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Name of the row.
    pub name: String,
    /// Old value; `None`: not measured.
    pub before: Option<f64>,
    /// New value; `None`: not measured.
    pub after: Option<f64>,
    /// Target.
    pub due: Option<f64>,
    /// Text of both values, to the right.
    pub label: String,
    /// Description of the row.
    pub tooltip: String,
}

/// A chart of pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct PairChart {
    /// Title, for screen readers.
    pub title: String,
    /// Label of the axis, above the rows.
    pub unit: String,
    /// The rows, from top to bottom.
    pub rows: Vec<Pair>,
    /// Width of the view box; its height follows from the rows.
    pub width: f64,
}

impl PairChart {
    /// Renders the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let frame = Frame { title: &self.title, unit: &self.unit, width: self.width };
        let rows = each(&self.rows, |row, top| draw(&plot, row, top));
        frame.svg(&plot, &html! {}, &rows)
    }

    fn plot(&self) -> Plot {
        let widest = |text: fn(&Pair) -> &str| column_width(self.rows.iter().map(text), SIZE);
        let left = widest(|row| &row.name).min(self.width * NAMES) + GAP;
        let values = self.rows.iter().flat_map(|row| [row.before, row.after, row.due]);
        let most = values.flatten().filter(|value| value.is_finite()).fold(0.0, f64::max);
        Plot {
            left,
            right: (self.width - widest(|row| &row.label) - GAP).max(left + 60.0),
            bottom: TOP + ROW * self.rows.len() as f64,
            scale: Scale::up_to(most, 5),
        }
    }
}

fn draw(plot: &Plot, row: &Pair, top: f64) -> Markup {
    let (middle, base) = middle_and_base(top);
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    let (before, after, due) = (finite(row.before), finite(row.after), finite(row.due));
    html! {
        g {
            title { (row.tooltip) }
            (plot.name(&row.name, base))
            @if let Some(due) = due {
                line.mark x1=(at(plot.x(due))) x2=(at(plot.x(due))) y1=(at(middle - 7.0))
                    y2=(at(middle + 7.0)) {}
            }
            @if let (Some(before), Some(after)) = (before, after) {
                line.line.(colour(0)) x1=(at(plot.x(before))) x2=(at(plot.x(after)))
                    y1=(at(middle)) y2=(at(middle)) {}
            }
            @if let Some(before) = before {
                circle.ring.(colour(1)) cx=(at(plot.x(before))) cy=(at(middle)) r="4.5" {}
            }
            @if let Some(after) = after {
                circle.bar.(colour(0)) cx=(at(plot.x(after))) cy=(at(middle)) r="5" {}
            }
            @if before.is_none() && after.is_none() {
                text.absent x=(at(plot.left + 6.0)) y=(at(base)) { (NOT_MEASURED) }
            } @else {
                text.value x=(at(plot.right + GAP)) y=(at(base)) { (row.label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[(Option<f64>, Option<f64>)]) -> String {
        let row = |&(before, after): &(Option<f64>, Option<f64>)| Pair {
            name: "barrier-spin, 2 vCPUs, free, with 1 burn".to_owned(),
            before,
            after,
            due: Some(0.5),
            label: "0.02 → 0.43".to_owned(),
            tooltip: "a & b".to_owned(),
        };
        let chart = PairChart {
            title: "work".to_owned(),
            unit: "of alone".to_owned(),
            rows: values.iter().map(row).collect(),
            width: 760.0,
        };
        chart.svg().into_string()
    }

    #[test]
    fn row_has_ring_dot_line_and_tick() {
        let svg = chart(&[(Some(0.02), Some(0.43)), (Some(0.3), None)]);
        assert_eq!(svg.matches("class=\"ring s1\"").count(), 2);
        assert_eq!(svg.matches("class=\"bar s0\"").count(), 1);
        assert_eq!(svg.matches("class=\"line s0\"").count(), 1);
        assert_eq!(svg.matches("class=\"mark\"").count(), 2);
    }

    #[test]
    fn missing_and_infinite_values_render() {
        let svg = chart(&[(None, None), (Some(f64::NAN), Some(f64::INFINITY))]);
        assert_eq!(svg.matches(NOT_MEASURED).count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
