//! The survey's figures in a file: what `--json` wrote is read again by `--from`.
//!
//! A file is not trusted: a figure that is not above zero, the same place twice or a policy without stock
//! beside it is refused with its place. Which policies, programs and overcommits there are is what the file
//! has, in its order, or those of them that were asked for.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use anyhow::ensure;

use super::Entry;
use super::STOCK;
use super::place;

/// What is in a survey, and in which order.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    pub entries: Vec<Entry>,
    pub policies: Vec<String>,
    pub workloads: Vec<String>,
    pub overcommit: Vec<u32>,
}

/// Reads figures, and leaves those that were not asked for.
pub fn read(
    path: &Path,
    policies: &[String],
    workloads: &[String],
    overcommit: &[u32],
) -> anyhow::Result<Survey> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let entries: Vec<Entry> = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no figures of a survey", path.display()))?;
    check(&entries).with_context(|| format!("{} cannot be right", path.display()))?;
    let of = path.display().to_string();
    let mut policies = chosen(&entries, policies, "policies", &of, |e| e.policy.clone())?;
    if !policies.iter().any(|policy| policy == STOCK) {
        policies.insert(0, STOCK.to_owned());
    }
    let workloads = chosen(&entries, workloads, "workloads", &of, |e| {
        e.workload.clone()
    })?;
    let overcommit = chosen(&entries, overcommit, "overcommit", &of, |e| e.overcommit)?;
    let entries = entries
        .into_iter()
        .filter(|entry| {
            policies.contains(&entry.policy)
                && workloads.contains(&entry.workload)
                && overcommit.contains(&entry.overcommit)
        })
        .collect();
    Ok(Survey {
        entries,
        policies,
        workloads,
        overcommit,
    })
}

fn check(entries: &[Entry]) -> anyhow::Result<()> {
    ensure!(!entries.is_empty(), "it holds no figure at all");
    let mut seen = BTreeSet::new();
    for entry in entries {
        let at = format!("{} {}", place(entry), entry.policy);
        let key = (&entry.workload, entry.overcommit, &entry.policy);
        ensure!(seen.insert(key), "{at} is there twice");
        let figures = [
            ("throughput", entry.throughput),
            ("unfairness", entry.unfairness),
            ("worst", entry.worst),
        ];
        for (name, value) in figures {
            ensure!(
                value.is_none_or(|value| value > 0.0),
                "{name} {} of {at} is not possible: above 0",
                value.unwrap_or_default()
            );
        }
    }
    for entry in entries {
        let stock = STOCK.to_owned();
        ensure!(
            seen.contains(&(&entry.workload, entry.overcommit, &stock)),
            "{} has {} and no {STOCK}",
            place(entry),
            entry.policy
        );
    }
    Ok(())
}

/// What there is of something, as first seen, or what was asked for.
fn chosen<T: Clone + PartialEq + std::fmt::Display>(
    entries: &[Entry],
    asked: &[T],
    option: &str,
    of: &str,
    name: impl Fn(&Entry) -> T,
) -> anyhow::Result<Vec<T>> {
    let mut all: Vec<T> = Vec::new();
    for entry in entries {
        let name = name(entry);
        if !all.contains(&name) {
            all.push(name);
        }
    }
    for asked in asked {
        ensure!(
            all.contains(asked),
            "--{option} {asked}: {of} has {}",
            all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(match asked {
        [] => all,
        some => some.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(policy: &str, throughput: f64) -> Entry {
        Entry {
            workload: "a".to_owned(),
            overcommit: 2,
            policy: policy.to_owned(),
            throughput: Some(throughput),
            unfairness: Some(1.0),
            worst: Some(1.0),
            victim: None,
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let refused = |entries: &[Entry]| check(entries).unwrap_err().to_string();
        assert!(check(&[entry("stock", 1.0), entry("hvs", 1.1)]).is_ok());
        assert_eq!(refused(&[]), "it holds no figure at all");
        let twice = [entry("stock", 1.0), entry("stock", 1.0)];
        assert_eq!(refused(&twice), "a 2× stock is there twice");
        let negative = [entry("stock", 1.0), entry("hvs", -0.5)];
        assert_eq!(
            refused(&negative),
            "throughput -0.5 of a 2× hvs is not possible: above 0"
        );
        assert_eq!(refused(&[entry("hvs", 1.0)]), "a 2× has hvs and no stock");
    }
}
