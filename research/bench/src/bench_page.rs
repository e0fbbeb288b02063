//! A bench as a page: the finding, key figures, charts of bars, tables, and how it was measured.
//!
//! The bench supplies titles, bars and tables.
//! Bars are relative to a baseline of 1, the dashed line.

use maud::{Markup, html};

use crate::pairs::{Pair, PairChart};
use tandem_papers::section::Section;
use tandem_report::chart::RowChart;
use tandem_report::chart::rows::Row;
use tandem_report::page;

/// Width of a chart.
const WIDTH: f64 = 760.0;

/// Bars with a title.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Title of the chart.
    pub title: String,
    /// Explanation of the chart.
    pub remark: String,
    /// Unit of the values.
    pub unit: String,
    /// The bars.
    pub rows: Vec<Row>,
}

/// Before-and-after pairs with a title.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// Title of the chart.
    pub title: String,
    /// Explanation of the chart.
    pub remark: String,
    /// Label of the axis.
    pub unit: String,
    /// The pairs.
    pub rows: Vec<Pair>,
}

/// A key figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// Name of the figure.
    pub name: String,
    /// The formatted figure.
    pub figure: String,
    /// Caption next to the figure.
    pub beside: String,
}

/// Contents of the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchPage {
    /// Title of the page.
    pub title: String,
    /// The result in words.
    pub lead: String,
    /// Caveats of the figures.
    pub notes: Vec<String>,
    /// Key figures.
    pub tiles: Vec<Tile>,
    /// Charts of bars.
    pub bars: Vec<Bars>,
    /// Charts of before-and-after pairs.
    pub pairs: Vec<Pairs>,
    /// Tables.
    pub sections: Vec<Section>,
    /// How it was measured: terms and their descriptions.
    pub how: Vec<(String, String)>,
}

/// Renders the page.
pub fn html(bench: &BenchPage, footer: &str) -> String {
    let body = html! {
        h1 { (bench.title) }
        p.lead { (bench.lead) }
        @if !bench.notes.is_empty() {
            ul.notes { @for note in &bench.notes { li { (note) } } }
        }
        @if !bench.tiles.is_empty() {
            div.tiles {
                @for tile in &bench.tiles {
                    (page::tile(&tile.name, html! { (tile.figure) }, &tile.beside))
                }
            }
        }
        @for bars in &bench.bars { (page::figure(&bars.title, &bars.remark, chart(bars))) }
        @for pairs in &bench.pairs {
            (page::figure(&pairs.title, &pairs.remark, pair_chart(pairs)))
        }
        @for section in &bench.sections {
            h2 { (section.title) }
            @if !section.remark.is_empty() { p { (section.remark) } }
            @if let Some(table) = &section.table { (table.html(&section.title)) }
        }
        h2 { "How it was measured" }
        dl { @for (term, what) in &bench.how { dt { (term) } dd { (what) } } }
    };
    page::page(&bench.title, body, footer)
}

fn chart(bars: &Bars) -> Markup {
    RowChart {
        title: bars.title.clone(),
        unit: bars.unit.clone(),
        rows: bars.rows.clone(),
        reference: Some(1.0),
        width: WIDTH,
    }
    .svg()
}

fn pair_chart(pairs: &Pairs) -> Markup {
    PairChart {
        title: pairs.title.clone(),
        unit: pairs.unit.clone(),
        rows: pairs.rows.clone(),
        width: WIDTH,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::table::Table;

    #[test]
    fn page_has_all_parts_escaped() {
        let mut table = Table::new(&["program"]);
        table.row(["pipe"]);
        let page = html(
            &BenchPage {
                title: "A bench".to_owned(),
                lead: "Faster <by far>.".to_owned(),
                notes: vec!["on one host".to_owned()],
                tiles: vec![Tile {
                    name: "mean".to_owned(),
                    figure: "2.00".to_owned(),
                    beside: "of 3".to_owned(),
                }],
                bars: vec![Bars {
                    title: "Ratios".to_owned(),
                    remark: "dashed: stock".to_owned(),
                    unit: "× stock".to_owned(),
                    rows: vec![Row {
                        name: "pipe".to_owned(),
                        series: 0,
                        value: Some(2.0),
                        half_width: None,
                        label: "2.00".to_owned(),
                        tooltip: "pipe: 2.00".to_owned(),
                    }],
                }],
                pairs: Vec::new(),
                sections: vec![Section {
                    title: "All".to_owned(),
                    remark: "Read so.".to_owned(),
                    table: Some(table),
                }],
                how: vec![("Command".to_owned(), "tandem-lab bench guest".to_owned())],
            },
            "f",
        );
        for text in [
            "Faster &lt;by far&gt;.",
            "on one host",
            "dashed: stock",
            "Read so.",
            "tandem-lab bench guest",
            "class=\"chart",
            "of 3",
        ] {
            assert!(page.contains(text), "{text}");
        }
    }

    #[test]
    fn empty_bench_renders() {
        assert!(html(&BenchPage::default(), "f").contains("How it was measured"));
    }
}
