//! The recorded data of an interval: its measurements and its VMs.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tandem_model::states::interval::Interval;
use tandem_model::{Nanos, VcpuId, VmId, Weight};

use crate::findings::{KnownHost, KnownVm};

/// An interval with data about its VMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Its begin by the wall clock, in ns since 1970.
    pub at: Nanos,
    /// The measurements.
    pub interval: Interval,
    /// All VMs found at its end, measured or not. Ids are unique within the record.
    pub vms: BTreeMap<VmId, RecordedVm>,
    /// Number of VMM processes, by name, that could not be read.
    pub unreadable: usize,
    /// Number of failed readings since the previous interval; their time is in no interval.
    #[serde(default)]
    pub failed: u64,
    /// The last of these errors.
    #[serde(default)]
    pub failure: Option<String>,
    /// The configuration of the host; `None` if it was not read, as by recorders of version 1.
    #[serde(default)]
    pub host: Option<KnownHost>,
}

impl Frame {
    /// Returns its end by the wall clock.
    pub fn end(&self) -> Nanos {
        Nanos(self.at.0.saturating_add(self.interval.length.0))
    }

    /// Returns its range by CLOCK_MONOTONIC, which cannot be set.
    pub fn steady(&self) -> Range<Nanos> {
        let Interval { start, length, .. } = self.interval;
        start..Nanos(start.0.saturating_add(length.0))
    }
}

/// A VM with its name and fair share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedVm {
    /// Its name in its VMM.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The program that runs it.
    pub program: String,
    /// Its configured weight, if known.
    #[serde(with = "exact")]
    pub weight: Option<Weight>,
    /// Its fair share of the interval; `None` if it was not measured.
    pub due: Option<Nanos>,
    /// The threads of its vCPUs, if known.
    pub tids: BTreeMap<VcpuId, u32>,
    /// Its other configuration ([`KnownVm::settings`]); `None` if it was not read.
    #[serde(default)]
    pub settings: Option<KnownVm>,
}

/// Weights as text, since JSON numbers may not round-trip exactly.
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
        // Earlier versions recorded a cgroup's 0, which is not a weight.
        text.parse().map(Weight::new).map_err(D::Error::custom)
    }
}
