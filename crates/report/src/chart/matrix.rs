//! Matrix of shaded cells for relations between named rows and columns; each cell shows its value as shade and text.
//!
//! The matrix need not be square.
//! The scale is linear from zero to the largest value.
//! A value above zero is always visible, and text is legible on the darkest shade.
//! A value that does not fit into its cell is in the tooltip only.

use maud::{Markup, html};

use super::colour::colour;
use super::text::{at, column_width, cut, text_width};

const SIZE: f64 = 12.0;
const ROW: f64 = 26.0;
/// Maximum width of a cell.
const MAX_WIDTH: f64 = 96.0;
/// Maximum width of the names of rows, as a fraction of the whole width.
const NAMES: f64 = 0.3;
/// Maximum height of the slanted names of columns.
const MAX_HEIGHT: f64 = 130.0;
const SLANT: f64 = 45.0;
const GAP: f64 = 8.0;
/// Space for the descriptions of rows and columns.
const TITLE: f64 = 18.0;
const FAINTEST: f64 = 0.06;
const DARKEST: f64 = 0.62;

/// A cell of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixCell {
    /// The value, which determines the shade.
    pub value: f64,
    /// Text in the cell.
    pub label: String,
    /// Tooltip.
    pub tooltip: String,
}

/// A matrix of shaded cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Title for screen readers.
    pub title: String,
    /// Description of the rows.
    pub rows_are: String,
    /// Description of the columns.
    pub columns_are: String,
    /// The names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// The names of the columns, from left to right.
    pub columns: Vec<String>,
    /// The cells, row by row; `None`: empty.
    pub cells: Vec<Vec<Option<MatrixCell>>>,
    /// Colour index.
    pub series: usize,
    /// Width of the view box; the height follows from the number of rows.
    pub width: f64,
}

impl Matrix {
    /// Returns the chart as an `<svg>` element.
    pub fn svg(&self) -> Markup {
        let names = column_width(self.rows.iter().map(String::as_str), SIZE);
        let left = names.min(self.width * NAMES) + GAP;
        let longest = column_width(self.columns.iter().map(String::as_str), SIZE);
        let head = (longest * SLANT.to_radians().sin() + SIZE).min(MAX_HEIGHT);
        let top = TITLE + head;
        let slot = (self.width - left - head) / self.columns.len().max(1) as f64;
        let slot = slot.clamp(1.0, MAX_WIDTH);
        let height = top + ROW * self.rows.len() as f64 + GAP;
        let fits = (head - SIZE) / SLANT.to_radians().sin();
        html! {
            svg.chart viewBox=(format!("0 0 {} {}", at(self.width), at(height))) role="img"
                aria-label=(self.title) {
                text.tick x="0" y="12" { (self.rows_are) " ↓   " (self.columns_are) " →" }
                @for (i, name) in self.columns.iter().enumerate() {
                    @let x = left + slot * (i as f64 + 0.5);
                    text.tick transform=(format!(
                        "translate({} {}) rotate(-{SLANT})", at(x), at(top - 5.0)
                    )) { title { (name) } (cut(name, fits, SIZE)) }
                }
                @for (i, name) in self.rows.iter().enumerate() {
                    @let y = top + ROW * i as f64;
                    text x=(at(left - GAP)) y=(at(y + ROW / 2.0 + SIZE * 0.35)) text-anchor="end" {
                        title { (name) }
                        (cut(name, left - GAP, SIZE))
                    }
                    @for x in 0..self.columns.len() {
                        rect.ground x=(at(left + slot * x as f64)) y=(at(y))
                            width=(at(slot - 1.0)) height=(at(ROW - 1.0)) {}
                    }
                }
                @for (y, row) in self.cells.iter().enumerate() {
                    @for (x, cell) in row.iter().enumerate() {
                        @if let Some(cell) = cell {
                            (self.cell(cell, left + slot * x as f64, top + ROW * y as f64, slot))
                        }
                    }
                }
            }
        }
    }

    fn cell(&self, cell: &MatrixCell, x: f64, y: f64, slot: f64) -> Markup {
        html! {
            rect.bar.(colour(self.series)) x=(at(x)) y=(at(y)) width=(at(slot - 1.0))
                height=(at(ROW - 1.0)) fill-opacity=(self.opacity(cell.value)) {
                title { (cell.tooltip) }
            }
            @if text_width(&cell.label, SIZE) + 2.0 <= slot {
                text.value x=(at(x + slot / 2.0)) y=(at(y + ROW / 2.0 + SIZE * 0.35))
                    text-anchor="middle" pointer-events="none" { (cell.label) }
            }
        }
    }

    fn opacity(&self, value: f64) -> String {
        let cells = self.cells.iter().flatten().flatten();
        let most = cells.map(|cell| cell.value).fold(0.0, f64::max);
        let part = value / most;
        let part = if part.is_finite() { part } else { 0.0 };
        format!("{:.2}", FAINTEST + (DARKEST - FAINTEST) * part.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(values: &[&[f64]]) -> Matrix {
        let cell = |&value: &f64| {
            (value > 0.0).then(|| MatrixCell {
                value,
                label: format!("{value}"),
                tooltip: format!("<{value}>"),
            })
        };
        let columns = values.first().map_or(0, |row| row.len());
        Matrix {
            title: "waits".to_owned(),
            rows_are: "waits".to_owned(),
            columns_are: "has it".to_owned(),
            rows: (0..values.len()).map(|n| format!("row {n}")).collect(),
            columns: (0..columns).map(|n| format!("column {n}")).collect(),
            cells: values.iter().map(|row| row.iter().map(cell).collect()).collect(),
            series: 0,
            width: 700.0,
        }
    }

    #[test]
    fn shade_follows_value_and_empty_cells_are_omitted() {
        let svg = matrix(&[&[0.0, 2.0, 0.5], &[1.0, 0.0, 0.0]]).svg().into_string();
        assert_eq!(svg.matches("class=\"bar s0\"").count(), 3, "{svg}");
        assert!(svg.contains(r#"fill-opacity="0.62"><title>&lt;2&gt;"#), "{svg}");
        assert!(svg.contains(r#"fill-opacity="0.34"><title>&lt;1&gt;"#), "{svg}");
        assert!(svg.contains(">column 2</text>") && svg.contains(">row 1</text>"));
    }

    #[test]
    fn empty_and_infinite_matrices_are_drawn() {
        for svg in [matrix(&[]).svg(), matrix(&[&[f64::INFINITY]]).svg()] {
            let svg = svg.into_string();
            assert!(!svg.contains("NaN") && !svg.contains("\"inf"), "{svg}");
        }
    }

    #[test]
    fn labels_that_do_not_fit_are_tooltips() {
        let row = vec![1.25; 60];
        let svg = matrix(&[&row]).svg().into_string();
        assert_eq!(svg.matches("&lt;1.25&gt;").count(), 60);
        assert_eq!(svg.matches("class=\"value\"").count(), 0);
    }
}
