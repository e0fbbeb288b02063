//! A reference: which figure, what is made of it, how it is written.
//!
//! ```text
//! NAME#PATH [AGGREGATE] [over|against|less PATH [AGGREGATE]] [FORMAT]
//! NAME#PATH each over|against|less PATH AGGREGATE [FORMAT]
//! ```
//!
//! **Path.** Parts behind slashes, as in a JSON pointer (`~1` is a slash, `~0` a tilde): a key, a
//! place in a list from 0, `*` for all elements, `1..` for all from place 1 on, or `[…]` for those that meet a condition:
//! `[variant=agent&ratio<0.98]`, with `=` `!=` `<` `<=` `>` `>=` on an element's key (`a.b` is key
//! b of its a) and `;` between values that will do. Without `NAME#` it is the file of the figure
//! before it; in a row of a table a path without a first slash begins at the row.
//!
//! **Aggregate**, where a path leads to several values: `count`, `sum`, `mean`, `geomean`,
//! `median`, `min`, `max`; `below0.97` counts those below 0.97; `agreeing` counts the programs for which the guest agent chose
//! as well as the best fixed setting. Elements that lack the key or have null are left out.
//!
//! **Second value.** `a over b` is a ÷ b, `a against b` is a ÷ b − 1, `a less b` is a − b. With `each` both paths lead to as many
//! values, in the same order; each is compared with its other, and the aggregate is of what comes out. What would be divided by 0
//! is left out.
//!
//! **Format.** as `format.rs` says: decimals, sign, scale, words.

use serde_json::Value;

use super::data::AGGREGATES;
use super::data::Data;
use super::data::Error;
use super::format::Format;
use super::format::number;
use super::format::plain;

const OPERATORS: [&str; 3] = ["over", "against", "less"];
const COMPARISONS: [&str; 6] = ["!=", "<=", ">=", "=", "<", ">"];
/// The agent's choice counts as the best fixed setting from this part of its ratio on.
const AS_GOOD: f64 = 0.97;

/// A figure in the data, and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    left: Operand,
    right: Option<Second>,
    format: Format,
}

/// The second value, and how the first is compared with it.
#[derive(Clone, Debug, PartialEq)]
struct Second {
    operator: String,
    operand: Operand,
    /// What is made of all comparisons, where each value is compared with its other.
    each: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Operand {
    file: Option<String>,
    path: String,
    aggregate: Option<String>,
}

/// A row of a table: where its paths begin.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its file.
    pub file: &'a str,
    /// The row itself.
    pub value: &'a Value,
}

impl Reference {
    /// Reads a reference.
    pub fn parse(text: &str) -> Result<Reference, Error> {
        let (paths, words) = match text.split_once(" as ") {
            Some((paths, words)) => (paths, Some(words)),
            None => (text, None),
        };
        let all = tokens(paths);
        let mut rest = all.as_slice();
        let left = Operand::parse(text, &mut rest)?;
        let mut right = None;
        let is_each = rest.first() == Some(&"each");
        rest = &rest[usize::from(is_each)..];
        if let [operator, behind @ ..] = rest
            && OPERATORS.contains(operator)
        {
            rest = behind;
            let mut operand = Operand::parse(text, &mut rest)?;
            operand.file = operand.file.or_else(|| left.file.clone());
            right = Some(Second {
                operator: (*operator).to_owned(),
                each: operand.aggregate.take_if(|_| is_each),
                operand,
            });
        }
        let is_whole = right.as_ref().is_some_and(|right| right.each.is_some());
        if is_each && (!is_whole || left.aggregate.is_some()) {
            let why = "wanted: NAME#/path each over|against|less path aggregate [format]";
            return Err(Error::syntax(text, why));
        }
        let format = match (words, rest) {
            (Some(words), []) => Format::words(words)?,
            (None, []) => Format::AsIs,
            (None, [format]) => Format::parse(format)?,
            _ => {
                let why = "wanted: NAME#/path [aggregate] [over|against|less path] [format]";
                return Err(Error::syntax(text, why));
            }
        };
        Ok(Reference {
            left,
            right,
            format,
        })
    }

    /// The figure as it is written. Without a row every path needs its file.
    pub fn show(&self, data: &Data, row: Option<Row<'_>>) -> Result<String, Error> {
        let Some(right) = &self.right else {
            let value = self.left.value(data, row)?;
            return self.format.write(&self.left.path, &value);
        };
        let value = match &right.each {
            Some(aggregate) => self.each(right, aggregate, data, row)?,
            None => {
                let a = number(&self.left.path, &self.left.value(data, row)?)?;
                let b = number(&right.operand.path, &right.operand.value(data, row)?)?;
                compared(&right.operator, a, b)
            }
        };
        self.format.write(&self.left.path, &Value::from(value))
    }

    /// Each value compared with its other, and what is made of that.
    fn each(
        &self,
        right: &Second,
        aggregate: &str,
        data: &Data,
        row: Option<Row<'_>>,
    ) -> Result<f64, Error> {
        let (ours, path) = self.left.found(data, row)?;
        let (others, other_path) = right.operand.found(data, row)?;
        if ours.len() != others.len() {
            let why = format!(
                "{} values here and {} at {other_path}: each needs its other",
                ours.len(),
                others.len()
            );
            return Err(Error::syntax(&path, why));
        }
        let mut results = Vec::new();
        for (a, b) in ours.into_iter().zip(others) {
            if a.is_null() || b.is_null() {
                continue;
            }
            let (a, b) = (number(&path, a)?, number(&other_path, b)?);
            if b != 0.0 || right.operator == "less" {
                results.push(Value::from(compared(&right.operator, a, b)));
            }
        }
        let results: Vec<&Value> = results.iter().collect();
        aggregated(aggregate, &results, &path)
    }
}

fn compared(operator: &str, a: f64, b: f64) -> f64 {
    match operator {
        "over" => a / b,
        "against" => a / b - 1.0,
        _ => a - b,
    }
}

impl Operand {
    fn parse(text: &str, rest: &mut &[&str]) -> Result<Operand, Error> {
        let [path, behind @ ..] = rest else {
            return Err(Error::syntax(text, "a path is wanted, as in NAME#/key"));
        };
        *rest = behind;
        let mut aggregate = None;
        if let [first, behind @ ..] = rest
            && (AGGREGATES.contains(first) || limit(first).is_some())
        {
            *rest = behind;
            aggregate = Some((*first).to_owned());
        }
        let (file, path) = match path.split_once('#') {
            Some((file, path)) => (Some(file.to_owned()), path),
            None => (None, *path),
        };
        Ok(Operand {
            file,
            path: path.to_owned(),
            aggregate,
        })
    }

    /// What the path leads to, and the path with its file.
    fn found<'a>(
        &self,
        data: &'a Data,
        row: Option<Row<'a>>,
    ) -> Result<(Vec<&'a Value>, String), Error> {
        let file = self.file.as_deref().or(row.map(|row| row.file));
        let file = file.ok_or_else(|| Error::syntax(&self.path, "which file? NAME#/path"))?;
        let whole = data.file(file)?;
        let path = format!("{file}#{}", self.path);
        let found = match (self.path.strip_prefix('/'), row) {
            (Some(absolute), _) => select(whole, absolute, &path)?,
            (None, Some(row)) => select(row.value, &self.path, &path)?,
            (None, None) => return Err(Error::syntax(&self.path, "a path begins with a slash")),
        };
        Ok((found, path))
    }

    fn value(&self, data: &Data, row: Option<Row<'_>>) -> Result<Value, Error> {
        let (found, path) = self.found(data, row)?;
        match (&self.aggregate, found.as_slice()) {
            (Some(aggregate), found) => aggregated(aggregate, found, &path).map(Value::from),
            (None, [one]) => Ok((*one).clone()),
            (None, several) => Err(Error::Several {
                path,
                count: several.len(),
            }),
        }
    }
}

/// Words that blanks separate, but not those within brackets.
fn tokens(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ' ' && depth == 0
    };
    text.split(split).filter(|word| !word.is_empty()).collect()
}

/// The parts of a path: slashes within brackets do not separate.
fn segments(path: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == '/' && depth == 0
    };
    path.split(split).filter(|part| !part.is_empty()).collect()
}

/// What a path leads to; `whole` is the path as errors name it.
pub fn select<'a>(from: &'a Value, path: &str, whole: &str) -> Result<Vec<&'a Value>, Error> {
    let mut found = vec![from];
    let mut several = false;
    for segment in segments(path) {
        let missing = || Error::Missing {
            path: whole.to_owned(),
            segment: segment.to_owned(),
        };
        let condition = segment.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
        let first: Option<usize> = segment.strip_suffix("..").and_then(|n| n.parse().ok());
        if segment == "*" || condition.is_some() || first.is_some() {
            let of = |value| elements(value).into_iter().skip(first.unwrap_or(0));
            let all: Vec<&Value> = found.iter().copied().flat_map(of).collect();
            found = match condition {
                Some(condition) => filter(all, condition).map_err(|why| match why {
                    Some(why) => Error::syntax(segment, why),
                    None => missing(),
                })?,
                None => all,
            };
            several = true;
            continue;
        }
        let key = segment.replace("~1", "/").replace("~0", "~");
        let next: Vec<&Value> = found
            .iter()
            .filter_map(|value| child(value, &key))
            .collect();
        if next.is_empty() && !(several && found.is_empty()) {
            return Err(missing());
        }
        found = next;
    }
    Ok(found)
}

fn elements(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn child<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        Value::Object(map) => map.get(key),
        _ => None,
    }
}

/// The elements that meet a condition. An error without a text: no element has the key.
fn filter<'a>(mut all: Vec<&'a Value>, condition: &str) -> Result<Vec<&'a Value>, Option<String>> {
    for part in condition.split('&') {
        let at = COMPARISONS
            .iter()
            .filter_map(|&sign| Some((part.find(sign)?, sign)));
        let Some((at, sign)) = at.min_by_key(|(at, sign)| (*at, 2 - sign.len())) else {
            return Err(Some(
                "a condition is key=value, key!=value, key<value, …".into(),
            ));
        };
        let (key, wanted) = (&part[..at], &part[at + sign.len()..]);
        let of = |value: &'a Value| {
            key.split('.')
                .try_fold(value, |value, key| child(value, key))
        };
        if !all.is_empty() && all.iter().all(|value| of(value).is_none()) {
            return Err(None);
        }
        all.retain(|value| of(value).is_some_and(|value| holds(value, sign, wanted)));
    }
    Ok(all)
}

fn holds(value: &Value, sign: &str, wanted: &str) -> bool {
    let text = plain(value);
    let equal = wanted.split(';').any(|wanted| wanted == text);
    let order = || Some(value.as_f64()?.total_cmp(&wanted.parse().ok()?));
    match sign {
        "=" => equal,
        "!=" => !equal,
        "<" => order().is_some_and(|order| order.is_lt()),
        "<=" => order().is_some_and(|order| order.is_le()),
        ">" => order().is_some_and(|order| order.is_gt()),
        _ => order().is_some_and(|order| order.is_ge()),
    }
}

fn aggregated(aggregate: &str, found: &[&Value], path: &str) -> Result<f64, Error> {
    match aggregate {
        "count" => return Ok(found.len() as f64),
        "agreeing" => return Ok(agreeing(found) as f64),
        _ => {}
    }
    let measured = found.iter().filter(|value| !value.is_null());
    let numbers = measured.map(|value| number(path, value));
    let mut numbers = numbers.collect::<Result<Vec<f64>, Error>>()?;
    if numbers.is_empty() {
        return Err(Error::Missing {
            path: path.to_owned(),
            segment: "no element meets the condition".to_owned(),
        });
    }
    if let Some(limit) = limit(aggregate) {
        return Ok(numbers.iter().filter(|number| **number < limit).count() as f64);
    }
    numbers.sort_by(f64::total_cmp);
    let n = numbers.len();
    let sum: f64 = numbers.iter().sum();
    Ok(match aggregate {
        "sum" => sum,
        "mean" => sum / n as f64,
        "geomean" => (numbers.iter().map(|x| x.ln()).sum::<f64>() / n as f64).exp(),
        "median" => (numbers[(n - 1) / 2] + numbers[n / 2]) / 2.0,
        "min" => numbers[0],
        _ => numbers[n - 1],
    })
}

/// The number of `below0.97`.
fn limit(aggregate: &str) -> Option<f64> {
    aggregate.strip_prefix("below")?.parse().ok()
}

/// Of how many programs of `tandem bench guest --variants exhaustive` the agent's choice counts as
/// the best fixed setting: within 3 % of it, or within its interval.
fn agreeing(rows: &[&Value]) -> usize {
    let text = |row: &Value, key: &str| row[key].as_str().map(str::to_owned);
    let agents = rows.iter().filter(|row| row["variant"] == "agent");
    let agrees = |agent: &&&Value| {
        let fixed = |variant: &str| {
            let mut rows = rows.iter();
            rows.find(|row| {
                row["variant"] == variant && text(row, "program") == text(agent, "program")
            })
        };
        let settings = ["all-off", "all-on", "one-off", "one-on"].map(fixed);
        let ratio = |row: &&&Value| row["ratio"].as_f64().unwrap_or(0.0);
        let best = settings
            .iter()
            .flatten()
            .max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
        let low = best["ci_low"].as_f64()?;
        let choice = &agent["choice"];
        let all = choice["vcpus"] == agent["vcpus"];
        let on = choice["retention_ns"].as_u64()? > 0;
        let chosen = settings[usize::from(!all) * 2 + usize::from(on)]?;
        Some(ratio(&chosen) >= low.min(ratio(best) * AS_GOOD))
    };
    agents.filter(|agent| agrees(agent) == Some(true)).count()
}
