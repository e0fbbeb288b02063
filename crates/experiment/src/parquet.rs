//! Figures as a Parquet file, in long form: a row for each figure of each VM and run.
//!
//! Columns: scenario, combination, seed, vm (empty: the host), metric, unit, value. One row group,
//! dictionary-encoded, not compressed: names repeat, so dictionaries do nearly all of it.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use parquet::data_type::ByteArray;
use parquet::data_type::ByteArrayType;
use parquet::data_type::DataType;
use parquet::data_type::DoubleType;
use parquet::data_type::Int64Type;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::parser::parse_message_type;
use thiserror::Error;

use crate::metrics::Metric;

const SCHEMA: &str = "message figures {
    required binary scenario (utf8);
    required binary combination (utf8);
    required int64 seed;
    required binary vm (utf8);
    required binary metric (utf8);
    required binary unit (utf8);
    required double value;
}";

/// Why a file could not be written.
#[derive(Debug, Error)]
#[error("cannot write {}", path.display())]
pub struct FileError {
    path: PathBuf,
    #[source]
    cause: ColumnError,
}

/// Why columns could not be written.
#[derive(Debug, Error)]
pub enum ColumnError {
    /// The system refused it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The library refused it.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The schema has fewer columns than are written.
    #[error("a column is missing")]
    Missing,
}

/// One figure and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// What was varied; empty: nothing.
    pub combination: &'a str,
    /// The run's seed.
    pub seed: u64,
    /// The figure.
    pub metric: &'a Metric,
}

/// Writes the file.
pub fn write<'a>(path: &Path, rows: impl Iterator<Item = Row<'a>>) -> Result<(), FileError> {
    let rows: Vec<Row<'a>> = rows.collect();
    file(path, &rows).map_err(|cause| FileError {
        path: path.to_owned(),
        cause,
    })
}

fn file(path: &Path, rows: &[Row<'_>]) -> Result<(), ColumnError> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(File::create(path)?, schema, properties)?;
    let mut group = writer.next_row_group()?;
    texts(&mut group, rows, |row| row.scenario)?;
    texts(&mut group, rows, |row| row.combination)?;
    let seeds: Vec<i64> = rows.iter().map(|row| row.seed as i64).collect();
    column::<Int64Type>(&mut group, &seeds)?;
    texts(&mut group, rows, |row| &row.metric.vm)?;
    texts(&mut group, rows, |row| row.metric.metric)?;
    texts(&mut group, rows, |row| row.metric.unit)?;
    let values: Vec<f64> = rows.iter().map(|row| row.metric.value).collect();
    column::<DoubleType>(&mut group, &values)?;
    group.close()?;
    writer.close()?;
    Ok(())
}

fn texts<'a>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    rows: &'a [Row<'a>],
    text: impl Fn(&'a Row<'a>) -> &'a str,
) -> Result<(), ColumnError> {
    let texts: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(text(row))).collect();
    column::<ByteArrayType>(group, &texts)
}

/// Writes the next column of a row group.
pub fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
) -> Result<(), ColumnError> {
    let mut column = group.next_column()?.ok_or(ColumnError::Missing)?;
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::FileReader;
    use parquet::file::reader::SerializedFileReader;
    use parquet::record::RowAccessor;

    #[test]
    fn rows_are_read_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.parquet");
        let metrics = [
            Metric {
                vm: "web".to_owned(),
                metric: "work_rate",
                unit: "1/s",
                value: 1234.5,
            },
            Metric {
                vm: String::new(),
                metric: "idle",
                unit: "pCPUs",
                value: 0.25,
            },
        ];
        let row = |metric| Row {
            scenario: "s",
            combination: "host.scheduler=cfs",
            seed: 7,
            metric,
        };
        write(&path, metrics.iter().map(row)).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].get_string(1).unwrap(), "host.scheduler=cfs");
        assert_eq!(rows[0].get_long(2).unwrap(), 7);
        assert_eq!(rows[0].get_string(3).unwrap(), "web");
        assert_eq!(rows[1].get_string(4).unwrap(), "idle");
        assert_eq!(rows[1].get_double(6).unwrap(), 0.25);
    }
}
