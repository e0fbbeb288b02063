//! Files with several cgroups: each `[[group]]` has a workload and a weight.
//!
//! ```toml
//! about = "a group that sleeps and one that computes"
//! [[group]]
//! name = "blocking"
//! weight = 1024           # 2 … 262144, 1024 is the kernel's default
//! [[group.role]]
//! …                       # as in a workload
//! ```

use std::path::Path;

use tandem_model::Nanos;
use tandem_model::nesting::too_deep;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::{Workload, parse};
use thiserror::Error;
use toml::{Table, Value};

use crate::rest::Waits;

/// The default weight of a cgroup.
pub const USUAL_WEIGHT: u32 = 1024;

/// Valid weights of a cgroup, in shares of v1 (MIN_SHARES and MAX_SHARES of kernel/sched/sched.h).
const WEIGHTS: std::ops::RangeInclusive<i64> = 2..=262_144;

/// Error of a file with groups.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// A workload is invalid.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A group is invalid.
    #[error("{file}, {group}: {what}")]
    Wrong {
        /// The file.
        file: String,
        /// The group.
        group: String,
        /// The error and the valid form.
        what: String,
    },
}

/// Threads of a cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The weight; 1024 is the kernel's default.
    pub weight: u32,
    /// The workload of its threads.
    pub workload: Workload,
}

/// Result of a role, real or simulated.
#[derive(Clone, Debug, Default)]
pub struct RoleRun {
    /// End time of its last thread.
    pub finished: Nanos,
    /// Time from the end of each sleep to the thread's next instruction, ns.
    pub wakes: Vec<u64>,
    /// Waits of its threads for their CPUs; empty in the simulator.
    pub waits: Waits,
}

/// A compared case: a workload, or several workloads in separate cgroups.
#[derive(Clone, Debug, PartialEq)]
pub enum Case {
    /// Threads in the cgroup of this process.
    Threads(Workload),
    /// Threads in separate cgroups.
    Groups {
        /// Name of the case.
        name: String,
        /// The cgroups.
        groups: Vec<Group>,
    },
}

impl Case {
    /// Returns all workloads.
    pub fn workloads(&self) -> Vec<&Workload> {
        match self {
            Case::Threads(workload) => vec![workload],
            Case::Groups { groups, .. } => groups.iter().map(|group| &group.workload).collect(),
        }
    }
}

/// Reads a file of either kind.
pub fn from_text(file: &str, text: &str) -> Result<Case, GroupsError> {
    let Some(list) = groups_of(text) else {
        return Ok(Case::Threads(parse::from_text(file, text)?));
    };
    let groups = list.into_iter().zip(0..).map(|(table, number)| one(file, number, table));
    let groups = groups.collect::<Result<Vec<Group>, _>>()?;
    for (number, group) in groups.iter().enumerate() {
        let name = &group.workload.name;
        if groups[..number].iter().any(|other| other.workload.name == *name) {
            return Err(GroupsError::Wrong {
                file: file.to_owned(),
                group: format!("group[{number}]"),
                what: format!("another group is called {name}, too: names must differ"),
            });
        }
    }
    let stem = Path::new(file).file_stem();
    Ok(Case::Groups {
        name: stem.map_or(file.to_owned(), |stem| stem.to_string_lossy().into_owned()),
        groups,
    })
}

/// Returns the groups of a file with groups; `None` for other files.
///
/// The parser of workloads reports invalid TOML.
fn groups_of(text: &str) -> Option<Vec<Value>> {
    if too_deep(text).is_some() {
        return None;
    }
    let mut table: Table = text.parse().ok()?;
    match table.remove("group")? {
        Value::Array(list) if !list.is_empty() => Some(list),
        other => Some(vec![other]),
    }
}

fn one(file: &str, number: usize, value: Value) -> Result<Group, GroupsError> {
    let group = format!("group[{number}]");
    let wrong = |what: &str| GroupsError::Wrong {
        file: file.to_owned(),
        group: group.clone(),
        what: what.to_owned(),
    };
    let Value::Table(mut table) = value else {
        return Err(wrong("it is not a table: write [[group]] with name, weight and roles"));
    };
    if !table.get("name").is_some_and(Value::is_str) {
        return Err(wrong("it needs a name, such as name = \"blocking\""));
    }
    let weight = match table.remove("weight") {
        None => USUAL_WEIGHT,
        Some(Value::Integer(weight)) if WEIGHTS.contains(&weight) => weight as u32,
        Some(weight) => {
            return Err(wrong(&format!(
                "weight = {weight} is invalid: must be {} … {}; {USUAL_WEIGHT} is the kernel's default",
                WEIGHTS.start(),
                WEIGHTS.end()
            )));
        }
    };
    let workload = parse::from_text(&format!("{file}, {group}"), &table.to_string())?;
    if workload.roles.iter().any(|role| role.weight != USUAL_WEIGHT) {
        return Err(wrong(
            "weights of threads within a group are not compared: remove those of its roles",
        ));
    }
    Ok(Group { weight, workload })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "about = \"two\"\n[[group]]\nname = \"a\"\n[[group.role]]\nprogram = [{ sleep = \"1ms\" }]\n\
                       [[group]]\nname = \"b\"\nweight = 2048\n[[group.role]]\nprogram = [{ compute = \"1ms\" }]\n";

    #[test]
    fn groups_have_workloads_and_weights() {
        let Case::Groups { name, groups } = from_text("x/beside.toml", TWO).unwrap() else {
            panic!("it has groups");
        };
        assert_eq!(name, "beside");
        let weights: Vec<u32> = groups.iter().map(|group| group.weight).collect();
        assert_eq!(weights, [1024, 2048]);
        assert_eq!(groups[1].workload.name, "b");
    }

    #[test]
    fn file_without_groups_is_a_workload() {
        let text = "[[role]]\nprogram = [{ compute = \"1ms\" }]\n";
        let case = from_text("x/alone.toml", text).unwrap();
        assert!(matches!(case, Case::Threads(workload) if workload.name == "alone"));
    }

    #[test]
    fn invalid_groups_are_rejected() {
        let error = |from: &str, to: &str| {
            let text = TWO.replace(from, to);
            assert_ne!(text, TWO);
            from_text("x.toml", &text).unwrap_err().to_string()
        };
        let cases = [
            ("weight = 2048", "weight = 1", "2 … 262144"),
            ("weight = 2048", "weight = \"x\"", "2 … 262144"),
            ("name = \"b\"", "name = \"a\"", "names must differ"),
            ("name = \"b\"\n", "", "needs a name"),
            ("weight = 2048", "wait = 1", "wait"),
            ("program = [{ compute", "weight = 335\nprogram = [{ compute", "remove those"),
        ];
        for (from, to, wanted) in cases {
            let error = error(from, to);
            assert!(error.contains("x.toml, group[1]") && error.contains(wanted), "{error}");
        }
        let error = from_text("x.toml", "group = 3").unwrap_err().to_string();
        assert!(error.contains("it is not a table"), "{error}");
    }
}
