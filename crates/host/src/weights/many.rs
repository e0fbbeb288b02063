//! What it takes to weigh many VMs: reads of the tree of cgroups, counted, so that a host of a thousand costs ten times one of a hundred.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupId;
use tandem_linux::cgroup::Knob;
use tandem_linux::cgroup::Version;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadError;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;

use super::*;
use crate::fixtures;
use crate::homes::KnownHomes;

const VCPUS: u32 = 8;

/// Numbers of processes begin here: beyond all that this machine can have, so that none of them is a thread of its kernel.
const FIRST_PID: u32 = 5_000_000;

/// A tree of cgroups in memory that counts how often it is read.
#[derive(Default)]
struct Counting {
    places: BTreeMap<Tid, CgroupPath>,
    processes: BTreeMap<CgroupPath, Vec<Pid>>,
    children: BTreeMap<CgroupPath, BTreeSet<CgroupPath>>,
    reads: AtomicUsize,
}

impl Counting {
    fn put(&mut self, thread: ThreadRef, place: &CgroupPath) {
        self.places.insert(thread.tid, place.clone());
        let here = self.processes.entry(place.clone()).or_default();
        if !here.contains(&thread.pid) {
            here.push(thread.pid);
        }
        let mut below = place.clone();
        while let Some(above) = below.parent() {
            if !self
                .children
                .entry(above.clone())
                .or_default()
                .insert(below)
            {
                break;
            }
            below = above;
        }
    }

    fn read<T: Clone + Default>(&self, known: Option<&T>) -> Result<T, CgroupError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(known.cloned().unwrap_or_default())
    }
}

/// Only what reads.
impl CpuController for Counting {
    fn version(&self) -> Version {
        Version::V2
    }

    fn mount(&self) -> &Path {
        Path::new("/in-memory")
    }

    fn default_weight(&self) -> Weight {
        Weight::constant(100.0)
    }

    fn weight_range(&self) -> (Weight, Weight) {
        (Weight::constant(1.0), Weight::constant(10_000.0))
    }

    fn cgroup_of(&self, thread: &ThreadRef) -> Result<CgroupPath, CgroupError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let place = self.places.get(&thread.tid).cloned();
        place.ok_or_else(|| ThreadError::Gone(thread.to_string()).into())
    }

    fn id(&self, _: &CgroupPath) -> Result<CgroupId, CgroupError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(CgroupId(1))
    }

    fn read_knob(&self, _: &CgroupPath, knob: Knob) -> Result<String, CgroupError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let text = match knob {
            Knob::Weight => "100",
            Knob::Idle => "0",
            Knob::Quota => "max 100000",
        };
        Ok(text.to_owned())
    }

    fn stat(&self, _: &CgroupPath) -> Result<String, CgroupError> {
        self.read(None)
    }

    fn threads(&self, _: &CgroupPath) -> Result<Vec<Tid>, CgroupError> {
        self.read(None)
    }

    fn processes(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        self.read(self.processes.get(cgroup))
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        let children = self.read(self.children.get(cgroup))?;
        Ok(children.into_iter().collect())
    }

    fn missing_enables(&self, _: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.read(None)
    }

    fn write_knob(&self, _: &CgroupPath, _: Knob, _: &str) -> Result<(), CgroupError> {
        unreachable!("who looks writes nothing")
    }

    fn move_thread(&self, _: Tid, _: &CgroupPath) -> Result<(), CgroupError> {
        unreachable!("who looks moves nothing")
    }

    fn check_parent(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        unreachable!("who looks makes nothing")
    }

    fn create_child(&self, _: &CgroupPath, _: &str) -> Result<CgroupPath, CgroupError> {
        unreachable!("who looks makes nothing")
    }

    fn remove(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        unreachable!("who looks removes nothing")
    }

    fn enable(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        unreachable!("who looks changes nothing")
    }

    fn disable(&self, _: &CgroupPath) -> Result<(), CgroupError> {
        unreachable!("who looks changes nothing")
    }
}

/// A host of so many VMs of 8 vCPUs: where the first thread and each vCPU of the n-th are.
fn host(count: u32, place: impl Fn(u32, Option<u32>) -> String) -> (Counting, Vec<Vm>) {
    let mut controller = Counting::default();
    let mut vms = Vec::new();
    for n in 0..count {
        let mut vm = fixtures::vm(u64::from(n) + 1, &format!("vm{n}"), VCPUS);
        let pid = FIRST_PID + n * (VCPUS + 1);
        vm.process = fixtures::thread(pid, pid);
        controller.put(vm.process, &CgroupPath(place(n, None)));
        for (vcpu, at) in vm.vcpus.iter_mut().zip(0..) {
            vcpu.thread = fixtures::thread(pid, pid + 1 + at);
            controller.put(vcpu.thread, &CgroupPath(place(n, Some(at))));
        }
        vms.push(vm);
    }
    (controller, vms)
}

/// How often the tree is read to weigh so many VMs, and how many of them have a cgroup of their own.
fn reads(count: u32, place: &dyn Fn(u32, Option<u32>) -> String) -> (usize, usize) {
    let (controller, vms) = host(count, place);
    let weighed = weigh(&controller, &[], &vms);
    Weights::new(&controller, &weighed);
    let own = weighed.values().filter(|vm| vm.cgroup.is_some()).count();
    (controller.reads.into_inner(), own)
}

/// Below `above`, as libvirt has it: a cgroup for the emulator and one for each vCPU.
fn libvirts(above: &str, vcpu: Option<u32>) -> String {
    match vcpu {
        Some(vcpu) => format!("{above}/vcpu{vcpu}"),
        None => format!("{above}/emulator"),
    }
}

#[test]
fn ten_times_as_many_vms_take_ten_times_as_many_reads() {
    type Place = fn(u32, Option<u32>) -> String;
    // Each with whether a VM has a cgroup of its own there.
    let layouts: [(&str, bool, Place); 8] = [
        ("a folder each", true, |n, _| format!("/vms/{n}")),
        ("a folder each, and groups", true, |n, vcpu| {
            libvirts(&format!("/vms/{n}"), vcpu)
        }),
        ("libvirt without systemd", true, |n, vcpu| {
            libvirts(&format!("/machine/qemu-{n}-vm.libvirt-qemu"), vcpu)
        }),
        ("libvirt on v1", true, |n, vcpu| {
            let scope = format!("/machine.slice/machine-qemu\\x2d{n}\\x2dvm.scope");
            libvirts(&scope, vcpu)
        }),
        ("libvirt on v2", true, |n, vcpu| {
            let scope = format!("/machine.slice/machine-qemu\\x2d{n}\\x2dvm.scope/libvirt");
            libvirts(&scope, vcpu)
        }),
        ("a pod each", true, |n, vcpu| {
            libvirts(
                &format!("/kubepods.slice/pod{n}.slice/vm.scope/compute"),
                vcpu,
            )
        }),
        ("one service", false, |_, _| {
            "/system.slice/many.service".to_owned()
        }),
        ("one service, and groups", false, |n, vcpu| {
            let vcpu = vcpu.map_or_else(|| "main".to_owned(), |vcpu| vcpu.to_string());
            format!("/system.slice/many.service/{n}-{vcpu}")
        }),
    ];
    for (name, has_own, place) in layouts {
        let (few, own) = reads(100, &place);
        assert_eq!(own, if has_own { 100 } else { 0 }, "{name}");
        let (many, own) = reads(1_000, &place);
        assert_eq!(own, if has_own { 1_000 } else { 0 }, "{name}");
        println!("{name}: {many} reads for 1,000 VMs");
        assert!(
            many <= 10 * few,
            "{name}: {few} reads for 100 VMs, {many} for 1,000"
        );
        // Where each of nine threads is, what the VM's cgroup and those above have, and who is in ten cgroups and below.
        assert!(many <= 1_000 * 50, "{name}: {many} reads");
    }
}

#[test]
fn who_was_found_is_looked_for_now_and_then() {
    let (mut controller, mut vms) = host(80, |n, _| format!("/vms/{n}"));
    let mut known = KnownHomes::default();
    let mut reads = || {
        let before = controller.reads.load(Ordering::Relaxed);
        let homes = known.look(&controller, &vms);
        assert!(vms.iter().all(|vm| homes.get(vm.id).is_some()));
        controller.reads.load(Ordering::Relaxed) - before
    };
    let all = 80 * (VCPUS as usize + 1);
    let first: Vec<usize> = (0..3).map(|_| reads()).collect();
    assert_eq!(first, [all; 3], "whoever starts VMs moves them then");
    let later: Vec<usize> = (0..16).map(|_| reads()).collect();
    assert_eq!(later.iter().sum::<usize>(), all, "each once: {later:?}");
    assert!(later.iter().all(|reads| *reads <= all / 8), "{later:?}");
    // One that moved is found within sixteen looks, one whose threads are others at once.
    controller.places.clear();
    for vm in &vms {
        for thread in vm.vcpus.iter().map(|vcpu| vcpu.thread).chain([vm.process]) {
            controller.put(thread, &CgroupPath("/elsewhere".to_owned()));
        }
    }
    vms[0].vcpus.pop();
    let moved = |homes: &Homes, vm: &Vm| homes.get(vm.id).unwrap().main.0 == "/elsewhere";
    let homes = known.look(&controller, &vms);
    assert!(moved(&homes, &vms[0]) && !vms.iter().all(|vm| moved(&homes, vm)));
    (0..15).for_each(|_| drop(known.look(&controller, &vms)));
    let homes = known.look(&controller, &vms);
    assert!(vms.iter().all(|vm| moved(&homes, vm)));
    // One that is gone is not remembered.
    assert!(known.look(&controller, &vms[1..]).get(vms[0].id).is_none());
}
