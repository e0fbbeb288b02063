//! `[policies]`: Tandem's policies on the host, by their names in the registry, and FlexS.
//!
//! `policies = ["fair"]` is short for a table in which each of them is `true`.
//! A VM's own list, `policies = […]`, replaces the host's for that VM; an empty list disables all policies for it.
//!
//! A live host's knob limits the weights that a policy can set, so the simulated knob rounds, too:
//! `weights = "v1"` to `cpu.shares` of cgroup v1, `"v2"` to `cpu.weight` of v2.
//! A scenario's weights are in units of `cpu.shares` (default 1024), so a step of `cpu.weight` is 10.24.
//! Xen's credit scheduler has steps of 1/256 of the default weight.

use serde::Deserialize;
use tandem_model::{Nanos, PolicySet, Weight};
use tandem_policy::FlexSConfig;
use tandem_policy::host::{ControllerConfig, WeightKnob, registry};
use tandem_policy::settings::Settings;

use super::{HostPolicies, Policies};
use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::document::tree::{Entry, Node, Value};
use crate::host::HostScheduler;

/// Maximum accounting period.
const MAX_PERIOD: Nanos = Nanos::from_secs(10);

/// Keys besides the names of policies.
pub(super) const KEYS: [&str; 6] = ["flexw", "flexs", "period", "placement", "weights", "dry_run"];

/// `cpu.weight` of cgroup v2 (default 100) in units of `cpu.shares` (default 1024).
const V2: WeightKnob = WeightKnob {
    least: Weight::constant(10.24),
    most: Weight::constant(102_400.0),
    step: 10.24,
    default: Weight::constant(1024.0),
};

/// Xen's weights (1 … 65535, 256 is the default) in units of `cpu.shares`.
const XEN: WeightKnob = WeightKnob {
    least: Weight::constant(4.0),
    most: Weight::constant(262_140.0),
    step: 4.0,
    default: Weight::constant(1024.0),
};

/// Reads `policies`.
pub fn read(document: &Table<'_>, scheduler: &HostScheduler) -> Result<Policies, LoadError> {
    let mut controller = ControllerConfig::new(PolicySet::NONE);
    let mut knob = match scheduler {
        HostScheduler::Linux(_) => WeightKnob::CGROUP_V1,
        HostScheduler::Credit(_) => XEN,
    };
    let mut flexs = None;
    let Some(field) = document.get("policies") else {
        return Ok(Policies { host: HostPolicies { controller, knob }, flexs });
    };
    if let Value::List(_) = field.node.value {
        controller.policies = list(&field)?;
        return Ok(Policies { host: HostPolicies { controller, knob }, flexs });
    }
    if !matches!(field.node.value, Value::Table(_)) {
        return Err(field.wrong("a table, or a list of names such as [\"fair\"], is needed"));
    }
    let names = registry::simulated().map(|policy| policy.name);
    let keys: Vec<&str> = names.clone().chain(KEYS).collect();
    let table = field.table(&keys)?;
    for name in names {
        let acts = match name {
            "fair" => {
                acts(&table, "fair", &mut controller.flexw)?
                    | acts(&table, "flexw", &mut controller.flexw)?
            }
            "turns" => acts(&table, name, &mut controller.turns)?,
            "asymmetric" => acts(&table, name, &mut controller.asymmetric)?,
            _ => table.or(name, false, Field::flag)?,
        };
        if acts {
            let policy = registry::find(name).map_err(|error| table.wrong(error.to_string()))?;
            controller.policies.insert(policy);
        }
    }
    if let Err(error) = registry::check(controller.policies) {
        return Err(table.wrong(error.to_string()));
    }
    controller.period = table
        .or("period", controller.period, |field| field.time(Nanos::from_millis(1), MAX_PERIOD))?;
    controller.placement = table.or("placement", controller.placement, Field::parse)?;
    controller.dry_run = table.or("dry_run", false, Field::flag)?;
    if let Some(field) = table.get("weights") {
        if matches!(scheduler, HostScheduler::Credit(_)) {
            return Err(field.wrong("credit has weights of its own: leave it out"));
        }
        knob = field.choice(&[("v1", WeightKnob::CGROUP_V1), ("v2", V2)])?;
    }
    let mut config = FlexSConfig::default();
    flexs = acts(&table, "flexs", &mut config)?.then_some(config);
    Ok(Policies { host: HostPolicies { controller, knob }, flexs })
}

/// Expands a list of names to its table, so that `--set policies.NAME=…` can change it.
/// An invalid list stays as it is; reading it later reports the error.
pub fn spell_out(root: &mut Node) {
    let Value::Table(entries) = &mut root.value else {
        return;
    };
    let Some(policies) = entries.iter_mut().find(|entry| entry.key == "policies") else {
        return;
    };
    let Value::List(names) = &policies.node.value else {
        return;
    };
    let entry = |name: &Node| {
        let known = registry::find(name.as_text()?).is_ok();
        known.then(|| Entry {
            key: name.as_text().unwrap_or_default().to_owned(),
            place: name.place.clone(),
            node: Node { place: name.place.clone(), value: Value::Flag(true) },
        })
    };
    if let Some(table) = names.iter().map(entry).collect() {
        policies.node.value = Value::Table(table);
    }
}

/// Reads `NAME = true`, or a table of the policy's settings; returns whether it acts.
pub(super) fn acts<'a, T: Settings + Deserialize<'a>>(
    table: &Table<'a>,
    name: &str,
    settings: &mut T,
) -> Result<bool, LoadError> {
    let Some(field) = table.get(name) else {
        return Ok(false);
    };
    if let Value::Flag(acts) = field.node.value {
        return Ok(acts);
    }
    *settings = field.settings()?;
    Ok(true)
}

/// Reads a list of names.
pub fn list(field: &Field<'_>) -> Result<PolicySet, LoadError> {
    let mut policies = PolicySet::NONE;
    for name in field.list()? {
        let text = name.text()?;
        if registry::find(text).is_ok() && !registry::simulated().any(|p| p.name == text) {
            let wrong =
                format!("{text} is of the simulated host as a whole: write it in [policies]");
            return Err(name.wrong(wrong));
        }
        match registry::find(text) {
            Ok(policy) => policies.insert(policy),
            Err(error) => return Err(name.wrong(error)),
        }
    }
    match registry::check(policies) {
        Ok(()) => Ok(policies),
        Err(error) => Err(field.wrong(error)),
    }
}
