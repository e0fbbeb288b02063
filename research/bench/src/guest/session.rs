//! Runs the whole bench: selects usable variants and programs, then measures each program.
//!
//! It tries each variant and checks each program's requirements before the first measurement.
//! It skips unusable ones with a reason.
//! It saves figures after each program ([`crate::guest::figures`]).

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

/// Error that ends the bench.
#[derive(Debug, Error)]
pub enum SessionError {
    /// Creating the temporary folder failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No variant works here.
    #[error("nothing to compare with stock: {0}")]
    NoVariant(String),
    /// Interrupted by a signal.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// Measuring a program failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Saving the figures failed.
    #[error(transparent)]
    Save(#[from] JsonError),
}

/// A prepared bench.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    programs: Vec<Program>,
    folder: Folder,
    account: Account,
}

impl Session {
    /// Selects the variants and programs that can run on this machine.
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

    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        let variants = self.plan.variants.len() as u64 + 1;
        self.programs.len() as u64 * u64::from(self.plan.runs) * variants
    }

    /// Returns the plan with the usable variants.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns skipped and failed programs.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Measures every program; new rows replace older ones. Saves them in the file, if given.
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
