//! Order of runs: the longest first, so that all workers end at about the same time.
//!
//! The duration of a run is unknown until it has ended.
//! So the first run of each scenario comes before all others, in descending order of simulated vCPU time.
//! Its duration then orders the remaining runs.
//! A scenario whose first run has not ended counts as the longest.
//! The order does not affect the results.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tandem_sim::Scenario;

/// The runs of one scenario.
#[derive(Debug)]
struct Runs {
    /// Runs that have not started, in reverse order.
    left: Vec<usize>,
    /// Duration of the first run that ended; `None`: none has ended.
    took: Option<Duration>,
}

/// Queue of runs that have not started.
#[derive(Debug)]
pub(super) struct Order {
    scenarios: Vec<Runs>,
    /// The scenario of each run.
    scenario_of: Vec<usize>,
    /// Scenarios without a started run, the longest last.
    untried: Vec<usize>,
    /// Other scenarios with runs left, by the duration known at insertion.
    tried: BinaryHeap<(Duration, Reverse<usize>)>,
}

impl Order {
    /// Creates the queue of these runs, each given by its scenario; references to the same scenario belong together.
    pub fn new<'a>(runs: impl IntoIterator<Item = &'a Scenario>) -> Order {
        let mut numbers: HashMap<*const Scenario, usize> = HashMap::new();
        let mut scenarios: Vec<Runs> = Vec::new();
        let mut guesses: Vec<u128> = Vec::new();
        let mut scenario_of = Vec::new();
        for scenario in runs {
            let number = *numbers.entry(scenario).or_insert_with(|| {
                let (left, took) = (Vec::new(), None);
                scenarios.push(Runs { left, took });
                guesses.push(vcpu_time(scenario));
                scenarios.len() - 1
            });
            scenario_of.push(number);
        }
        for (at, &number) in scenario_of.iter().enumerate().rev() {
            scenarios[number].left.push(at);
        }
        let mut untried: Vec<usize> = (0..scenarios.len()).collect();
        untried.sort_by_key(|&number| (guesses[number], Reverse(number)));
        Order { scenarios, scenario_of, untried, tried: BinaryHeap::new() }
    }

    /// Returns the next run to start.
    pub fn next(&mut self) -> Option<usize> {
        if let Some(number) = self.untried.pop() {
            return self.take(number);
        }
        loop {
            let (noted, Reverse(number)) = self.tried.pop()?;
            let takes = self.takes(number);
            if takes == noted {
                return self.take(number);
            }
            // The first run has ended since the insertion.
            self.tried.push((takes, Reverse(number)));
        }
    }

    /// Records the duration of a run that has ended.
    pub fn ended(&mut self, run: usize, took: Duration) {
        let runs = &mut self.scenarios[self.scenario_of[run]];
        runs.took.get_or_insert(took);
    }

    fn takes(&self, number: usize) -> Duration {
        self.scenarios[number].took.unwrap_or(Duration::MAX)
    }

    fn take(&mut self, number: usize) -> Option<usize> {
        let run = self.scenarios[number].left.pop();
        if !self.scenarios[number].left.is_empty() {
            self.tried.push((self.takes(number), Reverse(number)));
        }
        run
    }
}

/// Returns the maximum CPU time of all vCPUs together, ns.
fn vcpu_time(scenario: &Scenario) -> u128 {
    let vcpus: u32 = scenario.vms.iter().map(|vm| vm.vcpus).sum();
    u128::from(scenario.duration.0) * u128::from(vcpus.min(scenario.machine.pcpus))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_model::Nanos;

    fn scenario(ms: u64) -> Scenario {
        Scenario { duration: Nanos(ms * 1_000_000), ..super::super::tests::scenario() }
    }

    #[test]
    fn first_runs_precede_longest_scenarios() {
        let scenarios = [10, 30, 20].map(scenario);
        let mut order = Order::new(scenarios.iter().flat_map(|one| [one; 3]));
        // The first of each, by simulated time.
        assert_eq!([(); 3].map(|()| order.next()), [3, 6, 0].map(Some));
        // The scenario with the least simulated time takes longest.
        order.ended(0, Duration::from_secs(9));
        order.ended(3, Duration::from_secs(1));
        order.ended(6, Duration::from_secs(2));
        let rest: Vec<usize> = std::iter::from_fn(|| order.next()).collect();
        assert_eq!(rest, [1, 2, 7, 8, 4, 5]);
    }

    #[test]
    fn scenario_without_result_counts_as_longest() {
        let scenarios = [20, 10].map(scenario);
        let mut order = Order::new(scenarios.iter().flat_map(|one| [one; 2]));
        assert_eq!([(); 2].map(|()| order.next()), [0, 2].map(Some));
        order.ended(0, Duration::from_secs(1));
        assert_eq!([(); 3].map(|()| order.next()), [Some(3), Some(1), None]);
    }

    #[test]
    fn interleaved_runs_are_made_once() {
        let scenarios = [3, 1, 2].map(scenario);
        // As in a shard of a grid, where adjacent runs have different scenarios.
        let mut order = Order::new([(); 5].iter().flat_map(|()| &scenarios));
        let mut made: Vec<usize> = Vec::new();
        while let Some(run) = order.next() {
            made.push(run);
            order.ended(run, Duration::from_millis(run as u64));
        }
        made.sort_unstable();
        assert_eq!(made, (0..15).collect::<Vec<usize>>());
    }
}
