//! Stacked bars over time: composition of a whole in consecutive intervals.
//!
//! The position and width of a bar are those of its interval.
//! A time without a bar stays empty, so that a gap in the measurement differs from a value of zero.
//! All bars have the same scale, from zero to [`TimeStack::most`].

use maud::{Markup, html};

use super::stack::{Part, class, length};
use super::text::{at, text_width};

const SIZE: f64 = 12.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 8.0;
const LEGEND_ROW: f64 = 20.0;
const UNIT: f64 = 18.0;
const BELOW: f64 = 24.0;
const TICKS: usize = 4;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeBar {
    /// Begin and end on the axis.
    pub time: (f64, f64),
    /// Value of each part.
    pub values: Vec<f64>,
    /// Tooltip.
    pub tooltip: String,
}

/// A chart of stacked bars over time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeStack {
    /// Title for screen readers.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// The parts, from bottom to top.
    pub parts: Vec<Part>,
    /// The bars.
    pub bars: Vec<TimeBar>,
    /// Begin and end of the axis.
    pub time: (f64, f64),
    /// Times on the axis with their labels.
    pub ticks: Vec<(f64, String)>,
    /// Maximum of the scale.
    pub most: f64,
    /// Size of the picture without its legend.
    pub size: (f64, f64),
}

impl TimeStack {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let (width, height) = self.size;
        let legend = self.legend();
        let rows = legend.last().map_or(0.0, |entry| entry.1 + 1.0);
        let top = rows * LEGEND_ROW + UNIT;
        let bottom = top + height - UNIT - BELOW;
        let y = |value: f64| bottom - (bottom - top) * part(value, self.most);
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(width), at(bottom + BELOW))) role="img"
                aria-label=(self.title) {
                @for (left, row, part) in &legend {
                    rect.(class(&self.parts[*part])) x=(at(*left)) y=(at(row * LEGEND_ROW + 3.0))
                        width="12" height="12" {}
                    text.legend x=(at(left + 18.0)) y=(at(row * LEGEND_ROW + 13.0)) {
                        (self.parts[*part].name)
                    }
                }
                text.tick x="0" y=(at(top - 6.0)) { (self.unit) }
                @for i in 0..=TICKS {
                    @let value = self.most * i as f64 / TICKS as f64;
                    line.(if i == 0 { "base" } else { "grid" }) x1=(at(LEFT)) x2=(at(width - RIGHT))
                        y1=(at(y(value))) y2=(at(y(value))) {}
                    text.tick x=(at(LEFT - 6.0)) y=(at(y(value) + SIZE * 0.35)) text-anchor="end" {
                        (format!("{value:.0}"))
                    }
                }
                @for (moment, label) in &self.ticks {
                    text.tick x=(at(self.x(*moment))) y=(at(bottom + 16.0)) text-anchor=(self.anchor(*moment)) {
                        (label)
                    }
                }
                @for bar in &self.bars { (self.bar(bar, &y)) }
            }
        }
    }

    /// Returns the text anchor of a tick; a centred label at the begin of the axis would be cut off.
    fn anchor(&self, moment: f64) -> &'static str {
        if moment <= self.time.0 { "start" } else { "middle" }
    }

    fn x(&self, moment: f64) -> f64 {
        let (begin, end) = self.time;
        LEFT + (self.size.0 - LEFT - RIGHT) * part(moment - begin, end - begin)
    }

    fn bar(&self, bar: &TimeBar, y: &impl Fn(f64) -> f64) -> Markup {
        let (from, to) = (self.x(bar.time.0), self.x(bar.time.1));
        let mut below = 0.0;
        let mut pieces = Vec::new();
        for (part, &value) in self.parts.iter().zip(&bar.values) {
            let above = below + length(value);
            if y(below) - y(above) >= 0.1 {
                pieces.push((part, y(above), y(below) - y(above)));
            }
            below = above;
        }
        html! {
            g {
                title { (bar.tooltip) }
                @for (part, top, height) in pieces {
                    rect.(class(part)) x=(at(from)) y=(at(top)) width=(at((to - from).max(0.4)))
                        height=(at(height)) {}
                }
            }
        }
    }

    /// Returns left end, row and part of the legend's entries, which are the parts with a value above 0 in any bar.
    fn legend(&self) -> Vec<(f64, f64, usize)> {
        let (mut x, mut row) = (0.0, 0.0);
        let mut entries = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let value = |bar: &TimeBar| bar.values.get(number).copied().map_or(0.0, length);
            if !self.bars.iter().any(|bar| value(bar) > 0.0) {
                continue;
            }
            let width = 18.0 + text_width(&part.name, SIZE) + 16.0;
            if x > 0.0 && x + width > self.size.0 {
                (x, row) = (0.0, row + 1.0);
            }
            entries.push((x, row, number));
            x += width;
        }
        entries
    }
}

fn part(value: f64, whole: f64) -> f64 {
    let part = value / whole;
    if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(bars: &[(f64, f64, &[f64])], most: f64) -> TimeStack {
        TimeStack {
            title: "time".to_owned(),
            unit: "%".to_owned(),
            parts: (0..3).map(|n| Part { name: format!("part {n}"), series: Some(n) }).collect(),
            bars: bars
                .iter()
                .map(|(from, to, values)| TimeBar {
                    time: (*from, *to),
                    values: values.to_vec(),
                    tooltip: format!("{values:?}"),
                })
                .collect(),
            time: (0.0, 10.0),
            ticks: vec![(0.0, "begin".to_owned())],
            most,
            size: (1000.0, 160.0),
        }
    }

    fn number(rest: &str, name: &str) -> f64 {
        let after = rest.split(&format!(" {name}=\"")).nth(1).unwrap();
        after.split('"').next().unwrap().parse().unwrap()
    }

    /// Returns left end, width, top and height of the pieces.
    fn pieces(svg: &str) -> Vec<[f64; 4]> {
        let bars = svg.split("</title><rect").skip(1);
        let rects = bars.flat_map(|bar| bar.split("</g>").next().unwrap().split("<rect"));
        rects.map(|rect| ["x", "width", "y", "height"].map(|name| number(rect, name))).collect()
    }

    #[test]
    fn bars_follow_time_and_gaps_stay_empty() {
        let svg = chart(&[(0.0, 1.0, &[50.0, 50.0, 0.0]), (9.0, 10.0, &[25.0, 0.0, 75.0])], 100.0);
        let svg = svg.svg().into_string();
        let pieces = pieces(&svg);
        assert_eq!(pieces.len(), 4, "{svg}");
        let step = (1000.0 - LEFT - RIGHT) / 10.0;
        assert_eq!(pieces[0][0], LEFT);
        for piece in &pieces {
            assert!((piece[1] - step).abs() < 0.1, "{piece:?}");
        }
        assert!((pieces[2][0] - (LEFT + 9.0 * step)).abs() < 0.1, "{pieces:?}");
        // Pieces are stacked, with heights proportional to their values.
        assert!((pieces[1][2] + pieces[1][3] - pieces[0][2]).abs() < 0.2, "{pieces:?}");
        assert!((pieces[3][3] / pieces[2][3] - 3.0).abs() < 0.05, "{pieces:?}");
    }

    #[test]
    fn extreme_values_are_drawn() {
        let bars: &[(f64, f64, &[f64])] = &[(0.0, f64::NAN, &[f64::NAN, -1.0, f64::INFINITY])];
        for most in [0.0, 1.0, f64::NAN] {
            let svg = chart(bars, most).svg().into_string();
            let drawn = svg.split("</title>").last().unwrap();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{svg}");
        }
    }
}
