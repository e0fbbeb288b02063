//! A TOML document as a tree that keeps the location of every key and value.
//!
//! Scenarios are read in two steps: text → tree, in which `--set` and `--vary` replace single values, then tree → settings.
//! Direct deserialization into structs would lose the locations that errors name.
//!
//! Keys keep the order of the document.
//! Dates are kept as text, because no setting uses them.

use std::path::Path;
use std::sync::Arc;

use tandem_model::nesting::{TOO_DEEP, too_deep};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::place::{LoadError, Place};

/// A value with its location.
#[derive(Clone, Debug)]
pub struct Node {
    /// Location.
    pub place: Place,
    /// Value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Real(f64),
    /// True or false.
    Flag(bool),
    /// A list, or an array of tables.
    List(Vec<Node>),
    /// A table.
    Table(Vec<Entry>),
}

/// A key of a table with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Location of the key.
    pub place: Place,
    /// The value.
    pub node: Node,
}

impl Node {
    /// Parses a document; errors show `file` as its name.
    pub fn parse(file: &str, text: &str) -> Result<Node, LoadError> {
        let lines = Lines::new(file, text);
        if let Some(at) = too_deep(text) {
            return Err(LoadError::at(&lines.place(at), TOO_DEEP));
        }
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            LoadError::at(&lines.place(at), error.message().replace('\n', "; "))
        })?;
        Ok(Node { place: lines.place(0), value: lines.table(table.into_inner())? })
    }

    /// Parses a value of the command line as TOML, otherwise takes it as a string.
    pub fn given(place: Place, text: &str) -> Node {
        let quoted = |text: &str| Value::Text(text.to_owned());
        let parsed = match too_deep(text) {
            Some(_) => None,
            None => DeValue::parse(text).ok(),
        };
        let value = match parsed {
            Some(value) => {
                Lines::new("", text).value(value).map_or_else(|_| quoted(text), |node| node.value)
            }
            None => quoted(text),
        };
        Node { place, value }.at_place()
    }

    /// An empty table.
    pub fn empty(place: Place) -> Node {
        Node { place, value: Value::Table(Vec::new()) }
    }

    /// Names a document after its file, unless it has a name.
    pub fn name_by(&mut self, file: &Path) {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let place = self.place.clone();
        if let Value::Table(entries) = &mut self.value
            && !entries.iter().any(|entry| entry.key == "name")
        {
            entries.push(Entry {
                key: "name".to_owned(),
                place: place.clone(),
                node: Node { place, value: Value::Text(stem.into_owned()) },
            });
        }
    }

    /// Sets the location of all nodes below to this node's.
    fn at_place(mut self) -> Node {
        let place = self.place.clone();
        let below = |node: Node| Node { place: place.clone(), ..node }.at_place();
        self.value = match self.value {
            Value::List(list) => Value::List(list.into_iter().map(below).collect()),
            Value::Table(entries) => Value::Table(
                entries
                    .into_iter()
                    .map(|entry| Entry {
                        key: entry.key,
                        place: place.clone(),
                        node: below(entry.node),
                    })
                    .collect(),
            ),
            single => single,
        };
        self
    }

    /// The value of a table's key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Table(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
            }
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The word, if it is one: a string, or an unquoted number or flag of the command line as given.
    pub fn as_word(&self) -> Option<&str> {
        match (&self.value, &self.place) {
            (Value::Text(text), _) => Some(text),
            // Values within a list or table have the location of the whole.
            (Value::Integer(_) | Value::Real(_) | Value::Flag(_), Place::Given { value, .. })
                if !value.starts_with(['[', '{']) =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// The elements of a list; empty for other values.
    pub fn elements(&self) -> &[Node] {
        match &self.value {
            Value::List(list) => list,
            _ => &[],
        }
    }

    /// Type of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a string",
            Value::Integer(_) => "a whole number",
            Value::Real(_) => "a number",
            Value::Flag(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The value in TOML, for messages; tables and lists by their type.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Text(text) => format!("\"{text}\""),
            Value::Integer(number) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::List(_) | Value::Table(_) => self.kind().to_owned(),
        }
    }
}

/// Lines of a document, by their start offsets.
struct Lines {
    file: Arc<str>,
    begins: Vec<usize>,
}

impl Lines {
    fn new(file: &str, text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Lines {
            file: file.into(),
            begins: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect(),
        }
    }

    fn place(&self, offset: usize) -> Place {
        Place::Line {
            file: Arc::clone(&self.file),
            line: self.begins.partition_point(|&begin| begin <= offset) as u32,
        }
    }

    fn table(&self, table: DeTable<'_>) -> Result<Value, LoadError> {
        let mut entries: Vec<_> = table.into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let entries = entries.into_iter().map(|(key, value)| {
            Ok(Entry {
                place: self.place(key.span().start),
                key: key.into_inner().into_owned(),
                node: self.value(value)?,
            })
        });
        Ok(Value::Table(entries.collect::<Result<_, LoadError>>()?))
    }

    fn value(&self, value: Spanned<DeValue<'_>>) -> Result<Node, LoadError> {
        let place = self.place(value.span().start);
        let value = match value.into_inner() {
            DeValue::String(text) => Value::Text(text.into_owned()),
            DeValue::Boolean(flag) => Value::Flag(flag),
            DeValue::Datetime(date) => Value::Text(date.to_string()),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                Value::Integer(parsed.map_err(|_| {
                    LoadError::at(&place, format!("{number} is too large for any setting"))
                })?)
            }
            DeValue::Float(number) => Value::Real(
                number
                    .as_str()
                    .parse()
                    .map_err(|_| LoadError::at(&place, format!("{number} is not a number")))?,
            ),
            DeValue::Array(list) => Value::List(
                list.into_iter()
                    .map(|value| self.value(value))
                    .collect::<Result<_, LoadError>>()?,
            ),
            DeValue::Table(table) => self.table(table)?,
        };
        Ok(Node { place, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_key_order_are_preserved() {
        let node = Node::parse("x.toml", "z = 1\n[a]\nb = [\n  2,\n  { c = \"d\" },\n]\n").unwrap();
        let line = |node: &Node| node.place.to_string();
        assert_eq!(line(node.get("z").unwrap()), "x.toml:1");
        let list = node.get("a").unwrap().get("b").unwrap();
        assert_eq!(line(&list.elements()[0]), "x.toml:4");
        let text = list.elements()[1].get("c").unwrap();
        assert_eq!((line(text), text.as_text()), ("x.toml:5".into(), Some("d")));
        let Value::Table(entries) = &node.value else {
            panic!("no table");
        };
        let keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["z", "a"]);
    }

    #[test]
    fn invalid_toml_names_the_line() {
        let error = Node::parse("x.toml", "a = 1\nb = \n").unwrap_err();
        assert!(error.to_string().starts_with("x.toml:2: "), "{error}");
        let error = Node::parse("x.toml", "a = 99999999999999999999\n").unwrap_err();
        assert!(error.to_string().contains("too large"), "{error}");
    }

    #[test]
    fn command_line_values_fall_back_to_strings() {
        let given = |text: &str| {
            let place = Place::Given { option: "--set", key: "k".into(), value: text.into() };
            Node::given(place, text)
        };
        let shown = |text| given(text).shown();
        assert_eq!(shown("8"), "8");
        assert_eq!(shown("true"), "true");
        assert_eq!(shown("cfs"), "\"cfs\"");
        assert_eq!(shown("\"cfs\""), "\"cfs\"");
        assert_eq!(shown("4ms"), "\"4ms\"");
        assert_eq!(shown("0-3"), "\"0-3\"");
        let list = given("[\"0\", 1]");
        let place = list.elements()[1].place.to_string();
        assert_eq!(place, "--set k=[\"0\", 1]");
        assert_eq!(list.elements()[1].as_word(), None);
        assert_eq!(given("6.10").as_word(), Some("6.10"));
    }
}
