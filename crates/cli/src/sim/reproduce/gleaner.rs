//! Claims of the gleaner family: what to simulate, and what of it answers to which published figure.

use super::Judge;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[];
