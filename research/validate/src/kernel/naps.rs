//! Cost of the kernel's work for a timer that wakes a thread, measured with a thread that naps.
//!
//! The thread sleeps as long as those of the compared case, because caches get colder during a longer sleep.
//! It runs once on a CPU on which a thread of another cgroup computes, and once on a CPU that is otherwise idle.
//! The cost of the timer is its wake-up latency minus the cost of waking and switching in the simulator.
//! The simulator draws one of the measured times for each timer.
//! Each simulated run uses the times of one real run, measured just before it.

use tandem_model::Nanos;
use tandem_model::averages;
use tandem_sim::machine::TimerSteals;
use tandem_sim::workload::{Op, Workload, parse};

use super::costs::{CostError, Found};
use super::cpus::Speed;
use super::groups::{Group, RoleRun, USUAL_WEIGHT};
use super::places::Places;
use super::real;
use super::report::LATE;
use super::simulated::Machine;

/// Naps of the thread in one run, if they fit into [`MAX_SLEEP`].
const NAPS: u64 = 100;

/// Maximum total sleep of a run, except for a single longer nap.
const MAX_SLEEP: Nanos = Nanos::from_secs(2);

/// Computation between naps, ns.
const WORK: u64 = 20_000;

/// Computation of the other thread per turn, ns.
const HOG: u64 = 4_000_000;

/// Names of the costs: on a busy CPU and on an idle one.
const COSTS: [&str; 2] = ["timer_late", "timer_late_idle"];

/// Groups that measure the delay of a thread's wake-up after its timer expires.
pub struct Naps {
    /// On a busy CPU and on an idle one.
    groups: [[Group; 2]; 2],
}

/// Wake-up latencies, ns: on a busy CPU and on an idle one.
#[derive(Clone, Debug, Default)]
pub struct Napped([Vec<u64>; 2]);

impl Naps {
    /// Creates naps as long as the longest sleep of these groups; `None` if none of them sleeps.
    pub fn like(groups: &[Group]) -> Result<Option<Naps>, CostError> {
        let roles = groups.iter().flat_map(|group| &group.workload.roles);
        let ops = roles.flat_map(|role| &role.program);
        let sleeps = ops.filter_map(|op| match op {
            Op::Sleep(time) => time.mean().map(|time| time as u64),
            Op::Every(period) => Some(*period),
            _ => None,
        });
        match sleeps.max() {
            None | Some(0) => Ok(None),
            Some(longest) => Naps::of(Nanos(longest)).map(Some),
        }
    }

    /// Creates naps of this length.
    fn of(sleep: Nanos) -> Result<Naps, CostError> {
        let group = |name: &str, cpu: u32, turns: u64, turn: &str| -> Result<Group, CostError> {
            let text = format!(
                "[[role]]\nname = \"{name}\"\npins = [{cpu}]\nprogram = [{{ repeat = {turns}, do = [{turn}] }}]"
            );
            let load = |source| CostError::Load { cost: COSTS[0], source };
            Ok(Group {
                weight: USUAL_WEIGHT,
                workload: parse::from_text("naps", &text).map_err(load)?,
            })
        };
        let nap = format!("{{ compute = \"{WORK}ns\" }}, {{ sleep = \"{}ns\" }}", sleep.0);
        let naps = (MAX_SLEEP.0 / sleep.0.max(1)).clamp(1, NAPS);
        // One in four naps may last until the end of the other thread's slice.
        let turns = naps * (sleep.0 + 4 * WORK) / HOG * 5 / 4 + naps.div_ceil(4);
        let turn = format!("{{ compute = \"{HOG}ns\" }}");
        let pair = |cpu: u32| -> Result<[Group; 2], CostError> {
            Ok([group("sleeper", cpu, naps, &nap)?, group("hog", 0, turns, &turn)?])
        };
        Ok(Naps { groups: [pair(0)?, pair(1)?] })
    }

    /// Measures wake-up latencies in one run; its cgroups are named like those of case `number`.
    pub fn run(&self, places: &mut Places, number: usize) -> Result<Napped, CostError> {
        let mut napped = Napped::default();
        for (groups, all) in self.groups.iter().zip(&mut napped.0) {
            let workloads: Vec<&Workload> = groups.iter().map(|group| &group.workload).collect();
            let speed = Speed::measure(&groups[1].workload)?;
            let mut inside = places.of(number, groups)?;
            let ran = real::run_together(&workloads, speed, &mut inside, true)?;
            all.extend(wakes(&ran));
        }
        Ok(napped)
    }

    /// Returns the cost of timers in each run: the latency minus the cost of waking and switching in this machine.
    ///
    /// The machine must not have timer costs yet.
    pub fn steals(
        &self,
        machine: &Machine,
        runs: &[&Napped],
    ) -> Result<Vec<TimerSteals>, CostError> {
        let simulated = |cpu: usize| -> Result<u64, CostError> {
            let simulated = machine.run_groups(COSTS[cpu], &self.groups[cpu], 1)?;
            let simulated = simulated.first().map(|run| wakes(run)).unwrap_or_default();
            let simulated = averages::median(simulated.iter().map(|&wake| wake as f64));
            Ok(simulated.unwrap_or(0.0) as u64)
        };
        let simulated = [simulated(0)?, simulated(1)?];
        let beyond = |napped: &Napped, cpu: usize| -> Vec<u64> {
            // Excludes waits for the other thread's slice, which occur only on the busy CPU.
            let real = napped.0[cpu].iter().filter(|&&wake| cpu == 1 || wake < LATE);
            real.map(|wake| wake.saturating_sub(simulated[cpu])).collect()
        };
        let steals = runs
            .iter()
            .map(|napped| TimerSteals { busy: beyond(napped, 0), idle: beyond(napped, 1) });
        Ok(steals.collect())
    }
}

/// Returns the medians of all measured times as costs.
pub fn found<'a>(all: impl Iterator<Item = &'a TimerSteals> + Clone) -> Vec<Found> {
    let median = |of: fn(&TimerSteals) -> &Vec<u64>| {
        let times = all.clone().flat_map(of).map(|&time| time as f64);
        averages::median(times).map(|median| median.round() as u64)
    };
    let busy_and_idle = [median(|steals| &steals.busy), median(|steals| &steals.idle)];
    let measured = COSTS.into_iter().zip(busy_and_idle);
    measured
        .filter(|(_, measured)| measured.is_some())
        .map(|(cost, measured)| Found { cost, table: 0, measured })
        .collect()
}

/// Returns the wake-up latencies of the first role, ns.
fn wakes(ran: &[Vec<RoleRun>]) -> Vec<u64> {
    let first = ran.first().and_then(|roles| roles.first());
    first.map(|role| role.wakes.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(program: &str) -> Vec<Group> {
        let text = format!("[[role]]\npins = [0]\nprogram = [{program}]");
        vec![Group { weight: USUAL_WEIGHT, workload: parse::from_text("group", &text).unwrap() }]
    }

    #[test]
    fn naps_match_longest_sleep() {
        assert!(Naps::like(&groups("{ compute = \"1ms\" }")).unwrap().is_none());
        let naps = Naps::like(&groups("{ sleep = \"1ms\" }, { sleep = \"4ms\" }"));
        let naps = naps.unwrap().unwrap();
        let program = &naps.groups[0][0].workload.roles[0].program;
        let sleeps = program.iter().filter_map(|op| match op {
            Op::Sleep(time) => time.mean(),
            _ => None,
        });
        assert_eq!(sleeps.collect::<Vec<f64>>(), [4e6]);
    }

    #[test]
    fn hog_outlasts_naps_within_sleep_limit() {
        let machine = Machine::new("6.12.0").unwrap();
        for sleep in [Nanos(100_000), Nanos::from_millis(3), Nanos::from_secs(30)] {
            let naps = Naps::of(sleep).unwrap();
            for groups in &naps.groups {
                let runs = machine.run_groups("naps", groups, 1).unwrap();
                let [sleeper, hog] = [0, 1].map(|group: usize| runs[0][group][0].finished);
                assert!(sleeper < hog, "{sleep}: {sleeper} {hog}");
                assert!(
                    sleeper <= MAX_SLEEP.max(sleep) + Nanos::from_secs(1),
                    "{sleep}: {sleeper}"
                );
            }
        }
    }

    #[test]
    fn simulator_reproduces_measured_latencies() {
        let naps = Naps::of(Nanos::from_millis(3)).unwrap();
        let mut machine = Machine::new("6.12.0").unwrap();
        let base = |machine: &Machine, cpu: usize| {
            let runs = machine.run_groups("naps", &naps.groups[cpu], 1).unwrap();
            averages::median(wakes(&runs[0]).iter().map(|&wake| wake as f64)).unwrap() as u64
        };
        let bases = [base(&machine, 0), base(&machine, 1)];
        // On a busy CPU, the wait for another thread's slice does not count as work of the timer.
        let napped = Napped([
            vec![bases[0] + 5_000, bases[0] + 5_000, 4_000_000],
            vec![bases[1] + 30_000, bases[1] + 30_000, 300_000],
        ]);
        let nothing = Napped::default();
        let steals = naps.steals(&machine, &[&napped, &nothing]).unwrap();
        assert_eq!(steals[0].busy, [5_000; 2]);
        assert_eq!(steals[0].idle, [30_000, 30_000, 300_000 - bases[1]]);
        assert!(steals[1].is_empty());
        machine.steals = vec![steals[0].clone()];
        assert_eq!(base(&machine, 0), bases[0] + 5_000);
        assert_eq!(base(&machine, 1), bases[1] + 30_000);
    }
}
