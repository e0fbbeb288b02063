//! HTML page that compares published claims with our figures.
//!
//! It shows the number of claims in band, the verdict on every claim, and per claim a chart of our figures relative to the published ones.
//! Claims for fitting and claims for checking are counted separately, because only the latter test the model.
//! A figure out of band is a red dot; a claim without a judge is listed as not covered.

use crate::reproduce::claims::{Figure, Use};
use crate::reproduce::verdict::{Verdict, count, count_figures, count_uncovered};
use maud::{Markup, html};

use crate::claims_table::three_digits;
use crate::relative::{RelativeChart, RelativeRow};
use tandem_report::table::{Align, Cell, Table, Tone};
use tandem_report::{figure, page};

const TITLE: &str = "Published figures against the simulator's";

/// Width of a claim's chart.
const WIDTH: f64 = 900.0;

/// Returns the whole page; `command` is the command line that produced it.
pub fn html(verdicts: &[Verdict], runs: u32, command: &str, footer: &str) -> String {
    let body = html! {
        h1 { (TITLE) }
        p.lead { (finding(verdicts)) }
        div.tiles {
            (tile("Claims to be checked, in band", count(verdicts, Use::Check)))
            (tile("Claims fitted to, in band", count(verdicts, Use::Fit)))
            (tile("Single figures in band", count_figures(verdicts)))
            (page::tile("Claims not covered", html! { (count_uncovered(verdicts)) }, ""))
        }
        p.faint {
            "A claim is in band when each of its figures is within its band of the published value, or "
            "beyond it where the value is a bound, and every sentence holds. " (runs)
            @if runs == 1 { " run" } @else { " runs" } " of each trial."
        }
        h2 { "Verdicts" }
        (table(verdicts).html("Every claim with its verdict"))
        h2 { "Claim by claim" }
        p.faint {
            "Our figures divided by the published ones. The dashed line at 1 is the published value, the "
            "green ground what counts as reproduced, whiskers are 95 % intervals."
        }
        @for verdict in verdicts.iter().filter(|verdict| !verdict.figures.is_empty()) {
            (section(verdict))
        }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (command) } } }
    };
    page::page(TITLE, body, footer)
}

fn finding(verdicts: &[Verdict]) -> String {
    let (hits, of) = count(verdicts, Use::Check);
    match of {
        0 => "No claim that the model was not fitted to was checked.".to_owned(),
        of => format!(
            "{hits} of {of} published claims that the model was not fitted to come out within their \
             bands ({}).",
            figure::percent(hits as f64 / of as f64)
        ),
    }
}

/// A tile that shows a count and its total.
fn tile(name: &str, (hits, of): (usize, usize)) -> Markup {
    page::tile(name, html! { (hits) " of " (of) }, "")
}

fn table(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new(&[
        ("claim", Align::Left),
        ("use", Align::Left),
        ("verdict", Align::Left),
        ("figures in band", Align::Right),
        ("farthest off", Align::Right),
    ]);
    for verdict in verdicts {
        let (hits, of) = verdict.hits();
        let farthest = verdict
            .figures
            .iter()
            .filter_map(|figure| Some(relative(figure)?.1? - 1.0))
            .filter(|off| off.is_finite())
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        table.row([
            Cell::toned(verdict.claim.id.as_str(), Tone::Strong),
            verdict.claim.purpose.name().into(),
            band_cell(verdict.in_band()),
            match of {
                0 => Cell::default(),
                of => format!("{hits} of {of}").into(),
            },
            farthest.map_or_else(Cell::default, |off| figure::signed_percent(off).into()),
        ]);
    }
    table
}

fn band_cell(in_band: Option<bool>) -> Cell {
    match in_band {
        Some(true) => Cell::toned("in band", Tone::Good),
        Some(false) => Cell::toned("out of band", Tone::Bad),
        None => Cell::toned("not covered", Tone::Faint),
    }
}

fn section(verdict: &Verdict) -> Markup {
    let claim = &verdict.claim;
    let rows: Vec<RelativeRow> = verdict.figures.iter().filter_map(row).collect();
    let rest = verdict.figures.iter().filter(|figure| row(figure).is_none());
    let rest: Vec<&Figure> = rest.collect();
    let tone = match verdict.in_band() {
        Some(true) => "good",
        Some(false) => "bad",
        None => "faint",
    };
    html! {
        figure {
            figcaption {
                (claim.id) " " span.(tone) { (band_cell(verdict.in_band()).text) }
                div.faint { (claim.kind) ", for " (purpose(claim.purpose)) }
            }
            @if !rows.is_empty() {
                div.wide { (chart(&claim.id, rows)) }
            }
            @if !rest.is_empty() {
                ul.claims { @for figure in rest { li { (sentence(figure)) } } }
            }
            pre.faint { (verdict.command()) }
        }
    }
}

fn purpose(purpose: Use) -> &'static str {
    match purpose {
        Use::Fit => "fitting",
        Use::Check => "checking",
    }
}

fn chart(id: &str, rows: Vec<RelativeRow>) -> Markup {
    let chart = RelativeChart {
        title: format!("{id}: ours relative to published"),
        unit: "ours ÷ published".to_owned(),
        rows,
        width: WIDTH,
    };
    chart.svg()
}

/// Returns the published value, and our figure and its half interval relative to it; `None` if the published value is 0 or absent.
fn relative(figure: &Figure) -> Option<(f64, Option<f64>, Option<f64>)> {
    let published = figure.wanted.published().filter(|value| *value != 0.0)?;
    let ours = figure.ours;
    Some((
        published,
        ours.map(|ours| ours.mean / published),
        ours.and_then(|ours| ours.ci95).map(|ci95| ci95 / published.abs()),
    ))
}

fn row(figure: &Figure) -> Option<RelativeRow> {
    let (published, ours, half_width) = relative(figure)?;
    // Division by a negative value swaps the bounds.
    let bounds = if published < 0.0 {
        [figure.wanted.high(), figure.wanted.low()]
    } else {
        [figure.wanted.low(), figure.wanted.high()]
    };
    let [low, high] = bounds.map(|bound| bound.map(|bound| bound / published));
    let ours_text = number(figure.ours.map(|ours| ours.mean));
    let interval = figure.ours.and_then(|ours| ours.ci95);
    let bound = |bound: Option<f64>| bound.map_or_else(|| "anything".to_owned(), three_digits);
    Some(RelativeRow {
        name: figure.label(),
        low,
        high,
        ours,
        half_width,
        is_near: figure.in_band(),
        tooltip: format!(
            "{}: ours {}{}, published {}, reproduced from {} to {}",
            figure.name,
            ours_text,
            interval.map_or_else(String::new, |half| format!(" ± {}", three_digits(half))),
            three_digits(published),
            bound(figure.wanted.low()),
            bound(figure.wanted.high()),
        ),
        label: format!("{ours_text} / {}", three_digits(published)),
    })
}

/// Renders a figure that has no ratio: a sentence, or a figure whose published value is 0.
fn sentence(figure: &Figure) -> Markup {
    let published = figure.wanted.published();
    let (class, verdict) = match (figure.in_band(), published) {
        (true, None) => ("good", "holds"),
        (false, None) => ("bad", "does not hold"),
        (true, Some(_)) => ("good", "in band"),
        (false, Some(_)) => ("bad", "out of band"),
    };
    html! {
        (figure.label()) ": " span.(class) { (verdict) }
        @if let Some(published) = published {
            ", ours " (number(figure.ours.map(|ours| ours.mean)))
            ", published " (three_digits(published))
        }
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| figure::NOT_MEASURED.to_owned(), three_digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::claims::{Claim, Wanted};
    use tandem_experiment::statistics::Mean;

    fn figure_of(published: f64, ours: f64) -> Figure {
        Figure {
            name: "dedup[0] <x>".to_owned(),
            wanted: Wanted::Near {
                value: published,
                low: published - 0.15 * published.abs(),
                high: published + 0.15 * published.abs(),
            },
            with_our_settings: None,
            rule: Default::default(),
            ours: Some(Mean { mean: ours, ci95: Some(0.1) }),
        }
    }

    fn claim(purpose: Use) -> Claim {
        Claim {
            id: "apples.f6".to_owned(),
            value: serde_json::Value::Null,
            kind: "ratio".to_owned(),
            band: None,
            bound: None,
            figures: Default::default(),
            purpose,
        }
    }

    #[test]
    fn claims_are_counted_by_their_use() {
        let verdict =
            |purpose, ours: f64| Verdict::new(claim(purpose), Some(vec![figure_of(1.3, ours)]));
        let verdicts = [
            verdict(Use::Check, 1.3),
            verdict(Use::Check, 2.6),
            verdict(Use::Fit, 1.3),
            Verdict::new(claim(Use::Check), None),
        ];
        let page = html(&verdicts, 3, "tandem-lab reproduce", "f");
        assert!(page.contains("1 of 2 published claims"), "{page}");
        assert!(page.contains("(50.0 %)") && page.contains("2 of 3"));
        assert_eq!(page.matches("<svg").count(), 3, "no chart for a claim that is not covered");
        assert!(page.contains("dedup[0] &lt;x&gt;"));
    }

    #[test]
    fn sentences_and_zeros_are_written_as_text() {
        let shape = |holds| claim(Use::Check).shape("it grows", holds);
        let figures = vec![shape(true), shape(false), figure_of(0.0, 4.0)];
        let verdict = Verdict::new(claim(Use::Check), Some(figures));
        let page = html(&[verdict], 1, "c", "f");
        assert_eq!(page.matches("<svg").count(), 0);
        for text in [">holds<", ">does not hold<", "ours 4.00, published 0.00"] {
            assert!(page.contains(text), "{text}");
        }
    }

    #[test]
    fn unmeasured_figure_is_out_of_band() {
        let figure = Figure { ours: None, with_our_settings: None, ..figure_of(1.3, 0.0) };
        let verdict = Verdict::new(claim(Use::Check), Some(vec![figure]));
        let page = html(&[verdict], 1, "c", "f");
        assert!(page.contains("ours not measured, published 1.30"), "{page}");
        assert!(page.contains("0 of 1 published claims"), "{page}");
    }

    #[test]
    fn a_negative_value_keeps_its_band_around_one() {
        let row = row(&figure_of(-20.0, -22.0)).unwrap();
        assert!((row.low.unwrap() - 0.85).abs() < 1e-9, "{row:?}");
        assert!((row.high.unwrap() - 1.15).abs() < 1e-9, "{row:?}");
        assert!((row.ours.unwrap() - 1.1).abs() < 1e-9);
    }
}
