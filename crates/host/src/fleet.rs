//! The VMs under the daemon's care: found, adopted, measured each period, acted on, let go.
//!
//! Life of a managed VM: a scan finds it and the selection takes it → *adopted*: a cgroup that is its
//! own (libvirt's layout) is used as it is, otherwise a group is made and the vCPU threads (only
//! those) are moved into it → measured each period (what each vCPU ran and waited, as differences of
//! schedstat) → weights and affinities applied → gone: its group is removed.
//!
//! A dry run does all of this except to change anything. VMs and vCPUs may vanish between any two
//! lines here; what is gone is dropped at the next scan and is no error.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use tandem_policy::Decision;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::VcpuId;
use tandem_policy::VcpuObservation;
use tandem_policy::VmId;
use tandem_policy::VmObservation;
use tandem_policy::Weight;

use crate::config::WeightRule;
use crate::discovery::Vm;
use crate::select::name_matches;
use tandem_linux::actuator::Actuator;
use tandem_linux::actuator::ActuatorError;
use tandem_linux::actuator::Outcome;
use tandem_linux::cgroup::CgroupError;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::CpuController;
use tandem_linux::cgroup::Knob;
use tandem_linux::cgroup::ownership::Residence;
use tandem_linux::cgroup::ownership::find_own_cgroup;
use tandem_linux::cgroup::ownership::residence;
use tandem_linux::procfs::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::sampler::VcpuSample;
use tandem_linux::thread::ThreadRef;

/// How the daemon acts: for real, or only in words.
pub enum Backend {
    /// Every change is journaled, then made.
    Live(Box<Actuator>),
    /// Nothing is changed.
    Dry(Box<dyn CpuController>),
}

impl Backend {
    /// The cgroup controller, for reading.
    pub fn controller(&self) -> &dyn CpuController {
        match self {
            Backend::Live(actuator) => actuator.controller(),
            Backend::Dry(controller) => controller.as_ref(),
        }
    }
}

/// One vCPU thread under care.
#[derive(Debug)]
struct ManagedVcpu {
    index: VcpuId,
    thread: ThreadRef,
    last: Option<VcpuSample>,
    allowed: PcpuSet,
    /// Where we moved it, if we did.
    moved_to: Option<PcpuSet>,
    /// Periods in a row without any run or wait, and whether it was runnable when last looked at.
    quiet: u32,
    runnable: bool,
}

/// One VM under care.
#[derive(Debug)]
pub struct ManagedVm {
    /// As discovered.
    pub vm: Vm,
    /// The cgroup whose weight is the VM's.
    pub cgroup: CgroupPath,
    /// Whether the cgroup was made by us.
    pub made: bool,
    /// Configured weight w_i, in the knob's units.
    pub configured: Weight,
    /// The weight as last written or read.
    pub written: Weight,
    vcpus: Vec<ManagedVcpu>,
}

impl ManagedVm {
    /// How many vCPU threads are under care.
    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len()
    }

    /// Where each vCPU may run, by vCPU number.
    pub fn allowed(&self) -> Vec<(VcpuId, PcpuSet)> {
        self.vcpus
            .iter()
            .map(|vcpu| (vcpu.index, vcpu.allowed.clone()))
            .collect()
    }
}

/// A change that was asked for and could not be made; the VM stays as it was.
#[derive(Debug)]
pub struct Refused {
    /// Which VM.
    pub vm: String,
    /// What went wrong, with path and value.
    pub error: String,
}

/// Something an operator would want to read in the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Note(pub String);

/// All VMs under care.
pub struct Fleet {
    backend: Backend,
    sampler: Sampler,
    weights: Vec<WeightRule>,
    vms: BTreeMap<VmId, ManagedVm>,
    updates: u64,
}

/// What somebody else may have changed (affinities, weights) is read of each VM in every so many
/// updates only, of different VMs in different ones.
const RECHECK_EVERY: u64 = 8;

/// A vCPU that has just become quiet is looked at once, and from then on every so many periods.
const LOOK_EVERY: u32 = 10;

impl Fleet {
    /// A fleet without VMs yet.
    pub fn new(backend: Backend, sampler: Sampler, weights: Vec<WeightRule>) -> Fleet {
        Fleet {
            backend,
            sampler,
            weights,
            vms: BTreeMap::new(),
            updates: 0,
        }
    }

    /// The VMs under care, by id.
    pub fn vms(&self) -> impl Iterator<Item = &ManagedVm> {
        self.vms.values()
    }

    /// A VM under care.
    pub fn vm(&self, id: VmId) -> Option<&ManagedVm> {
        self.vms.get(&id)
    }

    /// The controller, for reading.
    pub fn controller(&self) -> &dyn CpuController {
        self.backend.controller()
    }

    /// Brings the fleet in line with what a scan found: adopts new VMs, follows hot-plugged vCPUs,
    /// lets go of what is gone. `found` holds the selected VMs, `all` every VM on the host.
    pub fn update(&mut self, found: &[Vm], all: &[Vm]) -> (Vec<Note>, Vec<Refused>) {
        self.updates = self.updates.wrapping_add(1);
        let (mut notes, mut refused) = (Vec::new(), Vec::new());
        let present: BTreeSet<VmId> = found.iter().map(|vm| vm.id).collect();
        let gone: Vec<VmId> = self
            .vms
            .keys()
            .copied()
            .filter(|id| !present.contains(id))
            .collect();
        for id in gone {
            if let Some(managed) = self.vms.remove(&id) {
                self.let_go(managed, &mut notes, &mut refused);
            }
        }
        let any_new = found.iter().any(|vm| !self.vms.contains_key(&vm.id));
        let homes = if any_new {
            residences(self.controller(), all)
        } else {
            BTreeMap::new()
        };
        for vm in found {
            let outcome = match self.vms.remove(&vm.id) {
                Some(managed) => self.follow(managed, vm, &mut notes),
                None => self.adopt(vm, &homes, &mut notes),
            };
            match outcome {
                Ok(managed) => {
                    self.vms.insert(vm.id, managed);
                }
                Err(error) if error.is_gone() => {}
                Err(error) => refused.push(Refused {
                    vm: vm.name.clone(),
                    error: error.to_string(),
                }),
            }
        }
        (notes, refused)
    }

    fn adopt(
        &mut self,
        vm: &Vm,
        homes: &BTreeMap<VmId, Residence>,
        notes: &mut Vec<Note>,
    ) -> Result<ManagedVm, FleetError> {
        let controller = self.backend.controller();
        let default = controller.default_weight();
        let wanted = self.rule_weight(vm).map(|w| Weight(w * default.0));
        let own = own_cgroup(controller, vm.id, homes)?;
        let made = own.is_none();
        let (cgroup, configured) = match own {
            Some(cgroup) => {
                let current = controller.weight(&cgroup)?;
                (cgroup, wanted.unwrap_or(current))
            }
            None => {
                let parent = self.home_of(vm)?;
                (
                    self.make_group(vm, &parent, notes)?,
                    wanted.unwrap_or(default),
                )
            }
        };
        let mut managed = ManagedVm {
            vm: vm.clone(),
            cgroup,
            made,
            configured,
            written: configured,
            vcpus: Vec::new(),
        };
        self.take_vcpus(&mut managed)?;
        if let Backend::Live(actuator) = &mut self.backend {
            managed.written = actuator.set_weight(&managed.cgroup, configured)?;
        }
        notes.push(Note(format!(
            "VM {} (pid {}, {} vCPUs) at weight {} in {}{}",
            vm.name,
            vm.process.pid,
            vm.vcpus.len(),
            managed.configured,
            managed.cgroup,
            if made { "" } else { ", its own cgroup" },
        )));
        if vm.unidentified > 0 {
            notes.push(Note(format!(
                "VM {} (pid {}): {} vCPU threads are not recognized by name; give a QMP socket or \
                 a thread pattern",
                vm.name, vm.process.pid, vm.unidentified
            )));
        }
        Ok(managed)
    }

    /// The cgroup that the VM's vCPU threads are in before anything is done.
    fn home_of(&self, vm: &Vm) -> Result<CgroupPath, FleetError> {
        let first = vm.vcpus.first().map_or(&vm.process, |vcpu| &vcpu.thread);
        Ok(self.backend.controller().cgroup_of(first)?)
    }

    fn make_group(
        &mut self,
        vm: &Vm,
        parent: &CgroupPath,
        notes: &mut Vec<Note>,
    ) -> Result<CgroupPath, FleetError> {
        let name = group_name(vm);
        match &mut self.backend {
            Backend::Live(actuator) => Ok(actuator.create_group(parent, &name)?),
            Backend::Dry(_) => {
                let path = format!("{}/{name}", parent.0.trim_end_matches('/'));
                notes.push(Note(format!(
                    "would make {path} and move {} vCPU threads of VM {} there: it has no cgroup of \
                     its own",
                    vm.vcpus.len(),
                    vm.name
                )));
                Ok(CgroupPath(path))
            }
        }
    }

    /// Moves vCPU threads that are new into the VM's group and starts to measure them.
    fn take_vcpus(&mut self, managed: &mut ManagedVm) -> Result<(), FleetError> {
        for vcpu in &managed.vm.vcpus {
            if managed
                .vcpus
                .iter()
                .any(|known| known.thread == vcpu.thread)
            {
                continue;
            }
            if managed.made
                && let Backend::Live(actuator) = &mut self.backend
            {
                match actuator.move_thread(&vcpu.thread, &managed.cgroup)? {
                    Outcome::Done => {}
                    Outcome::Gone => continue,
                }
            }
            let Ok(allowed) = self.sampler.read_affinity(&vcpu.thread) else {
                continue;
            };
            managed.vcpus.push(ManagedVcpu {
                index: vcpu.index,
                thread: vcpu.thread,
                last: None,
                allowed,
                moved_to: None,
                quiet: 0,
                runnable: true,
            });
        }
        managed.vcpus.sort_by_key(|vcpu| vcpu.index);
        Ok(())
    }

    /// Follows what changed on a VM since the last scan: vCPUs, affinities, the operator's weight.
    fn follow(
        &mut self,
        mut managed: ManagedVm,
        vm: &Vm,
        notes: &mut Vec<Note>,
    ) -> Result<ManagedVm, FleetError> {
        let threads: BTreeSet<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
        for vcpu in managed
            .vcpus
            .iter()
            .filter(|vcpu| !threads.contains(&vcpu.thread))
        {
            self.sampler.forget(&vcpu.thread);
        }
        managed.vcpus.retain(|vcpu| threads.contains(&vcpu.thread));
        managed.vm = vm.clone();
        self.take_vcpus(&mut managed)?;
        if !(self.updates + vm.id.0).is_multiple_of(RECHECK_EVERY) {
            return Ok(managed);
        }
        for vcpu in &mut managed.vcpus {
            let Ok(allowed) = self.sampler.read_affinity(&vcpu.thread) else {
                continue;
            };
            if vcpu.moved_to.as_ref().is_some_and(|ours| *ours != allowed) {
                vcpu.moved_to = None;
                if let Backend::Live(actuator) = &mut self.backend {
                    actuator.forget_affinity(&vcpu.thread)?;
                }
                notes.push(Note(format!(
                    "VM {} vCPU {}: someone else set its affinity to {allowed}; it stays there",
                    vm.name, vcpu.index
                )));
            }
            vcpu.allowed = allowed;
        }
        if let Backend::Live(actuator) = &mut self.backend {
            let current = actuator.controller().weight(&managed.cgroup)?;
            if current != managed.written {
                notes.push(Note(format!(
                    "VM {}: someone else set the weight of {} to {current}; it counts as configured \
                     from now on",
                    vm.name, managed.cgroup
                )));
                actuator.forget_knob(&managed.cgroup, Knob::Weight)?;
                (managed.configured, managed.written) = (current, current);
            }
        }
        Ok(managed)
    }

    fn let_go(&mut self, managed: ManagedVm, notes: &mut Vec<Note>, refused: &mut Vec<Refused>) {
        for vcpu in &managed.vcpus {
            self.sampler.forget(&vcpu.thread);
        }
        if let Backend::Live(actuator) = &mut self.backend {
            let error = match actuator.release_group(&managed.cgroup) {
                Ok(report) if report.is_complete() => None,
                Ok(report) => Some(report.to_string()),
                Err(error) => Some(error.to_string()),
            };
            let vm = &managed.vm.name;
            refused.extend(error.map(|error| Refused {
                vm: vm.clone(),
                error,
            }));
        }
        notes.push(Note(format!(
            "VM {} (pid {}) is gone",
            managed.vm.name, managed.vm.process.pid
        )));
    }

    fn rule_weight(&self, vm: &Vm) -> Option<f64> {
        self.weights
            .iter()
            .find(|rule| match (&rule.name, rule.pid) {
                (Some(glob), _) => name_matches(glob, &vm.name),
                (None, pid) => pid == Some(vm.process.pid.0),
            })
            .map(|rule| rule.weight)
    }

    /// What each VM's vCPUs did since the last call, scaled from `elapsed` to `period`.
    ///
    /// `look` asks whether quiet vCPUs are asleep or starved, which costs a read for each; the answer
    /// matters only where pCPUs are used up. VMs whose vCPUs have no earlier sample are left out.
    pub fn observe(&mut self, elapsed: Nanos, period: Nanos, look: bool) -> Vec<VmObservation> {
        let scale = period.0 as f64 / elapsed.0.max(1) as f64;
        self.sampler.begin_round();
        let mut observations = Vec::with_capacity(self.vms.len());
        for (id, managed) in &mut self.vms {
            let mut vcpus = Vec::with_capacity(managed.vcpus.len());
            let mut fresh = false;
            let stood_still = self.sampler.stood_still(managed.vm.process.pid);
            for vcpu in &mut managed.vcpus {
                let sample = match vcpu.last {
                    Some(last) if stood_still => last,
                    _ => match self.sampler.sample(&vcpu.thread) {
                        Ok(sample) => sample,
                        Err(_) => continue,
                    },
                };
                let Some(last) = vcpu.last.replace(sample) else {
                    fresh = true;
                    continue;
                };
                let scaled = |now: Nanos, then: Nanos| {
                    Nanos((now.saturating_sub(then).0 as f64 * scale) as u64)
                };
                let ran = scaled(sample.ran, last.ran);
                let waited = scaled(sample.waited, last.waited);
                vcpu.note_activity(ran + waited, look, &self.sampler);
                vcpus.push(VcpuObservation {
                    allowed: vcpu.allowed.clone(),
                    ran,
                    waited,
                    runnable: vcpu.runnable,
                });
            }
            if !fresh && !vcpus.is_empty() {
                observations.push(VmObservation {
                    vm: *id,
                    weight: managed.configured,
                    vcpus,
                });
            }
        }
        observations
    }

    /// Makes the changes, in order. In a dry run nothing is made.
    pub fn apply(&mut self, decisions: &[Decision]) -> (u64, u64, Vec<Refused>) {
        let (mut weights, mut moves, mut refused) = (0, 0, Vec::new());
        let Backend::Live(actuator) = &mut self.backend else {
            return (weights, moves, refused);
        };
        for decision in decisions {
            let outcome = match decision {
                Decision::SetWeight { vm, weight, .. } => {
                    let Some(managed) = self.vms.get_mut(vm) else {
                        continue;
                    };
                    set_weight(actuator, managed, *weight).map(|written| weights += written)
                }
                Decision::SetAffinity {
                    vm, vcpu, pcpus, ..
                } => {
                    let Some(managed) = self.vms.get_mut(vm) else {
                        continue;
                    };
                    let Some(vcpu) = managed.vcpus.get_mut(*vcpu) else {
                        continue;
                    };
                    actuator.set_affinity(&vcpu.thread, pcpus).map(|_| {
                        vcpu.allowed = pcpus.clone();
                        vcpu.moved_to = Some(pcpus.clone());
                        moves += 1;
                    })
                }
            };
            let vm = match decision {
                Decision::SetWeight { vm, .. } | Decision::SetAffinity { vm, .. } => vm,
            };
            match outcome {
                Err(error) if !error.is_gone() => {
                    let vm = self
                        .vms
                        .get(vm)
                        .map_or_else(String::new, |m| m.vm.name.clone());
                    refused.push(Refused {
                        vm,
                        error: error.to_string(),
                    });
                }
                _ => {}
            }
        }
        (weights, moves, refused)
    }

    /// Each pCPU's idle time since boot.
    pub fn idle(&self) -> BTreeMap<PcpuId, Nanos> {
        self.sampler.pcpu_idle().unwrap_or_default()
    }

    /// Gives back what puts everything back.
    pub fn into_backend(self) -> Backend {
        self.backend
    }
}

impl ManagedVcpu {
    /// Keeps `runnable` up to date without a read per period for those that sleep for long.
    fn note_activity(&mut self, active: Nanos, look: bool, sampler: &Sampler) {
        if active > Nanos::ZERO {
            (self.quiet, self.runnable) = (0, true);
            return;
        }
        self.quiet = self.quiet.saturating_add(1);
        if look && (self.quiet == 1 || self.quiet.is_multiple_of(LOOK_EVERY)) {
            self.runnable = sampler
                .read_state(&self.thread)
                .is_ok_and(|state| state.is_runnable());
        } else if !look {
            self.runnable = false;
        }
    }
}

/// Writes the weight if the knob would show a difference; returns how many writes were made.
fn set_weight(
    actuator: &mut Actuator,
    managed: &mut ManagedVm,
    weight: Weight,
) -> Result<u64, ActuatorError> {
    let (least, most) = actuator.controller().weight_range();
    let rounded = Weight(weight.0.round().clamp(least.0, most.0));
    if rounded == managed.written {
        return Ok(0);
    }
    managed.written = actuator.set_weight(&managed.cgroup, rounded)?;
    Ok(1)
}

/// Where each VM's threads are; VMs that vanish meanwhile are left out.
pub(crate) fn residences(controller: &dyn CpuController, vms: &[Vm]) -> BTreeMap<VmId, Residence> {
    vms.iter()
        .filter_map(|vm| {
            let vcpus: Vec<ThreadRef> = vm.vcpus.iter().map(|vcpu| vcpu.thread).collect();
            Some((vm.id, residence(controller, &vm.process, &vcpus).ok()?))
        })
        .collect()
}

/// The cgroup that is this VM's alone, if it has one.
pub(crate) fn own_cgroup(
    controller: &dyn CpuController,
    vm: VmId,
    homes: &BTreeMap<VmId, Residence>,
) -> Result<Option<CgroupPath>, CgroupError> {
    let Some(home) = homes.get(&vm) else {
        return Ok(None);
    };
    let others: Vec<Residence> = homes
        .iter()
        .filter(|(other, _)| **other != vm)
        .map(|(_, home)| home.clone())
        .collect();
    find_own_cgroup(controller, &ProcFs::host(), home, &others)
}

/// A name that tells an operator whose group it is: `tandem-NAME-PID`.
fn group_name(vm: &Vm) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = vm
        .name
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(64)
        .collect();
    format!("tandem-{name}-{}", vm.process.pid)
}

/// Why a VM cannot be taken into care.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Its cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A change was refused.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
}

impl FleetError {
    /// Whether the reason is only that the VM or its cgroup has vanished meanwhile.
    pub fn is_gone(&self) -> bool {
        match self {
            FleetError::Cgroup(error) => error.is_gone(),
            FleetError::Actuator(error) => error.is_gone(),
        }
    }
}
