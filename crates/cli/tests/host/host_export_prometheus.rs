//! Tests the exporter, its rules and its dashboard with `promtool` and a Prometheus server that scrapes a running exporter.
//!
//! They need Debian's package `prometheus` (19 MB, optional: see CONTRIBUTING.md); without it these tests are skipped.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::export_support::{Guard, get, name, runs_here, start_exporter, start_vm, wait_for};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs promtool; if it is not installed, returns `None` and prints that the test is skipped.
fn promtool(test: &str, folder: &Path, args: &[&str], input: &str) -> Option<Output> {
    let child = Command::new("promtool")
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: {test}: no promtool (Debian's package prometheus)");
            return None;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    // A promtool that does not read its input closes it, so an error is ignored.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    Some(child.wait_with_output().unwrap())
}

fn accepts(test: &str, folder: &Path, args: &[&str], input: &str) {
    if let Some(output) = promtool(test, folder, args, input) {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "promtool {args:?}:\n{said}");
    }
}

/// Returns a folder with the shipped files for Prometheus.
fn shipped() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, from) in [
        ("tandem.rules.yml", "packaging/prometheus/tandem.rules.yml"),
        ("scrape.yml", "packaging/prometheus/scrape.yml"),
        ("alerts.test.yml", "crates/cli/tests/alerts.test.yml"),
    ] {
        fs::write(folder.path().join(name), read(from)).unwrap();
    }
    folder
}

#[test]
fn promtool_accepts_rules_and_configuration() {
    let test = "promtool_accepts_rules_and_configuration";
    let folder = shipped();
    let check = |args: &[&str]| accepts(test, folder.path(), args, "");
    check(&["check", "rules", "tandem.rules.yml"]);
    check(&["check", "config", "scrape.yml"]);
}

#[test]
fn alerts_fire_only_when_they_should() {
    let test = "alerts_fire_only_when_they_should";
    let folder = shipped();
    accepts(test, folder.path(), &["test", "rules", "alerts.test.yml"], "");
}

/// Converts the page to the format before OpenMetrics, which `promtool check metrics` reads.
/// In this format the family of a counter has the name of its samples, and there are no units and no end.
fn older_format(page: &str) -> String {
    let counters: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT", ..] | ["#", "EOF"] => {}
            ["#", what, name, rest] if counters.contains(name) => {
                text += &format!("# {what} {name}_total {rest}\n");
            }
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

#[test]
fn promtool_accepts_the_page() {
    let test = "promtool_accepts_the_page";
    let page = older_format(&read("crates/host/tests/golden/export.prom"));
    accepts(test, Path::new("/"), &["check", "metrics"], &page);
}

/// Returns Prometheus's answer to a query, or its error.
fn query(server: SocketAddr, expression: &str) -> Result<Vec<Value>, String> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = format!("/api/v1/query?query={encoded}");
    let answer = get(server, &path).map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
    match (answer["status"].as_str(), answer["data"]["result"].as_array()) {
        (Some("success"), Some(result)) => Ok(result.clone()),
        _ => Err(answer.to_string()),
    }
}

/// Returns the value of the only series of a query.
fn value(server: SocketAddr, expression: &str) -> Option<f64> {
    let result = query(server, expression).ok()?;
    let [series] = result.as_slice() else {
        return None;
    };
    series["value"][1].as_str()?.parse().ok()
}

/// Starts a server with the shipped configuration, for this exporter and with intervals of seconds instead of minutes.
fn start_prometheus(folder: &Path, exporter: SocketAddr) -> Option<(Guard, SocketAddr)> {
    let config = read("packaging/prometheus/scrape.yml");
    let config = config
        .replace("127.0.0.1:9466", &exporter.to_string())
        .replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s");
    assert!(config.contains("evaluation_interval") && config.contains(&exporter.to_string()));
    fs::write(folder.join("prometheus.yml"), config).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new("prometheus")
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .args([format!("--web.listen-address={free}")])
        .args(["--log.level=error"])
        .current_dir(folder)
        .spawn();
    match child {
        Ok(child) => Some((Guard(child), free)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("prometheus: {error}"),
    }
}

/// Returns the expressions of the dashboard with its variables replaced.
fn dashboard_expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana/tandem.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    targets
        .flatten()
        .map(|target| {
            let expression = target["expr"].as_str().unwrap();
            let filled = expression
                .replace("$__rate_interval", "1m")
                .replace("$job", ".*")
                .replace("$instance", ".*")
                .replace("$vm", ".*");
            assert!(!filled.contains('$'), "{filled}");
            filled
        })
        .collect()
}

#[test]
#[ignore = "needs root and KVM"]
fn prometheus_answers_rules_and_dashboard() {
    let test = "prometheus_answers_rules_and_dashboard";
    if !runs_here(test) {
        return;
    }
    let name = name('p');
    let vms = [start_vm(&name), start_vm(&format!("{name}b"))];
    let exporter = start_exporter(&["--interval", "0.5", &format!("{name}*")]);
    let folder = shipped();
    let Some((_prometheus, server)) = start_prometheus(folder.path(), exporter.address) else {
        println!("skipped: {test}: no prometheus (Debian's package prometheus)");
        return;
    };
    let of_vm = format!("tandem_vm_state_seconds_total{{vm=\"{name}\",state=\"run\"}}");
    wait_for("the VM has a run time", || value(server, &of_vm).filter(|time| *time > 0.0));
    assert_eq!(value(server, "up{job=\"tandem-export\"}"), Some(1.0));
    let vcpus = format!("tandem_vm_vcpus{{vm=\"{name}\"}}");
    assert_eq!(value(server, &vcpus), Some(2.0));
    // The type, not only the name, is that of a counter: Prometheus read the page as OpenMetrics.
    let metadata = get(server, "/api/v1/metadata?metric=tandem_vm_state_seconds_total").unwrap();
    let metadata_of_family =
        get(server, "/api/v1/metadata?metric=tandem_vm_state_seconds").unwrap();
    assert!(
        (metadata + &metadata_of_family).contains("\"type\":\"counter\""),
        "{metadata_of_family}"
    );
    let ratio = format!("tandem:vm_ready:ratio5m{{vm=\"{name}\"}}");
    let ratio = wait_for("the rule has a value", || value(server, &ratio));
    assert!((0.0..=1.0).contains(&ratio), "{ratio}");
    let rules: Value = serde_json::from_str(&get(server, "/api/v1/rules").unwrap()).unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    for rule in rules {
        let health = rule["health"].as_str();
        assert!(health == Some("ok") || health == Some("unknown"), "{rule:#}");
    }
    // Every panel has an answer; it may be empty, such as that of a quota.
    let mut answered = 0;
    let expressions = dashboard_expressions();
    for expression in &expressions {
        let result =
            query(server, expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        answered += usize::from(!result.is_empty());
    }
    assert!(answered * 4 >= expressions.len() * 3, "{answered} of {}", expressions.len());
    drop(vms);
}
