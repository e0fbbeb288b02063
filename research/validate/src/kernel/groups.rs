//! Programs in cgroups beside each other: a file with `[[group]]`s, each of which is a workload of its own, and the cgroup's weight.
//!
//! ```toml
//! about = "a group that sleeps beside one that computes"
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

/// The weight of a cgroup whose weight nobody has set.
pub const USUAL_WEIGHT: u32 = 1024;

/// Weights that a cgroup may have, in shares of v1 (MIN_SHARES and MAX_SHARES of kernel/sched/sched.h).
const WEIGHTS: std::ops::RangeInclusive<i64> = 2..=262_144;

/// Why a file has no groups that can run.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// A group's workload is none.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A group says something that cannot be.
    #[error("{file}, {group}: {what}")]
    Wrong {
        /// The file.
        file: String,
        /// Which group.
        group: String,
        /// What, and what would be right.
        what: String,
    },
}

/// Threads of a cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its weight; 1024 is the kernel's default.
    pub weight: u32,
    /// What its threads do.
    pub workload: Workload,
}

/// What a role did, here or in the simulator.
#[derive(Clone, Debug, Default)]
pub struct RoleRun {
    /// When its last thread ended.
    pub finished: Nanos,
    /// From the end of each sleep to the thread's next instruction, ns.
    pub wakes: Vec<u64>,
    /// What its threads waited for their CPUs; nothing in the simulator.
    pub waits: Waits,
}

/// What is compared: a workload, or several in cgroups of their own.
#[derive(Clone, Debug, PartialEq)]
pub enum Case {
    /// Threads where this process is.
    Threads(Workload),
    /// Cgroups beside each other.
    Groups {
        /// Its name.
        name: String,
        /// The cgroups.
        groups: Vec<Group>,
    },
}

impl Case {
    /// All that runs.
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

/// The groups, if that is a file with groups. What is no TOML is left to who reads workloads.
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
        return Err(wrong("it is no table: write [[group]] with name, weight and roles"));
    };
    if !table.get("name").is_some_and(Value::is_str) {
        return Err(wrong("it needs a name, such as name = \"blocking\""));
    }
    let weight = match table.remove("weight") {
        None => USUAL_WEIGHT,
        Some(Value::Integer(weight)) if WEIGHTS.contains(&weight) => weight as u32,
        Some(weight) => {
            return Err(wrong(&format!(
                "weight = {weight} is not possible: {} … {}, where {USUAL_WEIGHT} is the kernel's default",
                WEIGHTS.start(),
                WEIGHTS.end()
            )));
        }
    };
    let workload = parse::from_text(&format!("{file}, {group}"), &table.to_string())?;
    if workload.roles.iter().any(|role| role.weight != USUAL_WEIGHT) {
        return Err(wrong(
            "weights of threads within a group are not compared: leave out those of its roles",
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
    fn each_group_is_a_workload_with_a_weight() {
        let Case::Groups { name, groups } = from_text("x/beside.toml", TWO).unwrap() else {
            panic!("it has groups");
        };
        assert_eq!(name, "beside");
        let weights: Vec<u32> = groups.iter().map(|group| group.weight).collect();
        assert_eq!(weights, [1024, 2048]);
        assert_eq!(groups[1].workload.name, "b");
    }

    #[test]
    fn a_file_without_groups_is_a_workload() {
        let text = "[[role]]\nprogram = [{ compute = \"1ms\" }]\n";
        let case = from_text("x/alone.toml", text).unwrap();
        assert!(matches!(case, Case::Threads(workload) if workload.name == "alone"));
    }

    #[test]
    fn what_cannot_be_is_named() {
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
            ("program = [{ compute", "weight = 335\nprogram = [{ compute", "leave out those"),
        ];
        for (from, to, wanted) in cases {
            let said = error(from, to);
            assert!(said.contains("x.toml, group[1]") && said.contains(wanted), "{said}");
        }
        let said = from_text("x.toml", "group = 3").unwrap_err().to_string();
        assert!(said.contains("it is no table"), "{said}");
    }
}
