//! Grouped bar charts: one group per mode or VM, one bar per series.
//!
//! A bar may have a marker line for its target value, and a whisker for its interval.
//! A chart may have a line across all bars for a reference value.

use maud::{Markup, html};

use super::colour::colour;
use super::scale::Scale;
use super::text::{at, text_width};
use crate::figure::NOT_MEASURED;

const TICK_SIZE: f64 = 12.0;
const LABEL_SIZE: f64 = 12.0;
/// Size of a regular font that is about as wide as the bold group labels.
const GROUP_SIZE: f64 = 14.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 8.0;
const LEGEND_ROW: f64 = 20.0;
const UNIT: f64 = 28.0;
const BELOW: f64 = 38.0;
/// Maximum width of a bar, in view box units.
const MAX_WIDTH: f64 = 64.0;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Index of the series, which determines the colour.
    pub series: usize,
    /// Height, in the chart's unit.
    pub value: f64,
    /// Text above the bar.
    pub label: String,
    /// Value of the marker line, if any.
    pub marker: Option<f64>,
    /// Half the width of the interval, drawn as a whisker.
    pub half_width: Option<f64>,
    /// Tooltip, also for screen readers.
    pub tooltip: String,
}

/// A group of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// Text below the group.
    pub label: String,
    /// The bars, or the reason why there are none.
    pub bars: Result<Vec<Bar>, String>,
}

/// A grouped bar chart.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Title for screen readers.
    pub title: String,
    /// Unit of the values, written above the axis.
    pub unit: String,
    /// Names of the series; the legend omits a single series.
    pub series: Vec<String>,
    /// Meaning of the marker lines, for the legend.
    pub marker: Option<String>,
    /// Reference value, drawn as a line across the chart.
    pub reference: Option<f64>,
    /// The groups, from left to right.
    pub groups: Vec<BarGroup>,
    /// Size of the view box.
    pub size: (f64, f64),
}

/// Layout in the view box.
struct Plot {
    top: f64,
    bottom: f64,
    right: f64,
    scale: Scale,
}

impl Plot {
    fn y(&self, value: f64) -> f64 {
        let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        self.bottom - (self.bottom - self.top) * value / self.scale.max()
    }
}

impl BarChart {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let plot = self.plot();
        let (width, height) = self.size;
        let slot = self.slot();
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(width), at(height))) role="img"
                aria-label=(self.title) {
                (self.axis(&plot))
                @for (i, group) in self.groups.iter().enumerate() {
                    (self.group(&plot, group, LEFT + slot * i as f64, slot))
                }
                @if let Some(reference) = self.reference {
                    line.reference x1=(at(LEFT)) x2=(at(plot.right)) y1=(at(plot.y(reference)))
                        y2=(at(plot.y(reference))) {}
                }
                (self.legend())
            }
        }
    }

    fn plot(&self) -> Plot {
        let (width, height) = self.size;
        let rows = self.legend_entries().last().map_or(0.0, |entry| entry.row + 1.0);
        let legend = match rows {
            0.0 => 0.0,
            rows => rows * LEGEND_ROW + 4.0,
        };
        // The end of a whisker may be NaN, which `f64::max` ignores.
        let reach = |bar: &Bar| [Some(bar.value + bar.half_width.unwrap_or(0.0)), bar.marker];
        let values = self.bars().flat_map(reach).flatten();
        let turned = if self.groups.iter().any(|group| self.is_turned(group)) {
            // Rotated labels need room above the highest bar.
            self.widest_label() * 0.6
        } else {
            0.0
        };
        Plot {
            top: UNIT + LABEL_SIZE + legend + turned,
            bottom: height - BELOW,
            right: width - RIGHT,
            scale: Scale::up_to(values.fold(self.reference.unwrap_or(0.0), f64::max), 5),
        }
    }

    fn slot(&self) -> f64 {
        (self.size.0 - RIGHT - LEFT) / self.groups.len().max(1) as f64
    }

    /// Returns the horizontal space of a bar in a group.
    fn step(&self, bars: &[Bar]) -> f64 {
        (self.slot() * 0.84 / bars.len().max(1) as f64).min(MAX_WIDTH)
    }

    fn widest_label(&self) -> f64 {
        let widths = self.bars().map(|bar| text_width(&bar.label, LABEL_SIZE));
        widths.fold(0.0, f64::max)
    }

    /// Returns whether the labels of a group's bars are too wide and must be rotated.
    fn is_turned(&self, group: &BarGroup) -> bool {
        let Ok(bars) = &group.bars else { return false };
        let widths = bars.iter().map(|bar| text_width(&bar.label, LABEL_SIZE));
        widths.fold(0.0, f64::max) > self.step(bars)
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().filter_map(|group| group.bars.as_ref().ok()).flatten()
    }

    fn axis(&self, plot: &Plot) -> Markup {
        html! {
            text.tick x=(at(LEFT - 8.0)) y=(at(plot.top - LABEL_SIZE - 14.0)) text-anchor="start"
                dx=(at(8.0 - LEFT)) { (self.unit) }
            @for tick in plot.scale.ticks() {
                line.(if tick == 0.0 { "base" } else { "grid" }) x1=(at(LEFT)) x2=(at(plot.right))
                    y1=(at(plot.y(tick))) y2=(at(plot.y(tick))) {}
                text.tick x=(at(LEFT - 8.0)) y=(at(plot.y(tick) + TICK_SIZE * 0.35))
                    text-anchor="end" { (plot.scale.label(tick)) }
            }
        }
    }

    fn group(&self, plot: &Plot, group: &BarGroup, left: f64, slot: f64) -> Markup {
        let middle = left + slot / 2.0;
        html! {
            (lines("group", &group.label, middle, plot.bottom + 18.0, slot))
            @match &group.bars {
                Ok(bars) => (self.row_of_bars(plot, bars, middle, !self.is_turned(group))),
                Err(reason) => {
                    g {
                        title { (group.label) ": " (reason) }
                        (lines(
                            "absent", NOT_MEASURED, middle, (plot.top + plot.bottom) / 2.0, slot,
                        ))
                    }
                }
            }
        }
    }

    fn row_of_bars(&self, plot: &Plot, bars: &[Bar], middle: f64, upright: bool) -> Markup {
        let step = self.step(bars);
        let first = middle - step * bars.len() as f64 / 2.0;
        html! {
            @for (i, bar) in bars.iter().enumerate() {
                (self.bar(plot, bar, first + step * i as f64, step, upright))
            }
        }
    }

    fn bar(&self, plot: &Plot, bar: &Bar, left: f64, step: f64, upright: bool) -> Markup {
        let gap = (step * 0.08).max(1.0);
        let (y, middle) = (plot.y(bar.value), left + step / 2.0);
        // The label avoids the whisker and the marker line, which may be above the bar's end.
        let y_of = |value: Option<f64>| value.map_or(y, |value| plot.y(value));
        let end = y_of(bar.half_width.map(|half| bar.value + half)).min(y);
        let clear = match y_of(bar.marker) {
            marker if marker < end && marker > end - LABEL_SIZE - 8.0 => marker,
            _ => end,
        };
        html! {
            g {
                title { (bar.tooltip) }
                rect.bar.(colour(bar.series)) x=(at(left + gap)) y=(at(y))
                    width=(at(step - 2.0 * gap)) height=(at(plot.bottom - y)) {}
                @if let Some(half) = bar.half_width {
                    (whisker(middle, (plot.y(bar.value + half), plot.y(bar.value - half)), step))
                }
                @if let Some(marker) = bar.marker {
                    line.halo x1=(at(left)) x2=(at(left + step)) y1=(at(plot.y(marker)))
                        y2=(at(plot.y(marker))) {}
                    line.mark x1=(at(left)) x2=(at(left + step)) y1=(at(plot.y(marker)))
                        y2=(at(plot.y(marker))) {}
                }
                @if upright {
                    text.value x=(at(middle)) y=(at(clear - 6.0)) text-anchor="middle" {
                        (bar.label)
                    }
                } @else {
                    text.value transform=(format!(
                        "translate({} {}) rotate(-90)", at(middle + 4.0), at(clear - 6.0)
                    )) { (bar.label) }
                }
            }
        }
    }

    /// Lays out the legend's entries, with as many in a row as fit.
    fn legend_entries(&self) -> Vec<Entry<'_>> {
        let names = self.series.iter().enumerate();
        let series = names.map(|(i, name)| (Some(i), name.as_str()));
        let series = series.filter(|_| self.series.len() > 1);
        let marker = self.marker.iter().map(|name| (None, name.as_str()));
        let (mut x, mut row) = (LEFT, 0.0);
        let mut entries = Vec::new();
        for (series, name) in series.chain(marker) {
            let width = 20.0 + text_width(name, LABEL_SIZE) + 18.0;
            if x > LEFT && x + width > self.size.0 {
                (x, row) = (LEFT, row + 1.0);
            }
            entries.push(Entry { x, row, series, name });
            x += width;
        }
        entries
    }

    fn legend(&self) -> Markup {
        html! {
            @for Entry { x, row, series, name } in self.legend_entries() {
                @let y = row * LEGEND_ROW;
                @match series {
                    Some(i) => {
                        rect.bar.(colour(i)) x=(at(x)) y=(at(y + 3.0)) width="12" height="12" {}
                    },
                    None => line.mark x1=(at(x - 2.0)) x2=(at(x + 14.0)) y1=(at(y + 9.0))
                        y2=(at(y + 9.0)) {},
                }
                text.legend x=(at(x + 20.0)) y=(at(y + 13.0)) { (name) }
            }
        }
    }
}

/// An entry of the legend: a series, or the marker.
struct Entry<'a> {
    x: f64,
    row: f64,
    series: Option<usize>,
    name: &'a str,
}

/// Draws a vertical interval with caps.
pub(super) fn whisker(x: f64, (top, bottom): (f64, f64), step: f64) -> Markup {
    let cap = (step * 0.18).min(6.0);
    let path = format!(
        "M{0},{2}H{1}M{3},{2}V{4}M{0},{4}H{1}",
        at(x - cap),
        at(x + cap),
        at(top),
        at(x),
        at(bottom)
    );
    html! { path.whisker d=(path) {} }
}

/// Draws a text centred in its slot, on two lines if one is too short.
fn lines(class: &str, text: &str, middle: f64, y: f64, slot: f64) -> Markup {
    let parts = match text.find(['-', ' ']) {
        Some(at) if text_width(text, GROUP_SIZE) > slot => vec![&text[..=at], &text[at + 1..]],
        _ => vec![text],
    };
    html! {
        text.(class) text-anchor="middle" {
            @for (i, part) in parts.iter().enumerate() {
                tspan x=(at(middle)) y=(at(y + i as f64 * GROUP_SIZE * 1.15)) { (part.trim_end()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(groups: usize, bars: usize) -> BarChart {
        let bar = |series: usize| Bar {
            series,
            value: 0.745,
            label: "0.745".to_owned(),
            marker: Some(0.667),
            half_width: Some(0.1),
            tooltip: "a & b".to_owned(),
        };
        let group = |i: usize| BarGroup {
            label: format!("mode {i}"),
            bars: Ok((0..bars).map(bar).collect()),
        };
        BarChart {
            title: "shares".to_owned(),
            unit: "pCPUs".to_owned(),
            series: (0..bars).map(|i| format!("vm{i}")).collect(),
            marker: Some("fair share".to_owned()),
            reference: Some(1.0),
            groups: (0..groups).map(group).collect(),
            size: (960.0, 300.0),
        }
    }

    #[test]
    fn wide_labels_are_rotated() {
        assert!(chart(4, 16).svg().into_string().contains("rotate(-90)"));
        assert!(!chart(4, 3).svg().into_string().contains("rotate(-90)"));
    }

    #[test]
    fn group_without_figures_is_marked() {
        let mut chart = chart(2, 1);
        chart.groups[1].bars = Err("no <quota>".to_owned());
        let svg = chart.svg().into_string();
        assert!(svg.contains("not measured") && svg.contains("no &lt;quota&gt;"), "{svg}");
    }

    #[test]
    fn extreme_values_are_drawn() {
        let mut chart = chart(1, 3);
        let Ok(bars) = &mut chart.groups[0].bars else {
            return;
        };
        bars[0].value = f64::NAN;
        bars[0].half_width = Some(f64::INFINITY);
        bars[1].value = -1.0;
        bars[1].half_width = Some(f64::NAN);
        bars[2].value = 0.0;
        for svg in [chart.svg(), BarChart { groups: Vec::new(), ..chart.clone() }.svg()] {
            let svg = svg.into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(!svg.contains(r#"height="-"#), "{svg}");
        }
    }

    #[test]
    fn whisker_spans_interval() {
        let chart = chart(1, 1);
        let (plot, svg) = (chart.plot(), chart.svg().into_string());
        let top = at(plot.y(0.845));
        let bottom = at(plot.y(0.645));
        assert!(svg.contains(&format!(",{top}H")) && svg.contains(&format!("V{bottom}")), "{svg}");
    }

    #[test]
    fn wide_legend_wraps() {
        let mut chart = chart(1, 8);
        chart.series = (0..8).map(|i| format!("a rather long name of a combination {i}")).collect();
        let entries = chart.legend_entries();
        assert!(entries.last().unwrap().row >= 2.0);
        for entry in &entries {
            let end = entry.x + 20.0 + text_width(entry.name, LABEL_SIZE);
            assert!(end <= chart.size.0, "{} ends at {end}", entry.name);
        }
    }
}
