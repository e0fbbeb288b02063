//! Measuring a program: sized, then run in turn in stock and in every variant, in rounds.
//!
//! A round runs each once; every second round runs them in the opposite order, so that what drifts
//! (clock rates, caches, neighbours of this VM) favours none. A variant's run is compared with the
//! stock run of its own round. A program that takes a count gets, per variant, the count with which it
//! runs for about the time that was asked for, found by runs that do not count. What goes wrong with a
//! variant ends that variant for that program; what goes wrong in stock ends the program.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use tandem_guest::counters::{CounterError, IdleStates};
use tandem_linux::ProcFs;
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_model::PcpuId;
use tandem_report::explain;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::guest::counters::Counters;
use crate::guest::database::{Database, DatabaseError};
use crate::guest::folder::Folder;
use crate::guest::inputs::InputsError;
use crate::guest::output::Work;
use crate::guest::process::RunError;
use crate::guest::program::{Load, Program, Setting};
use crate::guest::row::{About, Row, Sample};
use crate::guest::variant::{Account, Agent, Variant};
use crate::guest::{inputs, output, process};

/// What ends a run, a variant, a program, or all.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// What went wrong in a variant.
    #[error("{}", variant.name())]
    In {
        /// Which.
        variant: Variant,
        /// What.
        source: Box<MeasureError>,
    },
    /// The command.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It ended in an error.
    #[error("{status}: {said}")]
    Failed {
        /// How.
        status: ExitStatus,
        /// What it printed in the end.
        said: String,
    },
    /// It does not say what it did.
    #[error("no figure in its output: {0}")]
    NoFigure(String),
    /// The machine's counters.
    #[error(transparent)]
    Counters(#[from] CounterError),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// What the program works on.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// A folder of the last run.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A folder for the next run.
    #[error("cannot make {}", path.display())]
    Make {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What the program needed cannot be removed.
    #[error("cannot clean {}", folder.display())]
    Clean {
        /// Where it is.
        folder: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A run that takes so many times the time that was asked for, and a minute, is stuck.
const PATIENCE: u32 = 20;

/// A first run of this part of the time is long enough to size the others by.
const ENOUGH: f64 = 0.25;

/// Most that a count grows by from one sizing run to the next.
const GROWTH: f64 = 16.0;

/// Counts that differ by less than this factor are made the same.
const ALIKE: f64 = 1.5;

/// What is the same for all programs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds.
    pub runs: u32,
    /// How long a run takes, about.
    pub seconds: u32,
    /// The variants besides stock.
    pub variants: Vec<Variant>,
    /// vCPUs that may be used.
    pub vcpus: usize,
    /// The vCPU for `taskset`.
    pub vcpu: u32,
    /// This program.
    pub tandem: String,
    /// The agent's state directory, unless its own.
    pub state_dir: Option<PathBuf>,
}

/// What a program gave.
#[derive(Debug, Default)]
pub struct Measured {
    /// A row for each variant.
    pub rows: Vec<Row>,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// The bench at work.
#[derive(Debug)]
pub struct Bench<'a> {
    plan: &'a Plan,
    folder: &'a Folder,
    interrupt: &'a Interrupt,
    database: Option<Database>,
}

/// The order of a round.
fn order(round: u32, count: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..count).collect(),
        _ => (0..count).rev().collect(),
    }
}

/// The count for the next run, after `count` took `work`; and whether it need not be tried.
fn next_count(count: u64, (least, most): (u64, u64), took: f64, wanted: f64) -> (u64, bool) {
    let factor = (wanted / took).min(GROWTH);
    let next = ((count as f64 * factor).round() as u64).clamp(least, most);
    (next, took >= wanted * ENOUGH || next <= count)
}

/// Stock's count for a variant that is about as fast: the pace of some programs depends on the count, as they first
/// start many threads, and the difference would pass for the variant's.
fn comparable(own: u64, stock: u64) -> u64 {
    let factor = own as f64 / stock.max(1) as f64;
    if (1.0 / ALIKE..=ALIKE).contains(&factor) { stock } else { own }
}

impl<'a> Bench<'a> {
    /// A bench that has measured nothing yet.
    pub fn new(plan: &'a Plan, folder: &'a Folder, interrupt: &'a Interrupt) -> Bench<'a> {
        Bench { plan, folder, interrupt, database: None }
    }

    /// Whether a variant works here at all; otherwise why not.
    pub fn try_out(&self, variant: Variant) -> Result<Result<(), String>, Interrupted> {
        let argv = self.wrapped(variant, &["true".to_owned()], false);
        let limit = Duration::from_secs(60);
        let run = process::run(&argv, self.folder.path(), limit, self.interrupt);
        self.interrupt.check()?;
        Ok(match run {
            Ok(run) if run.status.success() => Ok(()),
            Ok(run) => Err(format!("{}: {}", run.status, run.quote())),
            Err(error) => Err(explain(&error)),
        })
    }

    /// Measures a program. An error is one that ends the whole bench.
    pub fn measure(
        &mut self,
        program: &Program,
        progress: &Progress,
    ) -> Result<Measured, MeasureError> {
        let outcome = self.rounds(program, progress);
        self.clean()?;
        self.interrupt.check()?;
        Ok(outcome
            .unwrap_or_else(|error| Measured { rows: Vec::new(), failures: vec![explain(&error)] }))
    }

    fn rounds(&mut self, program: &Program, progress: &Progress) -> Result<Measured, MeasureError> {
        let mut measured = Measured::default();
        let mut variants = vec![Variant::Stock];
        variants.extend(&self.plan.variants);
        let mut counts = BTreeMap::new();
        let mut samples: BTreeMap<Variant, Vec<Sample>> = BTreeMap::new();
        progress.detail("sizing");
        self.prepare(program.load)?;
        let mut failed = |variant: Variant, error: MeasureError| match variant {
            Variant::Stock => Err(MeasureError::In { variant, source: Box::new(error) }),
            _ => {
                let what = format!("{}: {}", variant.name(), explain(&error));
                measured.failures.push(what);
                Ok(())
            }
        };
        for &variant in &variants {
            match self.size(program.load, variant) {
                Ok(count) => drop(counts.insert(variant, count)),
                Err(error) => failed(variant, error)?,
            }
            self.interrupt.check()?;
        }
        if let Some(&stock) = counts.get(&Variant::Stock) {
            for count in counts.values_mut() {
                *count = comparable(*count, stock);
            }
        }
        for round in 0..self.plan.runs {
            for place in order(round, variants.len()) {
                let variant = variants[place];
                let Some(&count) = counts.get(&variant) else {
                    continue;
                };
                let (round, runs) = (round + 1, self.plan.runs);
                progress.detail(&format!("{} {round} of {runs}", variant.name()));
                match self.once(program.load, variant, count) {
                    Ok((sample, _)) => samples.entry(variant).or_default().push(sample),
                    Err(error) => {
                        counts.remove(&variant);
                        failed(variant, error)?;
                    }
                }
                self.interrupt.check()?;
                progress.step();
            }
        }
        let stock = samples.remove(&Variant::Stock).unwrap_or_default();
        for (variant, samples) in samples {
            // A variant that failed in a later round has fewer runs than stock: no row of it.
            if counts.contains_key(&variant) {
                let about = About {
                    program: program.name,
                    variant,
                    kind: program.kind,
                    unit: program.load.unit(),
                    vcpus: self.plan.vcpus,
                };
                measured.rows.extend(Row::of(&about, &stock, &samples));
            }
        }
        Ok(measured)
    }

    /// What a program needs once.
    fn prepare(&mut self, load: Load) -> Result<(), MeasureError> {
        let folder = self.folder.path();
        match load {
            Load::Oltp { .. } if self.database.is_none() => {
                let tandem = self.plan.tandem.as_ref();
                self.database = Some(Database::prepare(folder, tandem, self.interrupt)?);
                Ok(())
            }
            Load::Make => Ok(inputs::write_program(&folder.join("program"))?),
            _ => Ok(()),
        }
    }

    /// What a program needs before each run; it is not timed.
    fn renew(&self, load: Load, count: u64) -> Result<(), MeasureError> {
        let folder = self.folder.path();
        match (load, &self.database) {
            (Load::Oltp { .. }, Some(database)) => Ok(database.renew()?),
            (Load::Dbench, _) => {
                let path = folder.join("dbench");
                if path.exists() {
                    std::fs::remove_dir_all(&path)
                        .map_err(|source| MeasureError::Remove { path: path.clone(), source })?;
                }
                std::fs::create_dir(&path).map_err(|source| MeasureError::Make { path, source })
            }
            (Load::Pbzip2, _) => {
                let path = folder.join(format!("text-{count}"));
                if path.exists() { Ok(()) } else { Ok(inputs::write_text(&path, count)?) }
            }
            _ => Ok(()),
        }
    }

    /// Removes what only the program that just ended needed.
    fn clean(&self) -> Result<(), MeasureError> {
        let folder = self.folder.path();
        let said = |source| MeasureError::Clean { folder: folder.to_owned(), source };
        for entry in std::fs::read_dir(folder).map_err(said)? {
            let entry = entry.map_err(said)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("text-") {
                std::fs::remove_file(entry.path()).map_err(said)?;
            } else if name == "program" || name == "dbench" {
                std::fs::remove_dir_all(entry.path()).map_err(said)?;
            }
        }
        Ok(())
    }

    /// The count with which a variant takes about the time that was asked for.
    fn size(&self, load: Load, variant: Variant) -> Result<u64, MeasureError> {
        let Some(range) = load.counts() else {
            return Ok(0);
        };
        let mut count = range.0;
        loop {
            let (_, work) = self.once(load, variant, count)?;
            let (next, done) = next_count(count, range, work.seconds, f64::from(self.plan.seconds));
            count = next;
            if done {
                return Ok(count);
            }
        }
    }

    fn wrapped(&self, variant: Variant, command: &[String], one_vcpu: bool) -> Vec<String> {
        let with = Agent {
            tandem: &self.plan.tandem,
            state_dir: self.plan.state_dir.as_deref(),
            vcpu: self.plan.vcpu,
            one_vcpu,
        };
        variant.command(command, &with, &self.account())
    }

    fn account(&self) -> PathBuf {
        self.folder.path().join("account.json")
    }

    /// One run.
    fn once(
        &self,
        load: Load,
        variant: Variant,
        count: u64,
    ) -> Result<(Sample, Work), MeasureError> {
        let folder = self.folder.path().display().to_string();
        let setting = Setting {
            seconds: self.plan.seconds,
            count,
            vcpus: self.plan.vcpus,
            folder: &folder,
            tandem: &self.plan.tandem,
        };
        self.renew(load, count)?;
        let command = match (load, &self.database) {
            (Load::Oltp { connections }, Some(database)) => {
                database.command(connections, self.plan.seconds)
            }
            _ => load.command(&setting),
        };
        let argv = self.wrapped(variant, &command, load.is_for_one_vcpu());
        // An account that was left from another run would be taken for this one's.
        let _ = std::fs::remove_file(self.account());
        let limit = Duration::from_secs(u64::from(self.plan.seconds * PATIENCE) + 60);
        let idle = IdleStates::open(&ProcFs::host(), PcpuId(self.plan.vcpu));
        let idle_before = idle.read().filter(|_| load.is_for_one_vcpu());
        let before = Counters::read()?;
        let run = process::run(&argv, self.folder.path(), limit, self.interrupt)?;
        let after = Counters::read()?;
        // Polling comes before halting, in the same idle period.
        let idle = idle_before.zip(idle.read()).map(|(before, after)| {
            let periods = (after.polls - before.polls).max(after.halts - before.halts);
            (periods as f64, (after.time - before.time) as f64 / 1e9)
        });
        let wall = run.wall.as_secs_f64();
        if !run.status.success() {
            return Err(MeasureError::Failed { status: run.status, said: run.quote() });
        }
        let Some(work) = load.work(&run, &setting) else {
            return Err(MeasureError::NoFigure(run.quote()));
        };
        let whole = before.until(&after);
        let window = self.database.as_ref().and_then(Database::window);
        let (awake, cpu) = match (load, window) {
            // Starting the server is not the program.
            (Load::Oltp { .. }, Some((before, after))) => {
                let awake = before.until(&after);
                (awake, awake.busy)
            }
            _ => (whole, run.cpu.as_secs_f64()),
        };
        let account = match variant {
            Variant::Stock | Variant::Taskset | Variant::Slack => Account::default(),
            _ => Account::read(&self.account()).unwrap_or_default(),
        };
        let sample = Sample {
            rate: work.rate(),
            cpu: Some(cpu / work.units),
            awake: Some(awake.awake / work.units),
            choice: account.choice(),
            settled_ms: account.settled_ms,
            agent_cpu: account.agent_cpu_ns.map(|ns| ns / 1e9 / run.wall.as_secs_f64()),
            transitions: idle.map(|(periods, _)| periods / work.units),
            busy: idle.map(|(_, time)| (wall - time).max(0.0) / work.units),
            latency_p99_ns: output::latency_p99(&run.text),
            delay_slack_ns: account.delay_slack_ns,
            delay_batch: account.delay_batch,
            others: Some((whole.tasks - run.cpu.as_secs_f64()).max(0.0) / run.wall.as_secs_f64()),
        };
        Ok((sample, work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_is_the_other_way_round() {
        assert_eq!(order(0, 2), [0, 1]);
        assert_eq!(order(1, 2), [1, 0]);
        assert_eq!(order(2, 3), [0, 1, 2]);
        assert_eq!(order(3, 3), [2, 1, 0]);
    }

    #[test]
    fn variants_about_as_fast_as_stock_do_as_much() {
        assert_eq!(comparable(900, 1000), 1000);
        assert_eq!(comparable(1400, 1000), 1000);
        assert_eq!(comparable(8000, 1000), 8000);
        assert_eq!(comparable(500, 1000), 500);
    }

    #[test]
    fn a_count_grows_until_it_takes_long_enough() {
        let range = (10, 100_000);
        // Far too short: sixteen times as much, and another try.
        assert_eq!(next_count(10, range, 0.001, 2.0), (160, false));
        // A third of the time: three times as much, and no more tries.
        assert_eq!(next_count(100, range, 0.5, 2.0), (400, true));
        assert_eq!(next_count(100, range, 4.0, 2.0), (50, true));
        // Neither beyond the most nor below the least.
        assert_eq!(next_count(90_000, range, 0.1, 2.0), (100_000, false));
        assert_eq!(next_count(100_000, range, 0.1, 2.0), (100_000, true));
        assert_eq!(next_count(10, range, 60.0, 2.0), (10, true));
    }
}
