//! Pages of `tandem-sim` in a real browser: charts exist and have a size; there are no requests, no console
//! messages and no overflow.
//!
//! Skipped without Chromium (`scripts/setup` installs it on Debian).

use std::path::PathBuf;
use std::process::Command;

use crate::common::scenario;
use tandem_testing::browser::{browser, check, open};

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tandem-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Makes a page with `tandem-sim`.
fn page(name: &str, args: &[&str]) -> PathBuf {
    let path = folder().join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
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
fn comparison_shows_its_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("ticket-ple-per-vm.toml");
    let args = ["compare", &scenario, "--policies", "stock,aple,hvs,apples"];
    let rest = ["--runs", "2", "--duration", "300ms", "--metrics", "work_rate,steal"];
    let path = page("compare.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    // For each of two metrics: a chart of both VMs and a panel per VM; for work, which adds up, also one for all VMs.
    // CPU time of both VMs; two thresholds.
    // For each policy: waits for pCPUs, and possibly for siblings, by VM and, if there are few, by vCPU.
    let charts = 2 * (1 + 2) + 1 + 2 + 2;
    let waits = opened.number("charts") - charts;
    assert!((4..=4 * 4).contains(&waits), "{}", opened.probe);
    assert!(opened.number("bars_seen") >= 2 * 2 * 2 * 4, "{}", opened.probe);
    assert!(opened.number("whiskers") >= 2 * 2 * 2 * 4, "{}", opened.probe);
    assert!(opened.number("cells") > 4, "{}", opened.probe);
    assert!(opened.number("lines") >= 2, "{}", opened.probe);
}

#[test]
fn run_shows_its_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("shootdown-ipi.toml");
    let rest = ["--duration", "300ms", "--set", "host.pause_loop.policy=aple"];
    let path = page("run.html", &[&["run", &scenario][..], &rest].concat());
    let opened = check(browser, &path);
    assert!(opened.number("charts") >= 3 + 1 + 2, "{}", opened.probe);
    assert!(opened.number("bars_seen") > 10, "{}", opened.probe);
    assert!(opened.number("lines") >= 1, "{}", opened.probe);
}

#[test]
fn many_combinations_with_long_names_fit() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("lock-holder-preemption.toml");
    let args = ["compare", &scenario, "--set", "vm.burn.count=7", "--runs", "1"];
    let rest = [
        "--duration",
        "60ms",
        "--vary",
        "host.pause_loop.policy=stock,aple,off",
        "--vary",
        "host.pause_loop.candidate=stock,hvs,none",
        "--vary",
        "host.scheduler=cfs,eevdf",
    ];
    let path = page("many.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    assert!(opened.number("charts") >= 4 * 8, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("candidate=hvs scheduler=eevdf</text>") && text.contains("--vary"));
}

#[test]
fn varied_numbers_have_lines() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("lock-holder-preemption.toml");
    let args = ["compare", &scenario, "--runs", "2", "--duration", "60ms"];
    let rest = [
        "--vary",
        "vm.burn.vcpus=log:1..8",
        "--vary",
        "host.pause_loop.candidate=stock,hvs",
        "--vary",
        "host.pause_loop.policy=stock,aple",
        "--metrics",
        "received,steal",
    ];
    let path = page("number.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    // Four lines for each of two metrics and two VMs.
    assert!(opened.number("lines") >= 2 * 2 * 4, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("<circle").count(), 2 * 2 * 4 * 4);
}

/// Tests the check itself with a page full of errors.
#[test]
fn browser_check_finds_errors() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let path = folder().join("wrong.html");
    let wrong = "<html><body style='width:3000px'><img src='http://example.invalid/x.png'>
        <svg class='chart' viewBox='0 0 10 10' width='200' height='200'><text x='900'>far</text></svg>
        <script>nobody()</script></body></html>";
    std::fs::write(&path, wrong).unwrap();
    let opened = open(browser, &path, 1200, false);
    assert!(!opened.complaints.is_empty());
    assert_eq!(opened.probe["fetched"][0], "http://example.invalid/x.png");
    assert!(opened.probe["wide"].as_i64() > Some(1000));
    assert_eq!(opened.probe["outside"][0], "far");
}

#[test]
fn picture_has_a_bar_per_combination() {
    let path = folder().join("picture.svg");
    let picture = path.to_str().unwrap();
    let scenario = scenario("lock-holder-preemption.toml");
    let args = ["compare", &scenario, "--policies", "stock,aple,hvs"];
    let rest =
        ["--runs", "2", "--duration", "60ms", "--metrics", "work_rate", "--picture", picture];
    let run =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_tandem-sim")).args(args).output().unwrap();
    let output = run(&[&args[..], &rest].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{svg}");
    assert!(!svg.contains("var(") && !svg.contains("NaN"), "{svg}");
    // One bar for each of two VMs, and one in the legend.
    assert_eq!(svg.matches("class=\"bar s1\"").count(), 3, "{svg}");
    // A single combination has no baseline.
    let output = run(&[&args[..2], &rest].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("nothing to draw"), "{said}");
}
