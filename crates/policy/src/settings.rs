//! Settings of policies: each is declared once, with its type, default, range and meaning.
//!
//! [`settings!`] makes a struct of the declarations, its defaults and its check.
//! Serde derives the keys, so the daemon, the agent and the simulator's scenarios read the same struct, and
//! `scripts/references` generates the tables of the reference from the same lines.
//!
//! ```text
//! settings! {
//!     pub struct TurnsConfig {
//!         /// Meaning and cost.
//!         pub turn: Nanos = Nanos::from_millis(20), TurnsConfig::TURNS;
//!     }
//! }
//! ```
//!
//! A range can depend on another setting (`pub struct FlexSConfig as its`, then `(its.tick, MAX)`), and is [`Own`] for a table.
//! Readers check a struct after files and options are applied, and name the key in their own form.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, Visitor};

use tandem_model::units::Nanos;

/// A struct of settings.
pub trait Settings: Clone + Default {
    /// Its keys.
    const KEYS: &'static [&'static str];

    /// Reads the value of a key; an unknown key changes nothing.
    fn set<'de, D: Deserializer<'de>>(&mut self, key: &str, value: D) -> Result<(), D::Error>;

    /// Returns the settings with a range.
    fn ranged(&self) -> Vec<Ranged>;

    /// Checks every value; returns the first one outside its range.
    fn check(&self) -> Result<(), Ranged> {
        self.ranged().into_iter().find(|setting| !setting.is_within()).map_or(Ok(()), Err)
    }
}

/// A value with a range.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Value {
    /// A time.
    Time(Nanos),
    /// A whole number.
    Whole(u64),
    /// A number.
    Real(f64),
}

/// A setting with its range; as an error, it is outside.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} is {value}: expected {least} … {most}")]
pub struct Ranged {
    /// Its key within the struct, with those of the tables around it.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The minimum.
    pub least: Value,
    /// The maximum.
    pub most: Value,
}

impl Ranged {
    /// A setting with this key.
    pub fn new<T: Into<Value>>(key: &str, value: T, (least, most): (T, T)) -> Ranged {
        let (value, least, most) = (value.into(), least.into(), most.into());
        Ranged { key: key.to_owned(), value, least, most }
    }

    /// The setting as one of a table.
    pub fn within(self, table: &str) -> Ranged {
        Ranged { key: format!("{table}.{}", self.key), ..self }
    }

    /// Whether the value is within the range.
    pub fn is_within(&self) -> bool {
        (self.least..=self.most).contains(&self.value)
    }

    /// Returns the range as text.
    pub fn range(&self) -> String {
        format!("{} … {}", self.least, self.most)
    }
}

/// The range of a table: those of its settings.
pub struct Own;

/// No range.
pub struct Any;

/// A value that can have a range of type `R`.
pub trait Setting<R>: Sized {
    /// Reads the value.
    fn read<'de, D: Deserializer<'de>>(&mut self, _: R, value: D) -> Result<(), D::Error>;

    /// Returns the setting with this key, or those of its table.
    fn ranged_as(&self, key: &str, range: R) -> Vec<Ranged>;
}

impl<T: Copy + Into<Value> + DeserializeOwned> Setting<(T, T)> for T {
    fn read<'de, D: Deserializer<'de>>(&mut self, _: (T, T), value: D) -> Result<(), D::Error> {
        T::deserialize(value).map(|value| *self = value)
    }

    fn ranged_as(&self, key: &str, range: (T, T)) -> Vec<Ranged> {
        vec![Ranged::new(key, *self, range)]
    }
}

impl<T: Settings> Setting<Own> for T {
    fn read<'de, D: Deserializer<'de>>(&mut self, _: Own, value: D) -> Result<(), D::Error> {
        read(self.clone(), value).map(|value| *self = value)
    }

    fn ranged_as(&self, key: &str, _: Own) -> Vec<Ranged> {
        self.ranged().into_iter().map(|setting| setting.within(key)).collect()
    }
}

impl<T: DeserializeOwned> Setting<Any> for T {
    fn read<'de, D: Deserializer<'de>>(&mut self, _: Any, value: D) -> Result<(), D::Error> {
        T::deserialize(value).map(|value| *self = value)
    }

    fn ranged_as(&self, _: &str, _: Any) -> Vec<Ranged> {
        Vec::new()
    }
}

/// Reads a table; omitted keys keep these defaults.
pub fn read<'de, T: Settings, D: Deserializer<'de>>(defaults: T, table: D) -> Result<T, D::Error> {
    table.deserialize_struct("Settings", T::KEYS, Table(defaults))
}

/// Reads a table into settings.
struct Table<T>(T);

impl<'de, T: Settings> Visitor<'de> for Table<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, such as { key = value }")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<T, A::Error> {
        while let Some(key) = map.next_key_seed(Key(T::KEYS))? {
            map.next_value_seed(Slot(key, &mut self.0))?;
        }
        Ok(self.0)
    }
}

/// Reads one of these keys.
struct Key(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<&'static str, D::Error> {
        key.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<&'static str, E> {
        let known = self.0.iter().find(|key| **key == text);
        known.copied().ok_or_else(|| E::unknown_field(text, self.0))
    }
}

/// Reads the value of a key.
struct Slot<'a, T>(&'static str, &'a mut T);

impl<'de, T: Settings> DeserializeSeed<'de> for Slot<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        self.1.set(self.0, value)
    }
}

/// Declares a struct of settings; the essay of this module has an example.
#[macro_export]
macro_rules! settings {
    (@range) => { $crate::settings::Any };
    (@range $range:expr) => { $range };
    ($(#[$about:meta])* pub struct $name:ident $(as $its:ident)? {
        $($(#[$meta:meta])* pub $key:ident: $kind:ty = $default:expr $(, $range:expr)?;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        pub struct $name {
            $(
                $(#[$meta])*
                #[doc = concat!("\n\nDefault: `", stringify!($default), "`" $(, "; range: `", stringify!($range), "`")?, ".")]
                pub $key: $kind,
            )*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(table: D) -> Result<$name, D::Error> {
                $crate::settings::read($name::default(), table)
            }
        }

        impl $crate::settings::Settings for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            fn set<'de, D: serde::Deserializer<'de>>(
                &mut self,
                key: &str,
                value: D,
            ) -> Result<(), D::Error> {
                use $crate::settings::Setting;
                $(let $its = self.clone();)?
                match key {
                    $(stringify!($key) => {
                        self.$key.read($crate::settings!(@range $($range)?), value)
                    })*
                    _ => Ok(()),
                }
            }

            fn ranged(&self) -> Vec<$crate::settings::Ranged> {
                use $crate::settings::Setting;
                $(let $its = self;)?
                [$(self.$key.ranged_as(stringify!($key), $crate::settings!(@range $($range)?))),*].concat()
            }
        }
    };
}
pub use settings;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Time(time) => f.write_str(&time.in_whole_units()),
            Value::Whole(number) => number.fmt(f),
            Value::Real(number) => number.fmt(f),
        }
    }
}

impl From<Nanos> for Value {
    fn from(time: Nanos) -> Value {
        Value::Time(time)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Whole(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Whole(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Real(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    settings! {
        /// A table with a table.
        pub struct Outer as its {
            /// A time.
            pub time: Nanos = Nanos::from_millis(4), (Nanos::from_millis(1), Nanos::from_secs(1));
            /// A time within the other.
            pub part: Nanos = Nanos::from_millis(2), (Nanos::ZERO, its.time);
            /// A table with other defaults than its own.
            pub inner: Inner = Inner { share: 0.25, is_on: true }, Own;
        }
    }

    settings! {
        /// A table.
        pub struct Inner {
            /// A fraction.
            pub share: f64 = 0.5, (0.0, 1.0);
            /// A flag.
            pub is_on: bool = false;
        }
    }

    fn read(json: &str) -> Result<Outer, String> {
        let read: Outer = serde_json::from_str(json).map_err(|error| error.to_string())?;
        read.check().map(|()| read).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_keys_keep_outer_defaults() {
        let read = read("{\"part\": \"3ms\", \"inner\": {\"share\": 1}}").unwrap();
        let inner = Inner { share: 1.0, is_on: true };
        assert_eq!(read, Outer { part: Nanos::from_millis(3), inner, ..Outer::default() });
    }

    #[test]
    fn errors_name_key_and_valid_form() {
        for (json, said) in [
            ("{\"inner\": {\"share\": 2}}", "inner.share is 2: expected 0 … 1"),
            ("{\"part\": \"5ms\"}", "part is 5ms: expected 0ns … 4ms"),
            ("{\"inner\": {\"shar\": 2}}", "unknown field `shar`, expected `share` or `is_on`"),
            ("{\"time\": \"4\"}", "expected a time with its unit, such as \"4ms\""),
            ("{\"inner\": 1}", "expected a table, such as { key = value }"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(said), "{json}: {error}");
        }
        let nan = Ranged::new("b", f64::NAN, (0.0, 1.0));
        assert!(!nan.is_within());
        assert_eq!(nan.to_string(), "b is NaN: expected 0 … 1");
    }
}
