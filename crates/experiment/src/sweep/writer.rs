//! Writer of a sweep's file, row by row: Parquet, or CSV by the file's extension.
//!
//! A CSV file has no identity, so shards are never CSV, and an existing CSV file is replaced only with `--force`.

use std::fs::File;

use super::file;
use super::file::Row;
use super::grid::Identity;
use crate::columns;
use crate::columns::ColumnError;
use crate::figures::{CsvTable, Format};
use crate::parameters::Column;

/// A file that is being written.
pub enum Writer {
    /// Parquet.
    Parquet(file::Writer),
    /// CSV.
    Csv {
        /// The table.
        table: CsvTable<File>,
        /// Rows of the current cell.
        rows: Vec<Row>,
        /// Number of written rows.
        count: u64,
    },
}

impl Writer {
    /// Creates a writer.
    pub fn new(
        file: File,
        format: Format,
        identity: &Identity,
        parameters: &[Column],
    ) -> Result<Writer, ColumnError> {
        Ok(match format {
            Format::Parquet => Writer::Parquet(file::Writer::new(file, identity, parameters)?),
            Format::Csv => Writer::Csv {
                table: CsvTable::begin(file, &columns::columns(true, parameters))?,
                rows: Vec::new(),
                count: 0,
            },
        })
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        match self {
            Writer::Parquet(writer) => writer.push(row),
            Writer::Csv { rows, .. } => rows.push(row),
        }
    }

    /// Ends the current cell.
    pub fn end_cell(&mut self) -> Result<(), ColumnError> {
        let (table, rows, count) = match self {
            Writer::Parquet(writer) => return writer.end_cell(),
            Writer::Csv { table, rows, count } => (table, rows, count),
        };
        for row in rows.drain(..) {
            let before = [
                row.cell.to_string(),
                row.scenario.as_utf8()?.to_owned(),
                row.combination.as_utf8()?.to_owned(),
            ];
            let names = [&row.vm, &row.metric, &row.unit].map(|text| text.as_utf8());
            let [vm, metric, unit] = names;
            let names = [vm?, metric?, unit?];
            table.row(&before, &row.parameters, row.seed, names, row.value)?;
            *count += 1;
        }
        Ok(())
    }

    /// Completes the file, syncs it to disk, and returns its number of rows.
    pub fn finish(mut self) -> Result<u64, ColumnError> {
        self.end_cell()?;
        match self {
            Writer::Parquet(writer) => writer.finish(),
            Writer::Csv { table, count, .. } => {
                table.end()?.sync_all()?;
                Ok(count)
            }
        }
    }
}
