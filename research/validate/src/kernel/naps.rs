//! What the kernel's work for a timer that wakes a thread takes here: measured by a thread that naps, and given to the simulator as times one of
//! which is drawn for each timer.
//!
//! A thread sleeps for as long as those of the case that is compared do, since the longer it sleeps the colder are its caches and the kernel's:
//! once on a CPU on which a thread of another cgroup computes, and once on a CPU of its own beside that one's, which it leaves idle. What it waits
//! beyond what waking and switching cost in the simulator is the timer's. A simulated run has the times of a real one, measured just before it.

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

/// So often does the thread nap in one run, if that does not take longer than [`LONGEST`].
const NAPS: u64 = 100;

/// Longer naps are fewer, down to one.
const LONGEST: Nanos = Nanos::from_secs(2);

/// What it computes in between, ns.
const WORK: u64 = 20_000;

/// What the other thread computes at a time, ns.
const HOG: u64 = 4_000_000;

/// What the costs are called: on a busy CPU and on an idle one.
const COSTS: [&str; 2] = ["timer_late", "timer_late_idle"];

/// Groups that show how much later than it is due a timer wakes a thread.
pub struct Naps {
    /// On a busy CPU and on an idle one.
    groups: [[Group; 2]; 2],
}

/// What wake-ups took, ns: on a busy CPU and on an idle one.
#[derive(Clone, Debug, Default)]
pub struct Napped([Vec<u64>; 2]);

impl Naps {
    /// As long as the longest sleep of these groups; none where nobody sleeps.
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

    /// Naps of this length.
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
        let naps = (LONGEST.0 / sleep.0.max(1)).clamp(1, NAPS);
        // Of four naps one may end only when the other one's slice does.
        let turns = naps * (sleep.0 + 4 * WORK) / HOG * 5 / 4 + naps.div_ceil(4);
        let turn = format!("{{ compute = \"{HOG}ns\" }}");
        let beside = |cpu: u32| -> Result<[Group; 2], CostError> {
            Ok([group("sleeper", cpu, naps, &nap)?, group("hog", 0, turns, &turn)?])
        };
        Ok(Naps { groups: [beside(0)?, beside(1)?] })
    }

    /// What wake-ups take here in one run. Its cgroups are made as those of a case of this number.
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

    /// What that is in each of some runs beyond what waking and switching cost in this machine, which has to have no times of its own.
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
            // Who waits for another's slice does not wait for the timer. On an idle CPU nobody of the two is in the way.
            let real = napped.0[cpu].iter().filter(|&&wake| cpu == 1 || wake < LATE);
            real.map(|wake| wake.saturating_sub(simulated[cpu])).collect()
        };
        let steals = runs
            .iter()
            .map(|napped| TimerSteals { busy: beyond(napped, 0), idle: beyond(napped, 1) });
        Ok(steals.collect())
    }
}

/// The medians of all that was measured, as costs.
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

/// What the first role waited after its sleeps, ns.
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
    fn naps_are_as_long_as_the_longest_sleep_and_none_where_nobody_sleeps() {
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
    fn long_naps_are_few_and_the_other_thread_computes_for_longer_than_naps_last() {
        let machine = Machine::new("6.12.0").unwrap();
        for sleep in [Nanos(100_000), Nanos::from_millis(3), Nanos::from_secs(30)] {
            let naps = Naps::of(sleep).unwrap();
            for groups in &naps.groups {
                let runs = machine.run_groups("naps", groups, 1).unwrap();
                let [sleeper, hog] = [0, 1].map(|group: usize| runs[0][group][0].finished);
                assert!(sleeper < hog, "{sleep}: {sleeper} {hog}");
                assert!(sleeper <= LONGEST.max(sleep) + Nanos::from_secs(1), "{sleep}: {sleeper}");
            }
        }
    }

    #[test]
    fn what_is_measured_comes_out_again_in_the_simulator() {
        let naps = Naps::of(Nanos::from_millis(3)).unwrap();
        let mut machine = Machine::new("6.12.0").unwrap();
        let base = |machine: &Machine, cpu: usize| {
            let runs = machine.run_groups("naps", &naps.groups[cpu], 1).unwrap();
            averages::median(wakes(&runs[0]).iter().map(|&wake| wake as f64)).unwrap() as u64
        };
        let bases = [base(&machine, 0), base(&machine, 1)];
        // On a busy CPU a slice of another is no timer's work.
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
