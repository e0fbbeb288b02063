//! Swaps of two vCPUs: all changes of a swap are made, or none.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use tandem_linux::affinity::{AffinityError, Threads};
use tandem_linux::cgroup;
use tandem_linux::procfs::ProcFs;
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{ThreadRef, Tid};
use tandem_model::branch_counters::CounterSource;
use tandem_model::{Because, Nanos, Nice, PcpuId, PcpuSet, VcpuId, VmId};

use super::*;
use crate::fixtures;
use crate::vm_cpu::{VcpuCpu, found};

/// Beyond the kernel's maximum thread id.
const TID: u32 = 1 << 30;

/// Affinities and nice values of threads, and the changes that fail.
#[derive(Default)]
struct State {
    on: BTreeMap<Tid, (PcpuSet, Nice)>,
    /// Cpusets of threads.
    cpusets: BTreeMap<Tid, PcpuSet>,
    /// The thread whose nice value cannot be set.
    no_nice: Option<Tid>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

impl Threads for Fake {
    fn is_alive(&self, thread: &ThreadRef) -> bool {
        self.0.lock().unwrap().on.contains_key(&thread.tid)
    }

    fn affinity(&self, tid: Tid) -> Result<PcpuSet, AffinityError> {
        let known = self.0.lock().unwrap().on.get(&tid).cloned();
        known.map(|(on, _)| on).ok_or(AffinityError::Gone(tid))
    }

    fn set_affinity(&self, tid: Tid, pcpus: &PcpuSet) -> Result<(), AffinityError> {
        let mut state = self.0.lock().unwrap();
        if let Some(cpuset) = state.cpusets.get(&tid)
            && !cpuset.overlaps(pcpus)
        {
            let pcpus = pcpus.clone();
            return Err(AffinityError::NotAllowed { tid, pcpus });
        }
        state.on.get_mut(&tid).unwrap().0 = pcpus.clone();
        Ok(())
    }

    fn nice(&self, tid: Tid) -> Result<Nice, SchedAttrError> {
        let known = self.0.lock().unwrap().on.get(&tid).cloned();
        known.map(|(_, nice)| nice).ok_or(SchedAttrError::Gone(tid))
    }

    fn set_nice(&self, tid: Tid, nice: Nice) -> Result<(), SchedAttrError> {
        let mut state = self.0.lock().unwrap();
        if state.no_nice == Some(tid) {
            return Err(SchedAttrError::Kernel {
                action: "set",
                tid,
                source: rustix::io::Errno::ACCESS.into(),
            });
        }
        state.on.get_mut(&tid).unwrap().1 = nice;
        Ok(())
    }

    fn slice(&self, _: Tid) -> Result<Option<Nanos>, SchedAttrError> {
        unreachable!("a swap sets no slice")
    }

    fn set_slice(&self, _: Tid, _: Option<Nanos>) -> Result<(), SchedAttrError> {
        unreachable!("a swap sets no slice")
    }
}

/// A VM whose vCPUs 0 and 1 are on pCPUs 0 and 1, with nice values 0 and 5.
struct World {
    _dir: tempfile::TempDir,
    threads: Fake,
    actuator: Actuator,
    vms: BTreeMap<VmId, ManagedVm>,
}

fn tid(vcpu: u32) -> Tid {
    Tid(TID + vcpu)
}

fn only(pcpu: u32) -> PcpuSet {
    PcpuSet::from_iter([PcpuId(pcpu)])
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::create_dir_all(dir.path().join("cg")).unwrap();
        fs::write(dir.path().join("proc/mounts"), "cgroup2 /cg cgroup2 rw 0 0\n").unwrap();
        fs::write(dir.path().join("cg/cgroup.controllers"), "cpu\n").unwrap();
        let controller = cgroup::open(&ProcFs::at(dir.path())).unwrap();
        let threads = Fake::default();
        let mut managed = fixtures::managed(fixtures::vm(1, "web", 0));
        for n in 0..2 {
            let nice = Nice(5 * n as i8);
            let on = (only(n), nice);
            threads.0.lock().unwrap().on.insert(tid(n), on);
            let thread = fixtures::thread(TID, tid(n).0);
            let mut vcpu = found(VcpuId(n), thread, only(n));
            vcpu.settings.nice = nice;
            managed.cpu.vcpus.push(vcpu);
        }
        let state_dir = dir.path().join("state");
        let all = Box::new(threads.clone());
        let (actuator, _) = Actuator::open_with(controller, all, &state_dir, "a boot").unwrap();
        World { _dir: dir, threads, actuator, vms: BTreeMap::from([(VmId(1), managed)]) }
    }

    fn apply(&mut self, decisions: &[Decision]) -> Applied {
        Applied::all(decisions, &mut self.vms, &mut self.actuator)
    }

    /// Returns each vCPU's affinity and nice value in the kernel, which must equal the daemon's current values.
    fn places(&self) -> Vec<(String, i8)> {
        let state = self.threads.0.lock().unwrap();
        let vcpus = self.vms[&VmId(1)].cpu.vcpus.iter();
        let place = |vcpu: &VcpuCpu| {
            let (on, nice) = &state.on[&vcpu.host.thread.tid];
            assert_eq!((on, nice), (&vcpu.allowed, &vcpu.settings.nice));
            (on.to_string(), nice.0)
        };
        vcpus.map(place).collect()
    }
}

/// Decisions for vCPU 0, which spins, to swap with vCPU 1, in the policy's order.
fn swap() -> Vec<Decision> {
    let [from, to] = [PcpuId(0), PcpuId(1)];
    let because = [
        Because::BusyWaits {
            with: VcpuId(1),
            from,
            to,
            bpi: 0.33,
            max_bpi: 0.33,
            bmpr: 0.001,
            min_bmpr: 0.001,
            by: CounterSource::Synthetic,
        },
        Because::TakesPlace { of: VcpuId(0), from: to, to: from, waited: 0.5 },
    ];
    let nice = |n: usize, nice| Decision::SetNice {
        vm: VmId(1),
        vcpu: VcpuId(n as u32),
        nice: Nice(nice),
        because: because[n].clone(),
    };
    let goes = |n: usize, pcpu| Decision::SetAffinity {
        vm: VmId(1),
        vcpu: VcpuId(n as u32),
        pcpus: only(pcpu),
        because: because[n].clone(),
    };
    vec![nice(0, 5), nice(1, 0), goes(0, 1), goes(1, 0)]
}

fn as_before() -> Vec<(String, i8)> {
    vec![("0".to_owned(), 0), ("1".to_owned(), 5)]
}

#[test]
fn swap_exchanges_pcpus_and_nice_values() {
    let mut world = World::new();
    let applied = world.apply(&swap());
    assert!(applied.refused.is_empty(), "{:?}", applied.refused);
    assert_eq!((applied.swaps.len(), applied.moved.len(), applied.others), (1, 2, 2));
    assert_eq!(world.places(), [("1".to_owned(), 5), ("0".to_owned(), 0)]);
}

#[test]
fn failed_move_undoes_the_other() {
    for held in [0, 1] {
        let mut world = World::new();
        let cpusets = BTreeMap::from([(tid(held), only(held))]);
        world.threads.0.lock().unwrap().cpusets = cpusets;
        for _ in 0..3 {
            let applied = world.apply(&swap());
            assert_eq!(world.places(), as_before());
            assert!(applied.swaps.is_empty() && applied.moved.is_empty());
            assert_eq!(applied.others, 0);
            assert_eq!(applied.refused.len(), 1, "{:?}", applied.refused);
            let error = &applied.refused[0].error;
            assert!(
                error.contains("vCPUs 0 and 1 do not change places") && error.contains("cpuset"),
                "{error}"
            );
        }
        let vcpus = &world.vms[&VmId(1)].cpu.vcpus;
        assert!(vcpus.iter().all(|vcpu| vcpu.granted.is_none()));
    }
}

#[test]
fn failed_nice_value_undoes_moves() {
    for refused in [0, 1] {
        let mut world = World::new();
        world.threads.0.lock().unwrap().no_nice = Some(tid(refused));
        let applied = world.apply(&swap());
        assert_eq!(world.places(), as_before());
        assert!(applied.swaps.is_empty(), "{refused}");
        assert_eq!(applied.refused.len(), 1, "{:?}", applied.refused);
    }
}

#[test]
fn incomplete_swap_is_skipped() {
    let mut world = World::new();
    let half: Vec<Decision> = swap().into_iter().take(3).collect();
    let applied = world.apply(&half);
    assert_eq!(world.places(), as_before());
    assert!(applied.swaps.is_empty() && applied.refused.is_empty());
}

#[test]
fn ended_vcpu_leaves_its_partner_in_place() {
    let mut world = World::new();
    world.threads.0.lock().unwrap().on.remove(&tid(1));
    let applied = world.apply(&swap());
    assert!(applied.swaps.is_empty() && applied.refused.is_empty());
    let state = world.threads.0.lock().unwrap();
    assert_eq!(state.on[&tid(0)], (only(0), Nice(0)));
}
