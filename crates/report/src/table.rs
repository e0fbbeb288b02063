//! Tables that can be written as terminal text or as HTML.
//!
//! On a terminal a table has lines, and colour if enabled ([`crate::terminal`]).
//! Elsewhere (a pipe, a file, a log) it is a plain Markdown table, which can be searched, and pasted into an issue.
//! A cell's tone (good, bad, faint, …) marks its meaning; the text alone must be sufficient.
//!
//! Arithmetic and number formatting are in [`crate::figure`] and the callers.

use std::fmt;
use std::io::IsTerminal;

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, Cell as ComfyCell, CellAlignment, Color, Table as ComfyTable};
use maud::{Markup, html};

use crate::terminal::has_colour;

/// Form of a table as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Lines and colour, for a terminal.
    Terminal,
    /// Lines, for a terminal without colour.
    Uncoloured,
    /// A Markdown table, for other outputs.
    Plain,
}

impl Look {
    /// Returns the form for an output: [`Look::Plain`], unless it is a terminal or colour is enabled everywhere.
    pub fn of(is_terminal: bool) -> Look {
        match (has_colour(is_terminal), is_terminal) {
            (true, _) => Look::Terminal,
            (false, true) => Look::Uncoloured,
            (false, false) => Look::Plain,
        }
    }
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
    /// Right if the column has numbers and otherwise only empty cells, else left.
    #[default]
    Auto,
}

/// A column's heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    text: String,
    align: Align,
}

impl From<(&str, Align)> for Heading {
    fn from((text, align): (&str, Align)) -> Heading {
        Heading { text: text.to_owned(), align }
    }
}

impl From<&str> for Heading {
    fn from(text: &str) -> Heading {
        Heading::from((text, Align::Auto))
    }
}

/// Emphasis of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// No emphasis.
    #[default]
    Plain,
    /// A good value.
    Good,
    /// A bad value.
    Bad,
    /// A minor value.
    Faint,
    /// The name of a group of rows.
    Strong,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Text.
    pub text: String,
    /// Tone.
    pub tone: Tone,
}

impl Cell {
    /// Creates a cell with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

/// A table with headings and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    headings: Vec<Heading>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates an empty table with these columns.
    pub fn new<H: Into<Heading> + Copy>(headings: &[H]) -> Table {
        Table {
            headings: headings.iter().map(|&heading| heading.into()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, and cells beyond the last column are dropped.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) -> &mut Table {
        let mut cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.headings.len(), Cell::default());
        self.rows.push(cells);
        self
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the alignments with [`Align::Auto`] resolved.
    fn aligns(&self) -> Vec<Align> {
        let numbers = |column: usize| {
            let texts = || self.rows.iter().map(|row| row[column].text.as_str());
            texts().all(|text| text.is_empty() || is_number(text)) && texts().any(is_number)
        };
        let decide = |(column, heading): (usize, &Heading)| match heading.align {
            Align::Auto if numbers(column) => Align::Right,
            Align::Auto => Align::Left,
            decided => decided,
        };
        self.headings.iter().enumerate().map(decide).collect()
    }

    /// Returns the table as text, without a final newline.
    pub fn text(&self, look: Look) -> String {
        let mut table = ComfyTable::new();
        let aligns = self.aligns();
        let heading =
            |(heading, align): (&Heading, &Align)| aligned(ComfyCell::new(&heading.text), *align);
        table.set_header(self.headings.iter().zip(&aligns).map(heading));
        for row in &self.rows {
            let cells = row.iter().zip(&aligns);
            table.add_row(cells.map(|(cell, align)| comfy_cell(cell, *align, look)));
        }
        match look {
            Look::Terminal => table.load_style(UTF8_FULL_CONDENSED).enforce_styling(),
            Look::Uncoloured => table.load_style(UTF8_FULL_CONDENSED).force_no_tty(),
            Look::Plain => table.load_style(ASCII_MARKDOWN).force_no_tty(),
        };
        table.trim_fmt()
    }

    /// Returns the table as HTML, with a caption for screen readers.
    pub fn html(&self, caption: &str) -> Markup {
        let aligns = self.aligns();
        html! {
            div.scroll {
                table {
                    caption { (caption) }
                    thead {
                        tr {
                            @for (heading, align) in self.headings.iter().zip(&aligns) {
                                th scope="col" class=(class(*align, Tone::Plain)) {
                                    (heading.text)
                                }
                            }
                        }
                    }
                    tbody {
                        @for row in &self.rows {
                            tr.first[row.first().is_some_and(|cell| !cell.text.is_empty())] {
                                @for (cell, align) in row.iter().zip(&aligns) {
                                    td class=(class(*align, cell.tone)) { (cell.text) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl fmt::Display for Table {
    /// Formats the table for stdout, with lines if stdout is a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Look::of(std::io::stdout().is_terminal())))
    }
}

/// Returns whether a cell starts with a number in this crate's format; a unit or remark may follow.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    digits.starts_with(|c: char| c.is_ascii_digit())
}

fn aligned(cell: ComfyCell, align: Align) -> ComfyCell {
    cell.set_alignment(match align {
        Align::Left | Align::Auto => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    })
}

fn comfy_cell(cell: &Cell, align: Align, look: Look) -> ComfyCell {
    let comfy = aligned(ComfyCell::new(&cell.text), align);
    match (look, cell.tone) {
        (Look::Plain | Look::Uncoloured, _) | (_, Tone::Plain) => comfy,
        (_, Tone::Good) => comfy.fg(Color::Green),
        (_, Tone::Bad) => comfy.fg(Color::Red),
        (_, Tone::Faint) => comfy.add_attribute(Attribute::Dim),
        (_, Tone::Strong) => comfy.add_attribute(Attribute::Bold),
    }
}

fn class(align: Align, tone: Tone) -> String {
    let align = match align {
        Align::Left | Align::Auto => "left",
        Align::Right => "right",
    };
    let tone = match tone {
        Tone::Plain => return align.to_owned(),
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "faint",
        Tone::Strong => "strong",
    };
    format!("{align} {tone}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        let mut table = Table::new(&[("mode", Align::Left), ("lag", Align::Right)]);
        table.row([Cell::toned("as-is", Tone::Strong), Cell::toned("42.0 %", Tone::Bad)]);
        table.row(["tandem".into(), Cell::toned("1.0 %", Tone::Good)]);
        table
    }

    #[test]
    fn plain_look_is_markdown() {
        let expected = "\
| mode   |    lag |
|--------|--------|
| as-is  | 42.0 % |
| tandem |  1.0 % |";
        assert_eq!(example().text(Look::Plain), expected);
    }

    #[test]
    fn terminal_look_has_colour() {
        let text = example().text(Look::Terminal);
        assert!(text.contains("\u{1b}["), "{text}");
        assert!(text.contains('│'), "{text}");
    }

    #[test]
    fn number_columns_are_right_aligned() {
        let mut table = Table::new(&["VM", "lag", "pCPUs"]);
        table.row(["a", "+12.7 %", "0-1"]);
        table.row(["b2", "", "none"]);
        let expected = "\
| VM |     lag | pCPUs |
|----|---------|-------|
| a  | +12.7 % | 0-1   |
| b2 |         | none  |";
        assert_eq!(table.text(Look::Plain), expected);
    }

    #[test]
    fn rows_are_resized_to_headings() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["1"]);
        table.row(["1", "2", "3"]);
        let text = table.text(Look::Plain);
        assert!(text.lines().all(|line| line.matches('|').count() == 3));
        assert!(!text.contains('3'));
    }

    #[test]
    fn html_is_escaped() {
        let mut table = Table::new(&[("name", Align::Left)]);
        table.row(["<script>"]);
        let html = table.html("names & more").into_string();
        assert!(html.contains("&lt;script&gt;"), "{html}");
        assert!(html.contains("names &amp; more"), "{html}");
    }
}
