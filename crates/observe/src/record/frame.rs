//! What is recorded of an interval: what its source answered, and whose it is.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tandem_model::states::interval::Interval;
use tandem_model::{Nanos, VcpuId, VmId, Weight};

use crate::findings::{KnownHost, KnownVm};

/// An interval with what is known of its VMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// When it began by the wall clock, in ns since 1970.
    pub at: Nanos,
    /// What was measured.
    pub interval: Interval,
    /// All VMs that were found at its end, measured or not. A number is one VM's throughout the record.
    pub vms: BTreeMap<VmId, RecordedVm>,
    /// Processes that are VMMs by their names and could not be looked into.
    pub unreadable: usize,
    /// Looks that failed since the interval before: what happened meanwhile is in no interval.
    #[serde(default)]
    pub failed: u64,
    /// What the last of them said.
    #[serde(default)]
    pub failure: Option<String>,
    /// What is configured on the host; `None` where that was not read, as by recorders of version 1.
    #[serde(default)]
    pub host: Option<KnownHost>,
}

impl Frame {
    /// When it ended by the wall clock.
    pub fn end(&self) -> Nanos {
        Nanos(self.at.0.saturating_add(self.interval.length.0))
    }

    /// When it began and ended by CLOCK_MONOTONIC, which nobody sets.
    pub fn steady(&self) -> Range<Nanos> {
        let Interval { start, length, .. } = self.interval;
        start..Nanos(start.0.saturating_add(length.0))
    }
}

/// A VM, by name, and what it is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedVm {
    /// What its VMM calls it.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The program that runs it.
    pub program: String,
    /// Its configured weight, where that is known.
    #[serde(with = "exact")]
    pub weight: Option<Weight>,
    /// What it was due in the interval; `None` for one that was not measured.
    pub due: Option<Nanos>,
    /// Its vCPUs whose threads are known.
    pub tids: BTreeMap<VcpuId, u32>,
    /// What else is configured for it ([`KnownVm::settings`]); `None` where that was not read.
    #[serde(default)]
    pub settings: Option<KnownVm>,
}

/// Weights as text: numbers of JSON are read back to a neighbour at times.
mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tandem_model::Weight;

    pub fn serialize<S: Serializer>(weight: &Option<Weight>, to: S) -> Result<S::Ok, S::Error> {
        weight.map(|weight| weight.value().to_string()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Weight>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        // Earlier versions recorded a cgroup's 0, which is none.
        text.parse().map(Weight::new).map_err(D::Error::custom)
    }
}
