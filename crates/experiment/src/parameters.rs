//! Varied parameters as columns of a table, with a value for each parameter of each combination.
//!
//! So readers need not parse the names of combinations.
//! A column has the common type of all its values: integers, numbers or texts.
//! Times are integers in ns, and the column's name has the unit: `host.cfs.latency [ns]`.
//! If a parameter has the name of a column of figures, such as the list `vm`, its column has the suffix ` (set)`.

use std::fmt;

use tandem_sim::scenario::load::time;

use crate::vary::Combination;

/// Columns of every table of figures, in order; those of parameters come before `seed`.
pub const FIGURES: [&str; 8] =
    ["cell", "scenario", "combination", "seed", "vm", "metric", "unit", "value"];

/// Suffix of the name of a column of times.
const NANOSECONDS: &str = " [ns]";

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Any other value, as written.
    Text(String),
}

impl Value {
    /// Returns the value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Integer(number) => Some(*number as f64),
            Value::Real(number) => Some(*number),
            Value::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(number) => write!(f, "{number}"),
            Value::Real(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integers.
    Integer,
    /// Numbers.
    Real,
    /// Texts.
    Text,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type.
    pub kind: Kind,
}

/// The parameters of some combinations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    columns: Vec<Column>,
    /// Key of each parameter in scenarios.
    keys: Vec<String>,
    /// Values by combination and column.
    rows: Vec<Vec<Value>>,
    /// The same values as written.
    written: Vec<Vec<String>>,
}

impl Parameters {
    /// Collects the parameters of some combinations; a parameter that a combination does not set is an empty text.
    pub fn of(combinations: &[Combination]) -> Parameters {
        let mut keys: Vec<&str> = Vec::new();
        for (key, _) in combinations.iter().flat_map(Combination::parameters) {
            if !keys.contains(&key.as_str()) {
                keys.push(key);
            }
        }
        let written = |combination: &Combination| -> Vec<String> {
            let value = |key: &&str| {
                let mut all = combination.parameters().iter();
                let found = all.find(|(known, _)| known == key);
                found.map_or_else(String::new, |(_, value)| value.clone())
            };
            keys.iter().map(value).collect()
        };
        let written: Vec<Vec<String>> = combinations.iter().map(written).collect();
        let mut columns: Vec<Column> = Vec::new();
        let mut rows = vec![Vec::new(); written.len()];
        for (at, key) in keys.iter().enumerate() {
            let texts: Vec<&str> = written.iter().map(|row| row[at].as_str()).collect();
            let (kind, unit, values) = typed(&texts);
            let mut name = format!("{key}{unit}");
            while FIGURES.contains(&name.as_str()) || columns.iter().any(|one| one.name == name) {
                name.push_str(" (set)");
            }
            columns.push(Column { name, kind });
            for (row, value) in rows.iter_mut().zip(values) {
                row.push(value);
            }
        }
        Parameters { columns, keys: keys.into_iter().map(str::to_owned).collect(), rows, written }
    }

    /// Returns the number of combinations.
    pub fn combinations(&self) -> usize {
        self.rows.len()
    }

    /// Returns the columns, one per parameter.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the key of each parameter in scenarios.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Returns a combination's values by column; empty if there is no such combination.
    pub fn row(&self, combination: usize) -> &[Value] {
        self.rows.get(combination).map_or(&[], Vec::as_slice)
    }

    /// Returns the same values as written.
    pub fn written(&self, combination: usize) -> &[String] {
        self.written.get(combination).map_or(&[], Vec::as_slice)
    }
}

/// Returns the type of a column, the unit suffix of its name, and its values.
fn typed(texts: &[&str]) -> (Kind, &'static str, Vec<Value>) {
    let all = |read: fn(&str) -> Option<Value>| -> Option<Vec<Value>> {
        texts.iter().map(|text| read(text)).collect()
    };
    // 0 is both a number and a time, so the other values decide.
    if let Some(values) = all(|text| text.parse().ok().map(Value::Integer)) {
        return (Kind::Integer, "", values);
    }
    if let Some(values) = all(|text| text.parse().ok().map(Value::Real))
        && values.iter().filter_map(Value::number).all(f64::is_finite)
    {
        return (Kind::Real, "", values);
    }
    let nanoseconds = |text: &str| match text {
        "0" => Some(Value::Integer(0)),
        text => time(text).ok().map(|time| Value::Integer(time.0 as i64)),
    };
    if let Some(values) = all(nanoseconds) {
        return (Kind::Integer, NANOSECONDS, values);
    }
    let text = |text: &str| Some(Value::Text(bare(text).to_owned()));
    (Kind::Text, "", all(text).unwrap_or_default())
}

/// Removes the quotes of a TOML string.
fn bare(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.filter(|inner| !inner.contains(['"', '\\'])).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{policies, vary};

    fn parameters(policies: &[&str], vary: &[&str]) -> Parameters {
        let owned = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        let first = policies::combinations(&owned(policies)).unwrap();
        Parameters::of(&vary::combinations(first, &owned(vary)).unwrap())
    }

    #[test]
    fn column_has_common_type_of_values() {
        let vary = [
            "vm.0.vcpus=2..4:2",
            "machine.costs.x=1,2.5",
            "host.cfs.latency=0,6ms",
            "host.scheduler=\"cfs\",eevdf",
            "mixed=1,cfs",
        ];
        let all = parameters(&["stock", "aple+hvs"], &vary);
        let names: Vec<(&str, Kind)> =
            all.columns().iter().map(|column| (column.name.as_str(), column.kind)).collect();
        assert_eq!(
            names,
            [
                ("policies", Kind::Text),
                ("vm.0.vcpus", Kind::Integer),
                ("machine.costs.x", Kind::Real),
                ("host.cfs.latency [ns]", Kind::Integer),
                ("host.scheduler", Kind::Text),
                ("mixed", Kind::Text),
            ]
        );
        let last = [
            Value::Text("aple+hvs".to_owned()),
            Value::Integer(4),
            Value::Real(2.5),
            Value::Integer(6_000_000),
            Value::Text("eevdf".to_owned()),
            Value::Text("cfs".to_owned()),
        ];
        assert_eq!(all.row(63), last);
        assert_eq!(all.row(0)[4], Value::Text("cfs".to_owned()));
        assert_eq!(all.written(63)[3], "6ms");
        assert_eq!(all.row(64), []);
    }

    #[test]
    fn column_names_are_unique() {
        assert_eq!(parameters(&[], &[]).columns(), []);
        let all = parameters(&[], &["vm=[],{}"]);
        assert_eq!(all.columns()[0].name, "vm (set)");
        let numbers = parameters(&[], &["x=inf,1"]);
        assert_eq!(numbers.columns()[0].kind, Kind::Text);
    }
}
