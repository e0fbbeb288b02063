//! Stored figures of a survey: `--from` reads the file that `--json` wrote.
//!
//! A file is not trusted: a figure that is not above zero, a duplicate entry or a place without stock is an error that names the place.
//! The policies, programs and overcommits are those of the file, in its order, or the selected ones of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::entry::{Entry, PCPUS, STOCK, Survey};

/// Error of a file with stored figures.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The file does not parse as a survey.
    #[error("{} holds no figures of a survey", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: serde_json::Error,
    },
    /// The entries are invalid.
    #[error("{} has invalid figures", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: EntriesError,
    },
    /// The file lacks a selected policy, program or overcommit.
    #[error("--{option} {asked}: {} has {}", path.display(), known.join(", "))]
    Missing {
        /// The option.
        option: &'static str,
        /// The value of the option.
        asked: String,
        /// The file.
        path: PathBuf,
        /// Values in the file.
        known: Vec<String>,
    },
}

/// Error of a file's entries.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EntriesError {
    /// The file has no entries.
    #[error("it holds no figures")]
    Nothing,
    /// A policy has two entries in a place.
    #[error("{0} is there twice")]
    Twice(String),
    /// A figure is not above zero.
    #[error("{name} {value} of {at} is invalid: must be above 0")]
    NotAboveZero {
        /// Name of the figure.
        name: &'static str,
        /// Value of the figure.
        value: f64,
        /// The policy and its place.
        at: String,
    },
    /// The entries are of hosts of different sizes, which have no common table.
    #[error("{at} is on {pcpus} pCPUs, others are on {others}: a file holds one size of host")]
    Sizes {
        /// The policy and its place.
        at: String,
        /// Its pCPUs.
        pcpus: u32,
        /// pCPUs of the first entry.
        others: u32,
    },
    /// A place lacks the baseline.
    #[error("{place} has {policy} and no {STOCK}")]
    NoStock {
        /// The place.
        place: String,
        /// The policy.
        policy: String,
    },
}

/// Reads figures and keeps the selected ones; an empty selection keeps all.
pub fn read(
    path: &Path,
    policies: &[String],
    workloads: &[String],
    overcommit: &[u32],
) -> Result<Survey, ReadError> {
    let of = || path.to_owned();
    let text =
        std::fs::read_to_string(path).map_err(|cause| ReadError::Read { path: of(), cause })?;
    let entries: Vec<Entry> =
        serde_json::from_str(&text).map_err(|cause| ReadError::Foreign { path: of(), cause })?;
    check(&entries).map_err(|cause| ReadError::Wrong { path: of(), cause })?;
    let mut policies = chosen(&entries, policies, "policies", path, |e| e.policy.clone())?;
    if !policies.iter().any(|policy| policy == STOCK) {
        policies.insert(0, STOCK.to_owned());
    }
    let workloads = chosen(&entries, workloads, "workloads", path, |e| e.workload.clone())?;
    let overcommit = chosen(&entries, overcommit, "overcommit", path, |e| e.overcommit)?;
    let pcpus = entries.first().map_or(PCPUS, |entry| entry.pcpus);
    let entries = entries
        .into_iter()
        .filter(|entry| {
            policies.contains(&entry.policy)
                && workloads.contains(&entry.workload)
                && overcommit.contains(&entry.overcommit)
        })
        .collect();
    Ok(Survey { entries, policies, workloads, overcommit, pcpus })
}

fn check(entries: &[Entry]) -> Result<(), EntriesError> {
    let Some(first) = entries.first() else {
        return Err(EntriesError::Nothing);
    };
    let mut seen = BTreeSet::new();
    for entry in entries {
        let at = format!("{} {}", entry.place(), entry.policy);
        let key = (&entry.workload, entry.overcommit, &entry.policy);
        if !seen.insert(key) {
            return Err(EntriesError::Twice(at));
        }
        if entry.pcpus != first.pcpus {
            return Err(EntriesError::Sizes { at, pcpus: entry.pcpus, others: first.pcpus });
        }
        let figures = [
            ("throughput", entry.throughput),
            ("unfairness", entry.unfairness),
            ("worst", entry.worst),
            ("worst_by_due", entry.worst_by_due),
        ];
        for (name, value) in figures {
            if let Some(value) = value.filter(|value| value.is_nan() || *value <= 0.0) {
                return Err(EntriesError::NotAboveZero { name, value, at });
            }
        }
    }
    for entry in entries {
        let stock = STOCK.to_owned();
        if !seen.contains(&(&entry.workload, entry.overcommit, &stock)) {
            return Err(EntriesError::NoStock {
                place: entry.place(),
                policy: entry.policy.clone(),
            });
        }
    }
    Ok(())
}

/// Returns the selected names, or all names of the entries in order of their first occurrence.
fn chosen<T: Clone + PartialEq + std::fmt::Display>(
    entries: &[Entry],
    asked: &[T],
    option: &'static str,
    path: &Path,
    name: impl Fn(&Entry) -> T,
) -> Result<Vec<T>, ReadError> {
    let mut all: Vec<T> = Vec::new();
    for entry in entries {
        let name = name(entry);
        if !all.contains(&name) {
            all.push(name);
        }
    }
    for asked in asked {
        if !all.contains(asked) {
            return Err(ReadError::Missing {
                option,
                asked: asked.to_string(),
                path: path.to_owned(),
                known: all.iter().map(T::to_string).collect(),
            });
        }
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
            pcpus: PCPUS,
            worst_by_due: None,
            victim_by_due: None,
        }
    }

    #[test]
    fn invalid_entries_are_rejected_with_place() {
        let refused = |entries: &[Entry]| check(entries).unwrap_err().to_string();
        assert!(check(&[entry("stock", 1.0), entry("hvs", 1.1)]).is_ok());
        assert_eq!(refused(&[]), "it holds no figures");
        let twice = [entry("stock", 1.0), entry("stock", 1.0)];
        assert_eq!(refused(&twice), "a 2× stock is there twice");
        let negative = [entry("stock", 1.0), entry("hvs", -0.5)];
        assert_eq!(refused(&negative), "throughput -0.5 of a 2× hvs is invalid: must be above 0");
        let larger = Entry { pcpus: 64, ..entry("hvs", 1.0) };
        assert_eq!(
            refused(&[entry("stock", 1.0), larger]),
            "a 2× hvs is on 64 pCPUs, others are on 16: a file holds one size of host"
        );
        assert_eq!(refused(&[entry("hvs", 1.0)]), "a 2× has hvs and no stock");
    }
}
