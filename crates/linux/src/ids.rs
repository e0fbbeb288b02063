//! Thread and process IDs of Linux.
//!
//! Linux reuses an ID once its owner is gone.
//! A reference that must outlive the owner is a `ThreadRef` (ID and start time) instead.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A thread ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tid(pub u32);

/// A process ID: that of the process's first thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pid(pub u32);

impl Pid {
    /// The process's first thread.
    pub fn main_thread(self) -> Tid {
        Tid(self.0)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
