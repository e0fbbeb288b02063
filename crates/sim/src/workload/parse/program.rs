//! Programs: lists of steps, flattened into operations with jumps.
//!
//! A step is a word (`"request"`, `"work"`, `"yield"`, `"exit"`) or a table with a verb (`{ compute = "2us" }`).
//! While flattening, [`Writer`] tracks the locks that the thread holds, whether time passes, and whether the next step is reachable.
//! A loop must hold the same locks at its end as at its start, so that one iteration stands for all.

use std::collections::BTreeSet;

use tandem_model::Nanos;
use tandem_model::suggestion::nearest;

use crate::document::place::LoadError;
use crate::document::read::Field;
use crate::document::tree::Value;
use crate::document::units;
use crate::workload::{MOST_HELD, MOST_LOOPS, Object, ObjectRef, Op, Pick, Repeat, Space};

use super::objects::{Families, Family};

/// Maximum number of operations of a program.
const MAX_OPS: usize = 100_000;

/// Maximum number of iterations of a loop.
const MAX_ITERATIONS: u32 = 1_000_000_000;

pub(crate) const WORDS: [&str; 4] = ["request", "work", "yield", "exit"];

pub(crate) const VERBS: [&str; 23] = [
    "compute",
    "kernel",
    "lock",
    "unlock",
    "locked",
    "wait",
    "signal",
    "broadcast",
    "barrier",
    "acquire",
    "release",
    "put",
    "get",
    "unmap",
    "discard",
    "fault",
    "protect",
    "sleep",
    "every",
    "io",
    "forever",
    "repeat",
    "work",
];

/// Operations of a workload's programs on families, by the families' first objects.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    waits: BTreeSet<u32>,
    wakes: BTreeSet<u32>,
    acquires: BTreeSet<u32>,
    releases: BTreeSet<u32>,
    puts: BTreeSet<u32>,
    gets: BTreeSet<u32>,
}

impl Uses {
    /// Checks that each wait has a thread that can end it.
    pub fn check(&self, families: &Families) -> Result<(), LoadError> {
        for family in families.iter() {
            let has = |list: &BTreeSet<u32>| list.contains(&family.first);
            let name = &family.name;
            let message = match family.object {
                Object::Condition if has(&self.waits) && !has(&self.wakes) => format!(
                    "threads wait for `{name}`, but none signals it: add {{ signal = \"{name}\" }} \
                     to a role"
                ),
                Object::Semaphore { units: 0, .. }
                    if has(&self.acquires) && !has(&self.releases) =>
                {
                    format!(
                        "`{name}` has no units and no thread releases one: give it units, or add \
                         {{ release = \"{name}\" }} to a role"
                    )
                }
                Object::Queue { .. } if has(&self.gets) && !has(&self.puts) => format!(
                    "threads get from `{name}`, but none puts: add {{ put = \"{name}\" }} to a role"
                ),
                Object::Queue { .. } if has(&self.puts) && !has(&self.gets) => format!(
                    "threads put into `{name}`, but none gets: add {{ get = \"{name}\" }} to a role"
                ),
                _ => continue,
            };
            return Err(LoadError::at(&family.place, message));
        }
        Ok(())
    }
}

/// Reads a role's program.
pub fn read(field: &Field<'_>, families: &Families, uses: &mut Uses) -> Result<Vec<Op>, LoadError> {
    let mut writer = Writer { families, uses, ops: Vec::new(), held: Vec::new(), depth: 0 };
    let flow = writer.steps(field)?;
    if !flow.ends {
        if let Some(held) = writer.held.last() {
            return Err(field.wrong(format!(
                "the program ends with `{0}` held: add {{ unlock = \"{0}\" }}",
                held.name
            )));
        }
        writer.ops.push(Op::Exit);
    } else if writer.ops.last() != Some(&Op::Exit) {
        writer.ops.push(Op::Exit);
    }
    let has = |op: &Op| writer.ops.contains(op);
    if has(&Op::Request) && !has(&Op::Work) {
        return Err(field.wrong("no \"work\" ends the \"request\": add one where it is done"));
    }
    Ok(writer.ops)
}

/// A lock that the thread holds at this point.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    name: String,
    first: u32,
    count: u32,
    pick: Pick,
    /// A spin lock of the kernel: nothing may block under it.
    kernel: bool,
}

/// Control flow of a list of steps.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Time passes in it.
    takes_time: bool,
    /// The next step is unreachable.
    ends: bool,
}

impl Flow {
    const INSTANT: Flow = Flow { takes_time: false, ends: false };
    const TIME: Flow = Flow { takes_time: true, ends: false };
}

struct Writer<'a> {
    families: &'a Families,
    uses: &'a mut Uses,
    ops: Vec<Op>,
    held: Vec<Held>,
    depth: usize,
}

impl Writer<'_> {
    fn steps(&mut self, list: &Field<'_>) -> Result<Flow, LoadError> {
        let mut whole = Flow::default();
        for field in list.list()? {
            if whole.ends {
                return Err(field.wrong(
                    "this step is never reached: put it before the loop that never ends, or \
                     before exit",
                ));
            }
            let flow = self.step(&field)?;
            whole.takes_time |= flow.takes_time;
            whole.ends = flow.ends;
            if self.ops.len() > MAX_OPS {
                return Err(
                    field.wrong(format!("the program has more than {MAX_OPS} steps: use a loop"))
                );
            }
        }
        Ok(whole)
    }

    fn step(&mut self, field: &Field<'_>) -> Result<Flow, LoadError> {
        let Value::Table(entries) = &field.node.value else {
            let text = field.text().map_err(|_| {
                field.wrong("a step is a table such as { compute = \"2us\" }, or \"work\"")
            })?;
            return self.word(field, text);
        };
        let verbs = entries.iter().filter(|e| VERBS.contains(&e.key.as_str()));
        let verbs: Vec<&str> = verbs.map(|entry| entry.key.as_str()).collect();
        match verbs.as_slice() {
            [verb] => self.verb(field, verb),
            [] => {
                let known = VERBS.into_iter().chain(WORDS);
                let given = entries.first().map_or("", |entry| entry.key.as_str());
                let hint = match nearest(given, known) {
                    Some(near) if WORDS.contains(&near) => {
                        format!("\"{near}\" has no value: write it without {{ … }}")
                    }
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("steps are {}", VERBS.join(", ")),
                };
                Err(field.wrong(format!("`{given}` is no step: {hint}")))
            }
            [first, second, ..] => Err(field.wrong(format!(
                "{first} and {second} are two steps: write {{ {first} = … }}, {{ {second} = … }}"
            ))),
        }
    }

    fn word(&mut self, field: &Field<'_>, word: &str) -> Result<Flow, LoadError> {
        match word {
            "request" => self.ops.push(Op::Request),
            "work" => self.ops.push(Op::Work),
            "yield" => {
                self.may_block(field, "yield")?;
                self.ops.push(Op::Yield);
                return Ok(Flow::TIME);
            }
            "exit" => {
                if let Some(held) = self.held.last() {
                    return Err(field.wrong(format!(
                        "the thread would end with `{0}` held: {{ unlock = \"{0}\" }} comes first",
                        held.name
                    )));
                }
                self.ops.push(Op::Exit);
                return Ok(Flow { takes_time: true, ends: true });
            }
            _ if VERBS.contains(&word) => {
                return Err(field.wrong(format!("this step needs a value: {{ {word} = … }}")));
            }
            _ => {
                let hint = match nearest(word, WORDS.into_iter().chain(VERBS)) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "steps without a value are \"request\", \"work\", \"yield\", \"exit\""
                        .to_owned(),
                };
                return Err(field.wrong(hint));
            }
        }
        Ok(Flow::INSTANT)
    }

    fn verb(&mut self, step: &Field<'_>, verb: &str) -> Result<Flow, LoadError> {
        let keys: &[&str] = match verb {
            "wait" => &["wait", "mutex"],
            "locked" => &["locked", "do"],
            "repeat" => &["repeat", "do"],
            _ => &[verb],
        };
        let table = step.table(keys)?;
        let field = table.need(verb, "…")?;
        match verb {
            "compute" | "kernel" | "unmap" | "discard" | "fault" | "protect" | "sleep" | "io" => {
                self.timed(&field, verb)
            }
            "every" => self.every(&field),
            "lock" => self.lock(&field),
            "unlock" => self.unlock(&field),
            "locked" => {
                self.lock(&field)?;
                let held = self.held.clone();
                let flow = self.steps(&table.need("do", "[ { compute = \"1us\" } ]")?)?;
                if flow.ends {
                    return Err(field.wrong("the steps under the lock never end: they must"));
                }
                self.same_locks(&field, &held, "under the lock")?;
                if let Some(lock) = self.held.pop() {
                    self.ops.push(Op::Unlock(ObjectRef {
                        first: lock.first,
                        count: lock.count,
                        pick: lock.pick,
                    }));
                }
                Ok(flow)
            }
            "wait" => {
                let mutex = table.need("mutex", "\"m\" (the one that the thread holds)")?;
                self.wait(&field, &mutex)
            }
            "forever" => self.repeat(&field, Repeat::Forever, &field),
            "repeat" => self.repeat(&field, iterations(&field)?, &table.need("do", "[ … ]")?),
            "work" => Err(field.wrong("work has no value: write \"work\"")),
            _ => self.shared(&field, verb),
        }
    }

    /// Steps that take a time.
    fn timed(&mut self, field: &Field<'_>, verb: &str) -> Result<Flow, LoadError> {
        let time = field.dist()?;
        let takes_lock = matches!(verb, "unmap" | "discard" | "fault" | "protect");
        if takes_lock || matches!(verb, "sleep" | "io") {
            self.may_block(field, verb)?;
        }
        if takes_lock && self.held.len() == MOST_HELD {
            return Err(self.too_many(field));
        }
        self.ops.push(match verb {
            "compute" => Op::Compute(time),
            "kernel" => Op::ComputeKernel(time),
            "unmap" => Op::Unmap(time),
            "discard" => Op::Discard(time),
            "fault" => Op::Fault(time),
            "protect" => Op::Protect(time),
            "sleep" => Op::Sleep(time),
            _ => Op::Io(time),
        });
        Ok(Flow {
            takes_time: units::takes_time(time) || matches!(verb, "unmap" | "discard"),
            ends: false,
        })
    }

    /// A period's step takes time even for a late thread: it skips missed periods, so the next execution waits.
    fn every(&mut self, field: &Field<'_>) -> Result<Flow, LoadError> {
        let period = field.time(Nanos(1), units::MAX_TIME)?;
        self.may_block(field, "every")?;
        self.ops.push(Op::Every(period.0));
        Ok(Flow::TIME)
    }

    fn lock(&mut self, field: &Field<'_>) -> Result<Flow, LoadError> {
        let (family, reference) = self.families.reference(field)?;
        let kernel = match family.object {
            Object::Spin { space, .. } => space == Space::Kernel,
            Object::Mutex => false,
            _ => return Err(wrong_kind(field, family, "a spin lock or mutex")),
        };
        if !kernel {
            self.may_block(field, "lock")?;
        }
        let twice = |held: &&Held| {
            held.first == family.first && may_be_same(held.pick, reference.pick, family.count)
        };
        if let Some(held) = self.held.iter().find(twice) {
            let sure =
                family.count == 1 || held.pick == reference.pick && held.pick != Pick::Random;
            return Err(field.wrong(if sure {
                format!(
                    "the thread holds it already and would wait for itself: \
                     {{ unlock = \"{}\" }} comes first",
                    family.name
                )
            } else {
                format!(
                    "a lock of `{0}` is held already and this may be the same one: take {0}[own] \
                     and {0}[next], or two numbers",
                    family.name
                )
            }));
        }
        if self.held.len() == MOST_HELD {
            return Err(self.too_many(field));
        }
        self.held.push(Held {
            name: family.name.clone(),
            first: family.first,
            count: family.count,
            pick: reference.pick,
            kernel,
        });
        self.ops.push(Op::Lock(reference));
        Ok(Flow::INSTANT)
    }

    fn unlock(&mut self, field: &Field<'_>) -> Result<Flow, LoadError> {
        let (family, reference) = self.families.bare(field)?;
        if !matches!(family.object, Object::Spin { .. } | Object::Mutex) {
            return Err(wrong_kind(field, family, "a spin lock or mutex"));
        }
        let at = self.held.iter().rposition(|held| held.first == family.first);
        let Some(at) = at else {
            return Err(field.wrong(format!(
                "the thread does not hold it here: {{ lock = \"{}\" }} comes first",
                family.name
            )));
        };
        self.held.remove(at);
        self.ops.push(Op::Unlock(reference));
        Ok(Flow::INSTANT)
    }

    fn wait(&mut self, field: &Field<'_>, mutex: &Field<'_>) -> Result<Flow, LoadError> {
        self.may_block(field, "wait")?;
        let (family, condition) = self.families.reference(field)?;
        if family.object != Object::Condition {
            return Err(wrong_kind(field, family, "a condition variable"));
        }
        let (lock, reference) = self.families.bare(mutex)?;
        if lock.object != Object::Mutex {
            return Err(wrong_kind(mutex, lock, "a mutex"));
        }
        let Some(at) = self.held.iter().rposition(|held| held.first == lock.first) else {
            return Err(mutex.wrong(format!(
                "the thread does not hold it here: {{ lock = \"{}\" }} comes first",
                lock.name
            )));
        };
        // After the wait, it is the newest lock.
        let held = self.held.remove(at);
        self.held.push(held);
        self.uses.waits.insert(family.first);
        self.ops.push(Op::Wait { condition, mutex: reference });
        Ok(Flow::TIME)
    }

    /// Steps on objects other than locks.
    fn shared(&mut self, field: &Field<'_>, verb: &str) -> Result<Flow, LoadError> {
        let (family, reference) = self.families.reference(field)?;
        let (right, fits) = match verb {
            "signal" | "broadcast" => ("a condition variable", family.object == Object::Condition),
            "barrier" => ("a barrier", matches!(family.object, Object::Barrier { .. })),
            "acquire" | "release" => {
                ("a semaphore", matches!(family.object, Object::Semaphore { .. }))
            }
            _ => ("a queue", matches!(family.object, Object::Queue { .. })),
        };
        if !fits {
            return Err(wrong_kind(field, family, right));
        }
        self.may_block(field, verb)?;
        let first = family.first;
        let (op, list, flow) = match verb {
            "signal" => (Op::Signal(reference), Some(&mut self.uses.wakes), Flow::INSTANT),
            "broadcast" => (Op::Broadcast(reference), Some(&mut self.uses.wakes), Flow::INSTANT),
            "barrier" => (Op::Barrier(reference), None, Flow::TIME),
            "acquire" => (Op::Acquire(reference), Some(&mut self.uses.acquires), Flow::TIME),
            "release" => (Op::Release(reference), Some(&mut self.uses.releases), Flow::INSTANT),
            "put" => (Op::Put(reference), Some(&mut self.uses.puts), Flow::TIME),
            _ => (Op::Get(reference), Some(&mut self.uses.gets), Flow::TIME),
        };
        if let Some(list) = list {
            list.insert(first);
        }
        self.ops.push(op);
        Ok(flow)
    }

    fn repeat(
        &mut self,
        field: &Field<'_>,
        repeat: Repeat,
        body: &Field<'_>,
    ) -> Result<Flow, LoadError> {
        if self.depth == MOST_LOOPS {
            return Err(field.wrong(format!("loops may be nested {MOST_LOOPS} deep, no deeper")));
        }
        let begin = self.ops.len();
        let depth = self.depth as u8;
        // `end` is patched after the body.
        self.ops.push(Op::Loop { repeat, end: 0, depth });
        let held = self.held.clone();
        self.depth += 1;
        let flow = self.steps(body)?;
        self.depth -= 1;
        if !flow.ends {
            self.same_locks(field, &held, "in the loop")?;
        }
        if repeat == Repeat::Forever && !flow.takes_time {
            return Err(field.wrong(
                "a loop without end in which no time passes would stop the clock: add a step that \
                 takes time, such as { compute = \"1us\" }",
            ));
        }
        self.ops.push(Op::Again { begin: begin as u32 });
        let end = self.ops.len() as u32;
        self.ops[begin] = Op::Loop { repeat, end, depth };
        // With few shared iterations, some threads have none.
        let always = !matches!(repeat, Repeat::Shared(_));
        Ok(Flow {
            takes_time: flow.takes_time && always,
            ends: flow.ends && always || repeat == Repeat::Forever,
        })
    }

    /// Checks that the body of a loop or lock leaves the held locks unchanged.
    fn same_locks(&self, field: &Field<'_>, before: &[Held], body: &str) -> Result<(), LoadError> {
        let missing = |of: &[Held], from: &[Held]| -> Option<String> {
            let has = |held: &Held| from.contains(held);
            of.iter().find(|held| !has(held)).map(|held| held.name.clone())
        };
        if let Some(name) = missing(&self.held, before) {
            return Err(field.wrong(format!(
                "`{name}` is locked {body} and still held at its end: add {{ unlock = \"{name}\" }}"
            )));
        }
        if let Some(name) = missing(before, &self.held) {
            return Err(field.wrong(format!(
                "`{name}` is unlocked {body}, but locked outside it: unlock it there too"
            )));
        }
        Ok(())
    }

    /// Checks that no kernel spin lock is held at a step that may sleep or leave the CPU.
    fn may_block(&self, field: &Field<'_>, verb: &str) -> Result<(), LoadError> {
        match self.held.iter().find(|held| held.kernel) {
            None => Ok(()),
            Some(held) => Err(field.wrong(format!(
                "`{0}` is a spin lock of the kernel, and no thread may {verb} while it holds one: \
                 {{ unlock = \"{0}\" }} comes first, or give it space = \"user\"",
                held.name
            ))),
        }
    }

    fn too_many(&self, field: &Field<'_>) -> LoadError {
        let names: Vec<&str> = self.held.iter().map(|held| held.name.as_str()).collect();
        field.wrong(format!(
            "a thread holds at most {MOST_HELD} locks, here it has {} already",
            names.join(", ")
        ))
    }
}

/// Reads the iterations of a loop: `3`, or `"3 / threads"`.
fn iterations(field: &Field<'_>) -> Result<Repeat, LoadError> {
    let Value::Text(text) = &field.node.value else {
        return Ok(Repeat::Times(field.small(1, MAX_ITERATIONS)?));
    };
    let shared = text.split_once('/').and_then(|(iterations, by)| {
        let iterations = iterations.trim().parse().ok()?;
        (by.trim() == "threads" && (1..=MAX_ITERATIONS).contains(&iterations)).then_some(iterations)
    });
    shared.map(Repeat::Shared).ok_or_else(|| {
        field.wrong(format!(
            "a number of iterations such as 16, or \"16 / threads\" if the threads of the role \
             share them; 1 … {MAX_ITERATIONS}"
        ))
    })
}

/// Whether two picks of a family may select the same member.
fn may_be_same(one: Pick, other: Pick, count: u32) -> bool {
    match (one, other) {
        (Pick::Fixed(one), Pick::Fixed(other)) => one == other,
        (Pick::Own, Pick::Next) | (Pick::Next, Pick::Own) => count == 1,
        _ => true,
    }
}

fn wrong_kind(field: &Field<'_>, family: &Family, right: &str) -> LoadError {
    field.wrong(format!("`{}` is {}, {right} is needed", family.name, family.kind()))
}
