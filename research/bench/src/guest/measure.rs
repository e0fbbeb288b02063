//! Measures a program: sizes it, then runs it in turn in stock and in every variant, in rounds.
//!
//! A round runs each variant once; every second round has the opposite order, so that drift (clock rates, caches, neighbours of this VM) favours none.
//! A variant's run is compared with the stock run of its own round.
//! A program that takes a count gets, per variant, the count with which it runs for about the requested time; uncounted sizing runs find it.
//! A failure in a variant ends that variant for the program; a failure in stock ends the program.

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

/// Error that ends a run, a variant, a program, or the bench.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A variant failed.
    #[error("{}", variant.name())]
    In {
        /// The variant.
        variant: Variant,
        /// Its error.
        source: Box<MeasureError>,
    },
    /// The command did not run to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The command failed.
    #[error("{status}: {said}")]
    Failed {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        said: String,
    },
    /// Its output has no figure.
    #[error("no figure in its output: {0}")]
    NoFigure(String),
    /// Reading the machine's counters failed.
    #[error(transparent)]
    Counters(#[from] CounterError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Generating inputs failed.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// Removing a folder of the last run failed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Creating a folder for the next run failed.
    #[error("cannot make {}", path.display())]
    Make {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Removing the program's files failed.
    #[error("cannot clean {}", folder.display())]
    Clean {
        /// The folder.
        folder: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

/// A run times out after this multiple of the requested time, and a minute.
const TIMEOUT_FACTOR: u32 = 20;

/// Minimum length of a sizing run, as a fraction of the requested time.
const ENOUGH: f64 = 0.25;

/// Maximum growth of a count from one sizing run to the next.
const GROWTH: f64 = 16.0;

/// A variant whose count differs from stock's by at most this factor gets stock's count.
const ALIKE: f64 = 1.5;

/// Settings shared by all programs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds.
    pub runs: u32,
    /// Approximate length of a run.
    pub seconds: u32,
    /// The variants other than stock.
    pub variants: Vec<Variant>,
    /// Number of usable vCPUs.
    pub vcpus: usize,
    /// The vCPU for `taskset`.
    pub vcpu: u32,
    /// Path of this program.
    pub tandem: String,
    /// State directory of the agent; `None`: its default.
    pub state_dir: Option<PathBuf>,
}

/// Results of a program.
#[derive(Debug, Default)]
pub struct Measured {
    /// A row for each variant.
    pub rows: Vec<Row>,
    /// Errors.
    pub failures: Vec<String>,
}

/// The running bench.
#[derive(Debug)]
pub struct Bench<'a> {
    plan: &'a Plan,
    folder: &'a Folder,
    interrupt: &'a Interrupt,
    database: Option<Database>,
}

/// Returns the order of a round.
fn order(round: u32, count: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..count).collect(),
        _ => (0..count).rev().collect(),
    }
}

/// Returns the next count after `count` took `took` seconds, and whether sizing is done.
fn next_count(count: u64, (least, most): (u64, u64), took: f64, wanted: f64) -> (u64, bool) {
    let factor = (wanted / took).min(GROWTH);
    let next = ((count as f64 * factor).round() as u64).clamp(least, most);
    (next, took >= wanted * ENOUGH || next <= count)
}

/// Returns stock's count for a variant that is about as fast, else its own.
/// Some programs first start many threads, so their rate depends on the count; a different count would look like an effect of the variant.
fn comparable(own: u64, stock: u64) -> u64 {
    let factor = own as f64 / stock.max(1) as f64;
    if (1.0 / ALIKE..=ALIKE).contains(&factor) { stock } else { own }
}

impl<'a> Bench<'a> {
    /// Creates a bench.
    pub fn new(plan: &'a Plan, folder: &'a Folder, interrupt: &'a Interrupt) -> Bench<'a> {
        Bench { plan, folder, interrupt, database: None }
    }

    /// Tries a variant on this machine; the inner error is the reason for a failure.
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

    /// Measures a program. An error ends the whole bench.
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
            // A variant that failed in a later round gets no row: it has fewer runs than stock.
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

    /// Prepares the inputs that a program needs once.
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

    /// Prepares the inputs of a run, outside of the measured time.
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

    /// Removes the inputs of the program that just ended.
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

    /// Finds the count with which a variant takes about the requested time.
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

    /// Runs the program once.
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
        // Remove the account of an earlier run.
        let _ = std::fs::remove_file(self.account());
        let limit = Duration::from_secs(u64::from(self.plan.seconds * TIMEOUT_FACTOR) + 60);
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
            // Exclude the start of the server.
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
    fn every_second_round_is_reversed() {
        assert_eq!(order(0, 2), [0, 1]);
        assert_eq!(order(1, 2), [1, 0]);
        assert_eq!(order(2, 3), [0, 1, 2]);
        assert_eq!(order(3, 3), [2, 1, 0]);
    }

    #[test]
    fn similar_variants_get_the_count_of_stock() {
        assert_eq!(comparable(900, 1000), 1000);
        assert_eq!(comparable(1400, 1000), 1000);
        assert_eq!(comparable(8000, 1000), 8000);
        assert_eq!(comparable(500, 1000), 500);
    }

    #[test]
    fn count_grows_until_run_is_long_enough() {
        let range = (10, 100_000);
        // Far too short: sixteen times as much, and another try.
        assert_eq!(next_count(10, range, 0.001, 2.0), (160, false));
        // A quarter of the time: four times as much, and no further try.
        assert_eq!(next_count(100, range, 0.5, 2.0), (400, true));
        assert_eq!(next_count(100, range, 4.0, 2.0), (50, true));
        // Counts stay within the range.
        assert_eq!(next_count(90_000, range, 0.1, 2.0), (100_000, false));
        assert_eq!(next_count(100_000, range, 0.1, 2.0), (100_000, true));
        assert_eq!(next_count(10, range, 60.0, 2.0), (10, true));
    }
}
