//! Serde from a document's nodes, so that a settings struct is also the reader of its table.
//!
//! Structs name the valid keys and enums the valid words; times have a unit.
//! The ranges of settings follow, with [`Field::settings`].
//! An error has the key, value and location of the node at which it occurs.

use std::fmt::Display;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::value::{
    BorrowedStrDeserializer, MapDeserializer, SeqDeserializer, U64Deserializer,
};
use serde::de::{self, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use tandem_model::Nanos;
use tandem_policy::settings::{Ranged, Settings, Value as Limit};
use thiserror::Error;

use super::place::LoadError;
use super::read::Field;
use super::tree::Value;
use super::units;

/// An error of a visitor, which does not know the node, or of a node.
#[derive(Debug, Error)]
pub enum Fault {
    /// The valid form.
    #[error("{0}")]
    Expected(String),
    /// An error with its location.
    #[error(transparent)]
    Located(#[from] LoadError),
}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Fault {
        Fault::Expected(message.to_string())
    }

    fn missing_field(key: &'static str) -> Fault {
        Fault::Expected(format!("it has no `{key}`: add it"))
    }

    fn duplicate_field(key: &'static str) -> Fault {
        Fault::Expected(format!("`{key}` is set twice, once by its old name: leave that out"))
    }
}

impl<'a> Field<'a> {
    /// Reads a value of a type with serde.
    pub fn parse<T: Deserialize<'a>>(&self) -> Result<T, LoadError> {
        T::deserialize(self.clone()).map_err(|fault| self.located(fault))
    }

    /// Reads a table of settings, and checks their ranges.
    pub fn settings<T: Deserialize<'a> + Settings>(&self) -> Result<T, LoadError> {
        let settings: T = self.parse().or_else(|error| {
            // A value of the wrong type: its error has the range.
            self.check(&T::default())?;
            Err(error)
        })?;
        self.check(&settings)?;
        Ok(settings)
    }

    /// Reads this value of a key of settings.
    pub fn put(&self, key: &str, settings: &mut impl Settings) -> Result<(), LoadError> {
        settings.set(key, self.clone()).or_else(|fault| {
            let ranged = settings.ranged();
            ranged.iter().filter(|setting| setting.key == key).try_for_each(|s| self.within(s))?;
            Err(self.located(fault))
        })
    }

    /// Checks the ranges of settings that this table contains.
    pub fn check(&self, settings: &impl Settings) -> Result<(), LoadError> {
        for setting in settings.ranged() {
            let key = &setting.key;
            if let Some(node) = self.node.get(key) {
                Field { node, path: format!("{}.{key}", self.path) }.within(&setting)?;
            } else if !setting.is_within() {
                return Err(self.wrong(format!("{key} is {}: {}", setting.value, setting.range())));
            }
        }
        Ok(())
    }

    /// Checks type and range of the value of a setting.
    fn within(&self, setting: &Ranged) -> Result<(), LoadError> {
        match (setting.least, setting.most) {
            (Limit::Time(least), Limit::Time(most)) => self.time(least, most).map(drop),
            (Limit::Whole(least), Limit::Whole(most)) => self.integer(least, most).map(drop),
            (Limit::Real(least), Limit::Real(most)) => self.number(least, most).map(drop),
            _ => Ok(()),
        }
    }

    fn located(&self, fault: Fault) -> LoadError {
        match fault {
            Fault::Expected(expected) => self.wrong(expected),
            Fault::Located(error) => error,
        }
    }

    /// Passes a value to a visitor; adds the location to its error.
    fn visited<T>(&self, visited: Result<T, Fault>) -> Result<T, Fault> {
        visited.map_err(|fault| Fault::Located(self.located(fault)))
    }
}

impl<'a> IntoDeserializer<'a, Fault> for Field<'a> {
    type Deserializer = Field<'a>;

    fn into_deserializer(self) -> Field<'a> {
        self
    }
}

impl<'a> Deserializer<'a> for Field<'a> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visited(match &self.node.value {
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Real(number) => visitor.visit_f64(*number),
            Value::Flag(flag) => visitor.visit_bool(*flag),
            Value::List(_) => visitor.visit_seq(SeqDeserializer::new(self.list()?.into_iter())),
            Value::Table(entries) => {
                let path = |key: &str| format!("{}.{key}", self.path);
                let entry = |entry: &'a super::tree::Entry| {
                    (entry.key.as_str(), Field { node: &entry.node, path: path(&entry.key) })
                };
                visitor.visit_map(MapDeserializer::new(entries.iter().map(entry)))
            }
        })
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visited(visitor.visit_bool(self.flag()?))
    }

    fn deserialize_u32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visited(visitor.visit_u32(self.small(0, u32::MAX)?))
    }

    fn deserialize_f64<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visited(visitor.visit_f64(self.real()?))
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match name {
            "Nanos" => {
                let time = self.time(Nanos::ZERO, units::MAX_TIME)?;
                visitor.visit_newtype_struct(U64Deserializer::new(time.0))
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.table(keys)?;
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let choices: Vec<(&str, &str)> = words.iter().map(|word| (*word, *word)).collect();
        let word = self.choice(&choices)?;
        self.visited(visitor.visit_enum(BorrowedStrDeserializer::new(word)))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use tandem_policy::settings::settings;

    use super::super::tree::Node;
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Word {
        #[default]
        OneTwo,
        Three,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Table {
        #[serde(default)]
        word: Word,
        #[serde(default, alias = "old")]
        time: Nanos,
        part: Option<f64>,
        needed: bool,
    }

    fn table(text: &str) -> Result<Table, String> {
        let node = Node::parse("x.toml", text).unwrap();
        let field = Field { node: node.get("a").unwrap(), path: "a".to_owned() };
        field.parse().map_err(|error| error.to_string())
    }

    #[test]
    fn structs_read_tables() {
        let read =
            table("a = { word = \"three\", old = \"2ms\", part = 1, needed = true }").unwrap();
        let time = Nanos::from_millis(2);
        assert_eq!(read, Table { word: Word::Three, time, part: Some(1.0), needed: true });
        let least = table("a.needed = false").unwrap();
        assert_eq!((least.word, least.part), (Word::OneTwo, None));
    }

    settings! {
        /// Settings.
        pub struct Tunables {
            /// A part.
            pub part: f64 = 0.5, (0.0, 1.0);
            /// A number.
            pub number: u32 = 2, (1, 9);
        }
    }

    #[test]
    fn errors_of_settings_have_the_range() {
        for (text, said) in [
            ("part = \"x\"", "a.part = \"x\" is not possible: a number, 0 … 1, is needed"),
            ("part = 2", "a.part = 2 is not possible: 0 … 1"),
            ("number = 2.5", "a.number = 2.5 is not possible: a whole number, 1 … 9, is needed"),
        ] {
            let node = Node::parse("x.toml", &format!("[a]\n{text}\n")).unwrap();
            let field = Field { node: node.get("a").unwrap(), path: "a".to_owned() };
            let error = field.settings::<Tunables>().unwrap_err().to_string();
            assert_eq!(error, format!("x.toml:2: {said}"));
        }
        let node = Node::parse("x.toml", "part = \"x\"").unwrap();
        let part = Field { node: node.get("part").unwrap(), path: "part".to_owned() };
        let error = part.put("part", &mut Tunables::default()).unwrap_err().to_string();
        assert!(error.ends_with("a number, 0 … 1, is needed"), "{error}");
    }

    #[test]
    fn errors_have_key_value_and_location() {
        for (keys, said) in [
            (
                "word = \"thre\"",
                "a.word = \"thre\" is not possible: did you mean \"three\"? (possible are \"one-two\", \"three\")",
            ),
            ("word = 3", "a.word = 3 is not possible: one of \"one-two\", \"three\" is needed"),
            (
                "time = 4",
                "a.time = 4 is not possible: a time with its unit, such as \"4ms\", is needed",
            ),
            ("part = true", "a.part = true is not possible: a number is needed"),
            ("neded = true", "`neded` is no key of a: did you mean `needed`?"),
        ] {
            let error = table(&format!("[a]\n{keys}\n")).unwrap_err();
            assert_eq!(error, format!("x.toml:2: {said}"));
        }
        let error = table("[a]\ntime = \"1s\"\nold = \"1s\"\n").unwrap_err();
        assert_eq!(error, "x.toml:1: a: `time` is set twice, once by its old name: leave that out");
        assert_eq!(table("[a]\n").unwrap_err(), "x.toml:1: a: it has no `needed`: add it");
    }
}
