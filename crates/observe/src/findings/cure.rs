//! What to do about a finding: commands that can be pasted into a shell, and what to know about them.
//!
//! Where libvirt made the VM, its own commands are used, since it would undo others; a unit of systemd on cgroup v2 likewise. Commands act on what
//! runs now and none of them outlives a restart of the VM, unless the remark says so. Nothing is run here.

use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_model::{Nice, PcpuSet, VcpuId, VmId};

use super::finding::{Change, Cure};
use super::patient::Patient;
use super::situation::Situation;

/// The weight of a process's cgroup that is to stand back: a tenth of the kernel's default.
const STAND_BACK: (u32, u32) = (102, 10);

/// How many processes a command names.
const PROCESSES: usize = 4;

/// The nice value of a VM's other threads that stand back behind its vCPUs: about a third of their weight.
const BEHIND_VCPUS: Nice = Nice(5);

/// A VM's weight is raised by so much at most, in per cent of what it has: far more would starve others before anybody looks.
const MOST_WEIGHT: u32 = 400;

impl Cure {
    fn new(commands: impl IntoIterator<Item = String>, remark: impl Into<String>) -> Cure {
        // A name with a line break in it would be shown as something else than what a shell does.
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

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The daemon for these VMs, with options.
pub(super) fn daemon(
    situation: &Situation<'_>,
    vms: &[VmId],
    options: &[&str],
    remark: &str,
) -> Cure {
    let mut command = "sudo tandem host run".to_owned();
    for known in vms.iter().filter_map(|vm| situation.vms.get(vm)) {
        // A name is a glob there, and means VMs of who runs the host.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        // Digits alone mean a process there, and a dash an option.
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
        format!("{remark}; --dry-run shows what it would do, and its end puts everything back")
    };
    Cure::new([command], remark)
}

/// Lets vCPUs run elsewhere, if there is a place.
pub(super) fn move_vcpus(patient: &Patient<'_>, moves: &[(VcpuId, PcpuSet)]) -> Cure {
    let known = patient.known;
    if moves.is_empty() {
        return Cure::new(
            [],
            "what idles is isolated, outside of its cpuset, or pinned for other VMs: give it more pCPUs there, or fewer vCPUs",
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

/// Takes a quota away; without a known one, says where to look.
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
        // libvirt's cgroups: a folder for each vCPU and I/O thread, one for the emulator, and the domain's above.
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

/// The unit of the host's systemd that a cgroup of v2 is. Below a service or a scope are others' managers, a container's or a user's.
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

/// Polls less, for all VMs of the host.
pub(super) fn poll_less() -> Cure {
    Cure::new(
        ["echo 0 | sudo tee /sys/module/kvm/parameters/halt_poll_ns".to_owned()],
        "for all VMs of the host; wake-ups then take longer by what a context switch takes. Older kernels take it for VMs that start later",
    )
}

/// Fewer vCPUs, or more pCPUs for a VM that may not use all of the host's.
pub(super) fn fewer_vcpus(patient: &Patient<'_>, room: &PcpuSet, online: &PcpuSet) -> Cure {
    let vcpus = room.len();
    let mut remark =
        format!("a VM gains nothing from more vCPUs than the {vcpus} pCPUs that it may use");
    if vcpus < online.len() {
        remark += "; wider pins take time from what runs on the other pCPUs, which did not idle";
    }
    let domain = quoted(&patient.known.name);
    let command = format!("virsh setvcpus {domain} {vcpus} --live");
    Cure::new(patient.known.is_libvirt.then_some(command), remark)
}

/// Moves a VM's threads of one name to where its vCPUs do not run, or makes them stand back.
pub(super) fn move_threads(patient: &Patient<'_>, name: &str, room: &PcpuSet) -> Cure {
    let known = patient.known;
    let (act, remark) = match room.is_empty() {
        true => (
            format!("renice -n {BEHIND_VCPUS} -p"),
            "its vCPUs may run on every pCPU; at a higher nice value these threads stand back behind them, and I/O takes longer",
        ),
        false => (format!("taskset -cp {room}"), "to pCPUs where none of its vCPUs may run"),
    };
    let change = [match room.is_empty() {
        true => Change::ThreadsNice { name: name.to_owned(), nice: BEHIND_VCPUS },
        false => Change::ThreadsTo { name: name.to_owned(), pcpus: room.clone() },
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
    // Whoever names a thread must not get to write a program for awk; and ps prints a name with blanks as several words.
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(*c);
    let word = name.split(' ').next().unwrap_or_default();
    let word: String = word.chars().filter(is_plain).collect();
    // All threads of a VMM may have one name, its vCPUs too.
    let vcpus = known.tids.values();
    let others: String = vcpus.map(|tid| format!(" && $1 != {tid}")).collect();
    let has_name = quoted(&format!("$2 == \"{word}\"{others} {{ print $1 }}"));
    let command =
        format!("ps -L -o tid=,comm= -p {} | awk {has_name} | xargs -r -n1 sudo {act}", known.pid);
    Cure::new([command], remark).with(change)
}

/// Makes processes of the host stand back behind a VM.
pub(super) fn calm_processes(
    situation: &Situation<'_>,
    patient: &Patient<'_>,
    name: &str,
    cgroup: Option<&str>,
    pids: &[u32],
) -> Cure {
    let theirs = cgroup.map(|cgroup| CgroupPath(cgroup.to_owned()));
    let beside = theirs
        .as_ref()
        .zip(patient.known.cgroup.as_ref())
        .and_then(|(theirs, vms)| beside(theirs, vms));
    if let Some(group) = beside {
        // Who else is in a group that competes as a whole would stand back too: the host's services, a cluster's heartbeat.
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
        return stand_back(situation, &group);
    }
    let pids = &pids[..pids.len().min(PROCESSES)];
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
    Cure::new(commands, "lets it have what nobody else wants").with(changes)
}

/// A tenth of the usual weight for a cgroup, if it has more.
fn stand_back(situation: &Situation<'_>, group: &CgroupPath) -> Cure {
    let (on_v1, on_v2) = STAND_BACK;
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
            "weight {weight}, a tenth of the usual, for {which}; what it has now is not known: note it first"
        ),
    };
    Cure::new([set(weight)], remark)
        .undone_by(now.map(set))
        .with([Change::Weight { cgroup: group.clone(), weight }])
}

/// The cgroup at or above `theirs` that is a sibling of one at or above `vms`: what the kernel weighs against the VM. None where
/// one is within the other.
fn beside(theirs: &CgroupPath, vms: &CgroupPath) -> Option<CgroupPath> {
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

/// Lets vCPUs that spin for each other run together.
pub(super) fn run_together() -> Cure {
    Cure::new(
        [],
        "its vCPUs have to run together: if it and the VMs beside it never sleep, let them take turns (tandem host run, with all of them selected); else give it as many vCPUs as it has pCPUs",
    )
}

/// Weights that follow what each is due and receives: the daemon's, or once, for this VM.
pub(super) fn what_is_due(situation: &Situation<'_>, patient: &Patient<'_>, vms: &[VmId]) -> Cure {
    let known = patient.known;
    let times = known.due.0 as f64 / known.received.0.max(1) as f64;
    let percent = (100.0 * times).min(f64::from(MOST_WEIGHT)) as u32;
    let remark = "weights follow what each is due and receives";
    daemon(situation, vms, &[], remark).with([Change::VmWeight { percent }])
}

/// Another division among VMs, or another host.
pub(super) fn more_weight(situation: &Situation<'_>, patient: &Patient<'_>, vms: &[VmId]) -> Cure {
    // A name would be a glob, or a process id where it is a number.
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

/// Where nothing measured says whom a VM waits for.
pub(super) fn look_closer() -> Cure {
    Cure::new(
        ["mpstat -P ALL 1 3".to_owned()],
        "%steal is what this host's own hypervisor took, %irq and %soft are interrupts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        assert_eq!(quoted("/a/b-1.scope"), "/a/b-1.scope");
        assert_eq!(quoted(r"machine-qemu\x2d1.scope"), r"'machine-qemu\x2d1.scope'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn what_is_weighed_against_a_vm_is_beside_it() {
        let path = |text: &str| CgroupPath(text.to_owned());
        let of = |theirs: &str, vms: &str| beside(&path(theirs), &path(vms)).map(|group| group.0);
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
