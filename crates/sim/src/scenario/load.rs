//! From TOML to a [`Scenario`].
//!
//! A [`Source`] is a scenario's text with the values replaced on the command line.
//! It is parsed once and can be turned into many scenarios with different replacements.
//!
//! A VM refers to its workload in one of three ways:
//! - a `[[workload]]` of the scenario, by name;
//! - a file, by its path from the scenario's folder (`workload = "mine/queue.toml"`);
//! - a file, by name: NAME means `workloads/NAME.toml` in the scenario's folder or the nearest folder above.
//!
//! Workload files are inlined into the scenario, so that `--set workload.NAME.…` applies to them.
//!
//! Every key with unit, range and default: `docs/reference/scenarios.md`.

use std::io::Read;
use std::path::{Path, PathBuf};

use tandem_model::Nanos;
use tandem_model::suggestion::nearest;

use super::{Scenario, host, machine, policies, vm};
use crate::document::place::MAX_BYTES;
pub use crate::document::place::{LoadError, Place};
use crate::document::read::{Field, Table};
pub use crate::document::set::Setting;
use crate::document::tree::{Entry, Node, Value};
use crate::document::units;
pub use crate::document::units::time;
use crate::workload::{Workload, library, parse};

pub(super) const KEYS: [&str; 10] = [
    "name", "about", "seed", "duration", "warmup", "machine", "host", "policies", "workload", "vm",
];

/// A scenario's text and its replacements.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file; `None` if it does not come from a file.
    path: Option<PathBuf>,
    /// Name of a scenario without a `name`.
    name: String,
    root: Node,
    settings: Vec<Setting>,
}

/// Reads a scenario from a file.
pub fn read(path: &Path) -> Result<Scenario, LoadError> {
    Source::read(path)?.scenario()
}

/// Reads a scenario from a text; errors show `name` as its file.
pub fn from_text(name: &str, text: &str) -> Result<Scenario, LoadError> {
    Source::from_text(name, text)?.scenario()
}

impl Source {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Source, LoadError> {
        let text = text_of(path)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Source {
            path: Some(path.to_owned()),
            name: stem.into_owned(),
            root: Node::parse(&path.to_string_lossy(), &text)?,
            settings: Vec::new(),
        })
    }

    /// Parses a text; errors show `name` as its file.
    pub fn from_text(name: &str, text: &str) -> Result<Source, LoadError> {
        Ok(Source {
            path: None,
            name: name.trim_end_matches(".toml").to_owned(),
            root: Node::parse(name, text)?,
            settings: Vec::new(),
        })
    }

    /// Replaces a value; see [`Setting`]. Later settings override earlier ones.
    pub fn set(&mut self, setting: Setting) {
        self.settings.push(setting);
    }

    /// Builds the scenario.
    pub fn scenario(&self) -> Result<Scenario, LoadError> {
        let mut root = self.root.clone();
        policies::spell_out(&mut root);
        let within = |setting: &&Setting| setting.key.starts_with("workload.");
        for setting in self.settings.iter().filter(|setting| !within(setting)) {
            setting.apply(&mut root)?;
        }
        let references = self.take_in(&mut root)?;
        for setting in self.settings.iter().filter(within) {
            setting.apply(&mut root)?;
        }
        self.settings_of(&root, &references)
    }

    fn settings_of(
        &self,
        root: &Node,
        references: &[(String, usize)],
    ) -> Result<Scenario, LoadError> {
        let document = Table::document(root, &KEYS)?;
        let name = document.or("name", self.name.clone(), Field::name)?;
        let duration = document.need("duration", "\"1s\"")?.time(Nanos(1_000), units::MAX_TIME)?;
        let warmup = document.or("warmup", Nanos::ZERO, |field| {
            let warmup = field.time(Nanos::ZERO, units::MAX_TIME)?;
            if warmup < duration {
                Ok(warmup)
            } else {
                Err(field.wrong(format!(
                    "it must be over before the simulation is, after {}",
                    duration.in_whole_units()
                )))
            }
        })?;
        let machine = machine::read(&document)?;
        let host = host::read(&document, &machine)?;
        let policies = policies::read(&document, &host.scheduler)?;
        let workloads = workloads(&document)?;
        let context = vm::VmContext {
            machine: &machine,
            host: &host,
            duration,
            workload: &|field| {
                let reference = field.text()?;
                let found = references.iter().find(|(name, _)| name == reference);
                let workload = found.and_then(|&(_, at)| workloads.get(at)).cloned();
                workload.ok_or_else(|| field.wrong("no workload is called so"))
            },
        };
        let vms = vm::read(&document, &context)?;
        Ok(Scenario {
            name,
            about: document.or("about", String::new(), |field| {
                field.text().map(|text| text.trim().to_owned())
            })?,
            seed: document.or("seed", 1, |field| field.integer(0, i64::MAX as u64))?,
            duration,
            warmup,
            machine,
            host,
            policies,
            vms,
        })
    }

    /// Adds the referenced workload files to the list of workloads; returns each reference with its position in the list.
    fn take_in(&self, root: &mut Node) -> Result<Vec<(String, usize)>, LoadError> {
        let inline = root.get("workload").map_or(&[][..], Node::elements);
        let name = |node: &Node| node.get("name").and_then(Node::as_text).map(str::to_owned);
        let mut references: Vec<(String, usize)> =
            inline.iter().enumerate().filter_map(|(at, node)| Some((name(node)?, at))).collect();
        let mut files: Vec<Node> = Vec::new();
        for vm in root.get("vm").map_or(&[][..], Node::elements) {
            let Some(node) = vm.get("workload") else {
                continue;
            };
            let Some(reference) = node.as_text() else {
                continue;
            };
            if references.iter().any(|(name, _)| name == reference) {
                continue;
            }
            references.push((reference.to_owned(), inline.len() + files.len()));
            files.push(self.workload_file(node, reference, &references)?);
        }
        if files.is_empty() {
            return Ok(references);
        }
        let Value::Table(entries) = &mut root.value else {
            return Ok(references);
        };
        match entries.iter_mut().find(|entry| entry.key == "workload") {
            Some(entry) => {
                if let Value::List(list) = &mut entry.node.value {
                    list.append(&mut files);
                }
            }
            None => entries.push(Entry {
                key: "workload".to_owned(),
                place: root.place.clone(),
                node: Node { place: root.place.clone(), value: Value::List(files) },
            }),
        }
        Ok(references)
    }

    fn workload_file(
        &self,
        node: &Node,
        reference: &str,
        known: &[(String, usize)],
    ) -> Result<Node, LoadError> {
        let looked = self.candidates(reference);
        let Some(path) = looked.iter().find(|path| path.is_file()) else {
            if let Some(text) = library::text(reference) {
                let name = format!("{reference}.toml");
                let mut file = Node::parse(&format!("built-in workloads/{name}"), text)?;
                file.name_by(Path::new(&name));
                return Ok(file);
            }
            let names = known.iter().map(|(name, _)| name.as_str());
            let near = nearest(reference, names.filter(|&name| name != reference));
            let hint = match near.or_else(|| nearest(reference, library::names())) {
                Some(name) => format!("did you mean \"{name}\"?"),
                None => {
                    let places: Vec<String> =
                        looked.iter().take(3).map(|p| p.display().to_string()).collect();
                    if places.is_empty() {
                        "add a [[workload]] with that name".to_owned()
                    } else {
                        format!(
                            "there is neither a [[workload]] with that name nor a file {}",
                            places.join(" or ")
                        )
                    }
                }
            };
            let message = format!("workload = \"{reference}\" is not there: {hint}");
            return Err(LoadError::at(&node.place, message));
        };
        let text = text_of(path)?;
        let mut file = Node::parse(&path.to_string_lossy(), &text)?;
        file.name_by(path);
        Ok(file)
    }

    /// Candidate files of a reference, in order.
    fn candidates(&self, reference: &str) -> Vec<PathBuf> {
        let folder = match &self.path {
            Some(path) => path.parent().map_or_else(PathBuf::new, Path::to_owned),
            None => return Vec::new(),
        };
        if reference.ends_with(".toml") {
            return vec![folder.join(reference)];
        }
        if reference.contains(['/', '\\']) || reference.is_empty() {
            return Vec::new();
        }
        let file = format!("{reference}.toml");
        // An empty folder is the current one, but "" is not a valid path.
        let above = std::path::absolute(folder.join(".")).unwrap_or_else(|_| folder.clone());
        let above = above.ancestors().skip(1).map(Path::to_owned);
        std::iter::once(folder)
            .chain(above)
            .map(|folder| folder.join("workloads").join(&file))
            .collect()
    }
}

fn workloads(document: &Table<'_>) -> Result<Vec<Workload>, LoadError> {
    let Some(list) = document.get("workload") else {
        return Ok(Vec::new());
    };
    let mut workloads: Vec<Workload> = Vec::new();
    let mut objects = 0;
    for field in list.list()? {
        let workload = parse::workload(&field)?;
        objects += workload.objects.len();
        if objects > parse::objects::MAX_OBJECTS {
            return Err(field.wrong(format!(
                "with this one the workloads have {objects} objects: at most {}",
                parse::objects::MAX_OBJECTS
            )));
        }
        if workloads.iter().any(|other| other.name == workload.name) {
            return Err(field.wrong(format!(
                "another workload is called `{}` too: names must differ",
                workload.name
            )));
        }
        workloads.push(workload);
    }
    Ok(workloads)
}

fn text_of(path: &Path) -> Result<String, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    // Device files may be endless.
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 <= MAX_BYTES {
        Ok(text)
    } else {
        Err(LoadError::TooLong { path: path.to_owned() })
    }
}
