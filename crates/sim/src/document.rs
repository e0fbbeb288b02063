//! TOML documents of settings: scenarios and workloads.
//!
//! [`tree`] parses a text into nodes that keep their locations, and [`set`] replaces values from the command line.
//! [`read`] and [`de`] turn nodes into settings; errors ([`place`]) name file, line, key and the valid form.
//! [`units`] parses times, distributions and sizes.

mod de;
pub(crate) mod place;
pub(crate) mod read;
pub(crate) mod set;
pub(crate) mod tree;
pub(crate) mod units;
