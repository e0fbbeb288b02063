//! `tandem host list`: the discovered VMs with name, process, vCPUs, cgroup and user. Nothing is measured.
//!
//! [`List`] in JSON is an interface: `schema` is raised when a field changes its meaning or is removed; fields may be added.

use serde::Serialize;
use tandem_linux::cgroup::{CgroupPath, CpuController};
use tandem_linux::procfs::ProcFs;

use crate::columns::{Columns, Style};
use crate::discovery::Scan;
use crate::origin::Origin;
use crate::select::Selector;

/// The version of the JSON document.
pub const SCHEMA: u32 = 1;

/// The VMs of a host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct List {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The selected VMs, by name and process.
    pub vms: Vec<ListedVm>,
    /// Number of processes with a VMM's name that could not be read.
    pub unreadable: usize,
    /// Number of VMs that are left out because their user or the host has too many.
    pub left_out: usize,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListedVm {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its VMM.
    pub vmm: String,
    /// Number of its known vCPU threads.
    pub vcpus: usize,
    /// Number of its vCPU threads without a known name.
    pub unidentified: usize,
    /// The cgroup of its first vCPU; `None` if it cannot be read.
    pub cgroup: Option<CgroupPath>,
    /// The user of its process; `None` if it cannot be read.
    pub uid: Option<u32>,
    /// Whether its name alone selects it: a VM of root, or one in `/machine.slice`.
    pub is_name_trusted: bool,
}

/// Returns the selected VMs of a scan.
pub fn list(
    scan: &Scan,
    selector: &Selector,
    controller: &dyn CpuController,
    procfs: &ProcFs,
) -> List {
    let selected = scan.vms.iter().filter(|vm| selector.matches(vm, controller));
    let mut vms: Vec<ListedVm> = selected
        .map(|vm| {
            let origin = Origin::of(vm, procfs, controller);
            ListedVm {
                name: vm.name.clone(),
                pid: vm.process.pid.0,
                vmm: vm.vmm.to_string(),
                vcpus: vm.vcpus.len(),
                unidentified: vm.unidentified,
                cgroup: origin.cgroup,
                uid: origin.user,
                is_name_trusted: origin.is_operators,
            }
        })
        .collect();
    vms.sort_by(|one, two| (&one.name, one.pid).cmp(&(&two.name, two.pid)));
    List { schema: SCHEMA, vms, unreadable: scan.unreadable_vmms, left_out: scan.left_out }
}

/// Formats the list as a table, with a line for VMs that are not in it.
pub fn text(list: &List, is_root: bool, style: Style) -> String {
    let mut lines = Vec::new();
    if list.vms.is_empty() {
        lines.push("no VM found".to_owned());
    } else {
        let mut columns = Columns::new(&["<VM", "pid", "vCPUs", "<VMM", "user", "<cgroup"]);
        for vm in &list.vms {
            let vcpus = match vm.unidentified {
                0 => vm.vcpus.to_string(),
                unknown => format!("{}+{unknown}?", vm.vcpus),
            };
            let cgroup = vm.cgroup.as_ref().map_or("–", |cgroup| cgroup.0.as_str());
            columns.row([
                vm.name.as_str().into(),
                vm.pid.to_string().into(),
                vcpus.into(),
                vm.vmm.as_str().into(),
                vm.uid.map_or_else(|| "–".to_owned(), |uid| uid.to_string()).into(),
                cgroup.into(),
            ]);
        }
        lines.push(columns.text(style));
    }
    if list.vms.iter().any(|vm| vm.unidentified > 0) {
        lines.push(
            "?: vCPU threads without a known name; give --qmp-socket or --thread-pattern"
                .to_owned(),
        );
    }
    if list.unreadable > 0 {
        let remedy = if is_root {
            "this process may not read them (a container, or hidepid?)"
        } else {
            "run as root"
        };
        lines.push(format!("{} VMMs not readable: {remedy}", list.unreadable));
    }
    if list.left_out > 0 {
        lines.push(format!(
            "{} VMs not shown: their users, or this host, have more than the maximum number",
            list.left_out
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::tree::Tree;
    use crate::fixtures::vm;

    fn scan() -> Scan {
        let mut unknown = vm(2, "web", 1);
        unknown.unidentified = 3;
        Scan { vms: vec![unknown, vm(1, "db", 4)], unreadable_vmms: 1, ..Scan::default() }
    }

    #[test]
    fn list_is_sorted_with_notes() {
        let list = list(&scan(), &Selector::all(), &Tree::default(), &ProcFs::host());
        let names: Vec<&str> = list.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["db", "web"]);
        let text = text(&list, false, Style::default());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("VM"), "{text}");
        assert!(lines[2].contains("1+3?"), "{text}");
        assert!(text.contains("--qmp-socket") && text.contains("run as root"), "{text}");
    }

    #[test]
    fn a_host_without_vms_has_a_line() {
        let scan = Scan::default();
        let list = list(&scan, &Selector::all(), &Tree::default(), &ProcFs::host());
        assert_eq!(text(&list, true, Style::default()), "no VM found");
        assert_eq!(serde_json::to_value(&list).unwrap()["schema"], SCHEMA);
    }
}
