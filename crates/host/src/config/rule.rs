//! Rules with weights and policies for single VMs.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tandem_linux::settings::SettingsError;
use tandem_model::PolicySet;
use tandem_policy::host::registry;

use crate::discovery::Vm;
use crate::glob;
use crate::glob::name_matches;
use crate::origin::Origin;

/// Weight and policies of matching VMs. For each setting, the first matching rule that has it applies.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VmRule {
    /// VM name, as a glob. Alone, it matches only VMs of root and in `/machine.slice` (`crate::origin`).
    pub name: Option<String>,
    /// VM by process id.
    pub pid: Option<u32>,
    /// VMs whose vCPU threads are in these cgroups or below, as a glob.
    pub cgroup: Option<String>,
    /// VMs whose process is this user's.
    pub uid: Option<u32>,
    /// The weight w_i relative to the kernel's default (1024 on v1, 100 on v2), 0.01 … 100.
    pub weight: Option<f64>,
    /// Whether the weight (of this rule, another one, or the VM's own cgroup) is that of each vCPU, not that of the VM.
    pub weight_per_vcpu: Option<bool>,
    /// The policies that may act on the VM; an empty list only measures it.
    #[serde(serialize_with = "some_names")]
    pub policies: Option<PolicySet>,
}

pub(super) fn no_process(key: &str) -> SettingsError {
    SettingsError::value(key, 0, "a process id, 1 or more")
}

fn names<S: Serializer>(policies: PolicySet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(registry::entries(policies).map(|(_, policy)| policy.name))
}

fn some_names<S: Serializer>(
    policies: &Option<PolicySet>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match policies {
        Some(policies) => names(*policies, serializer),
        None => serializer.serialize_none(),
    }
}

impl VmRule {
    /// Checks every value; errors call the rule `key`.
    pub fn check(&self, key: &str) -> Result<(), SettingsError> {
        let weight = self.weight.unwrap_or(1.0);
        if !(0.01..=100.0).contains(&weight) {
            return Err(SettingsError::value(
                &format!("{key}.weight"),
                weight,
                "0.01 … 100, where 1 is the kernel's default weight",
            ));
        }
        if self.weight_per_vcpu == Some(true) && self.policies == Some(PolicySet::NONE) {
            return Err(SettingsError::value(
                &format!("{key}.weight_per_vcpu"),
                true,
                "nothing where policies = []: a VM that is left as it is has no weight of ours; leave one of them out",
            ));
        }
        let glob =
            |field: &str, glob: &Option<String>, compile: fn(&str) -> Result<_, String>| match glob
            {
                Some(glob) => match compile(glob) {
                    Ok(_) => Ok(()),
                    Err(expected) => {
                        Err(SettingsError::value(&format!("{key}.{field}"), glob, expected))
                    }
                },
                None => Ok(()),
            };
        if self.pid == Some(0) {
            return Err(no_process(&format!("{key}.pid")));
        }
        glob("name", &self.name, glob::for_names)?;
        glob("cgroup", &self.cgroup, glob::for_cgroups)?;
        match (&self.name, self.pid) {
            (None, None) if self.cgroup.is_none() && self.uid.is_none() => {
                Err(SettingsError::value(
                    key,
                    "for no VM",
                    "say whose it is: name = \"…\", cgroup = \"/…\", uid = … or pid = …",
                ))
            }
            (Some(name), Some(pid)) => Err(SettingsError::value(
                key,
                format!("name {name} and pid {pid}"),
                "give either name or pid, not both",
            )),
            _ => Ok(()),
        }
    }

    /// Parses the VMs of a rule from an option: `4711`, `/machine.slice/*`, `uid:1000`, or a name.
    /// The rule has no weight or policies yet; the error names the valid form.
    pub fn whose(text: &str) -> Result<VmRule, String> {
        let mut rule = VmRule::default();
        if let Ok(pid) = text.parse() {
            rule.pid = Some(pid);
        } else if let Some(uid) = text.strip_prefix("uid:") {
            let uid = uid.parse().map_err(|_| {
                format!("'{text}' is no user: give a user's number, such as uid:1000")
            })?;
            rule.uid = Some(uid);
        } else if let Some(path) = text.strip_prefix("cgroup:") {
            return Err(format!(
                "'{text}' is no cgroup: give its path from the top alone, such as /{}",
                path.trim_start_matches('/')
            ));
        } else if text.starts_with('/') {
            rule.cgroup = Some(text.to_owned());
        } else {
            rule.name = Some(text.to_owned());
        }
        Ok(rule)
    }

    /// Whether the rule applies to this VM; `origin` is called only if the rule needs it.
    pub(crate) fn is_for<'a>(&self, vm: &Vm, origin: impl FnOnce() -> &'a Origin) -> bool {
        let is_it = self.pid.is_none_or(|pid| pid == vm.process.pid.0)
            && self.name.as_ref().is_none_or(|name| name_matches(name, &vm.name));
        if !is_it || (self.name.is_none() && self.cgroup.is_none() && self.uid.is_none()) {
            return is_it;
        }
        let origin = origin();
        let is_named_alone = self.name.is_some() && self.cgroup.is_none() && self.uid.is_none();
        let is_there = |glob: &String| match (glob::for_cgroups(glob), &origin.cgroup) {
            (Ok(glob), Some(cgroup)) => glob::is_within(&[glob], cgroup),
            _ => false,
        };
        (!is_named_alone || origin.is_operators)
            && self.uid.is_none_or(|uid| origin.user == Some(uid))
            && self.cgroup.as_ref().is_none_or(is_there)
    }
}

/// A rule as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: Option<String>,
    pid: Option<u32>,
    cgroup: Option<String>,
    uid: Option<u32>,
    weight: Option<f64>,
    weight_per_vcpu: Option<bool>,
    policies: Option<Policies>,
}

impl<'de> Deserialize<'de> for VmRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VmRule, D::Error> {
        let rule = WrittenRule::deserialize(deserializer)?;
        if rule.weight.is_none() && rule.weight_per_vcpu.is_none() && rule.policies.is_none() {
            return Err(D::Error::custom(
                "a rule needs weight = 2.0, weight_per_vcpu = true, policies = [\"fair\"], or several of them",
            ));
        }
        Ok(VmRule {
            name: rule.name,
            pid: rule.pid,
            cgroup: rule.cgroup,
            uid: rule.uid,
            weight: rule.weight,
            weight_per_vcpu: rule.weight_per_vcpu,
            policies: rule.policies.map(|policies| policies.0),
        })
    }
}

/// A list of policies by their names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policies(pub PolicySet);

impl Serialize for Policies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        names(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Policies, D::Error> {
        let names: Vec<String> = Vec::deserialize(deserializer)?;
        if names.iter().any(|name| name == "none") {
            return Err(D::Error::custom(
                "\"none\" is no policy: write policies = [] where none is to act",
            ));
        }
        let set = registry::set(names.iter().map(String::as_str));
        set.map(Policies).map_err(D::Error::custom)
    }
}
