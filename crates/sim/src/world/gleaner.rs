//! Gleaner in a simulated guest: what the agent sees, and what it does.
//!
//! Once per period the agent of a VM is told what it could read inside a real one: CPU time and idle
//! time of the active vCPUs, how often they were idle, what was stolen, switches of the workload's
//! threads and their time in user mode. The policies are those of the agent on live VMs
//! ([`tandem_policy::gleaner`]): the paper's two, each by itself, or the agent's controller, which has both. It
//! is better off here than there, where user time is sampled.
//!
//! The active vCPUs are the VM's first. The others count as never idle, so the guest's scheduler
//! sends no thread there, and take none themselves; a thread that is there is moved when it waits, and
//! else when it blocks. Threads that the workload pins stay where they are, and so does what runs.
//!
//! An idle vCPU is kept awake by a yielding thread (spec 30): it costs a switch to and from that thread,
//! and a rescheduling interrupt to be rid of it, as in the paper's table 2 B.

use tandem_policy::Nanos;
use tandem_policy::gleaner::Consolidation;
use tandem_policy::gleaner::Controller;
use tandem_policy::gleaner::Observation;
use tandem_policy::gleaner::Retention;
use tandem_policy::gleaner::VcpuPeriod;

use crate::queue::Slot;
use crate::results::AgentChoice;
use crate::results::VcpuTime;
use crate::scenario;

use super::World;
use super::state::NONE;
use super::state::Work;

/// So many choices of an agent are kept; an agent that changes its mind more often is out of order.
const MOST_CHOICES: usize = 10_000;

/// What was counted up to the last period.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ran: VcpuTime,
    idle: u64,
    idle_periods: u64,
    halting: u64,
    waited: u64,
}

/// What decides.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each VM, and its agent is boxed"
)]
enum Control {
    Paper {
        consolidation: Option<Consolidation>,
        retention: Option<Retention>,
    },
    Agent(Controller),
}

impl Control {
    fn new(control: &scenario::Control, vcpus: u32) -> Control {
        match control.clone() {
            scenario::Control::Paper {
                consolidation,
                retention,
            } => Control::Paper {
                consolidation: consolidation.map(|config| Consolidation::new(vcpus, config)),
                retention: retention.map(Retention::new),
            },
            scenario::Control::Agent(config) => Control::Agent(Controller::new(vcpus, config)),
        }
    }

    /// vCPUs to use and the time to stay awake, ns, given what they are now.
    fn decide(&mut self, observed: &Observation, (active, awake): (u32, u64)) -> (u32, u64) {
        match self {
            Control::Paper {
                consolidation,
                retention,
            } => (
                consolidation
                    .as_mut()
                    .map_or(active, |policy| policy.decide(observed).active),
                retention
                    .as_mut()
                    .map_or(awake, |policy| policy.decide(observed).timeout.0),
            ),
            Control::Agent(controller) => {
                let decision = controller.decide(observed);
                (decision.active, decision.timeout.0)
            }
        }
    }
}

/// The agent of one VM.
#[derive(Debug)]
pub(crate) struct Agent {
    control: Control,
    pub period: u64,
    seen: Vec<Seen>,
    switches: u64,
    waiting: u64,
    pub choices: Vec<AgentChoice>,
}

impl Agent {
    pub(crate) fn new(agent: &scenario::Agent, vcpus: u32) -> Agent {
        Agent {
            control: Control::new(&agent.control, vcpus),
            period: agent.period.0,
            seen: vec![Seen::default(); vcpus as usize],
            switches: 0,
            waiting: 0,
            choices: Vec::new(),
        }
    }
}

impl World {
    /// A period of a VM's agent is over.
    pub(crate) fn agent(&mut self, vm: u32) {
        let Some(mut agent) = self.agents[vm as usize].take() else {
            return;
        };
        let slot = Slot(self.slots.agents + vm);
        self.queue.set(slot, self.now + agent.period);
        if self.vms[vm as usize].started <= self.now && self.vms[vm as usize].alive > 0 {
            let observed = self.observe_guest(vm, &mut agent);
            let state = &self.vms[vm as usize];
            let now = (state.active, state.awake);
            let (active, awake) = agent.control.decide(&observed, now);
            if (active, awake) != now && agent.choices.len() < MOST_CHOICES {
                agent.choices.push(AgentChoice {
                    at: Nanos(self.now),
                    vcpus: active,
                    timeout: Nanos(awake),
                });
            }
            self.vms[vm as usize].awake = awake;
            self.set_active(vm, active);
        }
        self.agents[vm as usize] = Some(agent);
    }

    fn observe_guest(&mut self, vm: u32, agent: &mut Agent) -> Observation {
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        let mut observed = Observation {
            period: Nanos(agent.period),
            ..Observation::default()
        };
        for index in 0..size {
            let v = first + index;
            self.sync(v);
            let vcpu = &self.vcpus[v as usize];
            let now = Seen {
                ran: vcpu.results.ran,
                idle: match vcpu.idle_since {
                    u64::MAX => vcpu.idle_total,
                    since => vcpu.idle_total + (self.now - since),
                },
                idle_periods: vcpu.idle_periods,
                halting: vcpu.halting_total,
                waited: vcpu.waited_total,
            };
            let seen = std::mem::replace(&mut agent.seen[index as usize], now);
            // The measurement may have begun in between, with these times at zero.
            let since = |of: fn(&VcpuTime) -> Nanos| {
                let (now, then) = (of(&now.ran).0, of(&seen.ran).0);
                Nanos(if now < then { now } else { now - then })
            };
            observed.user += since(|ran| ran.useful);
            if index < self.vms[vm as usize].active {
                let halting = now.halting - seen.halting;
                let ran = since(|ran| Nanos(ran.total().0 - ran.idle_poll.0));
                observed.vcpus.push(VcpuPeriod {
                    work: ran.saturating_sub(Nanos(halting)),
                    idle: Nanos(now.idle - seen.idle + halting),
                    idle_periods: now.idle_periods - seen.idle_periods,
                    stolen: Nanos(now.waited - seen.waited),
                });
            }
        }
        let vm = &self.vms[vm as usize];
        let switches = vm.counts.voluntary_switches;
        let before = std::mem::replace(&mut agent.switches, switches);
        observed.switches = match switches < before {
            true => switches,
            false => switches - before,
        };
        let waited = std::mem::replace(&mut agent.waiting, vm.waited);
        observed.waiting = Nanos(vm.waited - waited);
        observed
    }

    /// The workload may use the VM's first `active` vCPUs.
    pub(crate) fn set_active(&mut self, vm: u32, active: u32) {
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        self.vms[vm as usize].active = active;
        for index in 0..size {
            let v = first + index;
            let vcpu = &self.vcpus[v as usize];
            let idle = vcpu.idle_since != u64::MAX || vcpu.queue.is_empty();
            self.note_idle(v, idle && vcpu.thread == NONE);
            if index >= active {
                self.leave_inactive(v, first + index % active);
            }
        }
    }

    /// Threads that wait on a vCPU out of use go to one in use.
    fn leave_inactive(&mut self, from: u32, to: u32) {
        let vcpu = &self.vcpus[from as usize];
        let waiting: Vec<u32> = vcpu
            .queue
            .queued(&self.entities)
            .filter(|&t| self.threads[t as usize].pin == NONE && !self.is_stuck(t))
            .collect();
        if waiting.is_empty() {
            return;
        }
        for t in waiting {
            self.move_thread(t, from, to);
            self.arrived(t, to, from);
        }
        self.work.push(Work::Guest(to));
    }
}
