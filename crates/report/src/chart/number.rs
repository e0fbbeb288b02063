//! Line charts over a varied number: a point with its 95 % interval for each value, and a line for each combination of other parameters.
//!
//! The axis of numbers is linear or logarithmic.
//! Its ticks are the values as written, as far as there is space.
//! The other axis begins at zero.

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
/// Space between the axes and the first and last points.
const INSET: f64 = 14.0;
/// Maximum width of names, as a fraction of the whole width.
const NAMES: f64 = 0.4;
/// Space between the labels of two ticks.
const TICK_GAP: f64 = 6.0;
const DOT: f64 = 3.0;
/// Distance of bars whose whiskers have the same caps.
const STEP: f64 = 12.0;

/// Result for one value.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberPoint {
    /// The varied value.
    pub x: f64,
    /// The mean.
    pub y: f64,
    /// Half the width of the interval; `None`: a single run.
    pub half_width: Option<f64>,
    /// Tooltip.
    pub tooltip: String,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberSeries {
    /// Name, written at the end of the line; may be empty for a single line.
    pub name: String,
    /// Colour index.
    pub colour: usize,
    /// Points by ascending x.
    pub points: Vec<NumberPoint>,
}

/// A chart of lines over a varied number.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberChart {
    /// Title for screen readers.
    pub title: String,
    /// Name of the varied parameter, written below its axis.
    pub x_name: String,
    /// Whether the axis of numbers is logarithmic, which requires every x above 0.
    pub logarithmic: bool,
    /// The values by ascending x, with their labels.
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
    /// Returns the chart as an `<svg>` element.
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

    /// Returns the labels of ticks that fit, from the first on.
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

    /// Returns the name at the end of a line, cut to the maximum width.
    fn name(&self, series: &NumberSeries) -> String {
        // Bold text is a quarter wider.
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

    /// Returns the x positions of the points of the first line.
    fn places(svg: &str) -> Vec<f64> {
        let circles = svg.split("circle class=\"bar s0\" cx=\"").skip(1);
        circles.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn logarithmic_axis_spaces_factors_equally() {
        let values = [1.0, 4.0, 16.0];
        let xs = places(&chart(&values, true).svg().into_string());
        assert!(((xs[1] - xs[0]) - (xs[2] - xs[1])).abs() < 0.2, "{xs:?}");
        let xs = places(&chart(&values, false).svg().into_string());
        assert!(((xs[2] - xs[1]) - 4.0 * (xs[1] - xs[0])).abs() < 0.6, "{xs:?}");
    }

    #[test]
    fn ticks_are_values_that_fit() {
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
    fn chart_without_points_is_drawn() {
        for svg in [chart(&[], false), chart(&[3.0], true)] {
            let svg = svg.svg().into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
