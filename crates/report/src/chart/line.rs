//! Line charts over time, with a dashed guide at the target value of each line.

use maud::{Markup, html};

use super::colour::colour;
use super::labels;
use super::scale::Scale;
use super::text::{at, bold_width};

const SIZE: f64 = 12.0;
const LEFT: f64 = 44.0;
const TOP: f64 = 26.0;
const BELOW: f64 = 36.0;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSeries {
    /// Name, written at the end of the line.
    pub name: String,
    /// Colour index.
    pub colour: usize,
    /// Points (x, y), by ascending x.
    pub points: Vec<(f64, f64)>,
    /// Target value, drawn dashed.
    pub guide: Option<f64>,
}

/// A line chart.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Title for screen readers.
    pub title: String,
    /// Unit of x, such as `seconds`.
    pub x_unit: String,
    /// Unit of y, written above the axis.
    pub y_unit: String,
    /// The lines.
    pub series: Vec<LineSeries>,
    /// Maximum y of the scale, so that adjacent charts can share a scale.
    pub y_max: f64,
    /// Description of the time before x = 0, which has a shaded ground: `settling, not counted`.
    pub before_zero: Option<String>,
    /// Size of the view box.
    pub size: (f64, f64),
}

struct Plot {
    first: f64,
    last: f64,
    right: f64,
    bottom: f64,
    scale: Scale,
}

impl Plot {
    fn x(&self, value: f64) -> f64 {
        let span = (self.last - self.first).max(f64::MIN_POSITIVE);
        LEFT + (self.right - LEFT) * ((value - self.first) / span).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value / self.scale.max()).clamp(0.0, 1.0);
        self.bottom - (self.bottom - TOP) * part
    }
}

impl LineChart {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let (width, height) = self.size;
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(width), at(height))) role="img"
                aria-label=(self.title) {
                (self.ground(&plot))
                (self.axes(&plot))
                @for series in &self.series { (line(&plot, series)) }
                (self.names(&plot))
            }
        }
    }

    fn plot(&self) -> Plot {
        let xs = || self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let first = xs().fold(f64::INFINITY, f64::min);
        let last = xs().fold(f64::NEG_INFINITY, f64::max);
        let longest = self.series.iter().map(|s| bold_width(&s.name, SIZE)).fold(0.0, f64::max);
        let (width, height) = self.size;
        Plot {
            first: if first.is_finite() { first.min(0.0) } else { 0.0 },
            last: if last.is_finite() { last } else { 1.0 },
            right: width - longest - 14.0,
            bottom: height - BELOW,
            scale: Scale::up_to(self.y_max, 4),
        }
    }

    fn ground(&self, plot: &Plot) -> Markup {
        html! {
            @if let Some(text) = self.before_zero.as_ref().filter(|_| plot.first < 0.0) {
                rect.ground x=(at(LEFT)) y=(at(TOP)) width=(at(plot.x(0.0) - LEFT))
                    height=(at(plot.bottom - TOP)) { title { (text) } }
            }
        }
    }

    fn axes(&self, plot: &Plot) -> Markup {
        let step = Scale::up_to(plot.last, 6);
        html! {
            (labels::values(&plot.scale, &self.y_unit, (LEFT, plot.right), |value| plot.y(value)))
            @for tick in step.ticks().filter(|&tick| tick <= plot.last + 1e-9) {
                text.tick x=(at(plot.x(tick))) y=(at(plot.bottom + 16.0))
                    text-anchor="middle" { (step.label(tick)) }
            }
            text.tick x=(at((LEFT + plot.right) / 2.0)) y=(at(plot.bottom + 32.0))
                text-anchor="middle" { (self.x_unit) }
        }
    }

    fn names(&self, plot: &Plot) -> Markup {
        let ends = self.series.iter().filter_map(|series| {
            Some((plot.y(series.points.last()?.1), series.colour, series.name.clone()))
        });
        labels::names(ends.collect(), plot.right, (TOP, plot.bottom))
    }
}

fn line(plot: &Plot, series: &LineSeries) -> Markup {
    let path: Vec<String> = series
        .points
        .iter()
        .filter(|(x, y)| x.is_finite() && y.is_finite())
        .map(|&(x, y)| format!("{},{}", at(plot.x(x)), at(plot.y(y))))
        .collect();
    html! {
        @if let Some(guide) = series.guide {
            line.guide.(colour(series.colour)) x1=(at(LEFT)) x2=(at(plot.right))
                y1=(at(plot.y(guide))) y2=(at(plot.y(guide))) {}
        }
        polyline.line.(colour(series.colour)) points=(path.join(" ")) {
            title { (series.name) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(ends: &[f64]) -> LineChart {
        let series = |(i, &end): (usize, &f64)| LineSeries {
            name: format!("vm{i}"),
            colour: i,
            points: vec![(-1.0, 0.2), (0.0, 0.3), (10.0, end)],
            guide: Some(0.5),
        };
        LineChart {
            title: "share over time".to_owned(),
            x_unit: "seconds".to_owned(),
            y_unit: "pCPUs".to_owned(),
            series: ends.iter().enumerate().map(series).collect(),
            y_max: 1.0,
            before_zero: Some("settling".to_owned()),
            size: (460.0, 240.0),
        }
    }

    /// Returns the y of every name, from top to bottom.
    fn names(svg: &str) -> Vec<f64> {
        svg.split("class=\"name")
            .skip(1)
            .map(|rest| {
                let y = rest.split(" y=\"").nth(1).unwrap();
                y.split('"').next().unwrap().parse().unwrap()
            })
            .collect()
    }

    #[test]
    fn names_of_close_line_ends_do_not_overlap() {
        let ys = names(&chart(&[0.0, 0.0, 0.5, 0.5, 1.0, 1.0]).svg().into_string());
        assert_eq!(ys.len(), 6);
        assert!(ys.windows(2).all(|two| two[1] - two[0] >= 13.8), "{ys:?}");
    }

    #[test]
    fn chart_without_points_is_drawn() {
        let svg = chart(&[]).svg().into_string();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
