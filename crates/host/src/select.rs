//! The VMs that the operator selects. The daemon changes no other VM.
//!
//! A VM is selected if any pattern matches it ([`VmPattern`]) and no exclusion does. Names and cgroups are globs as in a shell
//! (`*`, `?`, `[…]`); in a cgroup's path `*` stays within one level and `**` does not. A cgroup selects everything below it
//! too, so a selected VM remains selected after the daemon moved its threads into a group of its own.

mod pattern;

use globset::GlobMatcher;

use crate::config::{ConfigError, Select};
use crate::discovery::Vm;
use crate::glob;
pub use crate::glob::name_matches;
use tandem_linux::cgroup::CpuController;
use tandem_linux::procfs::{ProcFs, user_of};
use tandem_linux::settings::SettingsError;
use tandem_linux::thread::Pid;

pub use pattern::VmPattern;

/// A pattern or selection without a match.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingMatched(pub String);

/// An invalid argument, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongArgument(pub String);

/// Compiled patterns.
#[derive(Clone, Debug, Default)]
struct Patterns {
    pids: Vec<Pid>,
    names: Vec<GlobMatcher>,
    cgroups: Vec<GlobMatcher>,
    users: Vec<u32>,
}

impl Patterns {
    /// Adds a pattern; the error states the valid form.
    fn add(&mut self, pattern: &VmPattern) -> Result<(), String> {
        match pattern {
            VmPattern::Name(glob) => self.names.push(glob::for_names(glob)?),
            VmPattern::Process(pid) => self.pids.push(Pid(*pid)),
            VmPattern::Cgroup(glob) => self.cgroups.push(glob::for_cgroups(glob)?),
            VmPattern::User(user) => self.users.push(*user),
        }
        Ok(())
    }

    fn matches(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        self.names.iter().any(|glob| glob.is_match(&vm.name))
            || self.matches_except_by_name(vm, controller)
    }

    /// Whether a pattern other than the name matches. An unreadable cgroup or user does not match.
    fn matches_except_by_name(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        let first = || vm.vcpus.first().map_or(&vm.process, |vcpu| &vcpu.thread);
        let place = || controller.cgroup_of(first());
        let user = || user_of(&ProcFs::host().process(vm.process.pid));
        self.pids.contains(&vm.process.pid)
            || (!self.cgroups.is_empty()
                && place().is_ok_and(|cgroup| glob::is_within(&self.cgroups, &cgroup)))
            || (!self.users.is_empty() && user().is_some_and(|user| self.users.contains(&user)))
    }
}

/// The compiled selection.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    all: bool,
    wanted: Patterns,
    excluded: Patterns,
}

impl Selector {
    /// Every VM.
    pub fn all() -> Selector {
        Selector { all: true, ..Selector::default() }
    }

    /// Returns the selector of these VMs, or of every VM if there is no pattern.
    pub fn of(patterns: &[VmPattern]) -> Result<Selector, ConfigError> {
        Selector::from_config(&Select::of(patterns))
    }

    /// Compiles the globs of a `[host.select]` section.
    pub fn from_config(select: &Select) -> Result<Selector, ConfigError> {
        let globs = |key: &str, texts: &[String], compile: fn(&str) -> Result<_, String>| {
            let compiled = texts.iter().map(|text| {
                compile(text).map_err(|expected| {
                    SettingsError::value(&format!("select.{key}"), text, expected)
                })
            });
            compiled.collect::<Result<Vec<_>, _>>()
        };
        let mut excluded = Patterns::default();
        for text in &select.exclude {
            let added = text.parse().and_then(|pattern| excluded.add(&pattern));
            added.map_err(|expected| SettingsError::value("select.exclude", text, expected))?;
        }
        Ok(Selector {
            all: select.all,
            wanted: Patterns {
                pids: select.pids.iter().copied().map(Pid).collect(),
                names: globs("names", &select.names, glob::for_names)?,
                cgroups: globs("cgroups", &select.cgroups, glob::for_cgroups)?,
                users: select.uids.clone(),
            },
            excluded,
        })
    }

    /// Whether the VM is selected. Exclusions come first.
    pub fn matches(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        !self.excluded.matches(vm, controller) && (self.all || self.wanted.matches(vm, controller))
    }

    /// Whether the name alone selects the VM. Tenants choose names, so the daemon does not trust those of their VMs.
    pub fn matches_by_name_alone(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        self.wanted.names.iter().any(|glob| glob.is_match(&vm.name))
            && !self.all
            && !self.wanted.matches_except_by_name(vm, controller)
            && !self.excluded.matches(vm, controller)
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::cgroup::CgroupPath;

    use super::*;
    use crate::fixtures;
    use crate::fixtures::tree::Tree;

    fn selector(select: Select) -> Selector {
        Selector::from_config(&select).unwrap()
    }

    /// A VM with this process number.
    fn vm(pid: u32, name: &str) -> Vm {
        let mut vm = fixtures::vm(1, name, 0);
        vm.process.pid = Pid(pid);
        vm
    }

    fn is_selected(selector: &Selector, vm: &Vm) -> bool {
        selector.matches(vm, &Tree::default())
    }

    #[test]
    fn pids_and_name_globs_select() {
        let by_pid = selector(Select { pids: vec![7], ..Select::default() });
        assert!(is_selected(&by_pid, &vm(7, "web")));
        assert!(!is_selected(&by_pid, &vm(8, "web")));
        let by_name =
            selector(Select { names: vec!["db-*".into(), "web?".into()], ..Select::default() });
        for (name, wanted) in [("db-1", true), ("db/1", false), ("web1", true), ("web", false)] {
            assert_eq!(is_selected(&by_name, &vm(1, name)), wanted, "{name}");
        }
        assert!(is_selected(&Selector::all(), &vm(1, "any")));
        assert!(is_selected(&Selector::of(&[]).unwrap(), &vm(1, "any")));
        assert!(!is_selected(&Selector::default(), &vm(1, "any")));
    }

    #[test]
    fn the_user_of_the_process_selects() {
        let me = rustix::process::getuid().as_raw();
        let own = vm(std::process::id(), "web");
        let by_user = |user| Selector::of(&[VmPattern::User(user)]).unwrap();
        assert!(is_selected(&by_user(me), &own));
        assert!(!is_selected(&by_user(me + 1), &own));
        assert!(!by_user(me).matches_by_name_alone(&own, &Tree::default()));
    }

    #[test]
    fn exclusions_come_first() {
        let of = |exclude: &[&str]| {
            let exclude = exclude.iter().map(|text| (*text).to_owned()).collect();
            selector(Select { all: true, exclude, ..Select::default() })
        };
        let excluded = of(&["router-*", "7"]);
        assert!(!is_selected(&excluded, &vm(1, "router-1")));
        assert!(!is_selected(&excluded, &vm(7, "web")));
        assert!(is_selected(&excluded, &vm(8, "web")));
        let named = Select {
            names: vec!["*".to_owned()],
            exclude: vec!["db".to_owned()],
            ..Select::default()
        };
        let named = selector(named);
        let by_name = |name| named.matches_by_name_alone(&vm(1, name), &Tree::default());
        assert!(by_name("web") && !by_name("db"));
    }

    #[test]
    fn cgroup_selects_its_descendants() {
        let compiled = |globs: &[&str]| {
            let cgroups = globs.iter().map(|glob| (*glob).to_owned()).collect();
            selector(Select { cgroups, ..Select::default() }).wanted.cgroups
        };
        let by_cgroup = compiled(&["/machine.slice", "/vms/*/gold/"]);
        for (path, wanted) in [
            ("/machine.slice", true),
            ("/machine.slice/a.scope/vcpu0", true),
            ("/machine.slice2", false),
            ("/vms/x/gold", true),
            ("/vms/x/gold/vm1", true),
            ("/vms/x/y/gold", false),
            ("/", false),
        ] {
            let path = CgroupPath(path.to_owned());
            assert_eq!(glob::is_within(&by_cgroup, &path), wanted, "{path}");
        }
        assert!(glob::is_within(&compiled(&["/"]), &CgroupPath("/any/where".into())));
    }

    #[test]
    fn invalid_globs_are_refused_with_their_key() {
        let error = |select: Select| Selector::from_config(&select).unwrap_err().to_string();
        let names = error(Select { names: vec!["web[".into()], ..Select::default() });
        assert!(names.contains("select.names") && names.contains("web["), "{names}");
        let cgroups = error(Select { cgroups: vec!["machine.slice".into()], ..Select::default() });
        assert!(cgroups.contains("begins with '/'"), "{cgroups}");
        let exclude = error(Select { exclude: vec!["uid:me".into()], ..Select::default() });
        assert!(exclude.contains("select.exclude") && exclude.contains("uid:1000"), "{exclude}");
    }
}
