//! `--vary KEY=VALUE,VALUE,…`: every combination of the given values.
//!
//! A comma within parentheses, brackets, braces or quotes belongs to a value:
//! `--vary workload.w.role.0.think=exp(1us),uniform(1us, 3us)` has two values.
//! A value may be a [`range`].

use tandem_sim::Scenario;
use tandem_sim::scenario::load::{LoadError, Setting, Source};
use thiserror::Error;

use crate::range;
use crate::range::RangeError;

/// Maximum number of combinations.
const MAX_COMBINATIONS: usize = 1_000;

/// Name of the parameter that `--policies` varies.
pub const POLICIES: &str = "policies";

/// Error of `--vary`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VaryError {
    /// The text is not `KEY=VALUE,VALUE`.
    #[error("--vary {0} is not possible: write KEY=VALUE,VALUE, such as host.scheduler=cfs,eevdf")]
    Malformed(String),
    /// A range is invalid.
    #[error("--vary {text} is not possible: {cause}")]
    Range {
        /// The argument.
        text: String,
        /// The cause.
        cause: RangeError,
    },
    /// A value occurs twice.
    #[error("--vary {text} is not possible: {value} is there twice")]
    SameValue {
        /// The argument.
        text: String,
        /// The value.
        value: String,
    },
    /// A key occurs twice.
    #[error("--vary {0} is there twice: put all its values into one, {0}=A,B,C")]
    SameKey(String),
    /// `--runs` varies the seeds.
    #[error(
        "--vary seed is not needed: every combination runs with the same seeds, --runs of them from \
         --seed on"
    )]
    Seed,
    /// `--policies` varies the policies.
    #[error("--vary policies={0} is not possible: give --policies {0}")]
    Policies(String),
    /// There are too many combinations.
    #[error("{0} combinations are too many: at most {MAX_COMBINATIONS}")]
    TooMany(usize),
}

/// A combination of settings: those of a policy, then one for each `--vary` in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Combination {
    /// Parts of the name, one for each of `--policies` and `--vary`.
    parts: Vec<String>,
    /// Varied parameters, including policies, with their values, in order.
    parameters: Vec<(String, String)>,
    /// The settings.
    pub settings: Vec<Setting>,
}

impl Combination {
    /// Creates the combination of a policy, or of several joined by `+`.
    pub fn of_policy(name: &str, settings: Vec<Setting>) -> Combination {
        Combination {
            parts: vec![name.to_owned()],
            parameters: vec![(POLICIES.to_owned(), name.to_owned())],
            settings,
        }
    }

    /// Returns the varied parameters with their values, in order.
    pub fn parameters(&self) -> &[(String, String)] {
        &self.parameters
    }

    /// Returns the name; empty without settings.
    pub fn name(&self) -> String {
        self.parts.join(" ")
    }

    /// Returns the scenario of `source` with these settings.
    pub fn scenario(&self, source: &Source) -> Result<Scenario, LoadError> {
        let mut source = source.clone();
        for setting in &self.settings {
            source.set(setting.clone());
        }
        source.scenario()
    }

    fn with(&self, setting: Setting) -> Combination {
        let mut combination = self.clone();
        let part = format!("{}={}", setting.key, setting.value);
        combination.parts.push(part);
        let parameter = (setting.key.clone(), setting.value.clone());
        combination.parameters.push(parameter);
        combination.settings.push(setting);
        combination
    }
}

/// Returns all combinations of those in `first` with the values of each key; the last key varies fastest.
pub fn combinations(
    first: Vec<Combination>,
    vary: &[String],
) -> Result<Vec<Combination>, VaryError> {
    let mut combinations = if first.is_empty() { vec![Combination::default()] } else { first };
    let mut keys: Vec<String> = Vec::new();
    for text in vary {
        let (key, values) = parse(text)?;
        if keys.contains(&key) {
            return Err(VaryError::SameKey(key));
        }
        if key == "seed" {
            return Err(VaryError::Seed);
        }
        if key == "policies" && !values.iter().any(|value| value.starts_with(['[', '{'])) {
            return Err(VaryError::Policies(values.join(",")));
        }
        combinations = combinations
            .iter()
            .flat_map(|combination| {
                values.iter().map(|value| {
                    combination.with(Setting { option: "--vary", ..Setting::new(&key, value) })
                })
            })
            .collect();
        if combinations.len() > MAX_COMBINATIONS {
            return Err(VaryError::TooMany(combinations.len()));
        }
        keys.push(key);
    }
    Ok(combinations)
}

fn parse(text: &str) -> Result<(String, Vec<String>), VaryError> {
    let malformed = || VaryError::Malformed(text.to_owned());
    let (key, values) = text.split_once('=').ok_or_else(malformed)?;
    let mut all = Vec::new();
    for value in split(values) {
        let expanded = range::expand(&value)
            .map_err(|cause| VaryError::Range { text: text.to_owned(), cause })?;
        all.extend(expanded);
    }
    let values = all;
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err(malformed());
    }
    for (at, value) in values.iter().enumerate() {
        if values[..at].contains(value) {
            return Err(VaryError::SameValue { text: text.to_owned(), value: value.clone() });
        }
    }
    Ok((key.trim().to_owned(), values))
}

/// Splits at commas outside parentheses, brackets, braces and quotes.
fn split(text: &str) -> Vec<String> {
    let (mut depth, mut quoted) = (0i32, false);
    let mut values = vec![String::new()];
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        match values.last_mut() {
            Some(value) if letter != ',' || quoted || depth > 0 => value.push(letter),
            _ => values.push(String::new()),
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_key_varies_fastest() {
        let vary = ["a=1,2".to_owned(), "b=x, y".to_owned()];
        let names: Vec<String> =
            combinations(Vec::new(), &vary).unwrap().iter().map(Combination::name).collect();
        assert_eq!(names, ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]);
        assert_eq!(combinations(Vec::new(), &[]).unwrap(), [Combination::default()]);
    }

    #[test]
    fn ranges_and_values_can_be_mixed() {
        let vary = ["vm.0.vcpus=2..6:2,16".to_owned()];
        let all = combinations(Vec::new(), &vary).unwrap();
        let values: Vec<&str> = all.iter().map(|one| one.parameters()[0].1.as_str()).collect();
        assert_eq!(values, ["2", "4", "6", "16"]);
        assert_eq!(all[3].name(), "vm.0.vcpus=16");
    }

    #[test]
    fn nested_and_quoted_commas_belong_to_value() {
        assert_eq!(split("exp(1us),uniform(1us, 3us)").len(), 2);
        assert_eq!(split("\"a,b\",c"), ["\"a,b\"", "c"]);
        assert_eq!(split("[\"0\", \"1\"],[\"1\", \"0\"]").len(), 2);
    }

    #[test]
    fn invalid_variations_are_rejected() {
        let error = |vary: &[&str]| {
            let vary: Vec<String> = vary.iter().map(|text| (*text).to_owned()).collect();
            combinations(Vec::new(), &vary).unwrap_err().to_string()
        };
        assert!(error(&["host.scheduler"]).contains("KEY=VALUE,VALUE"));
        assert!(error(&["a=1,"]).contains("KEY=VALUE,VALUE"));
        assert!(error(&["a=1,1"]).contains("twice"));
        assert!(error(&["seed=1,2"]).contains("--runs"));
        assert!(error(&["a=1", "a=2"]).contains("twice"));
        assert!(error(&["a=1..4,3"]).contains("3 is there twice"));
        let range = error(&["a=4..1"]);
        assert!(range.starts_with("--vary a=4..1 is not possible: "), "{range}");
        let policies = error(&["policies=fair, turns"]);
        assert!(policies.ends_with("give --policies fair,turns"), "{policies}");
    }
}
