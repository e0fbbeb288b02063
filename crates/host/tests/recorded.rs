//! The live path decides like the simulated one.
//!
//! The daemon's fleet replays a sequence that a simulation recorded (`crates/sim/tests/recorded.rs`), period by period.
//! Observations and decisions must be equal.
//!
//! The threads belong to this process, so that affinities are real.
//! Their times are in a `/proc` made here, and the cgroups are in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::{fs, io};

use tandem_host::apply::Applied;
use tandem_host::discovery::{VcpuThread, Vm};
use tandem_host::fleet::{Backend, Fleet};
use tandem_host::vmm::Vmm;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::{HostThreads, affinity, set_affinity};
use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::procfs::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::{Pid, StartTime, ThreadRef, Tid};
use tandem_model::{Decision, Nanos, VmObservation};
use tandem_policy::host::{
    Controller, ControllerConfig, Host, HostObservation, IdleTimes, Knobs, Placement, registry,
};
use tandem_policy::turns::Rotation;
use tandem_testing::fake_host::Fake;

type Recorded = Vec<(HostObservation, Vec<Decision>)>;

/// A thread of this process that sleeps until dropped.
struct Sleeper {
    tid: Tid,
    _end: mpsc::Sender<()>,
}

impl Sleeper {
    fn start() -> Sleeper {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(Tid(tid as u32)).unwrap();
            let _ = ended.recv();
        });
        Sleeper { tid: told.recv().unwrap(), _end: end }
    }
}

/// The live fleet with a clock and a `/proc` that the recording sets.
struct Played {
    fleet: Fleet,
    root: PathBuf,
    threads: BTreeMap<(u64, u32), (ThreadRef, Sleeper)>,
    /// Time that each vCPU ran and waited so far, in ns, and number of times that it was put on a pCPU.
    ran_and_waited: BTreeMap<(u64, u32), (u64, u64, u64)>,
    now: Nanos,
    idle: IdleTimes,
}

impl Played {
    /// A fleet of the VMs of the first observation, pinned as there.
    fn new(first: &HostObservation, root: &Path) -> io::Result<Played> {
        let pid = Pid(std::process::id());
        let mut threads = BTreeMap::new();
        let mut vms = Vec::new();
        let cgroups = Fake::empty(Version::V1);
        for vm in &first.vms {
            let mut vcpus = Vec::new();
            for vcpu in &vm.vcpus {
                let sleeper = Sleeper::start();
                set_affinity(sleeper.tid, &vcpu.allowed).map_err(io::Error::other)?;
                let thread = ThreadRef { pid, tid: sleeper.tid, start: StartTime(7) };
                cgroups.put(thread, &CgroupPath("/vms".to_owned()));
                vcpus.push(VcpuThread { index: vcpu.vcpu, thread });
                threads.insert((vm.vm.0, vcpu.vcpu.0), (thread, sleeper));
            }
            vms.push(Vm {
                user: None,
                id: vm.vm,
                // Not a thread of the host, so the process has no known place.
                process: ThreadRef { pid, tid: Tid(u32::MAX), start: StartTime(7) },
                name: format!("vm{}", vm.vm),
                vmm: Vmm::Tandem,
                vcpus,
                unidentified: 0,
            });
        }
        let procfs = ProcFs::at(root);
        let mut played = Played {
            ran_and_waited: threads.keys().map(|&key| (key, (0, 0, 1))).collect(),
            root: root.to_owned(),
            threads,
            now: Nanos::ZERO,
            idle: first.idle.keys().map(|&pcpu| (pcpu, Nanos::ZERO)).collect(),
            fleet: {
                let (actuator, _) = Actuator::open_with(
                    Box::new(cgroups),
                    Box::new(HostThreads::new(procfs.clone())),
                    &root.join("state"),
                    "boot",
                )
                .map_err(io::Error::other)?;
                let backend = Backend::Live(Box::new(actuator));
                let fair = registry::set(["fair"]).map_err(io::Error::other)?;
                Fleet::new(backend, Sampler::new(procfs), Vec::new(), fair)
            },
        };
        played.write()?;
        let (_, refused) = played.fleet.update(&vms, &vms);
        assert!(refused.is_empty(), "{refused:?}");
        Ok(played)
    }

    /// Writes the times of the threads to the kernel's files.
    fn write(&self) -> io::Result<()> {
        for (key, (thread, _)) in &self.threads {
            let folder = ProcFs::at(&self.root).task(thread.pid, thread.tid);
            fs::create_dir_all(&folder)?;
            let (ran, waited, runs) = self.ran_and_waited[key];
            fs::write(folder.join("schedstat"), format!("{ran} {waited} {runs}\n"))?;
            let tid = thread.tid;
            let stat = format!("{tid} (CPU/KVM) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n");
            fs::write(folder.join("stat"), stat)?;
        }
        Ok(())
    }

    /// Plays a recorded period.
    fn play(&mut self, recorded: &HostObservation) -> io::Result<()> {
        self.now = Nanos(self.now.0 + recorded.period.0);
        for (pcpu, idle) in &recorded.idle {
            *self.idle.entry(*pcpu).or_default() += *idle;
        }
        for vm in &recorded.vms {
            for vcpu in &vm.vcpus {
                let sums = self.ran_and_waited.entry((vm.vm.0, vcpu.vcpu.0)).or_default();
                let runs = vcpu.runs.unwrap_or_default();
                *sums = (sums.0 + vcpu.ran.0, sums.1 + vcpu.waited.0, sums.2 + runs);
            }
        }
        self.write()
    }
}

impl Host for Played {
    type Applied = Applied;

    fn idle(&mut self) -> (Nanos, IdleTimes) {
        (self.now, self.idle.clone())
    }

    fn knobs(&self) -> Knobs {
        self.fleet.knobs()
    }

    fn observe(&mut self, elapsed: Nanos, period: Nanos, closely: bool) -> Vec<VmObservation> {
        self.fleet.observe(elapsed, period, closely)
    }

    fn apply(&mut self, decisions: &[Decision], rotation: Option<&Rotation>) -> Applied {
        self.fleet.apply(decisions, rotation)
    }
}

/// Formats a decision with its reason, since figures in JSON may differ in their last bit.
fn in_words(decision: &Decision) -> String {
    let what = match decision {
        Decision::SetWeight { weight, .. } => format!("weight {}", weight.value()),
        Decision::SetAffinity { pcpus, .. } => format!("pCPUs {pcpus}"),
        other => format!("{other:?}"),
    };
    let whose = (decision.vm(), decision.vcpu());
    format!("{whose:?}: {what}, {}", decision.because())
}

#[test]
fn the_live_path_decides_as_the_simulated_one() {
    let usable = affinity(Tid(0)).unwrap();
    if !(0..2).all(|pcpu| usable.contains(tandem_model::PcpuId(pcpu))) {
        println!("skipped: pCPUs 0 and 1 are not open to this process");
        return;
    }
    let text = include_str!("golden/decisions.json");
    let recorded: Recorded = serde_json::from_str(text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut host = Played::new(&recorded[0].0, dir.path()).unwrap();
    let fair = registry::set(["fair"]).unwrap();
    let mut controller = Controller::new(ControllerConfig {
        period: recorded[0].0.period,
        placement: Placement::Rebalance,
        ..ControllerConfig::new(fair)
    });
    controller.begin(&mut host);
    let (mut weights, mut moves) = (0, 0);
    for (number, (observation, decisions)) in recorded.iter().enumerate() {
        host.play(observation).unwrap();
        let period = controller.period(&mut host);
        let period = period.unwrap_or_else(|| panic!("period {number} was taken for a quiet one"));
        assert_eq!(period.observation.idle, observation.idle, "period {number}");
        assert_eq!(period.observation.knobs.weight, observation.knobs.weight);
        for (seen, recorded) in period.observation.vms.iter().zip(&observation.vms) {
            let (policies, mut vcpus) = (seen.policies, recorded.vcpus.clone());
            // A live host does not know a vCPU's last pCPU and its waker.
            for vcpu in &mut vcpus {
                (vcpu.pcpu, vcpu.woken_by) = (None, Vec::new());
            }
            assert!(policies.contains(registry::find("fair").unwrap()));
            assert_eq!(seen.vcpus, vcpus, "period {number}");
            assert_eq!(seen.in_force, recorded.in_force, "period {number}");
            assert_eq!(seen.weight, recorded.weight, "period {number}");
        }
        let told =
            |decisions: &[Decision]| -> Vec<String> { decisions.iter().map(in_words).collect() };
        assert_eq!(told(&period.round.decisions), told(decisions), "period {number}");
        let applied = period.applied.unwrap();
        assert!(applied.refused.is_empty(), "{:?}", applied.refused);
        weights += applied.weights;
        moves += applied.moved.len();
    }
    assert!(weights >= 20 && moves >= 1, "{weights} weights, {moves} moves");
}
