//! Gleaner in a simulated guest: the agent's observations and its actions.
//!
//! Once per period, the agent of a VM observes the counters that it could read inside a real guest:
//! CPU and idle time of the active vCPUs, idle periods, steal time, and the switches and user time of the workload's threads.
//! User time is exact here, but sampled on live VMs.
//!
//! The active vCPUs are the VM's first.
//! The others never count as idle, so the guest's scheduler sends no thread there, and they pull none.
//! A waiting thread leaves an inactive vCPU at once, a running one at its next wake-up.
//! Threads that the workload pins stay on their vCPU.
//!
//! Retention is a yielding thread that keeps an idle vCPU awake (section 4.1 of the paper).
//! It costs a switch to and from that thread, and a rescheduling interrupt to end it, as in the paper's table 2 B.

use tandem_model::Nanos;
use tandem_policy::gleaner::{Observation, VcpuPeriod};

use crate::results::{AgentChoice, VcpuTime};

use super::agent::{Seen, SimulatedAgent};
use super::calendar::Event;
use super::simulation::World;
use super::state::{NONE, Work};

/// Maximum number of recorded choices of an agent; a working agent makes far fewer.
const MAX_CHOICES: usize = 10_000;

impl World {
    /// Ends a period of a VM's agent.
    pub(crate) fn agent(&mut self, vm: u32) {
        let Some(mut agent) = self.agents[vm as usize].take() else {
            return;
        };
        self.calendar.set(Event::Agent, vm, self.now + agent.period);
        if self.vms[vm as usize].started <= self.now && self.vms[vm as usize].alive > 0 {
            let observed = self.observe_guest(vm, &mut agent);
            let state = &self.vms[vm as usize];
            let now = (state.active, state.retention);
            let (active, retention) = agent.control.decide(&observed, now);
            if (active, retention) != now && agent.choices.len() < MAX_CHOICES {
                agent.choices.push(AgentChoice {
                    at: Nanos(self.now),
                    vcpus: active,
                    retention: Nanos(retention),
                });
            }
            self.vms[vm as usize].retention = retention;
            self.set_active(vm, active);
        }
        self.agents[vm as usize] = Some(agent);
    }

    fn observe_guest(&mut self, vm: u32, agent: &mut SimulatedAgent) -> Observation {
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        let mut observed = Observation { period: Nanos(agent.period), ..Observation::default() };
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
            // The measurement may have started in between and reset these times.
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
        observed.switches = if switches < before { switches } else { switches - before };
        let waited = std::mem::replace(&mut agent.waiting, vm.waited);
        observed.waiting = Nanos(vm.waited - waited);
        observed
    }

    /// Lets the workload use only the VM's first `active` vCPUs.
    pub(crate) fn set_active(&mut self, vm: u32, active: u32) {
        let (first, size) = {
            let vm = &self.vms[vm as usize];
            (vm.first_vcpu, vm.vcpus)
        };
        self.vms[vm as usize].active = active;
        for index in 0..size {
            let v = first + index;
            let vcpu = &self.vcpus[v as usize];
            let idle = vcpu.idle_since != u64::MAX || self.runnable_threads(v) == 0;
            self.note_idle(v, idle && vcpu.thread == NONE);
            if index >= active {
                self.leave_inactive(v, first + index % active);
            }
        }
    }

    /// Moves the waiting threads of an inactive vCPU to an active one.
    pub(crate) fn leave_inactive(&mut self, from: u32, to: u32) {
        let waiting: Vec<u32> = self
            .queued_threads(from)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    #[test]
    fn waiting_threads_leave_inactive_vcpus() {
        let text = "duration = \"1s\"\n[machine]\npcpus = 4
            [[workload]]\nname = \"computes\"
            [[workload.role]]\nthreads = \"2 per vcpu\"
            program = [ { forever = [ { compute = \"1ms\" } ] } ]
            [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"computes\"\n";
        let mut world = World::new(&load::from_text("s.toml", text).unwrap());
        world.run_until(Nanos::from_millis(10));
        let waiting =
            |world: &World| (0..4).map(|v| world.queued_threads(v).count()).collect::<Vec<usize>>();
        assert_eq!(waiting(&world), [1, 1, 1, 1]);
        world.set_active(0, 2);
        assert_eq!(waiting(&world), [2, 2, 0, 0]);
    }
}
