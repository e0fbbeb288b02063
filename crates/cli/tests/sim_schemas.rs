//! The JSON of `tandem sim` against its schemas in `docs/schemas`: what a command writes is described whole, the schemas are strict
//! enough to notice what is not, and every schema is tested.

use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use serde_json::json;

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas")
}

fn scenario(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

fn schema(name: &str) -> Value {
    let text = std::fs::read_to_string(schemas().join(format!("{name}.json"))).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(schema["$id"], format!("tandem:{name}"));
    let mut unknown = BTreeSet::new();
    check_keywords(&schema, &mut unknown);
    assert!(unknown.is_empty(), "{name}: nobody checks {unknown:?}");
    schema
}

/// The keywords of JSON Schema that [`violations`] knows, and those that only describe.
const KEYWORDS: [&str; 19] = [
    "$schema",
    "$id",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "const",
    "enum",
    "oneOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
];

/// The schemas within a schema.
fn inner(schema: &Value) -> Vec<&Value> {
    let values = |key: &str| {
        schema[key]
            .as_object()
            .into_iter()
            .flat_map(|all| all.values())
    };
    let elements = |key: &str| schema[key].as_array().into_iter().flatten();
    values("$defs")
        .chain(values("properties"))
        .chain(elements("oneOf"))
        .chain(elements("prefixItems"))
        .chain(
            ["items", "additionalProperties"]
                .into_iter()
                .filter_map(|key| schema.get(key)),
        )
        .collect()
}

/// A keyword that is not checked would promise what nobody holds.
fn check_keywords(schema: &Value, unknown: &mut BTreeSet<String>) {
    let keys = schema.as_object().into_iter().flat_map(|all| all.keys());
    let is_known = |key: &&String| KEYWORDS.contains(&key.as_str());
    unknown.extend(keys.filter(|key| !is_known(key)).cloned());
    for schema in inner(schema) {
        check_keywords(schema, unknown);
    }
}

/// What is wrong with a value, by the part of JSON Schema (draft 2020-12) that our schemas use.
fn violations(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if schema == &json!(true) {
        return Vec::new();
    }
    if schema == &json!(false) {
        return vec![format!("{place} should not be there")];
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#'));
        let target = target.unwrap_or_else(|| panic!("{reference} is not there"));
        return violations(root, target, value, place);
    }
    let mut wrong = Vec::new();
    let mut demand = |is_met: bool, keyword: &str| {
        if !is_met {
            wrong.push(format!("{place}: {keyword} of {schema}: {value}"));
        }
    };
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        kind => panic!("no type is called {kind}"),
    };
    match &schema["type"] {
        Value::Null => {}
        Value::Array(kinds) => demand(kinds.iter().any(is), "type"),
        kind => demand(is(kind), "type"),
    }
    demand(
        schema.get("const").is_none_or(|only| only == value),
        "const",
    );
    let listed = schema["enum"].as_array();
    demand(listed.is_none_or(|listed| listed.contains(value)), "enum");
    if let Some(number) = value.as_f64() {
        let bound = |key: &str| schema[key].as_f64();
        demand(
            bound("minimum").is_none_or(|least| number >= least),
            "minimum",
        );
        demand(
            bound("maximum").is_none_or(|most| number <= most),
            "maximum",
        );
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| violations(root, choice, value, place).is_empty();
        demand(choices.iter().filter(fits).count() == 1, "oneOf");
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten();
        for key in required.filter_map(Value::as_str) {
            demand(fields.contains_key(key), &format!("required {key}"));
        }
        for (key, field) in fields {
            let place = format!("{place}/{key}");
            let known = schema["properties"].get(key);
            if let Some(schema) = known.or_else(|| schema.get("additionalProperties")) {
                wrong.extend(violations(root, schema, field, &place));
            }
        }
    }
    if let Some(list) = value.as_array() {
        let count = list.len() as f64;
        let bound = |key: &str| schema[key].as_f64();
        let fits = bound("minItems").is_none_or(|least| count >= least)
            && bound("maxItems").is_none_or(|most| count <= most);
        if !fits {
            wrong.push(format!("{place}: it has {count} elements"));
        }
        for (at, element) in list.iter().enumerate() {
            let own = schema["prefixItems"]
                .get(at)
                .or_else(|| schema.get("items"));
            if let Some(schema) = own {
                wrong.extend(violations(root, schema, element, &format!("{place}/{at}")));
            }
        }
    }
    wrong
}

/// What a command writes.
fn output(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(args)
        .arg("--json")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Holds an output against its schema, and changed outputs too: a field more in any object must be noticed as unknown.
fn check(name: &str, output: &Value) {
    let schema = schema(name);
    let wrong = violations(&schema, &schema, output, "");
    assert!(
        wrong.is_empty(),
        "{name}: {:#?}",
        &wrong[..wrong.len().min(5)]
    );
    let mut unnoticed = BTreeSet::new();
    for place in places(output) {
        let mut changed = output.clone();
        let object = changed
            .pointer_mut(&place)
            .unwrap()
            .as_object_mut()
            .unwrap();
        object.insert("not_in_the_schema".to_owned(), json!(1));
        if violations(&schema, &schema, &changed, "").is_empty() {
            unnoticed.insert(plain(&place));
        }
    }
    // Of these the keys are the user's own.
    unnoticed.retain(|place| {
        !["/combinations/*/settings", "/*/ours", "/*/published"].contains(&place.as_str())
    });
    unnoticed.retain(|place| !place.starts_with("/*/published/"));
    assert!(
        unnoticed.is_empty(),
        "{name} allows any field in {unnoticed:?}"
    );
}

/// Pointers to the objects of a value: of a list to those of its first element and of the last.
fn places(value: &Value) -> Vec<String> {
    let mut places = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((place, value)) = open.pop() {
        match value {
            Value::Object(fields) => {
                for (key, inner) in fields {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    open.push((format!("{place}/{key}"), inner));
                }
                places.push(place);
            }
            Value::Array(list) => {
                let ends = BTreeSet::from([0, list.len().saturating_sub(1)]);
                for at in ends.into_iter().filter(|&at| at < list.len()) {
                    open.push((format!("{place}/{at}"), &list[at]));
                }
            }
            _ => {}
        }
    }
    places
}

/// A pointer with a star for each number.
fn plain(place: &str) -> String {
    let star = |part: &str| match part.parse::<usize>() {
        Ok(_) => "*".to_owned(),
        Err(_) => part.to_owned(),
    };
    let parts: Vec<String> = place.split('/').map(star).collect();
    parts.join("/")
}

#[test]
fn a_run_is_as_its_schema_says() {
    for (name, more) in [
        ("pipeline.toml", &["--set", "vm.pipeline.gleaner=true"][..]),
        ("shootdown-ipi.toml", &[]),
        (
            "lock-holder-preemption.toml",
            &["--set", "host.pause_loop.policy=aple"],
        ),
        ("native-locks.toml", &[]),
    ] {
        let path = scenario(name);
        let args = [
            "sim",
            "run",
            &path,
            "--duration",
            "120ms",
            "--set",
            "warmup=0",
        ];
        let output = output(&[&args[..], more].concat());
        assert_eq!(output["schema"], 1);
        check("sim-run-1", &output);
    }
}

#[test]
fn a_comparison_is_as_its_schema_says() {
    let path = scenario("mutex-halt.toml");
    let args = [
        "sim",
        "compare",
        &path,
        "--duration",
        "40ms",
        "--set",
        "warmup=5ms",
    ];
    for runs in ["1", "2"] {
        let more = ["--vary", "host.scheduler=cfs,eevdf", "--runs", runs];
        let output = output(&[&args[..], &more].concat());
        assert_eq!(output["schema"], 1);
        check("sim-compare-1", &output);
    }
}

#[test]
fn scalability_is_as_its_schema_says() {
    let worked = scenario("papers/scalability-worked-case.toml");
    check(
        "sim-scalability-1",
        &output(&["sim", "scalability", &worked]),
    );
    let native = scenario("native-locks.toml");
    let args = ["sim", "scalability", &native, "--duration", "100ms"];
    check("sim-scalability-1", &output(&args));
}

#[test]
fn survey_claims_and_bench_are_as_their_schemas_say() {
    let folder = scenario("papers");
    let survey = [
        "sim",
        "survey",
        "--policies",
        "aple",
        "--workloads",
        "ebizzy",
        "--overcommit",
        "1",
        "--runs",
        "1",
        "--scenarios",
        &folder,
    ];
    check("sim-survey-1", &output(&survey));
    let claims = [
        "sim",
        "reproduce",
        "--claims",
        "gleaner.t2.A",
        "--runs",
        "1",
        "--scenarios",
        &folder,
    ];
    check("sim-reproduce-1", &output(&claims));
    let path = scenario("single-vcpu.toml");
    let vary = "vm.*.vcpus=1,2";
    let bench = ["sim", "bench", &path, "--runs", "1", "--vary", vary];
    check("sim-bench-1", &output(&bench));
}

#[test]
fn figures_that_are_kept_are_as_the_schemas_say() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/data");
    for (file, name) in [
        ("reproduction.json", "sim-reproduce-1"),
        ("survey.json", "sim-survey-1"),
        ("survey-64.json", "sim-survey-1"),
    ] {
        let text = std::fs::read_to_string(data.join(file)).unwrap();
        check(name, &serde_json::from_str(&text).unwrap());
    }
}

/// Those that the tests above name, and docs/schemas/README.md.
#[test]
fn every_schema_is_listed_and_tested() {
    let readme = std::fs::read_to_string(schemas().join("README.md")).unwrap();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(schemas()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(
                readme.contains(&format!("({name}.json)")),
                "{name} is not in README.md"
            );
            schema(&name);
            names.insert(name);
        }
    }
    let tested = [
        "sim-bench-1",
        "sim-compare-1",
        "sim-reproduce-1",
        "sim-run-1",
        "sim-scalability-1",
        "sim-survey-1",
    ];
    assert_eq!(names, tested.map(str::to_owned).into());
}
