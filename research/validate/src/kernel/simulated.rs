//! The same workloads in the simulator, as one operating system on two CPUs without a hypervisor.
//!
//! A cgroup is a VM with the group's weight, one vCPU per thread, and no costs of exits or emulation.
//! So the host's scheduler has the same entities in the same groups.

use std::fmt::Write;

use tandem_model::Nanos;
use tandem_sim::machine::{Costs, TimerSteals};
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::trace::TraceEvent;
use tandem_sim::workload::{Role, Threads, Workload};
use tandem_sim::{Scenario, World};
use thiserror::Error;

use super::cpus::CPUS;
use super::groups::{Group, RoleRun};
use crate::rest::Rest;
use crate::this_kernel::{UnknownRelease, fair, scheduler, tick};

/// Error of a simulated run.
#[derive(Debug, Error)]
pub enum SimulatedError {
    /// The scheduler of the kernel is unknown.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine's scenario is invalid.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The workload does not end.
    #[error("workload {workload} does not end within {MAX_TIME} of simulated time")]
    Endless {
        /// The workload.
        workload: String,
    },
}

/// Maximum simulated time, longer than any of the programs.
const MAX_TIME: Nanos = Nanos::from_secs(120);

/// Maximum number of recorded events in a run.
const MAX_EVENTS: usize = 10_000_000;

/// Description of the machine for the simulator.
#[derive(Clone, Debug)]
pub struct Machine {
    base: Scenario,
    /// Scheduler and other settings, as in a scenario's `[host]`.
    host: String,
    /// Costs of the kernel's work for timers in cgroups, by run. Empty: no costs.
    pub steals: Vec<TimerSteals>,
    /// Background load next to groups. `None`: no load.
    pub rest: Option<Rest>,
}

impl Machine {
    /// Creates two CPUs under the scheduler of a kernel of this release (EEVDF since 6.6), with the running kernel's tick.
    pub fn new(release: &str) -> Result<Machine, SimulatedError> {
        let (scheduler, fair) = (scheduler(release)?, fair(release)?);
        let text = format!(
            "duration = \"{}s\"\n[machine]\npcpus = {}\nmode = \"native\"\n[[vm]]\n\
             name = \"machine\"\nworkload = \"none\"\nscheduler = \"{scheduler}\"\n\
             tick = \"{}ns\"\n{fair}[[workload]]\nname = \"none\"\n[[workload.role]]\n\
             program = [{{ compute = \"1ns\" }}]\n",
            MAX_TIME.0 / 1_000_000_000,
            CPUS,
            tick().0,
        );
        let base = load::from_text("kernel comparison", &text)?;
        let host = format!(
            "[host]\nscheduler = \"{scheduler}\"\ntick = \"{}ns\"\nticks = \"in-step\"\nhalt_poll = \"0ns\"\n\
             pause_loop = {{ policy = \"off\" }}\n{fair}",
            tick().0,
        );
        Ok(Machine { base, host, steals: Vec::new(), rest: None })
    }

    /// Returns the costs in use.
    pub fn costs(&mut self) -> &mut Costs {
        &mut self.base.machine.costs
    }

    /// Runs a workload and returns the end time of the last thread of each role.
    pub fn run(&self, workload: &Workload) -> Result<Vec<Nanos>, SimulatedError> {
        let mut scenario = self.base.clone();
        scenario.vms[0].workload = workload.clone();
        let results = World::new(&scenario).run();
        let roles = results.vms[0].roles.iter();
        let finished: Option<Vec<Nanos>> = roles.map(|role| role.finished).collect();
        match finished {
            Some(finished) => Ok(finished),
            None => Err(SimulatedError::Endless { workload: workload.name.clone() }),
        }
    }

    /// Runs the workloads of cgroups at the same time, `runs` times, and returns the role results by run and group.
    ///
    /// The runs start at evenly spaced times between two ticks.
    pub fn run_groups(
        &self,
        case: &str,
        groups: &[Group],
        runs: u32,
    ) -> Result<Vec<Vec<Vec<RoleRun>>>, SimulatedError> {
        let begins = |run| tick().0 * u64::from(run) / u64::from(runs.max(1));
        (0..runs.max(1))
            .map(|run| self.run_groups_once(case, groups, run, Nanos(begins(run))))
            .collect()
    }

    fn run_groups_once(
        &self,
        case: &str,
        groups: &[Group],
        run: u32,
        begin: Nanos,
    ) -> Result<Vec<Vec<RoleRun>>, SimulatedError> {
        let text = self.groups_text(groups, begin);
        let mut scenario = load::from_text("kernel comparison", &text)?;
        scenario.seed = u64::from(run);
        scenario.machine.costs = self.group_costs();
        let steals = self.steals.iter().cycle().nth(run as usize);
        scenario.machine.timer_steals = steals.cloned().unwrap_or_default();
        for (vm, group) in scenario.vms.iter_mut().zip(groups) {
            vm.workload = on_own_vcpus(&group.workload);
        }
        let mut world = World::new(&scenario);
        world.record_trace(MAX_EVENTS);
        let results = world.run();
        let mut runs: Vec<Vec<RoleRun>> = Vec::new();
        // Thread numbers are consecutive over all roles.
        let mut of_thread = Vec::new();
        // The VM of the background load follows the groups and never ends.
        for (g, vm) in results.vms.iter().take(groups.len()).enumerate() {
            let mut roles = Vec::new();
            for (r, role) in vm.roles.iter().enumerate() {
                let Some(finished) = role.finished else {
                    return Err(SimulatedError::Endless { workload: case.to_owned() });
                };
                roles.push(RoleRun {
                    finished: finished.saturating_sub(begin),
                    ..RoleRun::default()
                });
                of_thread.extend((0..role.threads).map(|_| (g, r)));
            }
            runs.push(roles);
        }
        for event in world.take_trace().1 {
            if let TraceEvent::Wakeup { from: None, to, woken, ran, owed } = event
                && let Some(&(g, r)) = of_thread.get(to as usize)
            {
                runs[g][r].wakes.push(ran + owed - woken);
            }
        }
        Ok(runs)
    }

    /// Returns the costs for groups.
    ///
    /// Switching vCPUs costs as much as switching threads, and waking an idle pCPU as much as natively.
    /// All other costs are those without a hypervisor.
    /// `steals` has the measured work of timer interrupts.
    fn group_costs(&self) -> Costs {
        let costs = self.base.machine.costs;
        Costs {
            vcpu_switch: costs.thread_switch,
            idle_pcpu_wake: costs.native_idle_wake,
            thread_switch: 0,
            tick_work: 0,
            timer_slack: 0,
            timer_steal: 0,
            ..costs.native()
        }
    }

    fn groups_text(&self, groups: &[Group], begin: Nanos) -> String {
        let mut out = format!(
            "duration = \"{}s\"\n[machine]\npcpus = {CPUS}\n{}[[workload]]\nname = \"none\"\n\
             [[workload.role]]\nprogram = [{{ compute = \"1ns\" }}]\n",
            MAX_TIME.0 / 1_000_000_000,
            self.host,
        );
        for (g, group) in groups.iter().enumerate() {
            let roles = &group.workload.roles;
            let pins = roles.iter().flat_map(pins);
            let pins: Vec<String> = pins.map(|pin| format!("\"{pin}\"")).collect();
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "[[vm]]\nname = \"group{g}\"\nvcpus = {}\nweight = {}\npins = [{}]\n\
                 workload = \"none\"\nspin_locks = \"queued\"\ntick = \"100ms\"\nbalance = false\nstarts = \"{}ns\"\n",
                pins.len(),
                group.weight,
                pins.join(", "),
                begin.0,
            );
        }
        if let Some(rest) = self.rest {
            out.push_str(&rest.vm(CPUS));
        }
        out
    }
}

/// Returns the indices of a role's threads.
fn threads(role: &Role) -> std::ops::Range<u32> {
    0..role.threads.count(CPUS)
}

/// Returns the pins of each of a role's threads.
fn pins(role: &Role) -> impl Iterator<Item = String> + '_ {
    threads(role).map(|thread| match role.pins.as_slice() {
        [] => format!("0-{}", CPUS - 1),
        pins => pins[thread as usize % pins.len()].to_string(),
    })
}

/// Returns the workload with one vCPU per thread.
fn on_own_vcpus(workload: &Workload) -> Workload {
    let mut workload = workload.clone();
    let mut first = 0;
    for role in &mut workload.roles {
        let count = role.threads.count(CPUS);
        role.threads = Threads::Count(count);
        role.pins = (first..first + count).collect();
        first += count;
    }
    workload
}

#[cfg(test)]
mod tests {
    use tandem_sim::workload::parse;

    use super::*;

    fn group(weight: u32, program: &str) -> Group {
        let text = format!("[[role]]\npins = [0]\nprogram = [{program}]");
        Group { weight, workload: parse::from_text("group", &text).unwrap() }
    }

    #[test]
    fn groups_share_a_cpu_by_their_weights() {
        let machine = Machine::new("6.12.0").unwrap();
        let work = "{ repeat = 60, do = [{ compute = \"5ms\" }] }";
        let runs =
            machine.run_groups("weights", &[group(2048, work), group(1024, work)], 1).unwrap();
        let ends: Vec<u64> = runs[0].iter().map(|roles| roles[0].finished.0).collect();
        // The heavy group completes its 300 ms when the light one has 150 ms.
        assert!((440_000_000..465_000_000).contains(&ends[0]), "{ends:?}");
        assert!((600_000_000..605_000_000).contains(&ends[1]), "{ends:?}");
    }

    #[test]
    fn wake_up_has_configured_cost() {
        let mut machine = Machine::new("6.12.0").unwrap();
        machine.costs().native_idle_wake = 7_000;
        let naps = "{ repeat = 20, do = [{ compute = \"100us\" }, { sleep = \"1ms\" }] }";
        let runs = machine.run_groups("naps", &[group(1024, naps)], 1).unwrap();
        let wakes = &runs[0][0][0].wakes;
        assert_eq!(wakes.len(), 20);
        assert!(wakes.iter().all(|wake| (7_000..20_000).contains(wake)), "{wakes:?}");
    }

    #[test]
    fn runs_use_timer_costs_of_their_round() {
        let mut machine = Machine::new("6.12.0").unwrap();
        let naps = "{ repeat = 20, do = [{ compute = \"100us\" }, { sleep = \"1ms\" }] }";
        let late = |idle: u64| TimerSteals { busy: Vec::new(), idle: vec![idle] };
        machine.steals = vec![late(10_000), late(60_000)];
        let runs = machine.run_groups("naps", &[group(1024, naps)], 2).unwrap();
        let [first, second] = [0, 1].map(|run: usize| runs[run][0][0].wakes[0]);
        assert_eq!(second - first, 50_000);
    }

    #[test]
    fn endless_workload_is_an_error() {
        let machine = Machine::new("6.1.0").unwrap();
        let long = "{ repeat = 1000, do = [{ compute = \"1s\" }] }";
        let error = machine.run_groups("long", &[group(1024, long)], 1);
        assert!(matches!(error, Err(SimulatedError::Endless { .. })));
    }
}
