//! Newtypes for ids and units, so that public signatures have no bare integers.
//!
//! Time is integer nanoseconds.
//! Weights are real numbers in the units of the host's knob (`cpu.shares` on cgroup v1, `cpu.weight` on v2).
//! Policies use only their ratios, and the host adapter rounds to the resolution of the knob.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::length::{length, not_possible};

/// A length of time, or a point on a monotonic clock, in nanoseconds.
///
/// It is read from a number of nanoseconds or a text with a unit, such as `"4ms"`, and written as a number.
/// As a newtype of serde, not a transparent one: a reader can give it a form of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Nanos(pub u64);

/// Valid form of a time, for errors.
const TIME: &str = "a time with its unit, such as \"4ms\"";

impl Nanos {
    /// Zero time.
    pub const ZERO: Nanos = Nanos(0);

    /// `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// `s` seconds.
    pub const fn from_secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }

    /// Returns the time in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns `self - earlier`, or zero if `earlier` is later.
    pub fn saturating_sub(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time in the largest unit without a fraction, such as `4ms`; it can be parsed.
    pub fn in_whole_units(self) -> String {
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
        let whole = units.iter().find(|(_, nanos)| self.0 > 0 && self.0.is_multiple_of(*nanos));
        let (unit, nanos) = whole.unwrap_or(&("ns", 1));
        format!("{}{unit}", self.0 / nanos)
    }
}

impl FromStr for Nanos {
    type Err = String;

    fn from_str(text: &str) -> Result<Nanos, String> {
        let time = length(text.trim()).ok().filter(|_| text.ends_with(char::is_alphabetic));
        let nanos = time.and_then(|time| u64::try_from(time.as_nanos()).ok());
        nanos.map(Nanos).ok_or_else(|| not_possible(text, TIME))
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Nanos, D::Error> {
        deserializer.deserialize_newtype_struct("Nanos", Time)
    }
}

/// Reads a time.
struct Time;

impl<'de> Visitor<'de> for Time {
    type Value = Nanos;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TIME)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Nanos, D::Error> {
        inner.deserialize_any(self)
    }

    fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<Nanos, E> {
        Ok(Nanos(nanos))
    }

    fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<Nanos, E> {
        let wrong = |_| E::invalid_value(Unexpected::Signed(nanos), &self);
        u64::try_from(nanos).map(Nanos).map_err(wrong)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Nanos, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        self.0 += other.0;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0 - other.0)
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(times: I) -> Nanos {
        Nanos(times.map(|t| t.0).sum())
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.3} s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.3} ms", n as f64 / 1e6),
            n if n >= 1_000 => write!(f, "{:.3} µs", n as f64 / 1e3),
            n => write!(f, "{n} ns"),
        }
    }
}

/// A physical CPU (hardware thread) of the host, by its kernel number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PcpuId(pub u32);

/// A vCPU's number within its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VcpuId(pub u32);

/// A VM, by a number that is not reused while the observer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmId(pub u64);

/// A scheduling weight, in the units of the host's knob: always finite and above zero.
///
/// Policies divide by weights and average them, so a zero or NaN would spoil every later average.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Weight(f64);

/// A number that is not a valid weight.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is no weight: it must be finite and above 0")]
pub struct NoWeight(pub f64);

impl Weight {
    /// Minimum weight.
    pub const LEAST: Weight = Weight(f64::MIN_POSITIVE);
    /// Maximum weight.
    pub const MOST: Weight = Weight(f64::MAX);

    /// Returns a weight of this value; `None` if it is not valid.
    pub fn new(value: f64) -> Option<Weight> {
        (Weight::LEAST.0..=Weight::MOST.0).contains(&value).then_some(Weight(value))
    }

    /// Returns the nearest valid weight; the minimum for NaN.
    #[allow(clippy::manual_clamp, reason = "clamp returns NaN for NaN")]
    pub fn saturating(value: f64) -> Weight {
        Weight(value.max(Weight::LEAST.0).min(Weight::MOST.0))
    }

    /// Returns a weight of a constant value.
    ///
    /// # Panics
    ///
    /// If the value is not valid; at compile time in a `const`.
    pub const fn constant(value: f64) -> Weight {
        assert!(value >= f64::MIN_POSITIVE && value <= f64::MAX, "a weight is finite and above 0");
        Weight(value)
    }

    /// Returns the value.
    pub const fn value(self) -> f64 {
        self.0
    }

    /// Returns the product with `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Weight {
        Weight::saturating(self.0 * factor)
    }
}

impl TryFrom<f64> for Weight {
    type Error = NoWeight;

    fn try_from(value: f64) -> Result<Weight, NoWeight> {
        Weight::new(value).ok_or(NoWeight(value))
    }
}

impl From<Weight> for f64 {
    fn from(weight: Weight) -> f64 {
        weight.0
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

/// A thread's nice value, from -20 (most CPU time) to 19 (least).
/// A step changes the weight by a factor of about 1.25 (sched_prio_to_weight of kernel/sched/core.c).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nice(pub i8);

impl Nice {
    /// Minimum nice value, with the most CPU time.
    pub const LEAST: Nice = Nice(-20);
    /// Maximum nice value, with the least CPU time.
    pub const MOST: Nice = Nice(19);
}

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}

display_number!(PcpuId, VcpuId, VmId, Nice);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_largest_unit_without_fraction() {
        for (nanos, text) in [(1_500, "1500ns"), (4_000_000, "4ms"), (0, "0ns")] {
            assert_eq!(Nanos(nanos).in_whole_units(), text);
        }
    }

    #[test]
    fn weights_are_finite_and_positive() {
        for none in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-310] {
            assert_eq!(Weight::new(none), None, "{none}");
            let error = Weight::try_from(none).unwrap_err().to_string();
            assert!(error.contains("above 0"), "{error}");
            let nearest = Weight::saturating(none).value();
            assert!(nearest.is_finite() && nearest > 0.0, "{none}: {nearest}");
            let scaled = Weight::constant(2.0).times(none).value();
            assert!(scaled.is_finite() && scaled > 0.0, "{none}: {scaled}");
            assert!(serde_json::from_str::<Weight>(&none.to_string()).is_err());
        }
        assert_eq!(Weight::new(512.0).map(Weight::value), Some(512.0));
        assert_eq!(Weight::saturating(f64::INFINITY), Weight::MOST);
        let text = serde_json::to_string(&Weight::constant(512.0)).unwrap();
        assert_eq!(text, "512.0");
        assert_eq!(serde_json::from_str::<Weight>(&text).unwrap(), Weight::constant(512.0));
    }
}
