//! Validates JSON output of programs against the part of JSON Schema (draft 2020-12) that our schemas use.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

/// Reads a schema of a folder; panics on keywords that `violations` does not support.
pub fn schema(folder: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(schema["$id"], format!("tandem:{name}"));
    let mut unknown = BTreeSet::new();
    check_keywords(&schema, &mut unknown);
    assert!(unknown.is_empty(), "{name}: unknown keywords {unknown:?}");
    schema
}

/// The keywords that [`violations`] checks, and those that are only descriptive.
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

/// Returns the schemas within a schema.
fn inner(schema: &Value) -> Vec<&Value> {
    let values = |key: &str| schema[key].as_object().into_iter().flat_map(|all| all.values());
    let elements = |key: &str| schema[key].as_array().into_iter().flatten();
    values("$defs")
        .chain(values("properties"))
        .chain(elements("oneOf"))
        .chain(elements("prefixItems"))
        .chain(["items", "additionalProperties"].into_iter().filter_map(|key| schema.get(key)))
        .collect()
}

/// Collects unsupported keywords, which would not be checked.
fn check_keywords(schema: &Value, unknown: &mut BTreeSet<String>) {
    let keys = schema.as_object().into_iter().flat_map(|all| all.keys());
    let is_known = |key: &&String| KEYWORDS.contains(&key.as_str());
    unknown.extend(keys.filter(|key| !is_known(key)).cloned());
    for schema in inner(schema) {
        check_keywords(schema, unknown);
    }
}

/// Returns the violations of a schema by a value.
fn violations(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if schema == &json!(true) {
        return Vec::new();
    }
    if schema == &json!(false) {
        return vec![format!("{place} is not allowed")];
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#'));
        let target = target.unwrap_or_else(|| panic!("{reference} does not exist"));
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
        kind => panic!("unknown type {kind}"),
    };
    match &schema["type"] {
        Value::Null => {}
        Value::Array(kinds) => demand(kinds.iter().any(is), "type"),
        kind => demand(is(kind), "type"),
    }
    demand(schema.get("const").is_none_or(|only| only == value), "const");
    let listed = schema["enum"].as_array();
    demand(listed.is_none_or(|listed| listed.contains(value)), "enum");
    if let Some(number) = value.as_f64() {
        let bound = |key: &str| schema[key].as_f64();
        demand(bound("minimum").is_none_or(|least| number >= least), "minimum");
        demand(bound("maximum").is_none_or(|most| number <= most), "maximum");
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
            let own = schema["prefixItems"].get(at).or_else(|| schema.get("items"));
            if let Some(schema) = own {
                wrong.extend(violations(root, schema, element, &format!("{place}/{at}")));
            }
        }
    }
    wrong
}

/// Validates an output against its schema; an additional field in any of its objects must be a violation.
pub fn check(folder: &Path, name: &str, output: &Value) {
    let schema = schema(folder, name);
    let wrong = violations(&schema, &schema, output, "");
    assert!(wrong.is_empty(), "{name}: {:#?}", &wrong[..wrong.len().min(5)]);
    let mut unnoticed = BTreeSet::new();
    for place in places(output) {
        let mut changed = output.clone();
        let object = changed.pointer_mut(&place).unwrap().as_object_mut().unwrap();
        object.insert("not_in_the_schema".to_owned(), json!(1));
        if violations(&schema, &schema, &changed, "").is_empty() {
            unnoticed.insert(plain(&place));
        }
    }
    // Users choose the keys of these objects.
    unnoticed.retain(|place| {
        !["/combinations/*/settings", "/*/ours", "/*/published"].contains(&place.as_str())
    });
    unnoticed.retain(|place| !place.starts_with("/*/published/"));
    assert!(unnoticed.is_empty(), "{name} allows any field in {unnoticed:?}");
}

/// Returns pointers to the objects of a value; of a list only those in its first and last element.
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

/// Replaces each number in a pointer by a star.
fn plain(place: &str) -> String {
    let star = |part: &str| match part.parse::<usize>() {
        Ok(_) => "*".to_owned(),
        Err(_) => part.to_owned(),
    };
    let parts: Vec<String> = place.split('/').map(star).collect();
    parts.join("/")
}
