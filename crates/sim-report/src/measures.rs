//! A metric of every VM under every combination.
//!
//! The first chart is the form of the field's papers: a group of upright bars for each VM, relative to the
//! first combination, with 95 % intervals of the paired difference.
//! Absolute values follow, a panel of rows for each VM.
//! Each panel has its own scale, because one VM counts millions of locks and another ten web pages.

use maud::{Markup, html};

use tandem_report::chart::bar::{Bar, BarGroup};
use tandem_report::chart::colour::series;
use tandem_report::chart::picture::Panel;
use tandem_report::chart::rows::Row;
use tandem_report::chart::{BarChart, COLOURS, RowChart};
use tandem_report::{figure, page};

/// Maximum number of upright bars in one chart.
const MAX_BARS: usize = 64;

/// Width and height of the relative chart.
const SIZE: (f64, f64) = (1000.0, 330.0);

/// Width of a panel of rows, and of one with long names, which spans the page.
const PANEL: (f64, f64) = (520.0, 1000.0);

/// Maximum number of characters of a short name.
const LONG: usize = 26;

/// A mean over the runs of one combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % interval; `None` for a single run.
    pub half_width: Option<f64>,
    /// The mean as text.
    pub label: String,
    /// The interval's half width as text; empty if there is none.
    pub label_half: String,
    /// The mean relative to the first combination's, and half the width of the interval of the paired
    /// difference, also relative; `None` if the first combination has no value.
    pub relative: Option<(f64, Option<f64>)>,
}

/// The values of one VM, one for each combination; `None`: not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct VmValues {
    /// The VM.
    pub vm: String,
    /// Its values.
    pub values: Vec<Option<Value>>,
}

/// A metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// `more is better`, `less is better`, or empty.
    pub better: &'static str,
    /// The VMs.
    pub vms: Vec<VmValues>,
}

impl Measure {
    /// Returns the whole section; `lines` holds the charts over a varied number, if there are any.
    pub fn section(&self, combinations: &[String], runs: usize, lines: &Markup) -> Markup {
        let whiskers = match runs {
            1 => "one run, so no intervals".to_owned(),
            runs => format!("means of {runs} runs; whiskers are 95 % intervals"),
        };
        let first = combinations.first().map_or("", String::as_str);
        html! {
            h2 { (self.name) }
            p.faint {
                (self.unit) "; " (whiskers)
                @if !self.better.is_empty() { "; " (self.better) }
            }
            (lines)
            @if let Some(chart) = self.relative_chart(combinations) {
                figure {
                    figcaption {
                        (self.name) " relative to " (first)
                        div.faint {
                            "differences are taken run by run, with the same seed"
                        }
                    }
                    div.wide { (chart.svg()) }
                }
            }
            @if is_long(combinations) {
                @for vm in self.measured() {
                    @let chart = self.panel(vm, combinations, PANEL.1).svg();
                    (page::figure(&vm.vm, "", html! { div.wide { (chart) } }))
                }
            } @else {
                div.grid {
                    @for vm in self.measured() {
                        (page::figure(&vm.vm, "", self.panel(vm, combinations, PANEL.0).svg()))
                    }
                }
            }
        }
    }

    /// Returns the chart relative to the first combination, for a separate picture.
    /// `None` if there is only one combination, or if there are too many bars.
    pub fn picture(&self, combinations: &[String]) -> Option<Panel> {
        let chart = self.relative_chart(combinations)?;
        Some(Panel {
            caption: format!("{} relative to {}", self.name, combinations.first()?),
            size: chart.size,
            chart: chart.svg(),
        })
    }

    /// Returns the VMs that have values of the metric.
    pub fn measured(&self) -> impl Iterator<Item = &VmValues> {
        let has = |vm: &&VmValues| vm.values.iter().any(Option::is_some);
        self.vms.iter().filter(has)
    }

    fn relative_chart(&self, combinations: &[String]) -> Option<BarChart> {
        let group = |vm: &VmValues| {
            let values = vm.values.iter().zip(combinations).enumerate();
            let bars: Vec<Bar> = values
                .filter_map(|(i, (value, name))| relative_bar(i, &vm.vm, name, value.as_ref()?))
                .collect();
            let bars = if bars.is_empty() {
                Err(format!("{} has no value under the first combination", vm.vm))
            } else {
                Ok(bars)
            };
            let label = vm.vm.clone();
            BarGroup { label, bars }
        };
        let groups: Vec<BarGroup> = self.vms.iter().map(group).collect();
        let bars = groups.iter().filter_map(|group| group.bars.as_ref().ok());
        let bars: usize = bars.map(Vec::len).sum();
        let fits = (2..=COLOURS).contains(&combinations.len()) && (1..=MAX_BARS).contains(&bars);
        fits.then(|| BarChart {
            title: format!("{} of each VM, relative to the first", self.name),
            unit: match self.better {
                "" => "×".to_owned(),
                better => format!("× ({better})"),
            },
            series: combinations.to_vec(),
            marker: None,
            reference: Some(1.0),
            groups,
            size: SIZE,
        })
    }

    fn panel(&self, vm: &VmValues, combinations: &[String], width: f64) -> RowChart {
        let many = combinations.len() > COLOURS;
        let row = |(i, (value, name)): (usize, (&Option<Value>, &String))| {
            let label =
                value.as_ref().map_or_else(String::new, |value| match (many, value.relative) {
                    (true, Some((relative, _))) if i > 0 => {
                        format!("{}  {}", value.label, figure::signed_percent(relative - 1.0))
                    }
                    (false, _) if !value.label_half.is_empty() => {
                        format!("{} ± {}", value.label, value.label_half)
                    }
                    _ => value.label.clone(),
                });
            Row {
                name: name.clone(),
                series: series(i, combinations.len()),
                value: value.as_ref().map(|value| value.mean),
                half_width: value.as_ref().and_then(|value| value.half_width),
                label,
                tooltip: value.as_ref().map_or_else(
                    || format!("{}, {name}: {}", vm.vm, figure::NOT_MEASURED),
                    |value| tooltip(&vm.vm, name, value),
                ),
            }
        };
        let rows = vm.values.iter().zip(combinations).enumerate();
        RowChart {
            title: format!("{} of {}", self.name, vm.vm),
            unit: self.unit.clone(),
            rows: rows.map(row).collect(),
            reference: match combinations.len() {
                1 => None,
                _ => vm.values.first().and_then(Option::as_ref).map(|first| first.mean),
            },
            width,
        }
    }
}

fn is_long(combinations: &[String]) -> bool {
    combinations.iter().any(|name| name.chars().count() > LONG)
}

fn relative_bar(series: usize, vm: &str, name: &str, value: &Value) -> Option<Bar> {
    let (relative, half_width) = value.relative?;
    Some(Bar {
        series,
        value: relative,
        label: format!("{relative:.2}"),
        marker: None,
        half_width,
        tooltip: tooltip(vm, name, value),
    })
}

fn tooltip(vm: &str, name: &str, value: &Value) -> String {
    let mut text = format!("{vm}, {name}: {}", value.label);
    if !value.label_half.is_empty() {
        text = format!("{text} ± {}", value.label_half);
    }
    if let Some((relative, half)) = value.relative {
        text = format!("{text}; {relative:.3} of the first");
        if let Some(half) = half {
            text = format!("{text} ± {half:.3}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn measure(vms: usize, combinations: usize) -> Measure {
        let value = |i: usize| {
            Some(Value {
                mean: 100.0 + i as f64,
                half_width: Some(2.0),
                label: format!("{}", 100 + i),
                label_half: "2.0".to_owned(),
                relative: Some((1.0 + i as f64 / 100.0, Some(0.02))),
            })
        };
        Measure {
            name: "work_rate".to_owned(),
            unit: "1/s".to_owned(),
            better: "more is better",
            vms: (0..vms)
                .map(|vm| VmValues {
                    vm: format!("vm-{vm}"),
                    values: (0..combinations).map(value).collect(),
                })
                .collect(),
        }
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("policy{i}")).collect()
    }

    #[test]
    fn many_combinations_become_rows() {
        assert!(measure(3, 4).relative_chart(&names(4)).is_some());
        assert!(measure(3, 1).relative_chart(&names(1)).is_none(), "nothing to compare");
        assert!(measure(8, 22).relative_chart(&names(22)).is_none());
        assert!(measure(40, 4).relative_chart(&names(4)).is_none());
        let many = measure(8, 22).section(&names(22), 3, &html! {}).into_string();
        assert_eq!(many.matches("<svg").count(), 8);
        assert!(many.contains("+21.0 %"), "rows show the difference");
    }

    #[test]
    fn missing_first_values_are_not_compared() {
        let mut measure = measure(1, 2);
        for value in measure.vms[0].values.iter_mut().flatten() {
            value.relative = None;
        }
        assert!(measure.relative_chart(&names(2)).is_none());
        measure.vms[0].values[1] = None;
        let section = measure.section(&names(2), 1, &html! {}).into_string();
        assert!(section.contains("not measured") && section.contains("one run"), "{section}");
    }
}
