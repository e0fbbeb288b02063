//! `[objects]`: the shared objects of a workload.
//!
//! A name stands for a family of `count` objects of one kind.
//! If the family has several members, a step selects one: `hash[random]`, `hash[own]`, `hash[next]`, `hash[peer]`, `hash[3]`.

use serde::Deserialize;
use tandem_model::suggestion::nearest;

use crate::document::place::{LoadError, Place};
use crate::document::read::{Field, Table};
use crate::document::tree::Value;
use crate::document::units;
use crate::workload::{Object, ObjectRef, Pick, Space, Spin, SpinKind, Wake};

/// Maximum number of objects of a workload, and of all workloads of a scenario together.
pub(crate) const MAX_OBJECTS: usize = 1_000_000;

/// Maximum number of members of a family.
const MAX_MEMBERS: u32 = 65_536;

/// Maximum number of object names in a workload.
const MAX_NAMES: usize = 4_096;

/// Keys of all kinds.
pub(crate) const KEYS: [&str; 9] =
    ["kind", "count", "lock", "space", "parties", "wait", "wake", "units", "capacity"];

/// Objects that share a name.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name.
    pub name: String,
    /// The object.
    pub object: Object,
    /// The first member's number in the workload.
    pub first: u32,
    /// Number of members.
    pub count: u32,
    /// Location of their description.
    pub place: Place,
}

/// All objects of a workload.
#[derive(Clone, Debug, Default)]
pub struct Families(Vec<Family>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Spin,
    Mutex,
    Condition,
    Barrier,
    Semaphore,
    Queue,
}

impl Kind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Spin => &["kind", "count", "lock", "space"],
            Kind::Mutex | Kind::Condition => &["kind", "count"],
            Kind::Barrier => &["kind", "count", "parties", "wait", "wake"],
            Kind::Semaphore => &["kind", "count", "units", "wait"],
            Kind::Queue => &["kind", "count", "capacity"],
        }
    }
}

impl Families {
    /// Reads `[objects]`.
    pub fn read(workload: &Table<'_>) -> Result<Families, LoadError> {
        let mut families = Families::default();
        let Some(field) = workload.get("objects") else {
            return Ok(families);
        };
        let Value::Table(entries) = &field.node.value else {
            return Err(field.wrong("a table of objects is needed, such as m = \"mutex\""));
        };
        if entries.len() > MAX_NAMES {
            return Err(field.wrong(format!(
                "{} names are too many: at most {MAX_NAMES}; `count` gives one name to many",
                entries.len()
            )));
        }
        let mut first: u32 = 0;
        for entry in entries {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if entry.key.is_empty() || !entry.key.chars().all(fine) {
                let message = format!(
                    "`{}` cannot be an object's name: letters, digits, - and _ only",
                    entry.key
                );
                return Err(LoadError::at(&entry.place, message));
            }
            let field = Field { node: &entry.node, path: format!("{}.{}", field.path, entry.key) };
            let (object, count) = object(&field)?;
            families.0.push(Family {
                name: entry.key.clone(),
                object,
                first,
                count,
                place: entry.place.clone(),
            });
            first += count;
            if first as usize > MAX_OBJECTS {
                return Err(field.wrong(format!(
                    "with these the workload has {first} objects: at most {MAX_OBJECTS}"
                )));
            }
        }
        Ok(families)
    }

    /// The families in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.0.iter()
    }

    /// The objects one by one, with their families' names.
    pub fn flat(self) -> (Vec<Object>, Vec<String>) {
        let each = |family: Family| {
            let one = (family.object, family.name);
            std::iter::repeat_n(one, family.count as usize)
        };
        self.0.into_iter().flat_map(each).unzip()
    }

    /// Resolves `name` or `name[which]`.
    pub fn reference(&self, field: &Field<'_>) -> Result<(&Family, ObjectRef), LoadError> {
        let (family, index) = self.family(field)?;
        let ways = || {
            let name = &family.name;
            format!(
                "write {name}[random], {name}[own], {name}[next], {name}[peer], or {name}[0] … {name}[{}]",
                family.count - 1
            )
        };
        let pick = match index {
            None if family.count == 1 => Pick::Fixed(0),
            None => {
                return Err(field.wrong(format!(
                    "there are {} of them, so which? {}",
                    family.count,
                    ways()
                )));
            }
            Some("random") => Pick::Random,
            Some("own") => Pick::Own,
            Some("next") => Pick::Next,
            Some("peer") => Pick::Peer,
            Some(number) => match number.parse() {
                Ok(number) if number < family.count => Pick::Fixed(number),
                _ => return Err(field.wrong(ways())),
            },
        };
        Ok((family, family.picked(pick)))
    }

    /// Resolves a bare `name`, as in an unlock.
    pub fn bare(&self, field: &Field<'_>) -> Result<(&Family, ObjectRef), LoadError> {
        match self.family(field)? {
            (family, None) => Ok((family, family.picked(Pick::Fixed(0)))),
            (family, Some(_)) => Err(field.wrong(format!(
                "the newest lock taken of `{0}` is meant: write \"{0}\"",
                family.name
            ))),
        }
    }

    fn family<'t>(&self, field: &Field<'t>) -> Result<(&Family, Option<&'t str>), LoadError> {
        let text = field.text()?;
        let (name, index) = match text.split_once('[') {
            None => (text.trim(), None),
            Some((name, rest)) => match rest.trim_end().strip_suffix(']') {
                Some(index) => (name.trim(), Some(index.trim())),
                None => return Err(field.wrong("the closing ] is missing")),
            },
        };
        let found = self.0.iter().find(|family| family.name == name);
        found.map(|family| (family, index)).ok_or_else(|| {
            let names = || self.0.iter().map(|family| family.name.as_str());
            let hint = match (nearest(name, names()), self.0.is_empty()) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, true) => "the workload has no [objects]; add it there".to_owned(),
                (None, false) => {
                    let names: Vec<&str> = names().collect();
                    format!("[objects] has {}", names.join(", "))
                }
            };
            field.wrong(format!("no object is called `{name}`: {hint}"))
        })
    }
}

impl Family {
    /// Kind of the object, for messages.
    pub fn kind(&self) -> &'static str {
        match self.object {
            Object::Spin { .. } => "a spin lock",
            Object::Mutex => "a mutex",
            Object::Condition => "a condition variable",
            Object::Barrier { .. } => "a barrier",
            Object::Semaphore { .. } => "a semaphore",
            Object::Queue { .. } => "a queue",
        }
    }

    fn picked(&self, pick: Pick) -> ObjectRef {
        ObjectRef { first: self.first, count: self.count, pick }
    }
}

fn object(field: &Field<'_>) -> Result<(Object, u32), LoadError> {
    let kind = match &field.node.value {
        Value::Text(_) => field.parse()?,
        _ => {
            // The kind decides which of the keys are valid.
            let table = field.table(&KEYS)?;
            table.need("kind", "\"mutex\"")?.parse()?
        }
    };
    let Value::Table(_) = &field.node.value else {
        return match kind {
            Kind::Semaphore => Err(field.wrong("write { kind = \"semaphore\", units = 1 }")),
            Kind::Queue => Err(field.wrong("write { kind = \"queue\", capacity = 16 }")),
            Kind::Spin => Ok((spin(SpinKind::Queued, Space::Kernel), 1)),
            Kind::Mutex => Ok((Object::Mutex, 1)),
            Kind::Condition => Ok((Object::Condition, 1)),
            Kind::Barrier => Ok((barrier(None, Spin::Never, Wake::All), 1)),
        };
    };
    let table = field.table(kind.keys())?;
    let count = table.or("count", 1, |field| field.small(1, MAX_MEMBERS))?;
    let object = match kind {
        Kind::Spin => spin(
            table.or("lock", SpinKind::Queued, Field::parse)?,
            table.or("space", Space::Kernel, Field::parse)?,
        ),
        Kind::Mutex => Object::Mutex,
        Kind::Condition => Object::Condition,
        Kind::Barrier => {
            let parties = match table.get("parties") {
                Some(parties) => Some(parties.small(1, 1_000_000)?),
                None if count > 1 => {
                    return Err(field.wrong(format!(
                        "{count} barriers need a number of parties: add it, such as parties = 2"
                    )));
                }
                None => None,
            };
            let spin = table.or("wait", Spin::Never, spin_for)?;
            let wake = table.or("wake", Wake::All, |field| {
                if spin == Spin::Forever {
                    return Err(field.wrong(
                        "waiters that spin for ever are not woken: leave it out, or wait = \
                         \"block\" or \"spin(100us)\"",
                    ));
                }
                field.parse()
            })?;
            barrier(parties, spin, wake)
        }
        Kind::Semaphore => Object::Semaphore {
            units: table.need("units", "1")?.small(0, 1_000_000)?,
            spin: table
                .or("wait", false, |field| field.choice(&[("block", false), ("spin", true)]))?,
        },
        Kind::Queue => {
            Object::Queue { capacity: table.need("capacity", "16")?.small(1, 1_000_000)? }
        }
    };
    if let Object::Spin { kind: SpinKind::Paravirtual, space: Space::User } = object {
        return Err(field.wrong(
            "a paravirtual lock halts its vCPU, which only the kernel may: leave space out",
        ));
    }
    Ok((object, count))
}

fn spin(kind: SpinKind, space: Space) -> Object {
    Object::Spin { kind, space }
}

fn barrier(parties: Option<u32>, spin: Spin, wake: Wake) -> Object {
    Object::Barrier { parties, spin, wake }
}

/// Reads `block`, `spin` or `spin(100us)`.
fn spin_for(field: &Field<'_>) -> Result<Spin, LoadError> {
    let text = field.text()?;
    let time = text.strip_prefix("spin(").and_then(|rest| rest.strip_suffix(')'));
    match (text, time) {
        (_, Some(time)) => {
            let time = units::time(time).map_err(|expected| field.wrong(expected))?;
            Ok(match time.0 {
                0 => Spin::Never,
                ns => Spin::For(ns),
            })
        }
        ("block", _) => Ok(Spin::Never),
        ("spin", _) => Ok(Spin::Forever),
        _ => Err(field.wrong("possible are \"block\", \"spin\", \"spin(100us)\"")),
    }
}
