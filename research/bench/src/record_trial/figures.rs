//! The figures of the trial: a row for each program, with a prediction for each setting.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_model::application::Profile;
use tandem_model::averages;
use tandem_report::Table;
use tandem_report::experiment::Host;
use tandem_report::table::Look;

use super::place::Place;
use crate::guest::program::Load;

/// Maximum relative error of an acceptable prediction.
pub const TOLERANCE: f64 = 0.20;

/// Figures of the trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordTrial {
    /// The host.
    pub host: Host,
    /// Its scheduler, as simulated.
    pub scheduler: String,
    /// The kernel's load average before the trial.
    pub load_before: String,
    /// The load average after it, with the programs' own load.
    pub load_after: String,
    /// Runs of each program in each setting.
    pub rounds: u32,
    /// Approximate length of a run in the recorded setting.
    pub seconds: u32,
    /// Maximum relative error of an acceptable prediction.
    pub tolerance: f64,
    /// Programs with a prediction for each setting.
    pub programs: usize,
    /// Programs with all predictions within the tolerance.
    pub programs_within: usize,
    /// The same with the burst lengths of each setting.
    pub programs_within_with_cpu: usize,
    /// The same for naive predictions.
    pub naive_programs_within: usize,
    /// Number of predictions.
    pub answers: usize,
    /// Predictions within the tolerance.
    pub within: usize,
    /// Naive predictions within the tolerance.
    pub naive_within: usize,
    /// Mean absolute error; `None` without predictions.
    pub mean_error: Option<f64>,
    /// The programs.
    pub rows: Vec<Row>,
    /// Skipped programs.
    pub skipped: Vec<Skipped>,
}

/// A skipped program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skipped {
    /// Name of the program.
    pub program: &'static str,
    /// The reason.
    pub why: String,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub program: &'static str,
    /// Description of its work, and the unit of work.
    pub what: String,
    /// Length of the trace, in ns; 0: not traced.
    pub traced_ns: u64,
    /// Factor by which tracing lengthened bursts.
    pub tracing_cost: f64,
    /// Wake-up time of an idle CPU, in ns; `None`: not measured.
    pub idle_wake_ns: Option<u64>,
    /// CPU time per wall time, in CPUs.
    pub used: f64,
    /// Threads in its scenario.
    pub threads: usize,
    /// Steps in its scenario.
    pub steps: usize,
    /// Whether all predictions are within the tolerance.
    pub within: bool,
    /// The predictions.
    pub answers: Vec<Answer>,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Units of work per second.
    pub rate: f64,
    /// Wall time, in s.
    pub took: f64,
    /// CPU time per unit of work, in s.
    pub unit_cpu: f64,
}

/// Throughput in a setting, relative to the recorded setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The setting.
    pub setting: String,
    /// Measured, median of the rounds.
    pub real: f64,
    /// Measured minimum and maximum of a round.
    pub real_range: (f64, f64),
    /// Predicted by the simulator.
    pub simulated: f64,
    /// Simulated ÷ real − 1.
    pub error: f64,
    /// CPU time per unit of work relative to the recorded setting, median of the rounds. A recording has only the burst lengths of its own setting.
    pub cpu: f64,
    /// Error with the burst lengths of this setting: of `simulated` ÷ `cpu`.
    pub error_with_cpu: f64,
    /// Naive prediction, without a recording.
    pub naive: f64,
    /// Naive ÷ real − 1.
    pub naive_error: f64,
}

impl Answer {
    /// Computes the figures from the runs of each round in this setting and in the recorded setting.
    pub(super) fn new<'a>(
        place: Place,
        rounds: impl Iterator<Item = (&'a Done, &'a Done)>,
        simulated: f64,
    ) -> Answer {
        let ratios =
            rounds.map(|(here, there)| (here.rate / there.rate, here.unit_cpu / there.unit_cpu));
        let (ratios, cpu): (Vec<f64>, Vec<f64>) = ratios.unzip();
        let real = averages::median(ratios.iter().copied()).unwrap_or(0.0);
        let cpu = averages::median(cpu).unwrap_or(1.0).max(f64::MIN_POSITIVE);
        let (least, most) = ratios.iter().fold((f64::INFINITY, 0.0), |(least, most), one| {
            (f64::min(least, *one), f64::max(most, *one))
        });
        let real = real.max(f64::MIN_POSITIVE);
        let naive = place.naive();
        Answer {
            setting: place.words(),
            real,
            real_range: (least, most),
            simulated,
            error: simulated / real - 1.0,
            cpu,
            error_with_cpu: simulated / cpu / real - 1.0,
            naive,
            naive_error: naive / real - 1.0,
        }
    }
}

impl Row {
    pub(super) fn new(
        name: &'static str,
        load: Load,
        profile: &Profile,
        answers: Vec<Answer>,
    ) -> Row {
        Row {
            program: name,
            what: load.what(),
            traced_ns: profile.traced.0,
            tracing_cost: profile.tracing_cost,
            idle_wake_ns: profile.idle_wake.map(|Nanos(ns)| ns),
            used: profile.ran.as_secs_f64() / profile.wall.as_secs_f64().max(f64::MIN_POSITIVE),
            threads: profile.threads.len(),
            steps: profile.threads.iter().map(|thread| thread.steps.len()).sum(),
            within: answers.iter().all(|answer| answer.error.abs() <= TOLERANCE),
            answers,
        }
    }
}

impl RecordTrial {
    pub(super) fn new(host: Host, scheduler: &str, rounds: u32, seconds: u32) -> RecordTrial {
        RecordTrial {
            host,
            scheduler: scheduler.to_owned(),
            load_before: String::new(),
            load_after: String::new(),
            rounds,
            seconds,
            tolerance: TOLERANCE,
            programs: 0,
            programs_within: 0,
            programs_within_with_cpu: 0,
            naive_programs_within: 0,
            answers: 0,
            within: 0,
            naive_within: 0,
            mean_error: None,
            rows: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub(super) fn skip(&mut self, program: &'static str, why: String) {
        self.skipped.push(Skipped { program, why });
    }

    /// Counts the predictions within the tolerance.
    pub(super) fn count(&mut self) {
        let is_near = |error: f64| error.abs() <= TOLERANCE;
        let all: Vec<&Answer> = self.rows.iter().flat_map(|row| &row.answers).collect();
        self.answers = all.len();
        self.within = all.iter().filter(|answer| is_near(answer.error)).count();
        self.naive_within = all.iter().filter(|answer| is_near(answer.naive_error)).count();
        let errors = all.iter().map(|answer| answer.error.abs());
        self.mean_error = (!all.is_empty()).then(|| errors.sum::<f64>() / all.len() as f64);
        self.programs = self.rows.len();
        let programs = |error: fn(&Answer) -> f64| {
            let is_within = |row: &&Row| row.answers.iter().all(|answer| is_near(error(answer)));
            self.rows.iter().filter(is_within).count()
        };
        self.programs_within = programs(|answer| answer.error);
        self.programs_within_with_cpu = programs(|answer| answer.error_with_cpu);
        self.naive_programs_within = programs(|answer| answer.naive_error);
    }
}

/// Renders the figures as a table and closing lines.
pub fn text(trial: &RecordTrial) -> String {
    let mut table = Table::new(&[
        "program",
        "setting",
        "real",
        "range",
        "simulated",
        "error",
        "CPU for the same work",
        "error with that",
        "naive",
    ]);
    for row in &trial.rows {
        for answer in &row.answers {
            let (least, most) = answer.real_range;
            table.row([
                row.program.to_owned(),
                answer.setting.clone(),
                format!("{:.3}", answer.real),
                format!("{least:.3} … {most:.3}"),
                format!("{:.3}", answer.simulated),
                format!("{:+.1} %", answer.error * 100.0),
                format!("{:.2}", answer.cpu),
                format!("{:+.1} %", answer.error_with_cpu * 100.0),
                format!("{:.2}", answer.naive),
            ]);
        }
    }
    let mut lines = vec![table.text(Look::of(false))];
    let skipped = trial.skipped.iter();
    lines.extend(skipped.map(|one| format!("skipped: {}: {}", one.program, one.why)));
    let percent = TOLERANCE * 100.0;
    lines.push(format!(
        "{} of {} programs are within {percent:.0} % in every setting ({} by the naive answer; {} with bursts as long as they are there); {} of {} answers ({})",
        trial.programs_within,
        trial.programs,
        trial.naive_programs_within,
        trial.programs_within_with_cpu,
        trial.within,
        trial.answers,
        trial.naive_within
    ));
    lines.push(format!("load average {} before, {} after", trial.load_before, trial.load_after));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_counts_if_all_answers_are_within() {
        let place = Place { cpus: 1, has_hog: false };
        let row = |errors: &[f64]| {
            let answers = errors.iter().map(|error| {
                let done = |rate, unit_cpu| Done { rate, took: 1.0, unit_cpu };
                let here = [done(0.4, 0.5), done(0.5, 0.6), done(0.9, 0.7)];
                let there = done(1.0, 1.2);
                let rounds = here.iter().map(|here| (here, &there));
                let answer = Answer::new(place, rounds, 0.5 * (1.0 + error));
                assert!((answer.error - error).abs() < 1e-9);
                assert_eq!(answer.real_range, (0.4, 0.9));
                // The same work takes half the CPU time here, which doubles the prediction.
                assert!((answer.cpu - 0.5).abs() < 1e-9);
                assert!((answer.error_with_cpu - (1.0 + 2.0 * error)).abs() < 1e-9);
                answer
            });
            Row::new("x", Load::Make, &Profile::default(), answers.collect())
        };
        let host = Host { kernel: "6.12".to_owned(), cpu: "x".to_owned(), cgroup: "v1".to_owned() };
        let mut trial = RecordTrial::new(host, "eevdf", 3, 2);
        trial.rows = vec![row(&[0.1, -0.19]), row(&[0.1, 0.21])];
        trial.skip("make", "no make".to_owned());
        trial.count();
        assert_eq!((trial.programs, trial.programs_within), (2, 1));
        assert_eq!(trial.programs_within_with_cpu, 0);
        assert_eq!((trial.answers, trial.within, trial.naive_within), (4, 3, 4));
        let said = text(&trial);
        assert!(said.contains("1 of 2 programs are within 20 %"), "{said}");
        assert!(said.contains("skipped: make: no make"), "{said}");
    }
}
