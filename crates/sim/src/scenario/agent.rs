//! `[[vm]] gleaner`: the agent that runs inside a guest, and its settings.

use serde::Serialize;
use tandem_policy::Nanos;
use tandem_policy::gleaner::ConsolidationConfig;
use tandem_policy::gleaner::RetentionConfig;
use tandem_policy::gleaner::consolidation::Judge;

use super::place::LoadError;
use super::read::Field;
use super::read::Table;
use super::tree::Value;
use super::units;

/// Gleaner in a guest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agent {
    /// How many vCPUs the workload uses.
    pub consolidation: Option<ConsolidationConfig>,
    /// For how long an idle vCPU stays awake.
    pub retention: Option<RetentionConfig>,
    /// How often both decide.
    pub period: Nanos,
}

pub(super) const KEYS: [&str; 11] = [
    "consolidate",
    "retain",
    "period",
    "judge",
    "load_factor",
    "granularity_factor",
    "least_time_slice",
    "confirm",
    "rest",
    "timeout",
    "most_stolen",
];

/// `gleaner = true`, or a table of its settings.
pub fn read(vm: &Table<'_>) -> Result<Option<Agent>, LoadError> {
    let Some(field) = vm.get("gleaner") else {
        return Ok(None);
    };
    let whole = Agent {
        consolidation: Some(ConsolidationConfig::default()),
        retention: Some(RetentionConfig::default()),
        period: Nanos::from_millis(100),
    };
    if let Value::Flag(on) = field.node.value {
        return Ok(on.then_some(whole));
    }
    let table = field.table(&KEYS)?;
    let consolidates = table.or("consolidate", true, Field::flag)?;
    let retains = table.or("retain", true, Field::flag)?;
    Ok(Some(Agent {
        consolidation: consolidates.then_some(consolidation(&table)?),
        retention: retains.then_some(retention(&table)?),
        period: table.or("period", whole.period, |field| {
            field.time(Nanos::from_millis(1), units::LONGEST)
        })?,
    }))
}

fn consolidation(table: &Table<'_>) -> Result<ConsolidationConfig, LoadError> {
    let default = ConsolidationConfig::default();
    let factor = |key: &str, default: f64| table.or(key, default, |f| f.number(0.01, 1.0));
    Ok(ConsolidationConfig {
        load_factor: factor("load_factor", default.load_factor)?,
        granularity_factor: factor("granularity_factor", default.granularity_factor)?,
        least_time_slice: table.or("least_time_slice", default.least_time_slice, |field| {
            field.time(Nanos(1), Nanos::from_secs(1))
        })?,
        judge: table.or("judge", default.judge, |field| {
            field.choice(&[
                ("progress", Judge::Progress),
                ("utilization", Judge::Utilization),
            ])
        })?,
        confirm: table.or("confirm", default.confirm, |field| field.small(1, 1000))?,
        rest: table.or("rest", default.rest, |field| field.small(0, 100_000))?,
        ..default
    })
}

fn retention(table: &Table<'_>) -> Result<RetentionConfig, LoadError> {
    let default = RetentionConfig::default();
    Ok(RetentionConfig {
        timeout: table.or("timeout", default.timeout, |field| {
            field.time(Nanos(1), Nanos::from_secs(1))
        })?,
        most_stolen: table.or("most_stolen", default.most_stolen, |field| {
            field.number(0.0, 1.0)
        })?,
        ..default
    })
}
