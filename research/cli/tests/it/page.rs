//! Opens pages of `tandem-lab` in a real browser: checks sizes of charts, network requests and console errors.
//!
//! Skipped without Chromium (`scripts/setup` installs it on Debian).

use std::path::{Path, PathBuf};
use std::process::Command;

use tandem_testing::browser::{browser, check};

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tandem-lab-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Makes a page with `tandem-lab`.
fn page(name: &str, args: &[&str]) -> PathBuf {
    let path = folder().join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-lab"))
        .args(args)
        .arg("--html")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert!(said.contains("page: "), "{said}");
    path
}

#[test]
fn published_claims_show_their_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    // A claim with figures and bounds, and a claim with a table.
    let claims = "scal.f4_7,gleaner.t2.A";
    let path = page("claims.html", &["reproduce", "--claims", claims, "--runs", "2"]);
    let opened = check(browser, &path);
    let text = std::fs::read_to_string(&path).unwrap();
    for claim in claims.split(',') {
        assert!(text.contains(claim), "{claim} is not on the page");
    }
    // A chart for each covered claim, with a dot or whiskers for each figure.
    assert_eq!(opened.number("charts"), 2, "{}", opened.probe);
    assert!(opened.number("whiskers") > 0, "{}", opened.probe);
}

#[test]
fn survey_has_a_chart_per_overcommit() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/survey.json");
    let path = page("survey.html", &["survey", "--from", figures.to_str().unwrap()]);
    let entries = std::fs::read_to_string(&figures).unwrap();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&entries).unwrap();
    let policies = entries.iter().filter_map(|entry| entry["policy"].as_str());
    let policies: std::collections::BTreeSet<&str> = policies.collect();
    assert!(policies.len() > 20, "{policies:?}");
    let opened = check(browser, &path);
    assert_eq!(opened.number("charts"), 3, "{}", opened.probe);
    let bars = 3 * policies.len() as u64;
    assert_eq!(opened.number("bars_seen"), bars, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("Worst victim") && text.contains("splash-volrend"));
}
