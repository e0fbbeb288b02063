//! `[[vm]] gleaner`: the agent inside a guest, and its settings.
//!
//! Controllers: the paper's two remedies with the paper's settings ("paper"), the same two with ours ("ours", the default), and the
//! controller of `tandem guest` ("agent").
//! Settings in the table override those of the controller.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_policy::gleaner::consolidation::Judge;
use tandem_policy::gleaner::{ConsolidationConfig, ControllerConfig, RetentionConfig};

use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::document::tree::Value;
use crate::document::units;

/// Gleaner in a guest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agent {
    /// The controller.
    pub control: Control,
    /// Period of its decisions.
    pub period: Nanos,
}

/// Controller of a VM's workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "control")]
pub enum Control {
    /// Both remedies, independent of each other, with the paper's settings.
    Paper(Remedies),
    /// Both remedies, independent of each other, with our settings.
    Ours(Remedies),
    /// The controller of `tandem guest`: one change at a time, kept if it helps.
    Agent(ControllerConfig),
}

/// The two remedies, independent of each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedies {
    /// Consolidation of the workload on fewer vCPUs; `None`: it uses all.
    pub consolidation: Option<ConsolidationConfig>,
    /// Retention of idle vCPUs; `None`: they halt at once.
    pub retention: Option<RetentionConfig>,
}

/// Values of `control`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Paper,
    Ours,
    Agent,
}

/// Former name of `round_trip`.
const OLD_ROUND_TRIP: &str = "timeout";

pub(super) const KEYS: [&str; 13] = [
    "control",
    "consolidate",
    "retain",
    "period",
    "judge",
    "load_factor",
    "granularity_factor",
    "least_time_slice",
    "confirm",
    "rest",
    "round_trip",
    OLD_ROUND_TRIP,
    "most_stolen",
];

/// `gleaner = true`, or a table of its settings.
pub fn read(vm: &Table<'_>) -> Result<Option<Agent>, LoadError> {
    let Some(field) = vm.get("gleaner") else {
        return Ok(None);
    };
    let period = Nanos::from_millis(100);
    if let Value::Flag(on) = field.node.value {
        return Ok(on.then(|| Agent {
            control: Control::Ours(Remedies {
                consolidation: Some(ConsolidationConfig::default()),
                retention: Some(RetentionConfig::default()),
            }),
            period,
        }));
    }
    let table = field.table(&KEYS)?;
    let kind = table.or("control", Kind::Ours, |field| {
        field.choice(&[("paper", Kind::Paper), ("ours", Kind::Ours), ("agent", Kind::Agent)])
    })?;
    let consolidate = table.or("consolidate", true, Field::flag)?;
    let retain = table.or("retain", true, Field::flag)?;
    let remedies = |fewer: ConsolidationConfig, awake: RetentionConfig| {
        let consolidation = consolidation(&table, fewer)?;
        let retention = retention(&table, awake)?;
        Ok(Remedies {
            consolidation: consolidate.then_some(consolidation),
            retention: retain.then_some(retention),
        })
    };
    if let (Kind::Paper, Some(field)) = (kind, table.get("most_stolen")) {
        return Err(field.wrong(
            "the paper's retention does not look at stolen time: leave it out, or set control = \"ours\"",
        ));
    }
    let control = match kind {
        Kind::Paper => {
            Control::Paper(remedies(ConsolidationConfig::paper(), RetentionConfig::paper())?)
        }
        Kind::Ours => {
            Control::Ours(remedies(ConsolidationConfig::default(), RetentionConfig::default())?)
        }
        Kind::Agent => {
            let default = ControllerConfig::default();
            Control::Agent(ControllerConfig {
                consolidate,
                retain,
                consolidation: consolidation(&table, default.consolidation)?,
                retention: retention(&table, default.retention)?,
                ..default
            })
        }
    };
    Ok(Some(Agent {
        control,
        period: table
            .or("period", period, |field| field.time(Nanos::from_millis(1), units::MAX_TIME))?,
    }))
}

fn consolidation(
    table: &Table<'_>,
    default: ConsolidationConfig,
) -> Result<ConsolidationConfig, LoadError> {
    let factor = |key: &str, default: f64| table.or(key, default, |f| f.number(0.01, 10.0));
    Ok(ConsolidationConfig {
        load_factor: factor("load_factor", default.load_factor)?,
        granularity_factor: factor("granularity_factor", default.granularity_factor)?,
        least_time_slice: table.or("least_time_slice", default.least_time_slice, |field| {
            field.time(Nanos(1), Nanos::from_secs(1))
        })?,
        judge: table.or("judge", default.judge, |field| {
            field.choice(&[("progress", Judge::Progress), ("utilization", Judge::Utilization)])
        })?,
        confirm: table.or("confirm", default.confirm, |field| field.small(1, 1000))?,
        rest: table.or("rest", default.rest, |field| field.small(0, 100_000))?,
        ..default
    })
}

fn retention(table: &Table<'_>, default: RetentionConfig) -> Result<RetentionConfig, LoadError> {
    let round_trip = match (table.get("round_trip"), table.get(OLD_ROUND_TRIP)) {
        (Some(_), Some(old)) => {
            return Err(
                old.wrong("this is the old name of round_trip, which is set too: leave it out")
            );
        }
        (new, old) => new.or(old),
    };
    Ok(RetentionConfig {
        round_trip: round_trip
            .map_or(Ok(default.round_trip), |field| field.time(Nanos(1), Nanos::from_secs(1)))?,
        most_stolen: table
            .or("most_stolen", default.most_stolen, |field| field.number(0.0, 1.0))?,
        ..default
    })
}
