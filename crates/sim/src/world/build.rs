//! Builds a world from a scenario.
//!
//! Threads are spread over their VM's vCPUs in order.
//! All vCPUs start halted, and a VM's start wakes those that have threads.

use tandem_kpolicy::{Aple, Hvs};
use tandem_model::{PcpuId, PcpuSet, PolicySet, VcpuSettings, Weight};
use tandem_policy::FlexS;
use tandem_policy::host::{Controller, ControllerConfig};

use crate::host::{
    Candidate, Cookies, HostConfig, HostScheduler, PauseLoop, Placement, Shape, Starts, starts,
};
use crate::machine::Cache;
use crate::random::Stream;
use crate::results::{Counts, Histogram, PcpuResults, VcpuResults};
use crate::scenario::{HostPolicies, MmLock, Mode, Scenario};
use crate::sched::fair::FairClass;
use crate::trace::{ThreadState, VcpuState};
use crate::workload::{MOST_HELD, MOST_LOOPS, Object as WorkloadObject, Op, Space, Workload};
use crate::{host, scenario};

use super::agent::SimulatedAgent;
use super::calendar::{Calendar, Event};
use super::code::{Instr, compile};
use super::core_scheduling::CoreScheduling;
use super::governor::Governor;
use super::policy_host::Policies;
use super::rotation::Turns;
use super::simulation::World;
use super::smt::{FULL_SPEED, Smt};
use super::state::{
    Doing, Idle, MmWait, NONE, Object, ObjectKind, Pcpu, PcpuState, Phase, SimulatedVm, Thread,
    Vcpu, Waiters,
};
use super::swapper::Swapper;

/// Hash buckets of futexes per VM.
const BUCKETS: u32 = 64;

/// The parts of a world that grow VM by VM.
#[derive(Default)]
struct Parts {
    vms: Vec<SimulatedVm>,
    vcpus: Vec<Vcpu>,
    threads: Vec<Thread>,
    fair: FairClass,
    objects: Vec<Object>,
    code: Vec<Instr>,
    roles: Vec<Vec<String>>,
    object_names: Vec<Vec<String>>,
    allowed: Vec<PcpuSet>,
}

impl World {
    /// Builds the world of a scenario.
    pub fn new(scenario: &Scenario) -> World {
        let native = is_native(scenario);
        let machine = &scenario.machine;
        let mut parts = Parts::default();
        for (number, _) in scenario.vms.iter().enumerate() {
            parts.add_vm(scenario, number);
        }
        parts.apply_xen_starts(scenario);
        let topology = machine.topology();
        let costs = if native { machine.costs.native() } else { machine.costs };
        let pcpus = topology
            .places()
            .zip(0..)
            .map(|(place, p)| Pcpu {
                current: if native { p } else { NONE },
                yielded_over: NONE,
                warm: if native { p } else { NONE },
                cache: Cache::default(),
                llc: place.cache,
                node: place.node,
                state: PcpuState::Idle,
                since: 0,
                idle_total: 0,
                results: PcpuResults::default(),
                resched: false,
                resched_lazy: false,
                protected_until: 0,
                next_boost: 0,
                ganged: false,
            })
            .collect::<Vec<_>>();
        let weights: Vec<f64> = scenario.vms.iter().map(|vm| vm.weight.value()).collect();
        let shape = Shape {
            pcpus: machine.pcpus,
            follows_topology: machine.layout.is_some(),
            vm_of: parts.vcpus.iter().map(|vcpu| vcpu.vm).collect(),
            weights: weights.clone(),
            vcpu_weights: vcpu_weights(scenario),
            allowed: parts.allowed.clone(),
            placement: scenario.host.placement,
            busy_factor: scenario.host.busy_factor,
            topology,
        };
        let Parts { vms, vcpus, threads, .. } = &parts;
        let mut calendar = Calendar::new(vms.len(), vcpus.len(), threads.len(), pcpus.len());
        for (number, vm) in scenario.vms.iter().enumerate() {
            calendar.set(Event::Start, number as u32, vm.starts.0);
        }
        if scenario.host.cap {
            calendar.set(Event::CapPeriod, 0, 0);
        }
        let policies = policies(scenario, &parts.allowed);
        if let Some(controller) = &policies.controller {
            calendar.set(Event::Policies, 0, controller.config().period.0);
        }
        for (number, vm) in scenario.vms.iter().enumerate() {
            if let Some(&(at, _)) = vm.hotplug.first() {
                calendar.set(Event::Hotplug, number as u32, at.0);
            }
        }
        let flexs = flexs(scenario, &parts);
        if let Some(Swapper { tick, .. }) = flexs.as_deref() {
            for p in 0..pcpus.len() as u64 {
                // Ticks of the pCPUs are staggered.
                let first = tick * (p + 1) / pcpus.len() as u64;
                calendar.set(Event::FlexS, p as u32, first.max(1));
            }
        }
        let agent = |vm: &scenario::Vm| {
            let agent = vm.guest.agent.as_ref()?;
            Some(Box::new(SimulatedAgent::new(agent, vm.vcpus)))
        };
        let agents: Vec<_> = scenario.vms.iter().map(agent).collect();
        for (number, agent) in agents.iter().enumerate() {
            if let Some(agent) = agent {
                let begin = scenario.vms[number].starts.0;
                calendar.set(Event::Agent, number as u32, begin + agent.period);
            }
        }
        for (number, vm) in scenario.vms.iter().enumerate() {
            if let Some(governor) = vm.guest.preferred {
                calendar.set(Event::Governor, number as u32, vm.starts.0 + governor.interval.0);
            }
        }
        let mut world = World {
            name: scenario.name.clone(),
            seed: scenario.seed,
            now: 0,
            end: scenario.duration.0,
            warmup: scenario.warmup.0,
            measured_from: 0,
            events: 0,
            finished: parts.threads.is_empty(),
            native,
            smt: Smt::new(&shape.topology, &costs),
            core_scheduling: (scenario.host.core_scheduling == Cookies::Vm)
                .then(|| CoreScheduling::new(pcpus.len())),
            costs,
            timer_steals: machine.timer_steals.clone(),
            steal_random: Stream::new(scenario.seed, "timer steals", 0),
            config: scenario.host.clone(),
            window_cache: (0, None),
            calendar,
            turns: Turns::default(),
            host: host::build(&scenario.host.scheduler, shape),
            idle_pcpus: (0..machine.pcpus).map(PcpuId).collect(),
            pcpus,
            alive: parts.threads.len() as u32,
            vms: parts.vms,
            vcpus: parts.vcpus,
            threads: parts.threads,
            fair: parts.fair,
            objects: parts.objects,
            code: parts.code,
            messages: Vec::new(),
            free_messages: Vec::new(),
            work: Vec::new(),
            work_done: 0,
            roles: parts.roles,
            names: scenario.vms.iter().map(|vm| vm.name.clone()).collect(),
            object_names: parts.object_names,
            weights,
            allowed: parts.allowed,
            policies,
            flexs,
            agents,
            trace: None,
            waits: None,
            checks: cfg!(debug_assertions),
        };
        world.begin_policies();
        world
    }
}

/// The controller of policies, if any policy is enabled, and its initial settings.
fn policies(scenario: &Scenario, allowed: &[PcpuSet]) -> Policies {
    let HostPolicies { controller, knob } = &scenario.policies.host;
    let of_host = controller.policies;
    let vms = scenario.vms.iter();
    let vms: Vec<_> = vms.map(|vm| (vm.weight, vm.policies.unwrap_or(of_host), vm.vcpus)).collect();
    let used = vms.iter().fold(of_host, |used, (_, set, _)| used.or(*set));
    let controller = (used != PolicySet::NONE)
        .then(|| Controller::new(ControllerConfig { policies: used, ..controller.clone() }));
    let vcpus = vcpu_weights(scenario).into_iter().map(|weight| VcpuSettings {
        weight: (weight != 1024).then_some(Weight::saturating(f64::from(weight))),
        ..VcpuSettings::default()
    });
    Policies::new(controller, *knob, vms, vcpus.collect(), allowed)
}

/// Whether the machine has no hypervisor.
fn is_native(scenario: &Scenario) -> bool {
    scenario.machine.mode == Mode::Native
}

/// Slowdown of a VM with `vcpus` vCPUs relative to bare metal, in percent.
fn slower_percent(scenario: &Scenario, vcpus: u32) -> u64 {
    if is_native(scenario) {
        return 0;
    }
    let costs = &scenario.machine.costs;
    let spans = vcpus > scenario.machine.pcpus_per_llc.max(1);
    costs.nested_paging_percent + u64::from(spans) * costs.blind_numa_percent
}

/// The weight of each vCPU within its VM.
fn vcpu_weights(scenario: &Scenario) -> Vec<u32> {
    let of_vm = |vm: &scenario::Vm| {
        if vm.vcpu_weights.is_empty() {
            vec![1024; vm.vcpus as usize]
        } else {
            vm.vcpu_weights.clone()
        }
    };
    scenario.vms.iter().flat_map(of_vm).collect()
}

impl Parts {
    /// Under credit with `starts = "picked"`, moves vCPUs to the pCPUs on which Xen starts them.
    fn apply_xen_starts(&mut self, scenario: &Scenario) {
        let HostScheduler::Credit(credit) = &scenario.host.scheduler else {
            return;
        };
        if credit.starts == Starts::Spread || is_native(scenario) {
            return;
        }
        let vm_of: Vec<u32> = self.vcpus.iter().map(|vcpu| vcpu.vm).collect();
        let on = starts::picked(scenario.machine.pcpus, &vm_of, &self.allowed);
        for (vcpu, p) in self.vcpus.iter_mut().zip(on) {
            vcpu.pcpu = p;
        }
    }

    fn add_vm(&mut self, scenario: &Scenario, number: usize) {
        let vm = &scenario.vms[number];
        let first_vcpu = self.vcpus.len() as u32;
        let first_thread = self.threads.len() as u32;
        let objects = self.add_objects(vm, number as u32);
        let words = (vm.vcpus as usize).div_ceil(64).max(1);
        for index in 0..vm.vcpus {
            self.add_vcpu(scenario, number, index);
        }
        for (role_number, role) in vm.workload.roles.iter().enumerate() {
            let pc = self.code.len() as u32;
            compile(
                &vm.workload,
                &role.program,
                role.threads.count(vm.sized_for()),
                objects.first,
                (objects.mm, vm.guest.mm_lock, vm.guest.mm_readers),
                pc,
                &mut self.code,
            );
            for n in 0..role.threads.count(vm.sized_for()) {
                let t = self.threads.len() as u32;
                let pin = if role.pins.is_empty() {
                    NONE
                } else {
                    first_vcpu + role.pins[n as usize % role.pins.len()] % vm.vcpus
                };
                let spread = first_vcpu + (t - first_thread) % vm.vcpus;
                let pin = match pin {
                    NONE if vm.guest.per_thread => spread,
                    pin => pin,
                };
                self.fair.add_task(role.weight);
                self.threads.push(Thread {
                    vm: number as u32,
                    role: role_number as u32,
                    number: n,
                    pin,
                    working_set: u64::from(role.working_set_kib),
                    data_at: NONE,
                    home: None,
                    pc,
                    doing: Doing::Go,
                    phase: Phase::Start,
                    remaining: 0,
                    state: ThreadState::Ready,
                    since: vm.starts.0,
                    vcpu: if pin == NONE { spread } else { pin },
                    no_preempt: 0,
                    object: NONE,
                    relock: NONE,
                    held: [NONE; MOST_HELD],
                    held_count: 0,
                    loops: [0; MOST_LOOPS],
                    mm_wait: MmWait::Reader,
                    generation: 0,
                    answers_left: 0,
                    wait_since: 0,
                    woken_at: u64::MAX,
                    ready_at: u64::MAX,
                    request: u64::MAX,
                    woken_by: NONE,
                    period_began: 0,
                    next: NONE,
                    previous: NONE,
                    random: Stream::new(scenario.seed, "thread", u64::from(t)),
                    work: 0,
                    computed: 0,
                    ended: None,
                });
            }
        }
        let threads = self.threads.len() as u32 - first_thread;
        self.roles.push(vm.workload.roles.iter().map(|r| r.name.clone()).collect());
        self.vms.push(SimulatedVm {
            guest: vm.guest.clone(),
            first_vcpu,
            vcpus: vm.vcpus,
            first_thread,
            threads,
            first_object: objects.first,
            idle: vec![0; words],
            ready: vec![0; words],
            overloaded: vec![0; words],
            alive: threads,
            is_placed: !vm.begins_on.is_empty(),
            started: u64::MAX,
            finished: None,
            last_boosted: 0,
            ple_window: match scenario.host.pause_loop {
                PauseLoop::PerVm(window) | PauseLoop::Fixed(window) => window,
                PauseLoop::Stock { base, .. } => base,
                PauseLoop::Aple(aple) => aple.initial,
                PauseLoop::Off => 0,
            },
            aple: aple(&scenario.host),
            hvs: hvs(&scenario.host, vm.vcpus),
            windows: Vec::new(),
            counts: Counts::default(),
            request_time: Histogram::default(),
            wake_latency: Histogram::default(),
            ipi_latency: Histogram::default(),
            shootdown_latency: Histogram::default(),
            lock_wait: Histogram::default(),
            throttled: false,
            quota: u64::MAX,
            active: vm.vcpus,
            present: vm.vcpus,
            preferred: vm.vcpus,
            governor: vm.guest.preferred.map(|config| Governor::new(config, vm.starts)),
            hotplug: vm.hotplug.clone(),
            retention: 0,
            waited: 0,
            random: Stream::new(scenario.seed, "vm", number as u64),
        });
        let vm = self.vms.last_mut();
        if let Some(vm) = vm {
            for index in 0..vm.vcpus {
                crate::bits::set_bit(&mut vm.idle, index, true);
            }
        }
    }

    fn add_vcpu(&mut self, scenario: &Scenario, number: usize, index: u32) {
        let vm = &scenario.vms[number];
        let pcpus = scenario.machine.pcpus;
        let native = is_native(scenario);
        let allowed: PcpuSet = match (vm.pins.is_empty(), scenario.host.placement) {
            (false, _) => vm.pins[index as usize % vm.pins.len()].clone(),
            (true, Placement::Pin) => [PcpuId(index % pcpus)].into_iter().collect(),
            (true, _) => (0..pcpus).map(PcpuId).collect(),
        };
        // VMs start on different pCPUs, as on a host; this also holds within a shared part of it.
        let place = self.vcpus.len();
        let spread = place as u32 % pcpus;
        let pcpu = if native {
            index
        } else if !vm.begins_on.is_empty() {
            vm.begins_on[index as usize]
        } else if allowed.contains(PcpuId(spread)) {
            spread
        } else {
            let nth = allowed.iter().nth(place % allowed.len().max(1));
            nth.map_or(0, |p| p.0)
        };
        self.allowed.push(allowed);
        self.fair.add_cpu(vm.guest.scheduler);
        self.vcpus.push(Vcpu {
            vm: number as u32,
            state: VcpuState::Halted,
            pcpu,
            ran_on: if native { index } else { NONE },
            queued: false,
            since: 0,
            synced: 0,
            host_accounted: 0,
            guest_accounted: 0,
            steal_clock: vm.guest.steal_clock,
            slower_percent: slower_percent(scenario, vm.vcpus),
            owed: [0; 4],
            thread: NONE,
            speed: FULL_SPEED,
            begun: 0,
            warm_thread: NONE,
            cold: false,
            fetches: NONE,
            fetch_per_kib: 0,
            idle: Idle::Halted,
            poll_until: u64::MAX,
            need_resched: false,
            resched_sent: u64::MAX,
            resched_from: NONE,
            resched_pending: false,
            due: Vec::new(),
            flushes: Vec::new(),
            answers: Vec::new(),
            has_tlb: false,
            flush_on_entry: false,
            search: NONE,
            in_spin_loop: false,
            dy_eligible: false,
            failed_searches: 0,
            ipi_receiver: NONE,
            ipi_at: 0,
            push_pending: false,
            ple_window: match scenario.host.pause_loop {
                PauseLoop::Stock { base, .. } => base,
                _ => 0,
            },
            tick_due: 0,
            ticks: index,
            halted_at: 0,
            halt_poll: 0,
            guest_poll: 0,
            retained: false,
            pv_halted: false,
            ran_total: 0,
            waited_total: 0,
            runs_total: 0,
            woken_by: Vec::new(),
            idle_since: 0,
            idle_total: 0,
            idle_periods: 0,
            halting_total: 0,
            polled: 0,
            results: VcpuResults::default(),
        });
    }

    /// Adds the workload's objects, the address space's lock, and the futex buckets, in this order.
    fn add_objects(&mut self, from: &scenario::Vm, vm: u32) -> VmObjects {
        let (workload, guest) = (&from.workload, &from.guest);
        let first = self.objects.len() as u32;
        let mm = first + workload.objects.len() as u32;
        let buckets = mm + 1;
        let users = barrier_users(workload, from.sized_for());
        let bucket_of = |object: u32| buckets + (object.wrapping_mul(0x9e37_79b1) >> 16) % BUCKETS;
        for (number, object) in workload.objects.iter().enumerate() {
            let id = first + number as u32;
            let (kind, count) = match *object {
                WorkloadObject::Spin { kind, space } => {
                    (ObjectKind::Spin { kind, kernel: space == Space::Kernel }, 0)
                }
                WorkloadObject::Mutex => (ObjectKind::Mutex { fair: false }, 0),
                WorkloadObject::Condition => (ObjectKind::Condition, 0),
                WorkloadObject::Barrier { parties, spin, wake } => {
                    let parties = parties.unwrap_or(users[number]).max(1);
                    let kind = ObjectKind::Barrier { parties, spin, wake };
                    (kind, 0)
                }
                WorkloadObject::Semaphore { units, spin } => {
                    (ObjectKind::Semaphore { spin }, units)
                }
                WorkloadObject::Queue { capacity } => (ObjectKind::Queue { capacity }, 0),
            };
            self.add_object(kind, vm, count, bucket_of(id));
        }
        let mm_kind = match guest.mm_lock {
            how if guest.mm_readers => ObjectKind::AddressSpace(how),
            MmLock::Stealing => ObjectKind::Mutex { fair: false },
            MmLock::HandedOver => ObjectKind::Mutex { fair: true },
            MmLock::Spinning => ObjectKind::Spin { kind: guest.spin_locks, kernel: true },
        };
        self.add_object(mm_kind, vm, 0, bucket_of(mm));
        for _ in 0..BUCKETS {
            let kind = ObjectKind::Spin { kind: guest.spin_locks, kernel: true };
            self.add_object(kind, vm, 0, NONE);
        }
        let mut names = workload.object_names.clone();
        names.push("address space".to_owned());
        names.extend((0..BUCKETS).map(|n| format!("futex bucket {n}")));
        self.object_names.push(names);
        VmObjects { first, mm }
    }

    fn add_object(&mut self, kind: ObjectKind, vm: u32, count: u32, bucket: u32) {
        self.objects.push(Object {
            kind,
            vm,
            owner: NONE,
            waiters: Waiters::EMPTY,
            putters: Waiters::EMPTY,
            count,
            generation: 0,
            bucket,
        });
    }
}

/// Positions of a VM's objects.
struct VmObjects {
    first: u32,
    mm: u32,
}

/// Returns the number of threads that use each object as a barrier.
fn barrier_users(workload: &Workload, vcpus: u32) -> Vec<u32> {
    let mut users = vec![0; workload.objects.len()];
    for role in &workload.roles {
        let threads = role.threads.count(vcpus);
        let mut seen = vec![false; workload.objects.len()];
        for op in &role.program {
            if let Op::Barrier(reference) = op {
                for object in reference.first..reference.first + reference.count.max(1) {
                    seen[object as usize] = true;
                }
            }
        }
        for (count, seen) in users.iter_mut().zip(seen) {
            *count += if seen { threads } else { 0 };
        }
    }
    users
}

/// FlexS, if the scenario enables it; the scenario's reader has checked the settings.
fn flexs(scenario: &Scenario, parts: &Parts) -> Option<Box<Swapper>> {
    let config = scenario.policies.flexs.clone()?;
    let tick = config.tick.0;
    let policy = FlexS::new(config, scenario.seed).ok()?;
    let profile = |vcpu: &Vcpu| scenario.vms[vcpu.vm as usize].workload.branches;
    let profiles = parts.vcpus.iter().map(profile).collect();
    Some(Box::new(Swapper::new(policy, tick, scenario.seed, scenario.machine.pcpus, profiles)))
}

/// APLE for one VM, if the host uses it; the scenario's reader has checked the settings.
fn aple(host: &HostConfig) -> Option<Aple> {
    match host.pause_loop {
        PauseLoop::Aple(policy) => Aple::new(policy.into()).ok(),
        _ => None,
    }
}

/// HVS for one VM, if the host uses it; the scenario's reader has checked the number of vCPUs.
fn hvs(host: &HostConfig, vcpus: u32) -> Option<Hvs> {
    match host.candidate {
        Candidate::Ranked(ranking) => Hvs::new(vcpus as usize, ranking.into()).ok(),
        Candidate::None | Candidate::Stock | Candidate::InKernel | Candidate::IpiAware => None,
    }
}
