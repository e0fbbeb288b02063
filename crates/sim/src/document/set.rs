//! Replacing single values of a scenario: `--set vm.0.vcpus=8`, `--set host.scheduler=cfs`.
//!
//! A key is a path from the root.
//! It selects an element of a list by number or by `name`, and all elements by `*`.
//! Missing tables on the path are created.
//! The key itself is checked when the settings are read, as if it were in the file.

use super::place::{LoadError, Place};
use super::tree::{Entry, Node, Value};

/// Maximum number of parts of a key, as deep as TOML may nest.
const MAX_PARTS: usize = 80;

/// Replacement of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key, from the root.
    pub key: String,
    /// The value, as TOML or as a bare string.
    pub value: String,
    /// The option that set it, for messages.
    pub option: &'static str,
}

impl Setting {
    /// A setting by `--set`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Setting {
        Setting { key: key.into(), value: value.into(), option: "--set" }
    }

    /// Reads `KEY=VALUE`.
    pub fn parse(text: &str) -> Result<Setting, LoadError> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Setting::new(key.trim(), value.trim()))
            }
            _ => Err(LoadError::Malformed(text.to_owned())),
        }
    }

    /// Its location.
    fn place(&self) -> Place {
        Place::Given {
            option: self.option,
            key: self.key.as_str().into(),
            value: self.value.as_str().into(),
        }
    }

    /// Replaces the value in a document.
    pub fn apply(&self, root: &mut Node) -> Result<(), LoadError> {
        let steps: Vec<&str> = self.key.split('.').map(str::trim).collect();
        if steps.len() > MAX_PARTS {
            let message =
                format!("a key has at most {MAX_PARTS} parts, this one has {}", steps.len());
            return Err(LoadError::at(&self.place(), message));
        }
        let value = Node::given(self.place(), &self.value);
        self.put(root, &steps, "", &value)
    }

    fn put(
        &self,
        node: &mut Node,
        steps: &[&str],
        path: &str,
        value: &Node,
    ) -> Result<(), LoadError> {
        let place = self.place();
        let Some((&step, rest)) = steps.split_first() else {
            *node = value.clone();
            return Ok(());
        };
        let here = match path {
            "" => step.to_owned(),
            path => format!("{path}.{step}"),
        };
        match &mut node.value {
            Value::Table(entries) => {
                let at = match entries.iter().position(|entry| entry.key == step) {
                    Some(at) => at,
                    None => {
                        entries.push(Entry {
                            key: step.to_owned(),
                            place: place.clone(),
                            node: Node::empty(place),
                        });
                        entries.len() - 1
                    }
                };
                self.put(&mut entries[at].node, rest, &here, value)
            }
            Value::List(list) => {
                for at in chosen(list, step).ok_or_else(|| {
                    let message = format!("{path} has no element `{step}`: {}", elements(list));
                    LoadError::at(&place, message)
                })? {
                    self.put(&mut list[at], rest, &here, value)?;
                }
                Ok(())
            }
            _ => {
                let message = format!(
                    "{path} is {} at {}, it has no `{step}`: set {path} itself",
                    node.kind(),
                    node.place
                );
                Err(LoadError::at(&place, message))
            }
        }
    }
}

/// The elements that a step selects.
fn chosen(list: &[Node], step: &str) -> Option<Vec<usize>> {
    if step == "*" {
        return Some((0..list.len()).collect());
    }
    if let Ok(at) = step.parse::<usize>() {
        return (at < list.len()).then(|| vec![at]);
    }
    let named = list.iter().position(|node| name(node) == Some(step));
    named.map(|at| vec![at])
}

fn name(node: &Node) -> Option<&str> {
    node.get("name").and_then(Node::as_text)
}

/// The valid selectors of a list, for messages.
fn elements(list: &[Node]) -> String {
    let names: Vec<&str> = list.iter().filter_map(name).collect();
    let names = match names.as_slice() {
        [] => String::new(),
        names => format!(", {}", names.join(", ")),
    };
    match list.len() {
        0 => "it is empty".to_owned(),
        1 => format!("it has 0{names}, or * for all"),
        count => format!("it has 0 … {}{names}, or * for all", count - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Node {
        let text =
            "[host]\ntick = \"4ms\"\n[[vm]]\nname = \"a\"\nvcpus = 1\n[[vm]]\nname = \"b\"\n";
        Node::parse("x.toml", text).unwrap()
    }

    fn set(text: &str) -> Result<Node, String> {
        let mut node = document();
        let setting = Setting::parse(text).map_err(|error| error.to_string())?;
        setting.apply(&mut node).map_err(|error| error.to_string())?;
        Ok(node)
    }

    #[test]
    fn keys_select_by_number_name_and_star() {
        let vcpus = |node: &Node, vm: usize| {
            let node = node.get("vm").unwrap().elements()[vm].get("vcpus")?;
            Some(node.shown())
        };
        assert_eq!(vcpus(&set("vm.1.vcpus=8").unwrap(), 1), Some("8".into()));
        assert_eq!(vcpus(&set("vm.b.vcpus=8").unwrap(), 1), Some("8".into()));
        assert_eq!(vcpus(&set("vm.b.vcpus=8").unwrap(), 0), Some("1".into()));
        let all = set("vm.*.vcpus = 8").unwrap();
        assert_eq!((vcpus(&all, 0), vcpus(&all, 1)), (Some("8".into()), Some("8".into())));
        let node = set("machine.costs.vm_exit=900").unwrap();
        let costs = node.get("machine").unwrap().get("costs").unwrap();
        assert_eq!(costs.get("vm_exit").unwrap().shown(), "900");
        assert_eq!(
            costs.get("vm_exit").unwrap().place.to_string(),
            "--set machine.costs.vm_exit=900"
        );
    }

    #[test]
    fn unknown_keys_list_valid_ones() {
        assert!(set("vm.2.vcpus=1").unwrap_err().contains("0 … 1, a, b, or *"));
        assert!(set("vm.c.vcpus=1").unwrap_err().contains("no element `c`"));
        assert!(set("host.tick.x=1").unwrap_err().contains("x.toml:2"));
        assert!(set("host").unwrap_err().contains("KEY=VALUE"));
        assert!(set("=1").unwrap_err().contains("KEY=VALUE"));
    }
}
