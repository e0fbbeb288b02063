//! The figures that are kept in `docs/data/reproduction.json` are judged now as they were when they were
//! made: what a bound or a band is written like must change no verdict.

use std::path::Path;

use serde_json::Value;
use tandem_experiment::reproduce::claims::published;
use tandem_experiment::sample::Sample;

#[test]
fn kept_figures_are_judged_as_they_were() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/data/reproduction.json");
    let kept: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let claims = published().unwrap();
    let mut judged = 0;
    for (kept, claim) in kept.iter().zip(&claims) {
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
            let same = now.wanted.published() == Some(value)
                && near(now.wanted.low(), &figure["low"])
                && near(now.wanted.high(), &figure["high"])
                && figure["in_band"] == now.in_band();
            assert!(same, "{} {name}: {now:?}, but was {figure}", claim.id);
            judged += 1;
        }
    }
    assert!(judged > 90, "only {judged} figures were compared");
}
