//! Workloads from TOML.
//!
//! ```toml
//! name = "cache"
//! unit = "requests"
//!
//! [objects]
//! hash = { kind = "spin", lock = "queued", count = 64, space = "kernel" }
//! done = { kind = "barrier", wait = "block" }
//!
//! [[role]]
//! name = "worker"
//! threads = "1 per vcpu"
//! program = [ { forever = [
//!     { compute = "exp(2us)" },
//!     { locked = "hash[random]", do = [ { compute = "300ns" } ] },
//!     "work",
//! ] } ]
//! ```
//!
//! `objects` reads the objects.
//! `program` reads the programs: it flattens loops into jumps and tracks the locks that a thread holds.
//! Errors are programs that cannot run: an unlock without its lock, a mutex taken twice, sleeping with a kernel spin lock held,
//! an endless loop that takes no time, a wait without a thread that ends it.
//! Whether a workload fits a VM ([`fits`]) depends on its vCPUs.
//!
//! Every key: `docs/reference/scenarios.md`.

pub(crate) mod objects;
pub(crate) mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{BranchProfile, Object, Op, Role, Threads, Workload};
use crate::document::place::LoadError;
use crate::document::read::Field;
use crate::document::tree::{Node, Value};
use crate::document::units;

pub(crate) const KEYS: [&str; 6] = ["name", "about", "unit", "objects", "role", "branches"];

pub(crate) const ROLE_KEYS: [&str; 6] =
    ["name", "threads", "weight", "working_set", "pins", "program"];

/// Maximum number of threads of a role in a VM.
const MAX_THREADS: u32 = 100_000;

/// Reads a workload from a text; `file` is its name in errors, and its own name unless it has one.
pub fn from_text(file: &str, text: &str) -> Result<Workload, LoadError> {
    let mut node = Node::parse(file, text)?;
    node.name_by(Path::new(file));
    let path = String::new();
    workload(&Field { node: &node, path })
}

/// Reads a workload from a tree.
pub(crate) fn workload(field: &Field<'_>) -> Result<Workload, LoadError> {
    let table = field.table(&KEYS)?;
    let name = table.need("name", "\"queue\"")?.name()?;
    table.or("about", "", |field| field.text())?;
    let unit = table.or("unit", "work".to_owned(), Field::name)?;
    let objects = objects::Families::read(&table)?;
    let mut roles: Vec<Role> = Vec::new();
    let mut uses = program::Uses::default();
    let list = table.need("role", "[{ program = [ { compute = \"1ms\" } ] }]")?;
    for field in list.list()? {
        let role = role(&field, &objects, &mut uses)?;
        if roles.iter().any(|other| other.name == role.name) {
            return Err(field
                .wrong(format!("another role is called `{}` too: names must differ", role.name)));
        }
        roles.push(role);
    }
    if roles.is_empty() {
        return Err(list.wrong("at least one role is needed"));
    }
    uses.check(&objects)?;
    let (objects, object_names) = objects.flat();
    let branches = table.or("branches", BranchProfile::default(), Field::settings)?;
    Ok(Workload { name, unit, objects, object_names, roles, branches })
}

fn role(
    field: &Field<'_>,
    objects: &objects::Families,
    uses: &mut program::Uses,
) -> Result<Role, LoadError> {
    let table = field.table(&ROLE_KEYS)?;
    let steps = table.need("program", "[ { compute = \"1ms\" } ]")?;
    Ok(Role {
        name: table.or("name", "main".to_owned(), Field::name)?,
        threads: table.or("threads", Threads::Count(1), threads)?,
        weight: table.or("weight", 1024, |field| field.small(1, 262_144))?,
        working_set_kib: table.or("working_set", 0, |field| match field.node.value {
            Value::Integer(0) => Ok(0),
            _ => units::kib(field.text()?).map_err(|expected| field.wrong(expected)),
        })?,
        pins: table.or("pins", Vec::new(), pins)?,
        program: program::read(&steps, objects, uses)?,
    })
}

/// Reads `16`, `"16"`, `"1 per vcpu"` or `"0.5 per vcpu"`.
fn threads(field: &Field<'_>) -> Result<Threads, LoadError> {
    let expected = "a number of threads such as 16, or \"1 per vcpu\"";
    let Value::Text(text) = &field.node.value else {
        return Ok(Threads::Count(field.small(1, MAX_THREADS)?));
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [count] => match count.parse() {
            Ok(count) if (1..=MAX_THREADS).contains(&count) => Ok(Threads::Count(count)),
            Ok(_) => Err(field.wrong(format!("1 … {MAX_THREADS}"))),
            Err(_) => Err(field.wrong(expected)),
        },
        [ratio, "per", "vcpu" | "vCPU"] => {
            let ratio: f64 = ratio.parse().map_err(|_| field.wrong(expected))?;
            if (0.001..=1000.0).contains(&ratio) {
                Ok(Threads::PerVcpu(ratio))
            } else {
                Err(field.wrong("0.001 … 1000 per vcpu"))
            }
        }
        _ => Err(field.wrong(expected)),
    }
}

/// Reads the vCPUs of the role's threads; [`fits`] checks that the VM has them.
fn pins(field: &Field<'_>) -> Result<Vec<u32>, LoadError> {
    let list = field.list()?;
    list.iter().map(|field| field.small(0, 4095)).collect()
}

/// Checks that a VM with `vcpus` vCPUs can run the workload.
pub fn fits(workload: &Workload, vcpus: u32, sized_for: u32) -> Result<(), String> {
    for role in &workload.roles {
        if let Some(pin) = role.pins.iter().find(|&&pin| pin >= vcpus) {
            return Err(format!(
                "role `{}` pins a thread to vCPU {pin}, this VM has the vCPUs 0 … {}",
                role.name,
                vcpus - 1
            ));
        }
        let threads = role.threads.count(sized_for);
        if threads > MAX_THREADS {
            return Err(format!(
                "role `{}` has {threads} threads on {vcpus} vCPUs: at most {MAX_THREADS}",
                role.name
            ));
        }
    }
    let users = barrier_users(workload, sized_for);
    for (number, object) in workload.objects.iter().enumerate() {
        let Object::Barrier { parties: Some(parties), .. } = *object else {
            continue;
        };
        let number_before = users.range(..=number as u32).next_back();
        let family = number_before.filter(|(first, (count, _))| number as u32 - *first < *count);
        let come = family.map_or(0, |(_, (_, threads))| *threads);
        if come > 0 && u64::from(parties) > come {
            return Err(format!(
                "barrier `{}` waits for {parties} parties, but on {vcpus} vCPUs only {come} \
                 threads use it: they would wait for ever",
                workload.object_names[number]
            ));
        }
    }
    Ok(())
}

/// Used families of barriers by their first object, each with its number of objects and of threads that use it.
fn barrier_users(workload: &Workload, vcpus: u32) -> BTreeMap<u32, (u32, u64)> {
    let mut users: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    for role in &workload.roles {
        let barriers = role.program.iter().filter_map(|op| match op {
            Op::Barrier(family) => Some((family.first, family.count)),
            _ => None,
        });
        let used: BTreeSet<(u32, u32)> = barriers.collect();
        for (first, count) in used {
            let (_, threads) = users.entry(first).or_insert((count, 0));
            *threads += u64::from(role.threads.count(vcpus));
        }
    }
    users
}

#[cfg(test)]
mod tests;
