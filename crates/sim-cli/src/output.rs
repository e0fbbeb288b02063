//! Output files of simulations: JSON, tables, pages.

use std::path::PathBuf;

use clap::Args;
use tandem_command::output::{check, check_json, is_stdout, refuse_scenario};
use tandem_experiment::figures::Format;

/// Destinations of figures, next to the terminal.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write all figures as a table, a row for each: Parquet, or CSV if PATH ends in .csv
    #[arg(long, visible_alias = "parquet", value_name = "PATH")]
    pub table: Option<PathBuf>,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl OutputArgs {
    /// Checks, before the first run, that the files can be written.
    pub fn check(&self) -> anyhow::Result<()> {
        check_json(self.json.as_deref())?;
        if let Some(path) = &self.table {
            refuse_scenario(path)?;
            Format::of(path)?;
        }
        let files = self.table.iter().chain(&self.html);
        files.map(PathBuf::as_path).try_for_each(check)
    }

    /// Returns whether JSON goes to standard output.
    pub fn json_only(&self) -> bool {
        is_stdout(self.json.as_deref())
    }
}
