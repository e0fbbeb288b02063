//! Which VMs the operator wants touched. Nothing else ever is.
//!
//! A VM is selected if any rule says so: by process id, by name, or by the cgroup that its vCPU
//! threads are in. Names and cgroups are globs as in a shell (`*`, `?`, `[…]`); in a cgroup's path
//! `*` stays within one level and `**` does not. A cgroup selects what is below it too, so a VM that
//! was selected stays so after its threads were moved into a group of Tandem's.

use globset::GlobMatcher;

use crate::config::ConfigError;
use crate::config::Select;
use crate::discovery::Vm;
use crate::glob;
pub use crate::glob::name_matches;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::settings::SettingsError;
use tandem_linux::thread::Pid;

/// What was asked for matches nothing, such as a selection of VMs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingMatched(pub String);

/// An argument that cannot be, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongArgument(pub String);

/// The compiled selection.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    all: bool,
    pids: Vec<Pid>,
    names: Vec<GlobMatcher>,
    cgroups: Vec<GlobMatcher>,
}

impl Selector {
    /// Every VM.
    pub fn all() -> Selector {
        Selector {
            all: true,
            ..Selector::default()
        }
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
        Ok(Selector {
            all: select.all,
            pids: select.pids.iter().copied().map(Pid).collect(),
            names: globs("names", &select.names, glob::for_names)?,
            cgroups: globs("cgroups", &select.cgroups, glob::for_cgroups)?,
        })
    }

    /// Whether the VM is selected. One whose cgroup cannot be read any more is not.
    pub fn matches(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        self.matches_without_cgroup(vm) || self.is_within_cgroups(vm, controller)
    }

    fn is_within_cgroups(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        let first = || vm.vcpus.first().map_or(&vm.process, |vcpu| &vcpu.thread);
        let place = || controller.cgroup_of(first());
        !self.cgroups.is_empty() && place().is_ok_and(|cgroup| self.matches_cgroup(&cgroup))
    }

    /// Whether it is selected by its name and nothing else, which whoever started it chose.
    pub fn matches_by_name_alone(&self, vm: &Vm, controller: &dyn CpuController) -> bool {
        let is_named = self.names.iter().any(|glob| glob.is_match(&vm.name));
        is_named
            && !self.all
            && !self.pids.contains(&vm.process.pid)
            && !self.is_within_cgroups(vm, controller)
    }

    fn matches_without_cgroup(&self, vm: &Vm) -> bool {
        self.all
            || self.pids.contains(&vm.process.pid)
            || self.names.iter().any(|glob| glob.is_match(&vm.name))
    }

    fn matches_cgroup(&self, cgroup: &CgroupPath) -> bool {
        glob::is_within(&self.cgroups, cgroup)
    }
}

#[cfg(test)]
mod tests {
    use tandem_policy::VmId;

    use super::*;
    use crate::vmm::Vmm;
    use tandem_linux::thread::StartTime;
    use tandem_linux::thread::ThreadRef;
    use tandem_linux::thread::Tid;

    fn vm(pid: u32, name: &str) -> Vm {
        Vm {
            tenant: None,
            id: VmId(1),
            process: ThreadRef {
                pid: Pid(pid),
                tid: Tid(pid),
                start: StartTime(1),
            },
            name: name.to_owned(),
            vmm: Vmm::Qemu,
            vcpus: Vec::new(),
            unidentified: 0,
        }
    }

    fn selector(select: Select) -> Selector {
        Selector::from_config(&select).unwrap()
    }

    #[test]
    fn pids_and_name_globs_select() {
        let by_pid = selector(Select {
            pids: vec![7],
            ..Select::default()
        });
        assert!(by_pid.matches_without_cgroup(&vm(7, "web")));
        assert!(!by_pid.matches_without_cgroup(&vm(8, "web")));
        let by_name = selector(Select {
            names: vec!["db-*".into(), "web?".into()],
            ..Select::default()
        });
        for (name, wanted) in [
            ("db-1", true),
            ("db/1", false),
            ("web1", true),
            ("web", false),
        ] {
            assert_eq!(
                by_name.matches_without_cgroup(&vm(1, name)),
                wanted,
                "{name}"
            );
        }
        assert!(Selector::all().matches_without_cgroup(&vm(1, "any")));
        assert!(!Selector::default().matches_without_cgroup(&vm(1, "any")));
    }

    #[test]
    fn a_cgroup_selects_what_is_below_it() {
        let by_cgroup = selector(Select {
            cgroups: vec!["/machine.slice".into(), "/vms/*/gold/".into()],
            ..Select::default()
        });
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
            assert_eq!(by_cgroup.matches_cgroup(&path), wanted, "{path}");
        }
        let root = selector(Select {
            cgroups: vec!["/".into()],
            ..Select::default()
        });
        assert!(root.matches_cgroup(&CgroupPath("/any/where".into())));
    }

    #[test]
    fn bad_globs_and_relative_paths_are_refused_with_their_key() {
        let error = |select: Select| Selector::from_config(&select).unwrap_err().to_string();
        let names = error(Select {
            names: vec!["web[".into()],
            ..Select::default()
        });
        assert!(
            names.contains("select.names") && names.contains("web["),
            "{names}"
        );
        let cgroups = error(Select {
            cgroups: vec!["machine.slice".into()],
            ..Select::default()
        });
        assert!(cgroups.contains("begins with '/'"), "{cgroups}");
    }
}
