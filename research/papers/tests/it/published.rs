//! The stored figures in `research/data` keep their verdicts: the notation of a bound or band must not change a verdict.

use std::path::Path;

use serde_json::Value;
use tandem_papers::reproduce::claims::{Claim, published};
use tandem_papers::sample::Sample;

fn kept(name: &str) -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../research/data/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn stored_figures_keep_their_verdicts() {
    let kept = kept("reproduction");
    let claims = published().unwrap();
    let mut judged = 0;
    for (kept, claim) in kept.as_array().unwrap().iter().zip(&claims) {
        assert_eq!(kept["id"], claim.id);
        for figure in kept["figures"].as_array().unwrap() {
            // Sentences have no published value.
            let Some(value) = figure["published"].as_f64() else {
                continue;
            };
            let name = figure["name"].as_str().unwrap();
            let ours = Sample::Runs(vec![figure["ours"].as_f64()]);
            let now = claim.figure(name, &ours).unwrap();
            let near = |now: Option<f64>, then: &Value| match (now, then.as_f64()) {
                (Some(now), Some(then)) => (now - then).abs() <= 1e-9 * then.abs(),
                (now, then) => now == then,
            };
            let same_text =
                |text: &Option<String>, key: &str| text.as_deref() == figure[key].as_str();
            let same = now.wanted.published() == Some(value)
                && near(now.wanted.low(), &figure["low"])
                && near(now.wanted.high(), &figure["high"])
                && figure["in_band"] == now.in_band()
                && same_text(&now.rule.reading_of, "reading_of")
                && same_text(&now.rule.out_of_reach, "out_of_reach")
                && same_text(&now.rule.weak, "weak");
            assert!(same, "{} {name}: {now:?}, but was {figure}", claim.id);
            judged += 1;
        }
    }
    assert!(judged > 90, "only {judged} figures were compared");
}

/// Asserts that the published value, bound and verdict of a corrected figure match the list of claims.
fn check_corrected(claim: &Claim, figure: &Value) {
    let after = &figure["after"];
    let Some(value) = after["published"].as_f64() else {
        assert!(after["figure"].is_null() || after["published"].is_null());
        return;
    };
    let name = after["figure"].as_str().unwrap();
    let ours = Sample::Runs(vec![after["ours"].as_f64()]);
    let now = claim.figure(name, &ours).unwrap();
    assert_eq!(now.wanted.published(), Some(value), "{} {name}", claim.id);
    let verdict = if now.in_band() { "in band" } else { "OUT" };
    assert_eq!(after["verdict"], verdict, "{} {name}: {after}", claim.id);
    let bound = match (now.wanted.low(), now.wanted.high()) {
        (Some(_), None) => "≥ ",
        (None, Some(_)) => "≤ ",
        _ => "",
    };
    assert_eq!(after["bound"], bound, "{} {name}", claim.id);
}

#[test]
fn corrected_figures_match_claims_and_verdicts() {
    let kept = kept("reproduction-corrections");
    let claims = published().unwrap();
    let figures = kept["figures"].as_array().unwrap();
    for figure in figures {
        let id = figure["claim"].as_str().unwrap();
        let claim = claims.iter().find(|claim| claim.id == id);
        check_corrected(claim.unwrap_or_else(|| panic!("no claim {id}")), figure);
    }
    // Every corrected claim has a figure that shows the effect of the correction.
    for correction in kept["corrections"].as_array().unwrap() {
        for claim in correction["claims"].as_str().unwrap().split(", ") {
            let shown = |figure: &Value| {
                let id = figure["claim"].as_str().unwrap_or_default();
                id == claim || id.strip_prefix(claim).is_some_and(|rest| rest.starts_with('.'))
            };
            assert!(figures.iter().any(shown), "{claim}: no figure before and after");
        }
    }
    assert!(figures.len() > 20, "only {} figures", figures.len());
}
