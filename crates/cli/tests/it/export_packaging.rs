//! The shipped rules and dashboard refer only to metrics, labels and values of the exporter.
//!
//! The parser of PromQL is simple: words that start with `tandem`, their braces, and the labels of `by (…)` and `on (…)`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use tandem_host::export::metric::Metric;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Labels that Prometheus adds to each series, and that Grafana's legends need.
const ADDED: [&str; 2] = ["job", "instance"];

/// Returns the labels of each metric of the exporter by name; the name of a histogram is that of its buckets.
fn metrics() -> BTreeMap<String, BTreeSet<&'static str>> {
    let all = Metric::ALL.iter().map(|metric| {
        let description = metric.description();
        let labels = description.labels.iter().copied().chain(ADDED);
        if description.is_histogram {
            (format!("{}_bucket", description.name()), labels.chain(["le"]).collect())
        } else {
            (description.name(), labels.collect())
        }
    });
    all.collect()
}

/// Returns the values of a key in a file of rules; continuation lines have more indentation.
fn yaml_values(text: &str, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    let indent = |line: &str| line.len() - line.trim_start().len();
    while let Some(line) = lines.next() {
        // The first key of an item follows its dash.
        let item = line.trim_start().trim_start_matches("- ");
        let column = line.len() - item.len();
        let Some(value) = item.strip_prefix(key) else {
            continue;
        };
        let mut value = value.trim().trim_start_matches('|').to_owned();
        while let Some(next) = lines.next_if(|next| indent(next) > column) {
            value += next;
        }
        found.push(value);
    }
    found
}

/// A selector: the metric and its matchers.
struct Selector<'a> {
    metric: &'a str,
    matchers: Vec<(&'a str, &'a str)>,
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'
}

/// Returns the selectors of an expression.
fn selectors(expression: &str) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("tandem") {
        // Skip strings.
        if let Some((before, string)) = rest.split_once('"')
            && before.len() < at
        {
            rest = string.split_once('"').map_or("", |(_, after)| after);
            continue;
        }
        let begin = &rest[at..];
        let length = begin.find(|letter| !is_word(letter)).unwrap_or(begin.len());
        let (metric, behind) = begin.split_at(length);
        let braces = behind.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let matchers = braces.map_or(Vec::new(), |(inside, _)| {
            let parts = inside.split(',');
            parts
                .map(|part| {
                    let end = part.find(|letter| !is_word(letter)).expect("label=\"value\"");
                    (&part[..end], &part[end..])
                })
                .collect()
        });
        found.push(Selector { metric, matchers });
        rest = braces.map_or(behind, |(_, after)| after);
    }
    found
}

/// Returns the labels by which an expression groups or joins.
fn grouped(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for word in ["by (", "on (", "ignoring ("] {
        for (at, _) in expression.match_indices(word) {
            let inside = expression[at + word.len()..].split(')').next().unwrap_or_default();
            found.extend(inside.split(',').map(str::trim).filter(|label| !label.is_empty()));
        }
    }
    found
}

/// Returns the error of an expression, if there is one.
fn fault(expression: &str, recorded: &BTreeSet<String>, page: &str) -> Option<String> {
    let metrics = metrics();
    let all = selectors(expression);
    let mut labels: BTreeSet<&str> = ADDED.into();
    for selector in &all {
        if recorded.contains(selector.metric) {
            labels.extend(["vm", "pid"]);
            continue;
        }
        let Some(known) = metrics.get(selector.metric) else {
            return Some(format!("no metric {}", selector.metric));
        };
        labels.extend(known);
        for (label, matcher) in &selector.matchers {
            if !known.contains(label) {
                return Some(format!("{} has no label {label}", selector.metric));
            }
            // A literal value must occur on the page.
            let is_given = matcher.starts_with("=\"") && !ADDED.contains(label);
            let begin = format!("{}{{", selector.metric);
            let mut series = page.lines().filter(|line| line.starts_with(&begin));
            let part = format!("{label}{matcher}");
            if is_given && !series.any(|line| line.contains(&part)) {
                return Some(format!("no series of {} has {part}", selector.metric));
            }
        }
    }
    let unknown = grouped(expression).into_iter().find(|label| !labels.contains(label));
    unknown.map(|label| format!("by or on {label}, which none of its metrics has"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("packaging/grafana/tandem.json")).expect("JSON")
}

/// Returns all shipped expressions, and the names that rules record.
fn shipped() -> (Vec<String>, BTreeSet<String>) {
    let rules = read("packaging/prometheus/tandem.rules.yml");
    let recorded: BTreeSet<String> = yaml_values(&rules, "record:").into_iter().collect();
    let mut expressions = yaml_values(&rules, "expr:");
    assert!(expressions.len() >= 10 && recorded.len() == 2, "{expressions:#?}");
    let dashboard = dashboard();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            expressions.push(target["expr"].as_str().expect("an expression").to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        // label_values(SELECTOR, LABEL)
        if let Some(query) = variable["query"]["query"].as_str() {
            let inside = query.strip_prefix("label_values(").expect("label_values");
            let (selector, label) = inside.rsplit_once(", ").expect("a label");
            expressions.push(format!("sum by ({} ({selector})", label));
        }
    }
    (expressions, recorded)
}

#[test]
fn shipped_expressions_match_the_exporter() {
    let page = read("crates/host/tests/golden/export.prom");
    let (expressions, recorded) = shipped();
    for expression in &expressions {
        assert!(!selectors(expression).is_empty() || expression.starts_with("up{"), "{expression}");
        assert_eq!(fault(expression, &recorded, &page), None, "{expression}");
    }
    // Each metric is in the dashboard or a rule, except for those per vCPU and a few about the exporter itself.
    let used: BTreeSet<&str> = expressions
        .iter()
        .flat_map(|expression| selectors(expression))
        .map(|selector| selector.metric)
        .collect();
    let unused: Vec<String> =
        metrics().into_keys().filter(|name| !used.contains(name.as_str())).collect();
    assert_eq!(
        unused,
        [
            "tandem_export_interval_seconds",
            "tandem_export_not_counted_total",
            "tandem_export_not_seen",
            "tandem_export_source",
            "tandem_export_vms_without_series",
            "tandem_host_vms",
            "tandem_vcpu_state_seconds_total",
        ]
    );
}

#[test]
fn invalid_expressions_are_found() {
    let page = read("crates/host/tests/golden/export.prom");
    let recorded = BTreeSet::from(["tandem:x".to_owned()]);
    for (expression, expected) in [
        ("rate(tandem_vm_stat_seconds_total[5m])", "no metric"),
        ("tandem_vm_state_seconds", "no metric"),
        ("tandem:y > 1", "no metric"),
        ("tandem_vm_vcpus{state=\"run\"}", "no label state"),
        ("tandem_vm_state_seconds_total{state=\"rdy\"}", "no series"),
        ("sum by (state) (tandem_vm_vcpus)", "by or on state"),
    ] {
        let found = fault(expression, &recorded, &page);
        assert!(
            found.as_ref().is_some_and(|fault| fault.contains(expected)),
            "{expression}: {found:?}"
        );
    }
    assert_eq!(fault("tandem:x > tandem_vm_vcpus{vm=~\"$vm\"}", &recorded, &page), None);
}

#[test]
fn dashboard_is_complete() {
    let dashboard = dashboard();
    assert!(dashboard["uid"].is_string() && dashboard["title"].is_string());
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36));
    let variables: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "instance", "job", "vm"].into());
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{title} overlaps another panel or exceeds the page"
                );
            }
        }
        let kind = panel["type"].as_str().expect("a type");
        assert!(["row", "stat", "timeseries", "table"].contains(&kind), "{kind}");
        if kind == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap_or_default().is_empty(), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expression = target["expr"].as_str().expect("an expression");
            assert!(expression.contains("job=~\"$job\""), "{title}");
            // The result of the expression must have the labels of the legend.
            let legend = target["legendFormat"].as_str().expect("a legend");
            for part in legend.split("{{").skip(1) {
                let label = part.split("}}").next().expect("a label");
                assert!(
                    !expression.contains("by (") || grouped(expression).contains(&label),
                    "{title}: {label}"
                );
            }
        }
    }
}
