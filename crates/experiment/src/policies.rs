//! `--policies NAME,…`: policies to compare, by their names in the literature.
//!
//! A policy or baseline is a set of settings of the scenario.
//! Several are joined by `+`: `aple+hvs` is APPLES, `demand+cap` is demand-based coordinated scheduling under a cap.
//! Keys that a policy does not set keep the scenario's values, except the host's policies.
//! These are one choice, which every name except `as-it-is` replaces.
//! The daemon's policies have the names of their registry.

use tandem_policy::host::registry::simulated;
use tandem_sim::scenario::load::Setting;
use thiserror::Error;

use crate::vary::Combination;

/// Name for the unchanged scenario.
const AS_IT_IS: &str = "as-it-is";

/// Names and their settings, in addition to those of the registry.
const POLICIES: [(&str, &[(&str, &str)]); 35] = [
    ("stock", &[("host.pause_loop.policy", "stock"), ("host.pause_loop.candidate", "stock")]),
    ("ple-off", &[("host.pause_loop.policy", "off")]),
    ("fixed", &[("host.pause_loop.policy", "fixed")]),
    ("aple", &[("host.pause_loop.policy", "aple")]),
    ("hvs", &[("host.pause_loop.candidate", "hvs")]),
    ("cpth-r", &[("host.pause_loop.candidate", "cpth-r")]),
    ("cpth-l", &[("host.pause_loop.candidate", "cpth-l")]),
    ("cch", &[("host.pause_loop.candidate", "cch")]),
    ("in-kernel", &[("host.pause_loop.candidate", "in-kernel")]),
    ("ipi-aware", &[("host.pause_loop.candidate", "ipi-aware")]),
    ("lag-credit", &[("host.scheduler", "eevdf"), ("host.pause_loop.lag_credit", "100us")]),
    ("apples", &[("host.pause_loop.policy", "aple"), ("host.pause_loop.candidate", "hvs")]),
    // The paper's name for the weights of `fair`.
    ("flexw", &[("policies.fair", "true")]),
    ("flexs", &[("policies.flexs", "true"), ("host.placement", "no-stacking")]),
    (
        "flex",
        &[("policies.fair", "true"), ("policies.flexs", "true"), ("host.placement", "no-stacking")],
    ),
    ("cfs", &[("host.scheduler", "cfs")]),
    ("eevdf", &[("host.scheduler", "eevdf")]),
    ("credit", &[("host.scheduler", "credit")]),
    ("lb", &[("host.placement", "load-balancing")]),
    ("pin", &[("host.placement", "pin")]),
    ("balance", &[("host.placement", "no-stacking")]),
    ("cap", &[("host.cap", "true")]),
    ("gang", &[("host.together", "gang")]),
    ("demand", &[("host.together", "demand")]),
    ("gleaner", &[("vm.*.gleaner", "{ control = \"paper\" }")]),
    ("gleaner-ours", &[("vm.*.gleaner", "{ control = \"ours\" }")]),
    ("agent", &[("vm.*.gleaner", "{ control = \"agent\" }")]),
    ("consolidate", &[("vm.*.gleaner", "{ retain = false }")]),
    ("retain", &[("vm.*.gleaner", "{ consolidate = false }")]),
    // The shortest interval of the driver, whose default is 1 s, so that simulations of seconds converge.
    ("preferred", &[("vm.*.preferred", "{ interval = \"100ms\" }")]),
    ("pv-flush", &[("vm.*.tlb", "paravirtual")]),
    ("hypercall-flush", &[("vm.*.tlb", "hypercall")]),
    ("fast-reactivation", &[("host.fast_reactivation", "true")]),
    ("per-thread", &[("vm.*.per_thread", "true")]),
    (AS_IT_IS, &[]),
];

/// Error of a list of policies.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// A name occurs twice.
    #[error("--policies has {0} twice")]
    Twice(String),
    /// The policy does not exist.
    #[error(
        "--policies {name}: no policy is called \"{part}\". There are {}; several at once are joined \
         by +",
        known()
    )]
    Unknown {
        /// The whole name.
        name: String,
        /// The unknown part.
        part: String,
    },
    /// Two joined policies set a key to different values.
    #[error("--policies {name}: {part} sets {key} to {value}, which another part sets differently")]
    Conflict {
        /// The whole name.
        name: String,
        /// The part that sets the key again.
        part: String,
        /// The key.
        key: String,
        /// The value of this part.
        value: String,
    },
}

/// Returns the names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    let of_daemon = simulated().map(|policy| policy.name);
    of_daemon.chain(POLICIES.iter().map(|&(name, _)| name))
}

/// Returns the settings of a policy, or `None` if it does not exist.
fn settings(name: &str) -> Option<Vec<Setting>> {
    if simulated().any(|policy| policy.name == name) {
        return Some(vec![Setting::new(format!("policies.{name}"), "true")]);
    }
    let (_, sets) = POLICIES.iter().find(|(known, _)| *known == name)?;
    Some(sets.iter().map(|&(key, value)| Setting::new(key, value)).collect())
}

fn known() -> String {
    names().collect::<Vec<&str>>().join(", ")
}

/// Returns the combinations of some policies.
pub fn combinations(names: &[String]) -> Result<Vec<Combination>, PolicyError> {
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(PolicyError::Twice(name.clone()));
        }
    }
    names.iter().map(|name| combination(name)).collect()
}

fn combination(name: &str) -> Result<Combination, PolicyError> {
    let mut settings: Vec<Setting> = Vec::new();
    for part in name.split('+') {
        let Some(sets) = self::settings(part) else {
            return Err(PolicyError::Unknown { name: name.to_owned(), part: part.to_owned() });
        };
        for setting in sets {
            let set = settings.iter().find(|set| set.key == setting.key);
            if set.is_some_and(|set| set.value != setting.value) {
                return Err(PolicyError::Conflict {
                    name: name.to_owned(),
                    part: part.to_owned(),
                    key: setting.key,
                    value: setting.value,
                });
            }
            settings.push(setting);
        }
    }
    // Host policies are one choice: a name replaces those of the scenario.
    let of_host = simulated().map(|policy| policy.name).chain(["flexw"]);
    for host in of_host.filter(|_| name != AS_IT_IS) {
        let key = format!("policies.{host}");
        if !settings.iter().any(|setting| setting.key == key) {
            settings.push(Setting::new(key, "false"));
        }
    }
    Ok(Combination::of_policy(name, settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_sim::scenario::load::Source;

    #[test]
    fn policies_are_joined() {
        let both = combination("aple+hvs").unwrap();
        assert_eq!(both.settings, combination("apples").unwrap().settings);
        assert_eq!(both.name(), "aple+hvs");
    }

    #[test]
    fn conflicting_and_unknown_policies_are_rejected() {
        let error = |name: &str| combination(name).unwrap_err().to_string();
        assert!(error("aple+ple-off").contains("host.pause_loop.policy"));
        assert!(error("apple").contains("cpth-r"));
        let twice = ["aple".to_owned(), "aple".to_owned()];
        assert!(combinations(&twice).is_err());
    }

    #[test]
    fn policies_set_valid_scenario_keys() {
        let text = r#"
            duration = "1ms"
            [machine]
            pcpus = 2
            [host]
            scheduler = "cfs"
            [[workload]]
            name = "w"
            [[workload.role]]
            program = [{ forever = [{ compute = "1ms" }, "work"] }]
            [[vm]]
            name = "a"
            vcpus = 2
            workload = "w"
        "#;
        let source = Source::from_text("s.toml", text).unwrap();
        for name in names() {
            let scenario = combination(name).unwrap().scenario(&source);
            scenario.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
