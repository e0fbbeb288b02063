//! What the real runs gave: round by round, how fast each VM of each setup worked.

use std::time::Duration;

use super::fit;
use super::real::Machine;
use super::real::MachineError;
use super::real::Rates;
use super::setup;
use super::setup::Comparison;
use super::setup::Quantity;
use super::setup::Setup;
use crate::event::Event;
use crate::event::Tell;

/// The rates of every setup in every round.
#[derive(Debug)]
pub struct Rounds {
    setups: Vec<Setup>,
    /// For each round and setup.
    rounds: Vec<Vec<Rates>>,
}

impl Rounds {
    /// Runs the setups of the probes and of the comparisons, `seconds` each, every other round in the
    /// reverse order.
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
            let mut rates = vec![Rates::default(); setups.len()];
            let mut order: Vec<usize> = (0..setups.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                rates[at] = machine.run(&setups[at], time)?;
            }
            rounds.push(rates);
        }
        Ok(Rounds { setups, rounds })
    }

    /// A quantity in each round.
    pub fn of(&self, quantity: &Quantity) -> Vec<f64> {
        let at = self.setups.iter().position(|s| *s == quantity.setup);
        let rounds = self.rounds.iter();
        rounds
            .filter_map(|rates| Some(rates.get(at?)?.of(quantity)))
            .collect()
    }

    /// A quantity in the round where it was largest.
    pub fn fastest(&self, quantity: &Quantity) -> f64 {
        self.of(quantity).into_iter().fold(0.0, f64::max)
    }

    /// The lowest speed of computing alone over the highest.
    pub fn steadiness(&self) -> f64 {
        let mut speeds = self.of(&setup::reference());
        speeds.sort_by(f64::total_cmp);
        match (speeds.first(), speeds.last()) {
            (Some(least), Some(&most)) if most > 0.0 => least / most,
            _ => 0.0,
        }
    }
}
