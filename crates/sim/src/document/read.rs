//! Reading settings from a tree: tables with known keys, values with ranges.
//!
//! A [`Table`] is opened with all its valid keys, so that an unknown key is detected first and the error suggests the nearest one.
//! A [`Field`] is a value with its full key, such as `vm[0].vcpus`.
//! Its errors have the form `vm[0].vcpus = 0 is not possible: 1 … 1024`.

use tandem_model::Nanos;
use tandem_model::suggestion::nearest;

use super::place::{LoadError, Place};
use super::tree::{Node, Value};
use super::units;
use crate::random::Dist;

/// A table with checked keys.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    node: &'a Node,
    path: String,
}

/// A value with its full key.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// The value.
    pub node: &'a Node,
    /// Its key, from the top.
    pub path: String,
}

impl<'a> Table<'a> {
    /// A whole document.
    pub fn document(node: &'a Node, keys: &[&str]) -> Result<Table<'a>, LoadError> {
        let path = String::new();
        Field { node, path }.table(keys)
    }

    /// A key's value.
    pub fn get(&self, key: &str) -> Option<Field<'a>> {
        let path = match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        self.node.get(key).map(|node| Field { node, path })
    }

    /// The value of a required key; the error shows `example`.
    pub fn need(&self, key: &str, example: &str) -> Result<Field<'a>, LoadError> {
        self.get(key).ok_or_else(|| {
            let whole = match self.path.as_str() {
                "" => "the file",
                path => path,
            };
            let message = format!("{whole} has no `{key}`: add one, such as {key} = {example}");
            LoadError::at(&self.node.place, message)
        })
    }

    /// A table within this one, if there is one.
    pub fn table(&self, key: &str, keys: &[&str]) -> Result<Option<Table<'a>>, LoadError> {
        self.get(key).map(|field| field.table(keys)).transpose()
    }

    /// Reads a key's value, or takes the default.
    pub fn or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&Field<'a>) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.get(key).map_or(Ok(default), |field| read(&field))
    }

    /// Its location.
    pub fn place(&self) -> &'a Place {
        &self.node.place
    }

    /// An error about the table as a whole.
    pub fn wrong(&self, message: impl Into<String>) -> LoadError {
        LoadError::at(&self.node.place, message)
    }
}

impl<'a> Field<'a> {
    /// The error of an invalid value; `expected` describes the valid ones.
    pub fn wrong(&self, expected: impl std::fmt::Display) -> LoadError {
        let message = match self.node.value {
            Value::List(_) | Value::Table(_) => format!("{}: {expected}", self.path),
            _ => format!("{} = {} is not possible: {expected}", self.path, self.node.shown()),
        };
        LoadError::at(&self.node.place, message)
    }

    /// The error of a value of the wrong type.
    fn kind(&self, expected: &str) -> LoadError {
        match self.node.value {
            Value::List(_) | Value::Table(_) => {
                self.wrong(format!("{expected} is needed, this is {}", self.node.kind()))
            }
            _ => self.wrong(format!("{expected} is needed")),
        }
    }

    /// Reads a table with these keys.
    pub fn table(&self, keys: &[&str]) -> Result<Table<'a>, LoadError> {
        let Value::Table(entries) = &self.node.value else {
            return Err(self.kind("a table"));
        };
        if let Some(entry) = entries.iter().find(|e| !keys.contains(&e.key.as_str())) {
            let whole = match self.path.as_str() {
                "" => "the file",
                path => path,
            };
            let hint = match nearest(&entry.key, keys.iter().copied()) {
                Some(key) => format!("did you mean `{key}`?"),
                None => format!("possible are {}", listed(keys.iter().copied())),
            };
            let message = format!("`{}` is no key of {whole}: {hint}", entry.key);
            return Err(LoadError::at(&entry.place, message));
        }
        Ok(Table { node: self.node, path: self.path.clone() })
    }

    /// Reads a string.
    pub fn text(&self) -> Result<&'a str, LoadError> {
        self.node.as_word().ok_or_else(|| self.kind("a string"))
    }

    /// Reads a name: 1 … 64 letters, digits, blanks and `-_.+/`.
    pub fn name(&self) -> Result<String, LoadError> {
        let text = self.text()?;
        let fine = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ' | '+' | '/');
        if text.chars().all(fine) && (1..=64).contains(&text.chars().count()) {
            Ok(text.to_owned())
        } else {
            Err(self.wrong("a name of 1 … 64 letters, digits, - _ . + /"))
        }
    }

    /// Reads a boolean.
    pub fn flag(&self) -> Result<bool, LoadError> {
        match self.node.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.kind("true or false")),
        }
    }

    /// Reads an integer within a range.
    pub fn integer(&self, least: u64, most: u64) -> Result<u64, LoadError> {
        match self.node.value {
            Value::Integer(number) => u64::try_from(number)
                .ok()
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| self.wrong(format!("{least} … {most}"))),
            _ => Err(self.kind(&format!("a whole number, {least} … {most},"))),
        }
    }

    /// Reads a 32-bit integer within a range.
    pub fn small(&self, least: u32, most: u32) -> Result<u32, LoadError> {
        let number = self.integer(u64::from(least), u64::from(most))?;
        Ok(number.min(u64::from(u32::MAX)) as u32)
    }

    /// Reads a number.
    pub fn real(&self) -> Result<f64, LoadError> {
        self.any_number().ok_or_else(|| self.kind("a number"))
    }

    fn any_number(&self) -> Option<f64> {
        match self.node.value {
            Value::Integer(number) => Some(number as f64),
            Value::Real(number) => Some(number),
            _ => None,
        }
    }

    /// Reads a number within a range.
    pub fn number(&self, least: f64, most: f64) -> Result<f64, LoadError> {
        let number = self.any_number();
        let number = number.ok_or_else(|| self.kind(&format!("a number, {least} … {most},")))?;
        if number.is_finite() && number >= least && number <= most {
            Ok(number)
        } else {
            Err(self.wrong(format!("{least} … {most}")))
        }
    }

    /// Reads a time with a unit, within a range.
    pub fn time(&self, least: Nanos, most: Nanos) -> Result<Nanos, LoadError> {
        let time = match &self.node.value {
            Value::Text(text) => units::time(text).map_err(|expected| self.wrong(expected))?,
            Value::Integer(0) => Nanos::ZERO,
            _ => return Err(self.kind("a time with its unit, such as \"4ms\",")),
        };
        if (least..=most).contains(&time) {
            Ok(time)
        } else {
            Err(self.wrong(format!("{} … {}", least.in_whole_units(), most.in_whole_units())))
        }
    }

    /// Reads a distribution of times.
    pub fn dist(&self) -> Result<Dist, LoadError> {
        match &self.node.value {
            Value::Text(text) => units::dist(text).map_err(|expected| self.wrong(expected)),
            _ => Err(self.kind("a time such as \"4us\" or a distribution such as \"exp(4us)\"")),
        }
    }

    /// Reads one of several words and returns its value.
    pub fn choice<T: Clone>(&self, choices: &[(&str, T)]) -> Result<T, LoadError> {
        let words = || choices.iter().map(|(word, _)| *word);
        let Some(text) = self.node.as_word() else {
            return Err(self.kind(&format!("one of {}", quoted(words()))));
        };
        let found = choices.iter().find(|(word, _)| *word == text);
        found.map(|(_, choice)| choice.clone()).ok_or_else(|| {
            self.wrong(match nearest(text, words()) {
                Some(word) => {
                    format!("did you mean \"{word}\"? (possible are {})", quoted(words()))
                }
                None => format!("possible are {}", quoted(words())),
            })
        })
    }

    /// Reads a list.
    pub fn list(&self) -> Result<Vec<Field<'a>>, LoadError> {
        let Value::List(list) = &self.node.value else {
            return Err(self.kind("a list"));
        };
        let element = |(number, node)| Field { node, path: format!("{}[{number}]", self.path) };
        Ok(list.iter().enumerate().map(element).collect())
    }
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

fn quoted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}
