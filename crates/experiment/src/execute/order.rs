//! In which order runs are made: the longest first, so that all workers end at about the same time.
//!
//! How long a run takes shows only when it has ended. So the first run of each scenario comes before all others, those
//! scenarios first that simulate most vCPU time; how long it took orders the rest. A scenario whose first run has not ended is
//! taken to be the longest. The order decides when results are there, never what they are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tandem_sim::Scenario;

/// The runs of one scenario.
#[derive(Debug)]
struct Runs {
    /// Those that have not begun, last one first.
    left: Vec<usize>,
    /// How long the first one took; `None`: it has not ended.
    took: Option<Duration>,
}

/// The runs that have not begun.
#[derive(Debug)]
pub(super) struct Order {
    scenarios: Vec<Runs>,
    /// To which scenario each run belongs.
    scenario_of: Vec<usize>,
    /// Scenarios of which no run has begun, the longest last.
    untried: Vec<usize>,
    /// The others that have runs left, by how long one took when it was noted down here.
    tried: BinaryHeap<(Duration, Reverse<usize>)>,
}

impl Order {
    /// The runs of these scenarios, by their places; a scenario is another only if it is another value.
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

    /// The run to be made next.
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
            // Its first run has ended since.
            self.tried.push((takes, Reverse(number)));
        }
    }

    /// A run has ended.
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

/// The time that all vCPUs may have together, ns.
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
    fn first_runs_come_first_and_then_what_took_longest() {
        let scenarios = [10, 30, 20].map(scenario);
        let mut order = Order::new(scenarios.iter().flat_map(|one| [one; 3]));
        // The first of each, by simulated time.
        assert_eq!([(); 3].map(|()| order.next()), [3, 6, 0].map(Some));
        // The one that simulates least takes longest.
        order.ended(0, Duration::from_secs(9));
        order.ended(3, Duration::from_secs(1));
        order.ended(6, Duration::from_secs(2));
        let rest: Vec<usize> = std::iter::from_fn(|| order.next()).collect();
        assert_eq!(rest, [1, 2, 7, 8, 4, 5]);
    }

    #[test]
    fn what_has_not_ended_is_taken_to_be_longest() {
        let scenarios = [20, 10].map(scenario);
        let mut order = Order::new(scenarios.iter().flat_map(|one| [one; 2]));
        assert_eq!([(); 2].map(|()| order.next()), [0, 2].map(Some));
        order.ended(0, Duration::from_secs(1));
        assert_eq!([(); 3].map(|()| order.next()), [Some(3), Some(1), None]);
    }

    #[test]
    fn every_run_is_made_once_however_runs_are_spread() {
        let scenarios = [3, 1, 2].map(scenario);
        // As in a shard of a grid, where neighbours are of different scenarios.
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
