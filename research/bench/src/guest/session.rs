//! The bench from beginning to end: what can run here, each program in turn, and what is left out.
//!
//! A variant is tried out before anything is measured; a program's needs are looked up. What cannot run is left
//! out with its reason. Figures are saved after each program ([`crate::guest::figures`]).

use std::path::Path;

use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_report::json::JsonError;
use tandem_report::progress::Progress;
use thiserror::Error;

use crate::guest::account::Account;
use crate::guest::folder::{Folder, FolderError};
use crate::guest::measure::{Bench, MeasureError, Plan};
use crate::guest::program::Program;
use crate::guest::row::Row;
use crate::guest::{figures, held_back, program, row};

/// What ends the bench.
#[derive(Debug, Error)]
pub enum SessionError {
    /// It has nowhere to work.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No variant works here.
    #[error("nothing to compare with stock: {0}")]
    NoVariant(String),
    /// Somebody asked for the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A program.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The figures were not saved.
    #[error(transparent)]
    Save(#[from] JsonError),
}

/// A bench that can begin.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    programs: Vec<Program>,
    folder: Folder,
    account: Account,
}

impl Session {
    /// Finds out what of all that can run here.
    pub fn prepare(
        mut plan: Plan,
        programs: Vec<Program>,
        interrupt: &Interrupt,
    ) -> Result<Session, SessionError> {
        let folder = Folder::new()?;
        let mut account = Account::default();
        let bench = Bench::new(&plan, &folder, interrupt);
        let mut usable = Vec::new();
        for &variant in &plan.variants {
            match bench.try_out(variant)? {
                Ok(()) => usable.push(variant),
                Err(reason) => {
                    let name = format!("variant {}", variant.name());
                    account.skipped.push((name, reason));
                }
            }
        }
        if usable.is_empty() {
            let reason = |(name, reason): &(String, String)| format!("{name}: {reason}");
            let reasons: Vec<String> = account.skipped.iter().map(reason).collect();
            return Err(SessionError::NoVariant(reasons.join("; ")));
        }
        plan.variants = usable;
        let mut runnable = Vec::new();
        for program in programs {
            match program::missing(program.load, program::present) {
                None => runnable.push(program),
                Some(reason) => account.skipped.push((program.name.to_owned(), reason)),
            }
        }
        Ok(Session { plan, programs: runnable, folder, account })
    }

    /// How many steps of progress it has.
    pub fn steps(&self) -> u64 {
        let variants = self.plan.variants.len() as u64 + 1;
        self.programs.len() as u64 * u64::from(self.plan.runs) * variants
    }

    /// With what can run here.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was left out, and what went wrong.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Measures every program; its rows take the place of older ones. With a file, they are saved there.
    pub fn measure(
        &mut self,
        older: Vec<Row>,
        file: Option<&Path>,
        progress: &Progress,
        interrupt: &Interrupt,
    ) -> Result<Vec<Row>, SessionError> {
        let mut bench = Bench::new(&self.plan, &self.folder, interrupt);
        let mut rows = older;
        for (place, program) in self.programs.iter().enumerate() {
            let part = progress.within(program.name);
            part.say(&format!("{} of {}", place + 1, self.programs.len()));
            let measured = bench.measure(program, &part)?;
            for failure in measured.failures {
                part.note(&failure);
                let name = program.name.to_owned();
                self.account.failed.push((name, failure));
            }
            rows = row::merged(rows, &measured.rows);
            held_back::judge(&mut rows);
            if let Some(file) = file {
                figures::save(file, &rows)?;
            }
        }
        figures::in_order(&mut rows);
        Ok(rows)
    }
}
