//! Parts of an interval that a source may or may not measure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::State;
use super::edges::EdgeKind;

/// A part that may be unmeasured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Column {
    /// Time in a state.
    State(State),
    /// Edges of one kind.
    Edges(EdgeKind),
    /// A part of the host's totals.
    Host(HostColumn),
}

/// A part of the host's totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostColumn {
    /// Idle time.
    Idle,
    /// Threads of VMs other than vCPUs.
    VmThreads,
    /// Processes other than VMs.
    Processes,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Column::State(state) => state.fmt(f),
            Column::Edges(kind) => f.pad(kind.words()),
            Column::Host(HostColumn::Idle) => f.pad("idle time"),
            Column::Host(HostColumn::VmThreads) => f.pad("other threads of VMs"),
            Column::Host(HostColumn::Processes) => f.pad("host processes"),
        }
    }
}
