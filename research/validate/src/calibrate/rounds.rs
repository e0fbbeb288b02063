//! Results of the real runs: the work rate of each VM of each setup in each round.

use std::time::Duration;

use super::real::{Machine, MachineError, Ran};
use super::setup::{Comparison, Places, Quantity, Setup};
use super::{fit, setup};
use crate::event::{Event, Tell};
use crate::rest::{Rest, Waits};

/// Results of every setup in every round.
#[derive(Debug)]
pub struct Rounds {
    setups: Vec<Setup>,
    /// Results by round and setup.
    rounds: Vec<Vec<Ran>>,
}

impl Rounds {
    /// Runs the setups of the probes and of the comparisons for `seconds` each, every other round in reverse order.
    pub fn take(
        machine: &mut Machine,
        comparisons: &[Comparison],
        runs: u32,
        seconds: f64,
        tell: Tell,
    ) -> Result<Rounds, MachineError> {
        let (reference, probes) = (setup::reference(), fit::probes());
        let probes = probes.iter().map(|probe| &probe.quantity);
        let compared = comparisons.iter().flat_map(|c| [&c.over, &c.under]);
        let setups = setup::setups([&reference].into_iter().chain(probes).chain(compared));
        let time = Duration::from_secs_f64(seconds);
        let mut rounds = Vec::new();
        for round in 0..runs {
            tell(Event::Round {
                round: round + 1,
                rounds: runs,
                setups: setups.len(),
                seconds: setups.len() as f64 * (seconds + 0.15),
            });
            let mut ran = vec![Ran::default(); setups.len()];
            let mut order: Vec<usize> = (0..setups.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                ran[at] = machine.run(&setups[at], time)?;
            }
            rounds.push(ran);
        }
        Ok(Rounds { setups, rounds })
    }

    /// Returns a quantity in each round.
    pub fn of(&self, quantity: &Quantity) -> Vec<f64> {
        let of_setup = self.of_setup(&quantity.setup);
        of_setup.map(|ran| ran.rates.of(quantity)).collect()
    }

    /// Returns the placement of a setup's vCPUs at the start of the measurement in each round.
    pub fn places(&self, setup: &Setup) -> Vec<&Places> {
        self.of_setup(setup).map(|ran| &ran.began).collect()
    }

    /// Returns the background load, from the waits of vCPUs that compute alone; `None` if they were never preempted.
    pub fn rest(&self) -> Option<Rest> {
        let reference = setup::reference().setup;
        let waits = self.of_setup(&reference).map(|ran| ran.waits);
        Rest::of(waits.fold(Waits::default(), Waits::and))
    }

    fn of_setup(&self, setup: &Setup) -> impl Iterator<Item = &Ran> {
        let at = self.setups.iter().position(|known| known == setup);
        let rounds = self.rounds.iter();
        rounds.filter_map(move |ran| ran.get(at?))
    }

    /// Returns the largest value of a quantity over the rounds.
    pub fn fastest(&self, quantity: &Quantity) -> f64 {
        self.of(quantity).into_iter().fold(0.0, f64::max)
    }

    /// Returns the lowest ÷ the highest speed of computing alone over the rounds.
    pub fn steadiness(&self) -> f64 {
        let mut speeds = self.of(&setup::reference());
        speeds.sort_by(f64::total_cmp);
        match (speeds.first(), speeds.last()) {
            (Some(least), Some(&most)) if most > 0.0 => least / most,
            _ => 0.0,
        }
    }
}
