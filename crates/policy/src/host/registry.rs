//! Registry of host policies by name, as used by `tandem host run --policies` and `tandem-sim … --policies`.

use thiserror::Error;

use super::policy::{Registered, Sight};
use super::{apart, asymmetric, configured, fair, flexs, turns};
use tandem_model::policy_set::{PolicyId, PolicySet};

/// The policies. A new one goes to the end, because a policy's number is its position here.
/// If two set the same knob of the same VM, the later one decides.
pub const REGISTRY: &[Registered] =
    &[fair::ENTRY, configured::ENTRY, turns::ENTRY, apart::ENTRY, asymmetric::ENTRY, flexs::ENTRY];

/// Reason for rejecting a list of policies.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// An unknown name.
    #[error("no policy is called \"{name}\": the policies are {}, or none", names(PolicySet::ALL))]
    Unknown {
        /// The name given.
        name: String,
    },
    /// Two policies that cannot act on one VM together.
    #[error("{one} and {other} exclude each other: a VM can be under one of them")]
    Exclude {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
}

/// Returns the policy with this name.
pub fn find(name: &str) -> Result<PolicyId, PolicyError> {
    let position = REGISTRY.iter().position(|policy| policy.name == name);
    match position {
        Some(position) => Ok(PolicyId(position as u8)),
        None => Err(PolicyError::Unknown { name: name.to_owned() }),
    }
}

/// Returns the policies with these names, for one VM.
pub fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<PolicySet, PolicyError> {
    let set: PolicySet = names.into_iter().map(find).collect::<Result<_, _>>()?;
    check(set)?;
    Ok(set)
}

/// Parses a text such as `fair` or `none`; several names are joined by commas or by +.
pub fn parse(text: &str) -> Result<PolicySet, PolicyError> {
    match text.trim() {
        "none" => Ok(PolicySet::NONE),
        names => set(names.split([',', '+']).map(str::trim)),
    }
}

/// Checks that policies can act on one VM together.
pub fn check(set: PolicySet) -> Result<(), PolicyError> {
    for (_, policy) in entries(set) {
        let other = entries(set).find(|(_, other)| policy.excludes.contains(&other.name));
        if let Some((_, other)) = other {
            return Err(PolicyError::Exclude { one: policy.name, other: other.name });
        }
    }
    Ok(())
}

/// Returns the registered policies of a set, in order.
pub fn entries(set: PolicySet) -> impl Iterator<Item = (PolicyId, &'static Registered)> {
    let numbered = (0u8..).map(PolicyId).zip(REGISTRY);
    numbered.filter(move |(id, _)| set.contains(*id))
}

/// Returns the policies that simulated hosts run: all but those that need counters of a live host.
pub fn simulated() -> impl Iterator<Item = &'static Registered> + Clone {
    let runs = |policy: &&Registered| !policy.sees.contains(&Sight::Branches);
    REGISTRY.iter().filter(runs)
}

/// Returns the names of the registered policies of a set, for display.
pub fn names(set: PolicySet) -> String {
    let names: Vec<&str> = entries(set).map(|(_, policy)| policy.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_unique_names_and_descriptions() {
        for (at, policy) in REGISTRY.iter().enumerate() {
            assert_eq!(find(policy.name), Ok(PolicyId(at as u8)), "{}", policy.name);
            assert!(!policy.about.is_empty() && !policy.turns.is_empty());
            let word = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(policy.name.chars().all(word), "{}", policy.name);
        }
        assert!(REGISTRY.len() <= 32);
    }

    #[test]
    fn unknown_name_error_lists_known_names() {
        assert_eq!(parse("none"), Ok(PolicySet::NONE));
        assert_eq!(parse("fair"), set(["fair"]));
        let error = parse("fair+configured").unwrap_err().to_string();
        assert!(error.contains("exclude each other"), "{error}");
        let error = set(["fair", "fare"]).unwrap_err().to_string();
        assert!(error.contains("\"fare\"") && error.contains("fair, configured"), "{error}");
    }
}
