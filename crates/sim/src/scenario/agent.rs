//! `[[vm]] gleaner`: the agent inside a guest, and its settings.
//!
//! Controllers: the paper's two remedies with the paper's settings ("paper"), the same two with ours ("ours", the default), and the
//! controller of `tandem guest` ("agent").
//! Settings in the table override those of the controller.

use serde::{Deserialize, Serialize};
use tandem_model::Nanos;
use tandem_policy::gleaner::{ConsolidationConfig, ControllerConfig, RetentionConfig};
use tandem_policy::settings::Settings;

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
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Paper,
    Ours,
    Agent,
}

/// Former name of `round_trip`.
const OLD_ROUND_TRIP: &str = "timeout";

/// Keys besides the settings of the remedies.
pub(super) const KEYS: [&str; 5] = ["control", "consolidate", "retain", "period", OLD_ROUND_TRIP];

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
    let of_remedies = [ConsolidationConfig::KEYS, RetentionConfig::KEYS].concat();
    let table = field.table(&[&KEYS, of_remedies.as_slice()].concat())?;
    let kind = table.or("control", Kind::Ours, Field::parse)?;
    let consolidate = table.or("consolidate", true, Field::flag)?;
    let retain = table.or("retain", true, Field::flag)?;
    let settings = |mut fewer: ConsolidationConfig, mut awake: RetentionConfig| {
        for key in &of_remedies {
            if let Some(field) = table.get(key) {
                field.put(key, &mut fewer)?;
                field.put(key, &mut awake)?;
            }
        }
        if let Some(old) = table.get(OLD_ROUND_TRIP) {
            if table.get("round_trip").is_some() {
                return Err(
                    old.wrong("this is the old name of round_trip, which is set too: leave it out")
                );
            }
            old.put("round_trip", &mut awake)?;
        }
        field.check(&fewer)?;
        field.check(&awake)?;
        Ok((fewer, awake))
    };
    let remedies = |fewer: ConsolidationConfig, awake: RetentionConfig| {
        let (fewer, awake) = settings(fewer, awake)?;
        Ok(Remedies {
            consolidation: consolidate.then_some(fewer),
            retention: retain.then_some(awake),
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
            let (consolidation, retention) = settings(default.consolidation, default.retention)?;
            Control::Agent(ControllerConfig {
                consolidate,
                retain,
                consolidation,
                retention,
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
