//! Heat maps: a square of cells, each as dark as its value, with the value in words on hover.
//!
//! The scale is linear from nothing to the largest value, which the legend names; maps that are to be
//! compared get the same largest value. A value above nothing is never drawn as nothing.

use maud::Markup;
use maud::html;

use super::colour::colour;
use super::text::at;

const SIZE: f64 = 12.0;
/// Room for row numbers and, above, for the name of the columns.
const LEFT: f64 = 44.0;
const TOP: f64 = 40.0;
const BELOW: f64 = 40.0;
/// The side of the square.
const SIDE: f64 = 300.0;
/// Numbers at an axis at most.
const NUMBERS: usize = 16;
/// What is least visible.
const FAINTEST: f64 = 0.07;
/// Steps of the legend.
const STEPS: usize = 24;

/// A value and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatCell {
    /// How much.
    pub value: f64,
    /// In words.
    pub tooltip: String,
}

/// A heat map.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// What it shows, for screen readers.
    pub title: String,
    /// What rows are.
    pub rows: String,
    /// What columns are.
    pub columns: String,
    /// The cells, row by row; `None`: nothing. Rows are as long as there are rows.
    pub cells: Vec<Vec<Option<HeatCell>>>,
    /// The value of the darkest cell, and how it is written.
    pub most: (f64, String),
    /// Its colour.
    pub series: usize,
}

impl HeatMap {
    /// The map as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let count = self.cells.len().max(1);
        let cell = SIDE / count as f64;
        let width = LEFT + SIDE + 12.0;
        html! {
            svg.chart.heat viewBox=(format!("0 0 {} {}", at(width), at(TOP + SIDE + BELOW)))
                role="img" aria-label=(self.title) {
                text.tick x=(at(LEFT)) y="12" { (self.columns) }
                text.tick text-anchor="end" transform=(format!(
                    "translate(12 {}) rotate(-90)", at(TOP)
                )) { (self.rows) }
                rect.ground x=(at(LEFT)) y=(at(TOP)) width=(at(SIDE)) height=(at(SIDE)) {}
                @for number in (0..count).step_by(count.div_ceil(NUMBERS)) {
                    @let middle = cell * (number as f64 + 0.5);
                    text.tick x=(at(LEFT + middle)) y=(at(TOP - 6.0)) text-anchor="middle" {
                        (number)
                    }
                    text.tick x=(at(LEFT - 6.0)) y=(at(TOP + middle + SIZE * 0.35))
                        text-anchor="end" { (number) }
                }
                @for (y, row) in self.cells.iter().enumerate() {
                    @for (x, value) in row.iter().enumerate() {
                        @if let Some(value) = value { (self.cell(value, (x, y), cell)) }
                    }
                }
                (self.legend())
            }
        }
    }

    fn cell(&self, value: &HeatCell, (x, y): (usize, usize), side: f64) -> Markup {
        html! {
            rect.bar.(colour(self.series)) x=(at(LEFT + side * x as f64))
                y=(at(TOP + side * y as f64)) width=(at(side)) height=(at(side))
                fill-opacity=(self.opacity(value.value)) { title { (value.tooltip) } }
        }
    }

    fn opacity(&self, value: f64) -> String {
        let part = value / self.most.0;
        let part = if part.is_finite() { part } else { 0.0 };
        let opacity = FAINTEST + (1.0 - FAINTEST) * part.clamp(0.0, 1.0);
        format!("{opacity:.2}")
    }

    fn legend(&self) -> Markup {
        let (y, step) = (TOP + SIDE + 10.0, 6.0);
        let end = LEFT + step * STEPS as f64;
        html! {
            @for i in 0..STEPS {
                rect.shade.(colour(self.series)) x=(at(LEFT + step * i as f64)) y=(at(y))
                    width=(at(step)) height="10"
                    fill-opacity=(self.opacity(self.most.0 * i as f64 / (STEPS - 1) as f64)) {}
            }
            text.legend x=(at(LEFT)) y=(at(y + 24.0)) { "0" }
            text.legend x=(at(end)) y=(at(y + 24.0)) text-anchor="end" { (self.most.1) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: &[&[f64]], most: f64) -> HeatMap {
        let cell = |&value: &f64| {
            (value > 0.0).then(|| HeatCell {
                value,
                tooltip: format!("<{value}>"),
            })
        };
        HeatMap {
            title: "waits".to_owned(),
            rows: "waiter".to_owned(),
            columns: "holder".to_owned(),
            cells: values
                .iter()
                .map(|row| row.iter().map(cell).collect())
                .collect(),
            most: (most, "2 ms".to_owned()),
            series: 0,
        }
    }

    #[test]
    fn a_cell_is_as_dark_as_its_value_and_nothing_is_not_drawn() {
        let svg = map(&[&[0.0, 2.0], &[0.5, 0.0]], 2.0).svg().into_string();
        let cells = svg.matches("<title>").count();
        assert_eq!(cells, 2);
        assert!(svg.contains(r#"fill-opacity="1.00""#), "{svg}");
        assert!(
            svg.contains(r#"fill-opacity="0.30"><title>&lt;0.5&gt;"#),
            "{svg}"
        );
    }

    #[test]
    fn large_maps_number_every_fourth_row() {
        let row = vec![1.0; 64];
        let svg = map(&vec![row.as_slice(); 64], 1.0).svg().into_string();
        assert_eq!(svg.matches("class=\"tick\"").count(), 2 + 2 * 16);
    }

    #[test]
    fn a_map_of_nothing_is_still_a_map() {
        for svg in [map(&[], 0.0).svg(), map(&[&[1.0]], 0.0).svg()] {
            let svg = svg.into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
