//! Published claims against our figures, as a page: how many came out, every claim with its verdict, and
//! for each claim a chart of our figures relative to the published ones.
//!
//! Claims that the model was fitted to and claims that it had to meet unseen are counted apart: only the
//! second say anything about the model. What does not come out is a red dot, and what was not looked at
//! is said with its reason: nothing is left out.

use maud::Markup;
use maud::html;

use crate::chart::RelativeChart;
use crate::chart::relative::RelativeRow;
use crate::figure;
use crate::page;
use crate::table::Align;
use crate::table::Cell;
use crate::table::Table;
use crate::table::Tone;

const TITLE: &str = "Published figures against the simulator's";

/// Width of a claim's chart.
const WIDTH: f64 = 900.0;

/// A figure of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimFigure {
    /// Its name, or the sentence that must hold.
    pub name: String,
    /// The published value; `None` for a sentence.
    pub published: Option<f64>,
    /// The least that counts as reproduced.
    pub low: Option<f64>,
    /// The most that counts as reproduced.
    pub high: Option<f64>,
    /// Ours.
    pub ours: Option<f64>,
    /// Half the width of its 95 % interval.
    pub ci95: Option<f64>,
    /// Whether it is reproduced; `None`: it was not looked at.
    pub in_band: Option<bool>,
    /// Why it was not looked at; empty if it was.
    pub not_covered: String,
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// `fit`: the model may be fitted to it; `check`: it must come out by itself.
    pub purpose: String,
    /// What its figures are: `ratio`, `percent`, `us`, `count` or `shape`.
    pub kind: String,
    /// Whether all its figures that were looked at are reproduced; `None`: none was.
    pub in_band: Option<bool>,
    /// Its figures.
    pub figures: Vec<ClaimFigure>,
    /// The command that shows it.
    pub command: String,
}

/// The whole page; `command` made it.
pub fn html(claims: &[Claim], runs: u32, command: &str, footer: &str) -> String {
    let body = html! {
        h1 { (TITLE) }
        p.lead { (finding(claims)) }
        div.tiles {
            (tile(claims, "check", "Claims to be checked, in band"))
            (tile(claims, "fit", "Claims fitted to, in band"))
            (figures_tile(claims))
            (uncovered_tile(claims))
        }
        p.faint {
            "A claim is in band when each of its figures is within its band of the published value, or "
            "beyond it where the value is a bound, and every sentence holds. " (runs)
            @if runs == 1 { " run" } @else { " runs" } " of each trial."
        }
        h2 { "Verdicts" }
        (verdicts(claims).html("Every claim with its verdict"))
        h2 { "Claim by claim" }
        p.faint {
            "Our figures divided by the published ones. The dashed line at 1 is the published value, the "
            "green ground what counts as reproduced, whiskers are 95 % intervals."
        }
        @for claim in claims.iter().filter(|claim| !claim.figures.is_empty()) { (section(claim)) }
        h2 { "How it was made" }
        dl { dt { "Command" } dd { pre { (command) } } }
    };
    page::page(TITLE, body, footer)
}

/// How many claims of a use are in band, and of how many.
fn count(claims: &[Claim], purpose: &str) -> (usize, usize) {
    let of_use = claims.iter().filter(|claim| claim.purpose == purpose);
    let verdicts: Vec<bool> = of_use.filter_map(|claim| claim.in_band).collect();
    let hits = verdicts.iter().filter(|&&hit| hit).count();
    (hits, verdicts.len())
}

fn finding(claims: &[Claim]) -> String {
    let (hits, of) = count(claims, "check");
    match of {
        0 => "No claim that the model had to meet unseen was looked at.".to_owned(),
        of => format!(
            "{hits} of {of} published claims that the model was not fitted to come out within their \
             bands ({}).",
            figure::percent(hits as f64 / of as f64)
        ),
    }
}

fn tile(claims: &[Claim], purpose: &str, name: &str) -> Markup {
    let (hits, of) = count(claims, purpose);
    page::tile(name, html! { (hits) " of " (of) }, "")
}

fn figures_tile(claims: &[Claim]) -> Markup {
    let figures = claims.iter().flat_map(|claim| &claim.figures);
    let verdicts: Vec<bool> = figures.filter_map(|figure| figure.in_band).collect();
    let hits = verdicts.iter().filter(|&&hit| hit).count();
    page::tile(
        "Single figures in band",
        html! { (hits) " of " (verdicts.len()) },
        "",
    )
}

fn uncovered_tile(claims: &[Claim]) -> Markup {
    let open = claims
        .iter()
        .filter(|claim| claim.in_band.is_none())
        .count();
    page::tile("Claims not covered", html! { (open) }, "")
}

fn verdicts(claims: &[Claim]) -> Table {
    let mut table = Table::new(&[
        ("claim", Align::Left),
        ("use", Align::Left),
        ("verdict", Align::Left),
        ("figures in band", Align::Right),
        ("farthest off", Align::Right),
    ]);
    for claim in claims {
        let judged: Vec<bool> = claim.figures.iter().filter_map(|f| f.in_band).collect();
        let hits = judged.iter().filter(|&&hit| hit).count();
        let farthest = claim
            .figures
            .iter()
            .filter_map(relative)
            .map(|(_, ours, _)| ours - 1.0)
            .filter(|off| off.is_finite())
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        table.row([
            Cell::toned(claim.id.as_str(), Tone::Strong),
            claim.purpose.as_str().into(),
            verdict(claim.in_band),
            match judged.len() {
                0 => Cell::default(),
                of => format!("{hits} of {of}").into(),
            },
            farthest.map_or_else(Cell::default, |off| figure::signed_percent(off).into()),
        ]);
    }
    table
}

fn verdict(in_band: Option<bool>) -> Cell {
    match in_band {
        Some(true) => Cell::toned("in band", Tone::Good),
        Some(false) => Cell::toned("out of band", Tone::Bad),
        None => Cell::toned("not covered", Tone::Faint),
    }
}

fn section(claim: &Claim) -> Markup {
    let rows: Vec<RelativeRow> = claim.figures.iter().filter_map(row).collect();
    let charted = |figure: &&ClaimFigure| row(figure).is_none();
    let rest: Vec<&ClaimFigure> = claim.figures.iter().filter(charted).collect();
    let tone = match claim.in_band {
        Some(true) => "good",
        Some(false) => "bad",
        None => "faint",
    };
    html! {
        figure {
            figcaption {
                (claim.id) " " span.(tone) { (verdict(claim.in_band).text) }
                div.faint { (claim.kind) ", for " (purpose(&claim.purpose)) }
            }
            @if !rows.is_empty() {
                div.wide { (chart(claim, rows)) }
            }
            @if !rest.is_empty() {
                ul.claims { @for figure in rest { li { (in_words(figure)) } } }
            }
            pre.faint { (claim.command) }
        }
    }
}

fn purpose(purpose: &str) -> &str {
    match purpose {
        "fit" => "fitting",
        "check" => "checking",
        other => other,
    }
}

fn chart(claim: &Claim, rows: Vec<RelativeRow>) -> Markup {
    let chart = RelativeChart {
        title: format!("{}: ours relative to published", claim.id),
        unit: "ours ÷ published".to_owned(),
        rows,
        width: WIDTH,
    };
    chart.svg()
}

/// Published value, ours and its interval relative to it; `None` where there is no such ratio.
fn relative(figure: &ClaimFigure) -> Option<(f64, f64, Option<f64>)> {
    let published = figure.published.filter(|value| *value != 0.0)?;
    let size = published.abs();
    Some((
        published,
        figure.ours? / published,
        figure.ci95.map(|ci95| ci95 / size),
    ))
}

fn row(figure: &ClaimFigure) -> Option<RelativeRow> {
    let (published, ours, half_width) = relative(figure)?;
    // Bounds of a negative value change places.
    let bounds = match published < 0.0 {
        true => [figure.high, figure.low],
        false => [figure.low, figure.high],
    };
    let [low, high] = bounds.map(|bound| bound.map(|bound| bound / published));
    let label = format!("{} / {}", number(figure.ours), number(figure.published));
    Some(RelativeRow {
        name: figure.name.clone(),
        low,
        high,
        ours: Some(ours),
        half_width,
        is_near: figure.in_band == Some(true),
        tooltip: format!(
            "{}: ours {}{}, published {}, reproduced from {} to {}",
            figure.name,
            number(figure.ours),
            figure
                .ci95
                .map_or_else(String::new, |ci95| format!(" ± {}", number(Some(ci95)))),
            number(figure.published),
            figure
                .low
                .map_or_else(|| "anything".to_owned(), |low| number(Some(low))),
            figure
                .high
                .map_or_else(|| "anything".to_owned(), |high| number(Some(high))),
        ),
        label,
    })
}

/// A figure that is no ratio: a sentence, one that was not looked at, one whose published value is 0.
fn in_words(figure: &ClaimFigure) -> Markup {
    let (class, verdict) = match (figure.in_band, figure.published) {
        (Some(true), None) => ("good", "holds"),
        (Some(false), None) => ("bad", "does not hold"),
        (Some(true), Some(_)) => ("good", "in band"),
        (Some(false), Some(_)) => ("bad", "out of band"),
        (None, _) => ("faint", "not covered"),
    };
    html! {
        (figure.name) ": " span.(class) { (verdict) }
        @if !figure.not_covered.is_empty() { " (" (figure.not_covered) ")" }
        @if figure.published.is_some() && figure.in_band.is_some() {
            ", ours " (number(figure.ours)) ", published " (number(figure.published))
        }
    }
}

/// Three digits that matter.
fn number(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        None => figure::NOT_MEASURED.to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure_of(published: Option<f64>, ours: f64, in_band: Option<bool>) -> ClaimFigure {
        ClaimFigure {
            name: "dedup[0] <x>".to_owned(),
            published,
            low: published.map(|value| value - 0.15 * value.abs()),
            high: published.map(|value| value + 0.15 * value.abs()),
            ours: Some(ours),
            ci95: Some(0.1),
            in_band,
            not_covered: String::new(),
        }
    }

    fn claim(purpose: &str, in_band: Option<bool>, figures: Vec<ClaimFigure>) -> Claim {
        Claim {
            id: "apples.f6".to_owned(),
            purpose: purpose.to_owned(),
            kind: "ratio".to_owned(),
            in_band,
            figures,
            command: "tandem sim reproduce --claims apples.f6".to_owned(),
        }
    }

    #[test]
    fn claims_are_counted_by_their_use() {
        let figures = |hit| vec![figure_of(Some(1.3), 1.3, Some(hit))];
        let claims = [
            claim("check", Some(true), figures(true)),
            claim("check", Some(false), figures(false)),
            claim("fit", Some(true), figures(true)),
            claim("check", None, Vec::new()),
        ];
        let page = html(&claims, 3, "tandem sim reproduce", "f");
        assert!(page.contains("1 of 2 published claims"), "{page}");
        assert!(page.contains("(50.0 %)") && page.contains("2 of 3"));
        assert_eq!(
            page.matches("<svg").count(),
            3,
            "nothing to draw of what is not covered"
        );
        assert!(page.contains("dedup[0] &lt;x&gt;"));
    }

    #[test]
    fn sentences_and_zeros_are_said_in_words() {
        let figures = vec![
            figure_of(None, 1.0, Some(true)),
            figure_of(None, 0.0, Some(false)),
            figure_of(Some(0.0), 4.0, Some(false)),
            ClaimFigure {
                ours: None,
                not_covered: "no disk".to_owned(),
                ..figure_of(None, 0.0, None)
            },
        ];
        let page = html(&[claim("check", Some(false), figures)], 1, "c", "f");
        assert_eq!(page.matches("<svg").count(), 0);
        for said in [
            ">holds<",
            ">does not hold<",
            "ours 4.00, published 0.00",
            "(no disk)",
        ] {
            assert!(page.contains(said), "{said}");
        }
    }

    #[test]
    fn a_negative_value_keeps_its_band_around_one() {
        let row = row(&figure_of(Some(-20.0), -22.0, Some(true))).unwrap();
        assert!((row.low.unwrap() - 0.85).abs() < 1e-9, "{row:?}");
        assert!((row.high.unwrap() - 1.15).abs() < 1e-9, "{row:?}");
        assert!((row.ours.unwrap() - 1.1).abs() < 1e-9);
    }
}
