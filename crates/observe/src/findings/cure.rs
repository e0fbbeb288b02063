//! Remedies of findings: commands for a shell, with a remark.
//!
//! VMs of libvirt get libvirt's own commands, since it would overwrite others; the same holds for systemd units on cgroup v2.
//! Commands act on the running VM and do not survive its restart, unless the remark says so. This module runs nothing.

use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_model::{Nice, PcpuSet, VcpuId, VmId};

use super::finding::{Change, Cure};
use super::patient::Patient;
use super::situation::Situation;

/// Reduced weight for the cgroup of a process: a tenth of the kernel's default (v1, v2).
const LOW_WEIGHT: (u32, u32) = (102, 10);

/// Maximum number of processes in a command.
const MAX_PROCESSES: usize = 4;

/// Nice value of a VM's other threads, which gives them about a third of the weight of its vCPUs.
const BEHIND_VCPUS: Nice = Nice(5);

/// Maximum raise of a VM's weight, in per cent of the current one. More could starve other VMs before an operator notices.
const MAX_WEIGHT: u32 = 400;

impl Cure {
    fn new(commands: impl IntoIterator<Item = String>, remark: impl Into<String>) -> Cure {
        // A name with a line break would look different from the command that a shell runs.
        let is_shown = |command: &String| !command.chars().any(char::is_control);
        Cure {
            commands: commands.into_iter().filter(is_shown).collect(),
            undo: Vec::new(),
            remark: remark.into(),
            changes: Vec::new(),
        }
    }

    fn undone_by(self, commands: impl IntoIterator<Item = String>) -> Cure {
        let undo = Cure::new(commands, "").commands;
        Cure { undo, ..self }
    }

    fn with(self, changes: impl IntoIterator<Item = Change>) -> Cure {
        Cure { changes: changes.into_iter().collect(), ..self }
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Recommends the daemon for these VMs, with options.
pub(super) fn daemon(
    situation: &Situation<'_>,
    vms: &[VmId],
    options: &[&str],
    remark: &str,
) -> Cure {
    let mut command = "sudo tandem host run".to_owned();
    for known in vms.iter().filter_map(|vm| situation.vms.get(vm)) {
        // The daemon takes names as globs that match only the host operator's VMs.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        // It takes digits as a process id, and a leading dash as an option.
        let is_plain = known.name.chars().all(is_plain)
            && known.name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !known.name.chars().all(|c| c.is_ascii_digit());
        command += &if is_plain && !known.is_tenants {
            format!(" {}", known.name)
        } else {
            format!(" {}", known.pid)
        };
    }
    for option in options {
        command += &format!(" {option}");
    }
    let runs = vms.iter().filter_map(|vm| situation.vms.get(vm));
    let remark = if runs.into_iter().any(|known| known.is_managed) {
        format!("{remark}; a daemon runs already: give it these options and VMs instead")
    } else {
        format!("{remark}; --dry-run shows its actions, and the daemon reverts them when it ends")
    };
    Cure::new([command], remark)
}

/// Moves vCPUs to the given pCPUs, if there are any.
pub(super) fn move_vcpus(patient: &Patient<'_>, moves: &[(VcpuId, PcpuSet)]) -> Cure {
    let known = patient.known;
    if moves.is_empty() {
        return Cure::new(
            [],
            "the idle pCPUs are isolated, outside of its cpuset, or pinned for other VMs: give it more pCPUs there, or fewer vCPUs",
        );
    }
    let pin = |vcpu: &VcpuId, set: &PcpuSet| {
        if known.is_libvirt {
            let name = quoted(&known.name);
            return Some(format!("virsh vcpupin {name} {vcpu} {set} --live"));
        }
        let tid = known.tids.get(vcpu)?;
        Some(format!("sudo taskset -cp {set} {tid}"))
    };
    let commands = moves.iter().filter_map(|(vcpu, set)| pin(vcpu, set));
    let pinned = patient.vm.vcpus.iter().filter(|now| moves.iter().any(|(id, _)| *id == now.vcpu));
    let undo: Vec<String> = pinned.filter_map(|now| pin(&now.vcpu, &now.allowed)).collect();
    let changes = moves.iter().map(|(vcpu, set)| Change::Vcpu { vcpu: *vcpu, pcpus: set.clone() });
    Cure::new(commands, "lets the host's scheduler spread them").undone_by(undo).with(changes)
}

/// Removes a quota. If it is unknown, names the files to check.
pub(super) fn lift_quota(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    cgroup: Option<&CgroupPath>,
) -> Cure {
    let Some(cgroup) = cgroup else {
        return Cure::new(
            [],
            "the quota is gone, or in a cgroup that cannot be read: look at cpu.max or cpu.cfs_quota_us of the VM's cgroups",
        );
    };
    let remark = "takes the cap away; if it is meant (a VM sold by the pCPU), raise it instead";
    let change = [Change::NoQuota { cgroup: cgroup.clone() }];
    let name = cgroup.name();
    let is_domains = ["vcpu", "iothread", "emulator", "libvirt", "machine-"];
    if patient.known.is_libvirt && is_domains.iter().any(|start| name.starts_with(start)) {
        // libvirt has a cgroup for each vCPU and I/O thread, one for the emulator, and the domain's above them.
        let key = match name {
            _ if name.starts_with("vcpu") => "vcpu_quota",
            _ if name.starts_with("iothread") => "iothread_quota",
            "emulator" => "emulator_quota",
            _ => "global_quota",
        };
        let domain = quoted(&patient.known.name);
        return Cure::new([format!("virsh schedinfo {domain} --live --set {key}=-1")], remark)
            .with(change);
    }
    if let Some(unit) = unit(situation, cgroup) {
        return Cure::new(
            [format!("sudo systemctl set-property --runtime {unit} CPUQuota=")],
            remark,
        )
        .with(change);
    }
    let (text, file) = match situation.host.version {
        Version::V1 => ("-1", "cpu.cfs_quota_us"),
        Version::V2 => ("max", "cpu.max"),
    };
    Cure::new([write(situation, cgroup, file, text)], remark).with(change)
}

/// Returns the unit of the host's systemd that owns a v2 cgroup. Cgroups below a service or scope belong to other managers, such as a container's.
fn unit(situation: &Situation<'_>, cgroup: &CgroupPath) -> Option<String> {
    let is_unit = [".scope", ".service", ".slice"].iter().any(|kind| cgroup.name().ends_with(kind));
    let above = cgroup.parent()?;
    let mut above = above.0.split('/').filter(|name| !name.is_empty());
    let is_hosts = above.all(|name| name.ends_with(".slice"));
    (situation.host.version == Version::V2 && is_unit && is_hosts).then(|| quoted(cgroup.name()))
}

fn write(situation: &Situation<'_>, cgroup: &CgroupPath, file: &str, text: &str) -> String {
    let path = situation.host.mount.join(cgroup.0.trim_start_matches('/')).join(file);
    let path = quoted(&path.display().to_string());
    format!("echo {text} | sudo tee {path}")
}

/// Disables halt polling for all VMs of the host.
pub(super) fn poll_less() -> Cure {
    Cure::new(
        ["echo 0 | sudo tee /sys/module/kvm/parameters/halt_poll_ns".to_owned()],
        "for all VMs of the host; wake-ups then take longer by the time of a context switch. Older kernels apply it only to VMs that start later",
    )
}

/// Recommends fewer vCPUs, or more pCPUs if the VM is confined to some of the host's.
pub(super) fn fewer_vcpus(patient: &Patient<'_>, room: &PcpuSet, online: &PcpuSet) -> Cure {
    let vcpus = room.len();
    let mut remark =
        format!("a VM gains nothing from more vCPUs than the {vcpus} pCPUs that it may use");
    if vcpus < online.len() {
        remark += "; wider pins take time from the load of the other pCPUs, which did not idle";
    }
    let domain = quoted(&patient.known.name);
    let command = format!("virsh setvcpus {domain} {vcpus} --live");
    Cure::new(patient.known.is_libvirt.then_some(command), remark)
}

/// Moves a VM's threads of one name away from its vCPUs, or raises their nice value.
pub(super) fn move_threads(patient: &Patient<'_>, name: &str, room: &PcpuSet) -> Cure {
    let known = patient.known;
    let (act, remark) = if room.is_empty() {
        (
            format!("renice -n {BEHIND_VCPUS} -p"),
            "its vCPUs may run on every pCPU; a higher nice value lets them run before these threads, and I/O takes longer",
        )
    } else {
        (format!("taskset -cp {room}"), "to pCPUs where none of its vCPUs may run")
    };
    let change = [if room.is_empty() {
        Change::ThreadsNice { name: name.to_owned(), nice: BEHIND_VCPUS }
    } else {
        Change::ThreadsTo { name: name.to_owned(), pcpus: room.clone() }
    }];
    if name == "vhost" {
        let command = format!("pgrep -x vhost-{} | xargs -r -n1 sudo {act}", known.pid);
        return Cure::new([command], remark);
    }
    let is_emulator = !name.starts_with("IO ");
    if known.is_libvirt && is_emulator && !room.is_empty() {
        let domain = quoted(&known.name);
        return Cure::new([format!("virsh emulatorpin {domain} {room} --live")], remark)
            .with(change);
    }
    // A thread name must not inject code into the awk program, and ps prints a name with blanks as several words.
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(*c);
    let word = name.split(' ').next().unwrap_or_default();
    let word: String = word.chars().filter(is_plain).collect();
    // All threads of a VMM, including its vCPUs, may have the same name.
    let vcpus = known.tids.values();
    let others: String = vcpus.map(|tid| format!(" && $1 != {tid}")).collect();
    let has_name = quoted(&format!("$2 == \"{word}\"{others} {{ print $1 }}"));
    let command =
        format!("ps -L -o tid=,comm= -p {} | awk {has_name} | xargs -r -n1 sudo {act}", known.pid);
    Cure::new([command], remark).with(change)
}

/// Lowers the priority of host processes in favour of a VM.
pub(super) fn calm_processes(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    name: &str,
    cgroup: Option<&str>,
    pids: &[u32],
) -> Cure {
    let theirs = cgroup.map(|cgroup| CgroupPath(cgroup.to_owned()));
    let competing = theirs
        .as_ref()
        .zip(patient.known.cgroup.as_ref())
        .and_then(|(theirs, vms)| competing_group(theirs, vms));
    if let Some(group) = competing {
        // A lower weight would also slow down other members of that group: host services, or a cluster's heartbeat.
        let is_own = theirs.as_ref() == Some(&group) && !group.name().ends_with(".slice");
        if !is_own {
            let theirs = theirs.as_ref().map_or("", |theirs| theirs.0.as_str());
            return Cure::new(
                [],
                format!(
                    "it competes as a part of {group}, where others are too: cap {theirs} (CPUQuota=, cpu.max), or give the VM's cgroup more weight"
                ),
            );
        }
        return lower_weight(situation, &group);
    }
    let pids = &pids[..pids.len().min(MAX_PROCESSES)];
    let in_root = theirs.is_some_and(|cgroup| cgroup.is_root());
    if situation.host.has_autogroup && in_root {
        let commands = pids.iter().map(|pid| format!("echo 19 | sudo tee /proc/{pid}/autogroup"));
        return Cure::new(
            commands,
            "the processes of its session compete as one (autogroup), so a nice value for all of them",
        );
    }
    let commands = pids.iter().map(|pid| format!("sudo renice -n {} -p {pid}", Nice::MOST));
    let changes = pids.iter().map(|pid| Change::ProcessNice {
        pid: *pid,
        name: name.to_owned(),
        nice: Nice::MOST,
    });
    Cure::new(commands, "runs it at the lowest priority").with(changes)
}

/// Sets a cgroup to a tenth of the usual weight, if it has more.
fn lower_weight(situation: &Situation<'_>, group: &CgroupPath) -> Cure {
    let (on_v1, on_v2) = LOW_WEIGHT;
    let weight = match situation.host.version {
        Version::V1 => on_v1,
        Version::V2 => on_v2,
    };
    let set = |weight: u32| match (unit(situation, group), situation.host.version) {
        (Some(unit), _) => {
            format!("sudo systemctl set-property --runtime {unit} CPUWeight={weight}")
        }
        (None, Version::V1) => write(situation, group, "cpu.shares", &weight.to_string()),
        (None, Version::V2) => write(situation, group, "cpu.weight", &weight.to_string()),
    };
    let which = format!("{group}, which competes with the VM's cgroup");
    let now = situation.weights.get(group).copied();
    let remark = match now {
        Some(now) if now <= weight => {
            let has = match now {
                0 => "is in the idle class".to_owned(),
                now => format!("has weight {now}"),
            };
            let instead = "cap it (CPUQuota=, cpu.max), or give the VM's cgroup more weight";
            return Cure::new([], format!("{which}, {has} already: {instead}"));
        }
        Some(now) => format!("weight {weight}, a tenth of the usual, instead of {now} for {which}"),
        None => format!(
            "weight {weight}, a tenth of the usual, for {which}; its current weight is not known: note it first"
        ),
    };
    Cure::new([set(weight)], remark)
        .undone_by(now.map(set))
        .with([Change::Weight { cgroup: group.clone(), weight }])
}

/// Returns the ancestor of `theirs` (or itself) that is a sibling of an ancestor of `vms` (or itself), and so competes with the VM.
/// `None` if one is within the other.
fn competing_group(theirs: &CgroupPath, vms: &CgroupPath) -> Option<CgroupPath> {
    let mut at = theirs.clone();
    if vms.is_within(theirs) {
        return None;
    }
    loop {
        let above = at.parent()?;
        if vms.is_within(&above) {
            return Some(at);
        }
        at = above;
    }
}

/// Recommends running vCPUs that spin for each other together.
pub(super) fn run_together() -> Cure {
    Cure::new(
        [],
        "its vCPUs have to run together: if it and the VMs next to it never sleep, let them take turns (tandem host run, with all of them selected); else give it as many vCPUs as it has pCPUs",
    )
}

/// Recommends weights that follow fair share and received time: continuously by the daemon, or once for this VM.
pub(super) fn fair_weights(situation: &Situation<'_>, patient: &Patient<'_>, vms: &[VmId]) -> Cure {
    let known = patient.known;
    let times = known.due.0 as f64 / known.received.0.max(1) as f64;
    let percent = (100.0 * times).min(f64::from(MAX_WEIGHT)) as u32;
    let remark = "weights follow the fair share and the received time of each VM";
    daemon(situation, vms, &[], remark).with([Change::VmWeight { percent }])
}

/// Recommends other weights for the VMs, or another host.
pub(super) fn more_weight(situation: &Situation<'_>, patient: &Patient<'_>, vms: &[VmId]) -> Cure {
    // By process id, since the daemon takes a name as a glob, or a numeric name as a process id.
    let known = patient.known;
    let twice = (2.0 * known.weight).min(100.0);
    let weight = format!("--weight {}={twice:.4}", known.pid);
    let weight = weight.trim_end_matches('0').trim_end_matches('.');
    daemon(
        situation,
        vms,
        &[weight],
        "the host is divided by weights: twice the weight if this VM is worth more than the others, else move one of them to another host",
    )
}

/// Recommends a tool for waits whose culprit no source measured.
pub(super) fn look_closer() -> Cure {
    Cure::new(
        ["mpstat -P ALL 1 3".to_owned()],
        "%steal is time that this host's own hypervisor took, %irq and %soft are interrupts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shells() {
        assert_eq!(quoted("/a/b-1.scope"), "/a/b-1.scope");
        assert_eq!(quoted(r"machine-qemu\x2d1.scope"), r"'machine-qemu\x2d1.scope'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn competing_group_is_a_sibling_cgroup() {
        let path = |text: &str| CgroupPath(text.to_owned());
        let of = |theirs: &str, vms: &str| {
            competing_group(&path(theirs), &path(vms)).map(|group| group.0)
        };
        assert_eq!(
            of("/system.slice/a.service", "/machine.slice/vm").as_deref(),
            Some("/system.slice")
        );
        assert_eq!(of("/vms/build/x", "/vms/web").as_deref(), Some("/vms/build"));
        assert_eq!(of("/vms/web", "/vms/web"), None);
        assert_eq!(of("/", "/vms/web"), None);
        assert_eq!(of("/build", "/").as_deref(), Some("/build"));
    }
}
