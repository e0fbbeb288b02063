//! Verdicts on published claims as a text table, followed by the number of claims in band.

use crate::reproduce::claims::{Figure, Use, Wanted};
use crate::reproduce::verdict::{Verdict, count, count_figures, count_in_reach, count_uncovered};

use tandem_report::figure;
use tandem_report::figure::NOT_MEASURED;
use tandem_report::table::{Cell, Table, Tone};

/// Returns the text table with the summary below it.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut table = Table::new(&["claim", "use", "figure", "published", "ours", "± 95 %", ""]);
    for verdict in verdicts {
        let mut head = [
            Cell::toned(verdict.claim.id.as_str(), Tone::Strong),
            verdict.claim.purpose.name().into(),
        ];
        if verdict.figures.is_empty() {
            let none = Cell::toned("not covered", Tone::Faint);
            let empty = Cell::default;
            let cells = head.into_iter();
            table.row(cells.chain([empty(), empty(), empty(), empty(), none]));
            continue;
        }
        for figure in &verdict.figures {
            let cells = head.clone().into_iter().chain(row(verdict, figure));
            table.row(cells);
            head = [Cell::default(), Cell::default()];
        }
    }
    format!("{table}\n\n{}\n", summary(verdicts))
}

fn row(verdict: &Verdict, figure: &Figure) -> [Cell; 5] {
    let verdict = match (figure.in_band(), figure.wanted) {
        (true, _) => Cell::toned("in band", Tone::Good),
        (false, _) if verdict.is_met(figure) => Cell::toned("another reading is", Tone::Faint),
        (false, Wanted::Holds) => Cell::toned("does not hold", Tone::Bad),
        (false, _) => Cell::toned("OUT", Tone::Bad),
    };
    let published = match figure.wanted {
        Wanted::Near { value, .. } => three_digits(value),
        Wanted::AtLeast { value, .. } => format!("≥ {}", three_digits(value)),
        Wanted::AtMost { value, .. } => format!("≤ {}", three_digits(value)),
        Wanted::Holds => String::new(),
    };
    // The verdict column shows whether a sentence holds.
    let (ours, interval) = match (figure.wanted, figure.ours) {
        (Wanted::Holds, _) => (String::new(), None),
        (_, Some(mean)) => (three_digits(mean.mean), mean.ci95),
        (_, None) => (figure::NOT_MEASURED.to_owned(), None),
    };
    let name = match figure.with_our_settings {
        Some(ours) => format!("{} (with our settings {})", figure.label(), three_digits(ours.mean)),
        None => figure.label(),
    };
    [
        name.into(),
        published.into(),
        ours.into(),
        interval.map_or_else(String::new, three_digits).into(),
        verdict,
    ]
}

/// Returns the counts of claims in band as a sentence.
pub fn summary(verdicts: &[Verdict]) -> String {
    let (fit, of_fit) = count(verdicts, Use::Fit);
    let (check, of_check) = count(verdicts, Use::Check);
    let (near, of_near) = count_in_reach(verdicts, Use::Check);
    let (figures, of_figures) = count_figures(verdicts);
    let open = count_uncovered(verdicts);
    format!(
        "{check} of {of_check} claims to be checked are in band ({near} of the {of_near} without figures that are out of \
         reach), {fit} of {of_fit} that the model may be fitted to; {figures} of {of_figures} figures. {open} claims are \
         not covered."
    )
}

/// Formats a value with three significant digits, or as "not measured" if it is not finite.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => NOT_MEASURED.to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::claims::published;
    use crate::sample::Sample;

    #[test]
    fn summary_counts_claims_and_marks_unmeasured_figures() {
        let claim = |id: &str| {
            let claims = published().unwrap();
            claims.into_iter().find(|claim| claim.id == id).unwrap()
        };
        let verdict = |figures: [f64; 2]| {
            let claim = claim("scal.f4_5");
            let figure = |(at, ours): (usize, f64)| {
                let path = format!("mean[{at}]");
                claim.figure(&path, &Sample::new(vec![ours])).unwrap()
            };
            let figures = figures.into_iter().enumerate().map(figure).collect();
            Verdict::new(claim.clone(), Some(figures))
        };
        let all = [
            verdict([9.6, 11.0]),
            verdict([9.6, f64::NAN]),
            Verdict::new(claim("asym.f5_4"), None),
        ];
        let text = table(&all);
        assert!(text.contains("1 of 2 claims"), "{text}");
        assert!(text.contains("; 3 of 4 figures. 1 claims are not covered."), "{text}");
        assert_eq!(text.matches("not measured").count(), 1, "{text}");
        assert_eq!(text.matches("OUT").count(), 1, "{text}");
    }

    #[test]
    fn three_digits_rounds_to_significant_digits() {
        assert_eq!(three_digits(517.4), "517");
        assert_eq!(three_digits(-12.34), "-12.3");
        assert_eq!(three_digits(1.349), "1.35");
        assert_eq!(three_digits(f64::INFINITY), NOT_MEASURED);
    }
}
