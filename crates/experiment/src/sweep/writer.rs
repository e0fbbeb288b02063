//! The file that a sweep writes, row by row: Parquet, or CSV if its name ends so.
//!
//! A CSV file cannot say of which grid it is, so shards are never CSV and such a file is replaced only when asked.

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
        /// Rows of the cell that has not ended.
        rows: Vec<Row>,
        /// Rows so far.
        count: u64,
    },
}

impl Writer {
    /// Begins.
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

    /// Takes a row.
    pub fn push(&mut self, row: Row) {
        match self {
            Writer::Parquet(writer) => writer.push(row),
            Writer::Csv { rows, .. } => rows.push(row),
        }
    }

    /// The cell has no more rows.
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

    /// Ends the file and sees to it that it outlasts a loss of power; how many rows it has.
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
