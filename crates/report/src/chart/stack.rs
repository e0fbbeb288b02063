//! Horizontal stacked bars: composition of a whole, one row per whole.
//!
//! Parts have the same order and colour in all rows, so that rows can be compared.
//! A part may be a ghost: it belongs to the row but not to the received amount, and is drawn hollow.

use maud::{Markup, html};

use super::colour::colour;
use super::scale::Scale;
use super::text::{at, column_width, cut, text_width};

const SIZE: f64 = 12.0;
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;
const LEGEND_ROW: f64 = 20.0;
const UNIT: f64 = 18.0;
const BELOW: f64 = 22.0;
const GAP: f64 = 10.0;
const NAMES: f64 = 0.3;

/// A part of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name in the legend.
    pub name: String,
    /// Colour index; `None`: a ghost.
    pub series: Option<usize>,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// Name.
    pub name: String,
    /// Value of each part.
    pub values: Vec<f64>,
    /// Text of each value, for tooltips.
    pub labels: Vec<String>,
}

/// A chart of stacked bars.
#[derive(Clone, Debug, PartialEq)]
pub struct StackChart {
    /// Title for screen readers.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// The parts, from left to right.
    pub parts: Vec<Part>,
    /// The rows, from top to bottom.
    pub wholes: Vec<Whole>,
    /// Width of the view box; the height follows from the number of rows.
    pub width: f64,
}

impl StackChart {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let shown = self.shown();
        let legend = self.legend(&shown);
        let top = legend.last().map_or(0.0, |entry| (entry.1 + 1.0) * LEGEND_ROW) + UNIT + 6.0;
        let names = self.wholes.iter().map(|whole| whole.name.as_str());
        let names = column_width(names, SIZE).min(self.width * NAMES);
        let (left, right) = (names + GAP, self.width - GAP);
        let bottom = top + ROW * self.wholes.len() as f64;
        let sum = |whole: &Whole| whole.values.iter().copied().map(length).sum::<f64>();
        let scale = Scale::up_to(self.wholes.iter().map(sum).fold(0.0, f64::max), 6);
        let x = |value: f64| left + (right - left) * (value / scale.max()).clamp(0.0, 1.0);
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(self.width), at(bottom + BELOW))) role="img"
                aria-label=(self.title) {
                @for (left, row, part) in &legend {
                    rect.(class(&self.parts[*part])) x=(at(*left)) y=(at(row * LEGEND_ROW + 3.0))
                        width="12" height="12" {}
                    text.legend x=(at(left + 20.0)) y=(at(row * LEGEND_ROW + 13.0)) {
                        (self.parts[*part].name)
                    }
                }
                text.tick x=(at(left)) y=(at(top - 7.0)) { (self.unit) }
                @for tick in scale.ticks() {
                    line.(if tick == 0.0 { "base" } else { "grid" }) x1=(at(x(tick)))
                        x2=(at(x(tick))) y1=(at(top)) y2=(at(bottom)) {}
                    text.tick x=(at(x(tick))) y=(at(bottom + 16.0)) text-anchor="middle" {
                        (scale.label(tick))
                    }
                }
                @for (i, whole) in self.wholes.iter().enumerate() {
                    @let middle = top + ROW * (i as f64 + 0.5);
                    text x=(at(left - GAP + 2.0)) y=(at(middle + SIZE * 0.35)) text-anchor="end" {
                        title { (whole.name) }
                        (cut(&whole.name, names, SIZE))
                    }
                    (self.whole(whole, middle, &x))
                }
            }
        }
    }

    fn whole(&self, whole: &Whole, middle: f64, x: &impl Fn(f64) -> f64) -> Markup {
        let mut from = 0.0;
        let mut pieces = Vec::new();
        for ((part, &value), label) in self.parts.iter().zip(&whole.values).zip(&whole.labels) {
            let to = from + length(value);
            if x(to) - x(from) >= 0.1 {
                pieces.push((part, x(from), x(to), label));
            }
            from = to;
        }
        html! {
            @for (part, from, to, label) in pieces {
                rect.(class(part)) x=(at(from)) y=(at(middle - BAR / 2.0)) width=(at(to - from))
                    height=(at(BAR)) {
                    title { (whole.name) ", " (part.name) ": " (label) }
                }
            }
        }
    }

    /// Returns the parts with a value above 0 in any row.
    fn shown(&self) -> Vec<usize> {
        let has = |&part: &usize| {
            let value = |whole: &Whole| whole.values.get(part).copied().map_or(0.0, length);
            self.wholes.iter().any(|whole| value(whole) > 0.0)
        };
        (0..self.parts.len()).filter(has).collect()
    }

    /// Returns left end, row and part of the legend's entries.
    fn legend(&self, shown: &[usize]) -> Vec<(f64, f64, usize)> {
        let (mut x, mut row) = (0.0, 0.0);
        let mut entries = Vec::new();
        for &part in shown {
            let width = 20.0 + text_width(&self.parts[part].name, SIZE) + 18.0;
            if x > 0.0 && x + width > self.width {
                (x, row) = (0.0, row + 1.0);
            }
            entries.push((x, row, part));
            x += width;
        }
        entries
    }
}

/// Returns a value as a length: 0 for negative and non-finite values.
pub(super) fn length(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

pub(super) fn class(part: &Part) -> String {
    match part.series {
        Some(series) => format!("bar {}", colour(series)),
        None => "ghost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64]) -> StackChart {
        let part = |i: usize| Part { name: format!("part {i}"), series: (i > 0).then_some(i) };
        StackChart {
            title: "time".to_owned(),
            unit: "pCPUs".to_owned(),
            parts: (0..values.len()).map(part).collect(),
            wholes: vec![Whole {
                name: "vm".to_owned(),
                values: values.to_vec(),
                labels: values.iter().map(f64::to_string).collect(),
            }],
            width: 700.0,
        }
    }

    /// Returns left ends and widths of the rectangles with tooltips.
    fn pieces(svg: &str) -> Vec<(f64, f64)> {
        let number = |rest: &str, name: &str| -> f64 {
            let after = rest.split(&format!(" {name}=\"")).nth(1).unwrap();
            after.split('"').next().unwrap().parse().unwrap()
        };
        svg.split("<rect")
            .skip(1)
            .filter_map(|rest| rest.split("</rect>").next())
            .filter(|rest| rest.contains("<title>"))
            .map(|rest| (number(rest, "x"), number(rest, "width")))
            .collect()
    }

    #[test]
    fn parts_are_adjacent_and_proportional() {
        let pieces = pieces(&chart(&[2.0, 0.0, 1.0, 3.0]).svg().into_string());
        assert_eq!(pieces.len(), 3, "no piece for a value of 0");
        for two in pieces.windows(2) {
            assert!((two[0].0 + two[0].1 - two[1].0).abs() < 0.2, "{pieces:?}");
        }
        assert!((pieces[2].1 / pieces[1].1 - 3.0).abs() < 0.01, "{pieces:?}");
    }

    #[test]
    fn extreme_values_are_drawn() {
        let svg = chart(&[f64::NAN, -1.0, f64::INFINITY]).svg().into_string();
        assert!(!svg.contains("NaN") && !svg.contains("inf,"), "{svg}");
        assert!(pieces(&svg).is_empty());
    }
}
