//! The figures: a row for each program, with an answer for each setting.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_model::application::Profile;
use tandem_model::averages;
use tandem_report::Table;
use tandem_report::experiment::Host;
use tandem_report::table::Look;

use super::place::Place;
use crate::guest::program::Load;

/// An answer may be off by so much.
pub const TOLERANCE: f64 = 0.20;

/// Everything measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordTrial {
    /// The host.
    pub host: Host,
    /// Its scheduler, as simulated.
    pub scheduler: String,
    /// What the kernel said of the load before.
    pub load_before: String,
    /// The same afterwards, the programs' own load included.
    pub load_after: String,
    /// How often each program ran in each setting.
    pub rounds: u32,
    /// About how long, as recorded.
    pub seconds: u32,
    /// By how much an answer may be off.
    pub tolerance: f64,
    /// How many programs have an answer for each setting.
    pub programs: usize,
    /// Programs all of whose answers are within the tolerance.
    pub programs_within: usize,
    /// The same, had bursts been simulated as long as they are in each setting.
    pub programs_within_with_cpu: usize,
    /// The same of naive answers.
    pub naive_programs_within: usize,
    /// How many answers there are.
    pub answers: usize,
    /// How many of them are within the tolerance.
    pub within: usize,
    /// How many of the naive answers are.
    pub naive_within: usize,
    /// The mean size of the errors; `None` without answers.
    pub mean_error: Option<f64>,
    /// The programs.
    pub rows: Vec<Row>,
    /// Programs that could not be measured, and why.
    pub skipped: Vec<Skipped>,
}

/// A program that was left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skipped {
    /// Which.
    pub program: &'static str,
    /// Why.
    pub why: String,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub program: &'static str,
    /// What it does and what is counted.
    pub what: String,
    /// How long it was traced, ns; 0: not.
    pub traced_ns: u64,
    /// Bursts were so many times as long while they were traced.
    pub tracing_cost: f64,
    /// What an idle CPU took to wake up, ns; `None`: not measured.
    pub idle_wake_ns: Option<u64>,
    /// CPUs that it used.
    pub used: f64,
    /// Threads in its scenario.
    pub threads: usize,
    /// Steps in it.
    pub steps: usize,
    /// Whether all answers are within the tolerance.
    pub within: bool,
    /// The answers.
    pub answers: Vec<Answer>,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Units of work a second.
    pub rate: f64,
    /// How long it took, s.
    pub took: f64,
    /// CPU time for a unit of work, s.
    pub unit_cpu: f64,
}

/// What it gets done in a setting, over what it does as recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The setting.
    pub setting: String,
    /// Measured: the median of the rounds.
    pub real: f64,
    /// The least and the most of a round.
    pub real_range: (f64, f64),
    /// Simulated.
    pub simulated: f64,
    /// Simulated ÷ real − 1.
    pub error: f64,
    /// CPU time for the same work, over that as recorded, the median of the rounds. A record knows bursts only as long as they were.
    pub cpu: f64,
    /// What `error` is if bursts are simulated as long as they are in this setting: `simulated` ÷ `cpu` instead.
    pub error_with_cpu: f64,
    /// Without recording anything.
    pub naive: f64,
    /// Naive ÷ real − 1.
    pub naive_error: f64,
}

impl Answer {
    /// From what came of each round here, and as recorded.
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

    /// Counts what is within the tolerance.
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

/// As a table and some lines.
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
    fn a_program_counts_only_if_all_its_answers_are_near() {
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
                // The same work takes half the CPU time here: twice as much gets done.
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
