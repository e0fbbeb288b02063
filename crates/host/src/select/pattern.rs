//! A VM as an operator names it: one form for every command, for `--exclude` and for the settings file.
//!
//! `db-*` is a name or a glob of names, `4711` a process, `/machine.slice/*` a cgroup or a glob of cgroups with everything below,
//! `uid:1000` the VMs of a user.

use std::fmt;
use std::str::FromStr;

use tandem_model::length::not_possible;

use crate::config::VmRule;
use crate::glob;

/// The valid forms, for errors.
const FORMS: &str = "a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000)";

/// A VM, or several VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmPattern {
    /// VMs with a name that matches this glob.
    Name(String),
    /// The VM of this process.
    Process(u32),
    /// VMs whose vCPU threads are in a cgroup that matches this glob, or below one.
    Cgroup(String),
    /// VMs whose process is this user's.
    User(u32),
}

impl FromStr for VmPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<VmPattern, String> {
        let wrong = |expected| not_possible(format!("'{text}'"), expected);
        if text.is_empty() {
            return Err(wrong(FORMS.to_owned()));
        }
        let rule = VmRule::whose(text)?;
        match rule {
            VmRule { pid: Some(0), .. } => Err(wrong("a process id is 1 or more".to_owned())),
            VmRule { pid: Some(pid), .. } => Ok(VmPattern::Process(pid)),
            VmRule { uid: Some(uid), .. } => Ok(VmPattern::User(uid)),
            VmRule { cgroup: Some(cgroup), .. } => {
                glob::for_cgroups(&cgroup).map_err(wrong)?;
                Ok(VmPattern::Cgroup(cgroup))
            }
            _ => {
                glob::for_names(text).map_err(wrong)?;
                Ok(VmPattern::Name(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for VmPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VmPattern::Name(text) | VmPattern::Cgroup(text) => f.write_str(text),
            VmPattern::Process(pid) => write!(f, "{pid}"),
            VmPattern::User(uid) => write!(f, "uid:{uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_parsed_and_printed_as_typed() {
        for (text, pattern) in [
            ("db-*", VmPattern::Name("db-*".to_owned())),
            ("4711", VmPattern::Process(4711)),
            ("/machine.slice/*", VmPattern::Cgroup("/machine.slice/*".to_owned())),
            ("uid:1000", VmPattern::User(1000)),
        ] {
            assert_eq!(text.parse(), Ok(pattern.clone()));
            assert_eq!(pattern.to_string(), text);
        }
    }

    #[test]
    fn invalid_forms_are_refused_with_a_valid_one() {
        let error = |text: &str| text.parse::<VmPattern>().unwrap_err();
        assert!(error("").contains("uid:1000"));
        assert!(error("0").contains("1 or more"));
        assert!(error("uid:me").contains("such as uid:1000"));
        assert!(error("db[").contains("a glob such as web-*"));
        assert!(error("/../x").contains("without"));
        assert!(error("cgroup:/vms").contains("such as /vms"));
    }
}
