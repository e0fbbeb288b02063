//! `[policies]`: Tandem's policies on the host, by their names in the registry, and FlexS.
//!
//! `policies = ["fair"]` is short for a table in which each of them is `true`.
//! A VM's own list, `policies = […]`, replaces the host's for that VM; an empty list disables all policies for it.
//!
//! A live host's knob limits the weights that a policy can set, so the simulated knob rounds, too:
//! `weights = "v1"` to `cpu.shares` of cgroup v1, `"v2"` to `cpu.weight` of v2.
//! A scenario's weights are in units of `cpu.shares` (default 1024), so a step of `cpu.weight` is 10.24.
//! Xen's credit scheduler has steps of 1/256 of the default weight.

use tandem_model::{Nanos, PolicySet, Weight};
use tandem_policy::asymmetric::AsymmetricConfig;
use tandem_policy::host::{ControllerConfig, Placement, WeightKnob, registry};
use tandem_policy::turns::TurnsConfig;
use tandem_policy::{FlexSConfig, FlexWConfig};

use super::{HostPolicies, Policies};
use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::document::tree::{Entry, Node, Value};
use crate::document::units;
use crate::host::HostScheduler;

/// Maximum accounting period.
const MAX_PERIOD: Nanos = Nanos::from_secs(10);

/// Keys besides the names of policies.
pub(super) const KEYS: [&str; 6] = ["flexw", "flexs", "period", "placement", "weights", "dry_run"];

pub(super) const FAIR_KEYS: [&str; 6] =
    ["fair_window", "gain", "smoothing", "dead_band", "idle_tolerance", "spread"];

/// Settings of `turns`.
pub(super) const TURNS_KEYS: [&str; 3] = ["turn", "longest_wait", "periods"];

/// Settings of `asymmetric`: its parts.
pub(super) const ASYMMETRIC_KEYS: [&str; 3] = ["time", "latency", "resolver"];

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
    for name in names.filter(|name| !["fair", "turns", "asymmetric"].contains(name)) {
        if table.or(name, false, Field::flag)? {
            controller.policies = controller.policies.or(one(name, &table)?);
        }
    }
    for name in ["fair", "flexw"] {
        if let Some(config) = table.or(name, None, fair)? {
            controller.policies = controller.policies.or(one("fair", &table)?);
            controller.flexw = config;
        }
    }
    if let Some(config) = table.or("turns", None, turns)? {
        controller.policies = controller.policies.or(one("turns", &table)?);
        controller.turns = config;
    }
    if let Some(config) = table.or("asymmetric", None, asymmetric)? {
        controller.policies = controller.policies.or(one("asymmetric", &table)?);
        controller.asymmetric = config;
    }
    if let Err(error) = registry::check(controller.policies) {
        return Err(table.wrong(error.to_string()));
    }
    controller.period = table
        .or("period", controller.period, |field| field.time(Nanos::from_millis(1), MAX_PERIOD))?;
    controller.placement = table.or("placement", controller.placement, |field| {
        field.choice(&[
            ("keep", Placement::Keep),
            ("turns", Placement::Turns),
            ("rebalance", Placement::Rebalance),
        ])
    })?;
    controller.dry_run = table.or("dry_run", false, Field::flag)?;
    if let Some(field) = table.get("weights") {
        if matches!(scheduler, HostScheduler::Credit(_)) {
            return Err(field.wrong("credit has weights of its own: leave it out"));
        }
        knob = field.choice(&[("v1", WeightKnob::CGROUP_V1), ("v2", V2)])?;
    }
    flexs = table.or("flexs", None, self::flexs)?;
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

/// A set of one registered policy.
fn one(name: &str, table: &Table<'_>) -> Result<PolicySet, LoadError> {
    registry::set([name]).map_err(|error| table.wrong(error.to_string()))
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

/// Reads `fair = true`, or a table of its settings.
fn fair(field: &Field<'_>) -> Result<Option<FlexWConfig>, LoadError> {
    let default = FlexWConfig::default();
    if let Value::Flag(on) = field.node.value {
        return Ok(on.then_some(default));
    }
    let table = field.table(&FAIR_KEYS)?;
    let number = |key: &str, default: f64, (least, most): (f64, f64)| {
        table.or(key, default, |field| field.number(least, most))
    };
    Ok(Some(FlexWConfig {
        fair_window: table.or("fair_window", default.fair_window, |field| {
            let (least, most) = FlexWConfig::FAIR_WINDOWS;
            field.time(least, most)
        })?,
        gain: number("gain", default.gain, FlexWConfig::GAINS)?,
        smoothing: number("smoothing", default.smoothing, FlexWConfig::SMOOTHINGS)?,
        dead_band: number("dead_band", default.dead_band, FlexWConfig::DEAD_BANDS)?,
        idle_tolerance: number(
            "idle_tolerance",
            default.idle_tolerance,
            FlexWConfig::IDLE_TOLERANCES,
        )?,
        spread: number("spread", default.spread, FlexWConfig::SPREADS)?,
    }))
}

/// Reads `turns = true`, or a table of its settings.
fn turns(field: &Field<'_>) -> Result<Option<TurnsConfig>, LoadError> {
    let default = TurnsConfig::default();
    if let Value::Flag(on) = field.node.value {
        return Ok(on.then_some(default));
    }
    let table = field.table(&TURNS_KEYS)?;
    let time = |key: &str, default: Nanos, (least, most): (Nanos, Nanos)| {
        table.or(key, default, |field| field.time(least, most))
    };
    Ok(Some(TurnsConfig {
        turn: time("turn", default.turn, TurnsConfig::TURNS)?,
        longest_wait: time("longest_wait", default.longest_wait, TurnsConfig::LONGEST_WAITS)?,
        periods: table.or("periods", default.periods, |field| {
            let (least, most) = TurnsConfig::PERIODS;
            field.small(least, most)
        })?,
    }))
}

/// Reads `asymmetric = true`, or a table of its parts.
fn asymmetric(field: &Field<'_>) -> Result<Option<AsymmetricConfig>, LoadError> {
    let default = AsymmetricConfig::default();
    if let Value::Flag(on) = field.node.value {
        return Ok(on.then_some(default));
    }
    let table = field.table(&ASYMMETRIC_KEYS)?;
    Ok(Some(AsymmetricConfig {
        time: table.or("time", default.time, Field::flag)?,
        latency: table.or("latency", default.latency, Field::flag)?,
        resolver: table.or("resolver", default.resolver, Field::flag)?,
    }))
}

/// Reads `flexs = true`, or a table of its settings.
fn flexs(field: &Field<'_>) -> Result<Option<FlexSConfig>, LoadError> {
    const KEYS: [&str; 9] = [
        "tick",
        "choices",
        "similarity",
        "fair_window",
        "earlier",
        "floor",
        "warm_up",
        "contrast",
        "least_branches",
    ];
    let default = FlexSConfig::default();
    if let crate::document::tree::Value::Flag(on) = field.node.value {
        return Ok(on.then_some(default));
    }
    let table = field.table(&KEYS)?;
    let time = |key: &str, default: Nanos| {
        table.or(key, default, |field| field.time(Nanos::ZERO, units::MAX_TIME))
    };
    let number = |key: &str, default: u32| table.or(key, default, |field| field.small(0, u32::MAX));
    let config = FlexSConfig {
        tick: time("tick", default.tick)?,
        choices: number("choices", default.choices)?,
        similarity: number("similarity", default.similarity)?,
        fair_window: time("fair_window", default.fair_window)?,
        earlier: time("earlier", default.earlier)?,
        floor: time("floor", default.floor)?,
        warm_up: number("warm_up", default.warm_up)?,
        contrast: table.or("contrast", default.contrast, Field::flag)?,
        least_branches: number("least_branches", default.least_branches)?,
    };
    match config.validate() {
        Ok(()) => Ok(Some(config)),
        Err(error) => Err(table.wrong(format!("flexs: {error}"))),
    }
}
