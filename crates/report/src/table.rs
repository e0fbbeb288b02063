//! Tables: filled once, written as terminal text or as HTML.
//!
//! On a terminal a table has lines and colour; anywhere else (a pipe, a file, a log) it is a plain
//! Markdown table, so that it can be searched, cut, and pasted into an issue as it stands. A cell's
//! tone says what it means (good, bad, beside the point), and each form shows that in its own way;
//! it never carries meaning alone, the text does.
//!
//! It does no arithmetic and no number formatting: see [`crate::figure`].

use comfy_table::Attribute;
use comfy_table::Cell as ComfyCell;
use comfy_table::CellAlignment;
use comfy_table::Color;
use comfy_table::Table as ComfyTable;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use maud::Markup;
use maud::html;

/// Where the text of a table goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A terminal: lines and colour.
    Terminal,
    /// Anything else: a Markdown table.
    Plain,
}

impl Look {
    /// [`Look::Terminal`] where `is_terminal`, otherwise [`Look::Plain`].
    pub fn of(is_terminal: bool) -> Look {
        if is_terminal {
            Look::Terminal
        } else {
            Look::Plain
        }
    }
}

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// What a cell means, beyond its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
    /// Beside the point.
    Faint,
    /// Names a group of rows.
    Strong,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// What it means.
    pub tone: Tone,
}

impl Cell {
    /// A cell with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Cell {
        Cell {
            text: text.into(),
            tone,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

/// A table: headings, and rows of as many cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    headings: Vec<(String, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with these columns.
    pub fn new(headings: &[(&str, Align)]) -> Table {
        Table {
            headings: headings.iter().map(|&(h, a)| (h.to_owned(), a)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells stay empty, cells beyond the last column are dropped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) -> &mut Table {
        let mut cells: Vec<Cell> = cells.into_iter().collect();
        cells.resize(self.headings.len(), Cell::default());
        self.rows.push(cells);
        self
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, without a line end after its last line.
    pub fn text(&self, look: Look) -> String {
        let mut table = ComfyTable::new();
        table.set_header(
            self.headings
                .iter()
                .map(|(heading, align)| aligned(ComfyCell::new(heading), *align)),
        );
        for row in &self.rows {
            table.add_row(
                row.iter()
                    .zip(&self.headings)
                    .map(|(cell, (_, align))| comfy_cell(cell, *align, look)),
            );
        }
        match look {
            Look::Terminal => table.load_style(UTF8_FULL_CONDENSED).enforce_styling(),
            Look::Plain => table.load_style(ASCII_MARKDOWN).force_no_tty(),
        };
        table.trim_fmt()
    }

    /// The table as HTML; `caption` names it for readers who cannot see the page's layout.
    pub fn html(&self, caption: &str) -> Markup {
        html! {
            div.scroll {
                table {
                    caption { (caption) }
                    thead {
                        tr {
                            @for (heading, align) in &self.headings {
                                th scope="col" class=(class(*align, Tone::Plain)) { (heading) }
                            }
                        }
                    }
                    tbody {
                        @for row in &self.rows {
                            tr.first[row.first().is_some_and(|cell| !cell.text.is_empty())] {
                                @for (cell, (_, align)) in row.iter().zip(&self.headings) {
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

fn aligned(cell: ComfyCell, align: Align) -> ComfyCell {
    cell.set_alignment(match align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    })
}

fn comfy_cell(cell: &Cell, align: Align, look: Look) -> ComfyCell {
    let comfy = aligned(ComfyCell::new(&cell.text), align);
    match (look, cell.tone) {
        (Look::Plain, _) | (_, Tone::Plain) => comfy,
        (_, Tone::Good) => comfy.fg(Color::Green),
        (_, Tone::Bad) => comfy.fg(Color::Red),
        (_, Tone::Faint) => comfy.add_attribute(Attribute::Dim),
        (_, Tone::Strong) => comfy.add_attribute(Attribute::Bold),
    }
}

fn class(align: Align, tone: Tone) -> &'static str {
    match (align, tone) {
        (Align::Left, Tone::Plain) => "left",
        (Align::Right, Tone::Plain) => "right",
        (Align::Left, Tone::Good) => "left good",
        (Align::Right, Tone::Good) => "right good",
        (Align::Left, Tone::Bad) => "left bad",
        (Align::Right, Tone::Bad) => "right bad",
        (Align::Left, Tone::Faint) => "left faint",
        (Align::Right, Tone::Faint) => "right faint",
        (Align::Left, Tone::Strong) => "left strong",
        (Align::Right, Tone::Strong) => "right strong",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        let mut table = Table::new(&[("mode", Align::Left), ("lag", Align::Right)]);
        table.row([
            Cell::toned("as-is", Tone::Strong),
            Cell::toned("42.0 %", Tone::Bad),
        ]);
        table.row(["tandem".into(), Cell::toned("1.0 %", Tone::Good)]);
        table
    }

    #[test]
    fn a_pipe_gets_markdown_without_escape_codes() {
        let expected = "\
| mode   |    lag |
|--------|--------|
| as-is  | 42.0 % |
| tandem |  1.0 % |";
        assert_eq!(example().text(Look::Plain), expected);
    }

    #[test]
    fn a_terminal_gets_colour() {
        let text = example().text(Look::Terminal);
        assert!(text.contains("\u{1b}["), "{text}");
        assert!(text.contains('│'), "{text}");
    }

    #[test]
    fn rows_have_as_many_cells_as_headings() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["1".into()]);
        table.row(["1".into(), "2".into(), "3".into()]);
        let text = table.text(Look::Plain);
        assert!(text.lines().all(|line| line.matches('|').count() == 3));
        assert!(!text.contains('3'));
    }

    #[test]
    fn html_escapes_what_it_is_given() {
        let mut table = Table::new(&[("name", Align::Left)]);
        table.row(["<script>".into()]);
        let html = table.html("names & more").into_string();
        assert!(html.contains("&lt;script&gt;"), "{html}");
        assert!(html.contains("names &amp; more"), "{html}");
    }
}
