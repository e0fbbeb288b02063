//! `[[vm]] gleaner`: the agent that runs inside a guest, and its settings.

use serde::Serialize;
use tandem_policy::Nanos;
use tandem_policy::gleaner::ConsolidationConfig;
use tandem_policy::gleaner::ControllerConfig;
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
    /// Who decides.
    pub control: Control,
    /// How often it decides.
    pub period: Nanos,
}

/// What decides about a VM's workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "control")]
pub enum Control {
    /// Both remedies as the paper has them, each by itself.
    Paper {
        /// How many vCPUs the workload uses.
        consolidation: Option<ConsolidationConfig>,
        /// For how long an idle vCPU stays awake.
        retention: Option<RetentionConfig>,
    },
    /// The controller of `tandem guest`: one change at a time, kept if it helps.
    Agent(ControllerConfig),
}

pub(super) const KEYS: [&str; 12] = [
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
    "timeout",
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
            control: Control::Paper {
                consolidation: Some(ConsolidationConfig::default()),
                retention: Some(RetentionConfig::default()),
            },
            period,
        }));
    }
    let table = field.table(&KEYS)?;
    let is_agent = table.or("control", false, |field| {
        field.choice(&[("paper", false), ("agent", true)])
    })?;
    let consolidate = table.or("consolidate", true, Field::flag)?;
    let retain = table.or("retain", true, Field::flag)?;
    let control = if is_agent {
        let default = ControllerConfig::default();
        Control::Agent(ControllerConfig {
            consolidate,
            retain,
            consolidation: consolidation(&table, default.consolidation)?,
            retention: retention(&table, default.retention)?,
            ..default
        })
    } else {
        let consolidation = consolidation(&table, ConsolidationConfig::default())?;
        let retention = retention(&table, RetentionConfig::default())?;
        Control::Paper {
            consolidation: consolidate.then_some(consolidation),
            retention: retain.then_some(retention),
        }
    };
    Ok(Some(Agent {
        control,
        period: table.or("period", period, |field| {
            field.time(Nanos::from_millis(1), units::LONGEST)
        })?,
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

fn retention(table: &Table<'_>, default: RetentionConfig) -> Result<RetentionConfig, LoadError> {
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
