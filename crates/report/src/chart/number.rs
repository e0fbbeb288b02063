//! Line charts over a number that was varied: a point for each value, with its 95 % interval, and a line for each of what else was
//! varied.
//!
//! The axis of numbers is linear, or logarithmic where the values are factors of each other; its ticks are the values
//! themselves, as they were written, as far as they have room. The other axis begins at zero.

use maud::{Markup, html};

use super::bar::whisker;
use super::colour::colour;
use super::labels;
use super::scale::Scale;
use super::text::{at, bold_width, cut, text_width};

const SIZE: f64 = 12.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 26.0;
const BELOW: f64 = 38.0;
/// Between the axes and the first and last points.
const INSET: f64 = 14.0;
/// Names are cut beyond this part of the width.
const NAMES: f64 = 0.4;
/// Between two ticks' labels.
const TICK_GAP: f64 = 6.0;
const DOT: f64 = 3.0;
/// What an interval's ends are as wide as: bars so far apart.
const STEP: f64 = 12.0;

/// What was measured with one value.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberPoint {
    /// The value that was varied.
    pub x: f64,
    /// The mean.
    pub y: f64,
    /// Half the width of its interval; `None`: a single run.
    pub half_width: Option<f64>,
    /// In words.
    pub tooltip: String,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberSeries {
    /// Its name, written at its end; may be empty where there is only one.
    pub name: String,
    /// Its colour.
    pub colour: usize,
    /// Points by ascending x.
    pub points: Vec<NumberPoint>,
}

/// A chart of such lines.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberChart {
    /// What it shows, for screen readers.
    pub title: String,
    /// What was varied, written below its axis.
    pub x_name: String,
    /// Whether equal factors are equally far apart; then every x is above 0.
    pub logarithmic: bool,
    /// The values by ascending x, and how they are written.
    pub ticks: Vec<(f64, String)>,
    /// Unit of y, written above the axis.
    pub y_unit: String,
    /// The lines.
    pub series: Vec<NumberSeries>,
    /// Size of the view box.
    pub size: (f64, f64),
}

struct Plot {
    logarithmic: bool,
    first: f64,
    last: f64,
    right: f64,
    bottom: f64,
    scale: Scale,
}

impl Plot {
    fn place(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(f64::MIN_POSITIVE).ln() } else { value }
    }

    fn x(&self, value: f64) -> f64 {
        let (left, right) = (LEFT + INSET, self.right - INSET);
        let span = self.place(self.last) - self.place(self.first);
        let part =
            if span > 0.0 { (self.place(value) - self.place(self.first)) / span } else { 0.5 };
        left + (right - left) * part.clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value / self.scale.max()).clamp(0.0, 1.0);
        self.bottom - (self.bottom - TOP) * part
    }
}

impl NumberChart {
    /// The chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let (width, height) = self.size;
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(width), at(height))) role="img"
                aria-label=(self.title) {
                (self.axes(&plot))
                @for series in &self.series { (line(&plot, series)) }
                (self.names(&plot))
            }
        }
    }

    fn points(&self) -> impl Iterator<Item = &NumberPoint> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.filter(|point| is_drawn(point))
    }

    fn plot(&self) -> Plot {
        let names = self.series.iter().map(|series| self.name(series));
        let longest = names.map(|name| bold_width(&name, SIZE)).fold(0.0, f64::max);
        let xs = || self.ticks.iter().map(|tick| tick.0);
        let tops = self
            .points()
            .map(|point| point.y + point.half_width.filter(|half| half.is_finite()).unwrap_or(0.0));
        let (width, height) = self.size;
        Plot {
            logarithmic: self.logarithmic,
            first: xs().fold(f64::INFINITY, f64::min),
            last: xs().fold(f64::NEG_INFINITY, f64::max),
            right: width - longest - 14.0,
            bottom: height - BELOW,
            scale: Scale::up_to(tops.fold(0.0, f64::max), 4),
        }
    }

    fn axes(&self, plot: &Plot) -> Markup {
        html! {
            (labels::values(&plot.scale, &self.y_unit, (LEFT, plot.right), |value| plot.y(value)))
            @for (x, label) in self.labels(plot) {
                text.tick x=(at(x)) y=(at(plot.bottom + 16.0)) text-anchor="middle" { (label) }
            }
            text.tick x=(at((LEFT + plot.right) / 2.0)) y=(at(plot.bottom + 33.0))
                text-anchor="middle" { (self.x_name) }
        }
    }

    /// The ticks' labels that have room, from the first on.
    fn labels(&self, plot: &Plot) -> Vec<(f64, &str)> {
        let mut labels = Vec::new();
        let mut free = f64::NEG_INFINITY;
        for (value, label) in &self.ticks {
            let (x, half) = (plot.x(*value), text_width(label, SIZE) / 2.0);
            if x - half >= free {
                labels.push((x, label.as_str()));
                free = x + half + TICK_GAP;
            }
        }
        labels
    }

    fn names(&self, plot: &Plot) -> Markup {
        let ends = self.series.iter().filter_map(|series| {
            let last = series.points.iter().rfind(|point| is_drawn(point))?;
            Some((plot.y(last.y), series.colour, self.name(series)))
        });
        labels::names(ends.collect(), plot.right, (TOP, plot.bottom))
    }

    /// What is written at the end of a line.
    fn name(&self, series: &NumberSeries) -> String {
        // Bold is a quarter wider.
        cut(&series.name, self.size.0 * NAMES / 1.25, SIZE)
    }
}

fn is_drawn(point: &NumberPoint) -> bool {
    point.x.is_finite() && point.y.is_finite()
}

fn line(plot: &Plot, series: &NumberSeries) -> Markup {
    let points = || series.points.iter().filter(|point| is_drawn(point));
    let path: Vec<String> =
        points().map(|point| format!("{},{}", at(plot.x(point.x)), at(plot.y(point.y)))).collect();
    html! {
        polyline.line.(colour(series.colour)) points=(path.join(" ")) {
            title { (series.name) }
        }
        @for point in points() {
            @let (x, y) = (plot.x(point.x), plot.y(point.y));
            g {
                title { (point.tooltip) }
                @if let Some(half) = point.half_width.filter(|half| half.is_finite()) {
                    (whisker(x, (plot.y(point.y + half), plot.y(point.y - half)), STEP))
                }
                circle.bar.(colour(series.colour)) cx=(at(x)) cy=(at(y)) r=(at(DOT)) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64], logarithmic: bool) -> NumberChart {
        let point = |&x: &f64| NumberPoint {
            x,
            y: x * 2.0,
            half_width: Some(1.0),
            tooltip: format!("{x}"),
        };
        let series = |(i, name): (usize, &str)| NumberSeries {
            name: name.to_owned(),
            colour: i,
            points: values.iter().map(point).collect(),
        };
        NumberChart {
            title: "work over vCPUs".to_owned(),
            x_name: "vm.0.vcpus".to_owned(),
            logarithmic,
            ticks: values.iter().map(|&x| (x, format!("{x}"))).collect(),
            y_unit: "1/s".to_owned(),
            series: ["cfs", "eevdf"].into_iter().enumerate().map(series).collect(),
            size: (520.0, 240.0),
        }
    }

    /// The places of points of the first line.
    fn places(svg: &str) -> Vec<f64> {
        let circles = svg.split("circle class=\"bar s0\" cx=\"").skip(1);
        circles.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn factors_are_equally_far_apart_on_a_logarithmic_axis_only() {
        let values = [1.0, 4.0, 16.0];
        let xs = places(&chart(&values, true).svg().into_string());
        assert!(((xs[1] - xs[0]) - (xs[2] - xs[1])).abs() < 0.2, "{xs:?}");
        let xs = places(&chart(&values, false).svg().into_string());
        assert!(((xs[2] - xs[1]) - 4.0 * (xs[1] - xs[0])).abs() < 0.6, "{xs:?}");
    }

    #[test]
    fn ticks_are_the_values_as_far_as_they_have_room() {
        let few = chart(&[2.0, 4.0, 8.0], false).svg().into_string();
        for tick in [">2<", ">4<", ">8<"] {
            assert!(few.contains(tick), "{tick} is not in {few}");
        }
        let values: Vec<f64> = (0..200).map(f64::from).collect();
        let many = chart(&values, false);
        let plot = many.plot();
        let labels = many.labels(&plot);
        assert!((10..100).contains(&labels.len()), "{}", labels.len());
        assert_eq!(labels[0].1, "0");
    }

    #[test]
    fn a_chart_without_points_is_still_a_chart() {
        for svg in [chart(&[], false), chart(&[3.0], true)] {
            let svg = svg.svg().into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
