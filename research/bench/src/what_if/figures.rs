//! The figures of the trial: a row for each VM in each what-if of each mix, and each VM's CPU time.

use serde::Serialize;
use tandem_experiment::statistics::Mean;
use tandem_report::Table;
use tandem_report::experiment::Host;
use tandem_report::table::Look;

use super::outcome::{Outcome, Round};

/// Maximum relative error of an acceptable prediction.
pub const TOLERANCE: f64 = 0.15;

/// Figures of the trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIfs {
    /// The host.
    pub host: Host,
    /// Its scheduler, as simulated.
    pub scheduler: String,
    /// Its clock tick, in ns.
    pub tick_ns: u64,
    /// The kernel's load average before the trial.
    pub load_average: String,
    /// Number of usable pCPUs.
    pub pcpus: usize,
    /// Number of rounds, each with its own record.
    pub rounds: u32,
    /// Measured seconds of each run.
    pub seconds: u64,
    /// Seconds of settling before that.
    pub settle_seconds: f64,
    /// Maximum relative error of an acceptable prediction.
    pub tolerance: f64,
    /// Number of predictions.
    pub answers: usize,
    /// Predictions within the tolerance.
    pub within: usize,
    /// Naive predictions within the tolerance.
    pub naive_within: usize,
    /// Informative predictions, for which the naive one is not within the tolerance.
    pub telling: usize,
    /// Informative predictions within the tolerance.
    pub telling_within: usize,
    /// Mean absolute error; `None` without predictions.
    pub mean_error: Option<f64>,
    /// Mean absolute error of the naive predictions.
    pub naive_mean_error: Option<f64>,
    /// The predictions.
    pub rows: Vec<Row>,
    /// CPU time of the VMs in the record and in the simulator.
    pub shares: Vec<Share>,
}

/// One VM in one what-if: throughput relative to the recorded mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The mix.
    pub mix: &'static str,
    /// Description of the VMs.
    pub what: &'static str,
    /// Description of the change.
    pub what_if: &'static str,
    /// The VM.
    pub vm: String,
    /// Measured on this host, over the rounds.
    pub live: Mean,
    /// Predicted by the simulator, mean over the rounds' records.
    pub simulated: f64,
    /// Simulated ÷ live − 1.
    pub error: f64,
    /// Whether the error is within the tolerance.
    pub is_within: bool,
    /// Naive prediction: (N + 1) ÷ N for a VM that gets another vCPU, else 1.
    pub naive: f64,
    /// Naive ÷ live − 1.
    pub naive_error: f64,
    /// Whether the naive error is within the tolerance, so that the prediction is not informative.
    pub is_naive_within: bool,
}

/// CPU time of a VM in pCPUs, mean of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The mix.
    pub mix: &'static str,
    /// The VM.
    pub vm: String,
    /// In the record.
    pub recorded: f64,
    /// In the simulator.
    pub simulated: f64,
}

impl WhatIfs {
    /// Creates empty figures.
    pub(super) fn new(host: Host) -> WhatIfs {
        WhatIfs {
            host,
            scheduler: String::new(),
            tick_ns: 0,
            load_average: String::new(),
            pcpus: 0,
            rounds: 0,
            seconds: 0,
            settle_seconds: 0.0,
            tolerance: TOLERANCE,
            answers: 0,
            within: 0,
            naive_within: 0,
            telling: 0,
            telling_within: 0,
            mean_error: None,
            naive_mean_error: None,
            rows: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Adds the rounds of a mix.
    pub(super) fn add(&mut self, mix: &'static str, what: &'static str, rounds: &[Round]) {
        let Some(first) = rounds.first() else {
            return;
        };
        for (vm, ..) in &first.shares {
            let mine =
                || rounds.iter().flat_map(|round| &round.shares).filter(|(name, ..)| name == vm);
            let mean = |values: Vec<f64>| Mean::of(&values).map_or(0.0, |mean| mean.mean);
            self.shares.push(Share {
                mix,
                vm: vm.clone(),
                recorded: mean(mine().map(|(_, recorded, _)| *recorded).collect()),
                simulated: mean(mine().map(|(_, _, simulated)| *simulated).collect()),
            });
        }
        for case in &first.outcomes {
            let mine = || {
                let all = rounds.iter().flat_map(|round| &round.outcomes);
                all.filter(|other| other.vm == case.vm && other.what_if == case.what_if)
            };
            let live: Vec<f64> = mine().map(|outcome| outcome.live).collect();
            let simulated: Vec<f64> = mine().map(|outcome| outcome.simulated).collect();
            if let (Some(live), Some(simulated)) = (Mean::of(&live), Mean::of(&simulated)) {
                self.rows.push(Row::new(mix, what, case, live, simulated.mean));
            }
        }
        self.answers = self.rows.len();
        let count = |is: fn(&Row) -> bool| self.rows.iter().filter(|row| is(row)).count();
        self.within = count(|row| row.is_within);
        self.naive_within = count(|row| row.is_naive_within);
        self.telling = count(|row| !row.is_naive_within);
        self.telling_within = count(|row| !row.is_naive_within && row.is_within);
        let mean = |error: fn(&Row) -> f64| {
            let errors: Vec<f64> = self.rows.iter().map(|row| error(row).abs()).collect();
            Mean::of(&errors).map(|mean| mean.mean)
        };
        self.mean_error = mean(|row| row.error);
        self.naive_mean_error = mean(|row| row.naive_error);
    }
}

impl Row {
    fn new(
        mix: &'static str,
        what: &'static str,
        case: &Outcome,
        live: Mean,
        simulated: f64,
    ) -> Row {
        let error = simulated / live.mean - 1.0;
        let naive_error = case.naive / live.mean - 1.0;
        Row {
            mix,
            what,
            what_if: case.what_if.words(),
            vm: case.vm.clone(),
            live,
            simulated,
            error,
            is_within: error.abs() <= TOLERANCE,
            naive: case.naive,
            naive_error,
            is_naive_within: naive_error.abs() <= TOLERANCE,
        }
    }
}

/// Renders the figures for the terminal.
pub fn text(figures: &WhatIfs) -> String {
    let mut rows = Table::new(&[
        "mix",
        "what if",
        "VM",
        "live",
        "± 95 %",
        "simulated",
        "error, %",
        "naive",
        "error, %",
    ]);
    let error = |error: f64, is_within: bool| {
        let mark = if is_within { "" } else { " !" };
        format!("{:+.1}{mark}", error * 100.0)
    };
    for row in &figures.rows {
        rows.row([
            row.mix.to_owned(),
            row.what_if.to_owned(),
            row.vm.clone(),
            format!("{:.3}", row.live.mean),
            row.live.ci95.map_or_else(|| "–".to_owned(), |ci| format!("{ci:.3}")),
            format!("{:.3}", row.simulated),
            error(row.error, row.is_within),
            format!("{:.3}", row.naive),
            error(row.naive_error, row.is_naive_within),
        ]);
    }
    let mut shares = Table::new(&["mix", "VM", "recorded, pCPUs", "simulated"]);
    for share in &figures.shares {
        shares.row([
            share.mix.to_owned(),
            share.vm.clone(),
            format!("{:.3}", share.recorded),
            format!("{:.3}", share.simulated),
        ]);
    }
    let mean = |error: Option<f64>| {
        error.map_or_else(|| "not measured".to_owned(), |error| format!("{:.1} %", error * 100.0))
    };
    format!(
        "{}\n\n{}\n{} of {} answers are within {:.0} %, {} of the naive ones; of the {} where the naive one is not, {} are\n\
         mean error {}, of the naive ones {}\n(throughput over throughput as recorded; {} rounds of {} s; load {})\n",
        shares.text(Look::Plain),
        rows.text(Look::Plain),
        figures.within,
        figures.answers,
        figures.tolerance * 100.0,
        figures.naive_within,
        figures.telling,
        figures.telling_within,
        mean(figures.mean_error),
        mean(figures.naive_mean_error),
        figures.rounds,
        figures.seconds,
        figures.load_average
    )
}

#[cfg(test)]
mod tests {
    use super::super::WhatIf;
    use super::*;

    fn round(live: f64, simulated: f64) -> Round {
        let outcome = |what_if: WhatIf, live, simulated| Outcome {
            what_if,
            vm: "a".to_owned(),
            live,
            simulated,
            naive: what_if.naive(true, 2),
        };
        Round {
            outcomes: vec![outcome(WhatIf::Vcpu, live, simulated), outcome(WhatIf::Fair, 1.0, 1.0)],
            shares: vec![("a".to_owned(), 0.5, simulated)],
        }
    }

    #[test]
    fn error_is_simulated_relative_to_live() {
        let mut figures = WhatIfs::new(Host::default());
        figures.add("m", "a mix", &[round(1.0, 1.3), round(1.2, 1.34)]);
        let [vcpu, fair] = figures.rows.as_slice() else { panic!("{figures:?}") };
        assert!((vcpu.live.mean - 1.1).abs() < 1e-9 && vcpu.live.ci95.is_some());
        assert!((vcpu.error - 0.2).abs() < 1e-9 && !vcpu.is_within, "{vcpu:?}");
        assert!(fair.is_within && fair.what_if == WhatIf::Fair.words());
        assert_eq!((figures.answers, figures.within), (2, 1));
        assert!((figures.shares[0].simulated - 1.32).abs() < 1e-9);
        // The naive 1.5 for 1.1 is wrong, so that prediction is informative; 1 for 1 is right.
        assert!((vcpu.naive_error - (1.5 / 1.1 - 1.0)).abs() < 1e-9 && !vcpu.is_naive_within);
        assert!(fair.is_naive_within && fair.naive == 1.0);
        let counts = (figures.naive_within, figures.telling, figures.telling_within);
        assert_eq!(counts, (1, 1, 0));
        assert!((figures.mean_error.unwrap() - 0.1).abs() < 1e-9);
        assert!(figures.naive_mean_error > figures.mean_error);
        let text = text(&figures);
        assert!(
            text.contains("+20.0 !") && text.contains("+36.4 !") && text.contains("1 of 2 answers"),
            "{text}"
        );
    }
}
