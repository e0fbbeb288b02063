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
use thiserror::Error;

use tandem_model::units::Nanos;

/// A struct of settings.
pub trait Settings {
    /// Its keys.
    const KEYS: &[&str];

    /// Reads the value of a key; an unknown key changes nothing.
    fn set<'de, D: Deserializer<'de>>(&mut self, key: &str, value: D) -> Result<(), D::Error>;

    /// Checks every value; returns the first one outside its range.
    fn check(&self) -> Result<(), OutOfRange>;
}

/// A value with a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A time.
    Time(Nanos),
    /// A whole number.
    Whole(u32),
    /// A number.
    Real(f64),
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{key} is {value}: expected {least} … {most}")]
pub struct OutOfRange {
    /// Its key within the struct, with those of the tables around it.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The minimum.
    pub least: Value,
    /// The maximum.
    pub most: Value,
}

/// The range of a table: those of its settings.
pub struct Own;

/// A value that can be compared with a range of type `R`.
pub trait Within<R> {
    /// Checks the value of this key.
    fn within(&self, key: &str, range: R) -> Result<(), OutOfRange>;
}

impl<T: Copy + PartialOrd + Into<Value>> Within<(T, T)> for T {
    fn within(&self, key: &str, (least, most): (T, T)) -> Result<(), OutOfRange> {
        if (least..=most).contains(self) {
            return Ok(());
        }
        let (value, least, most) = ((*self).into(), least.into(), most.into());
        Err(OutOfRange { key: key.to_owned(), value, least, most })
    }
}

impl<T: Settings> Within<Own> for T {
    fn within(&self, key: &str, _: Own) -> Result<(), OutOfRange> {
        self.check().map_err(|error| OutOfRange { key: format!("{key}.{}", error.key), ..error })
    }
}

/// Declares a struct of settings; the essay of this module has an example.
#[macro_export]
macro_rules! settings {
    ($(#[$about:meta])* pub struct $name:ident $(as $its:ident)? {
        $($(#[$meta:meta])* pub $key:ident: $kind:ty = $default:expr $(, $range:expr)?;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
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

        impl $crate::settings::Settings for $name {
            const KEYS: &[&str] = &[$(stringify!($key)),*];

            fn set<'de, D: serde::Deserializer<'de>>(
                &mut self,
                key: &str,
                value: D,
            ) -> Result<(), D::Error> {
                match key {
                    $(stringify!($key) => self.$key = serde::Deserialize::deserialize(value)?,)*
                    _ => {}
                }
                Ok(())
            }

            fn check(&self) -> Result<(), $crate::settings::OutOfRange> {
                $(let $its = self;)?
                $($($crate::settings::Within::within(&self.$key, stringify!($key), $range)?;)?)*
                Ok(())
            }
        }
    };
}
pub use settings;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Time(time) => time.fmt(f),
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

    #[test]
    fn range_errors_name_the_range() {
        let error = |value: f64| value.within("b", (0.0, 1.0)).unwrap_err().to_string();
        assert!(1.0.within("b", (0.0, 1.0)).is_ok());
        assert_eq!(error(f64::NAN), "b is NaN: expected 0 … 1");
        assert_eq!(error(f64::INFINITY), "b is inf: expected 0 … 1");
    }
}
