//! Figures as a table in long form, with a row for each figure of each VM and run: a Parquet file, or CSV by the file's extension.
//!
//! Columns: scenario, combination, one for each parameter ([`parameters`](crate::parameters)), seed, vm (empty: the host), metric,
//! unit, value.
//! A Parquet file has one row group.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use thiserror::Error;

use crate::columns;
use crate::columns::ColumnError;
use crate::metrics::Metric;
use crate::parameters::{Column, Value};

/// Format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values (RFC 4180) with the names of the columns in the first line.
    Csv,
}

/// The extension of a file is not that of a table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} cannot be a table: tables are Parquet or CSV; name a file that ends in .parquet or .csv", .0.display())]
pub struct NoTable(PathBuf);

impl Format {
    /// Returns the format for a file's extension; Parquet if it has none.
    pub fn of(path: &Path) -> Result<Format, NoTable> {
        let extension = path.extension().map(|text| text.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            None | Some("parquet" | "pq") => Ok(Format::Parquet),
            Some("csv") => Ok(Format::Csv),
            Some(_) => Err(NoTable(path.to_owned())),
        }
    }
}

/// Error in writing a file.
#[derive(Debug, Error)]
pub enum FileError {
    /// The extension is not that of a table.
    #[error(transparent)]
    Name(#[from] NoTable),
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ColumnError,
    },
}

/// One figure with its run.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The combination's name; empty for the unchanged scenario.
    pub combination: &'a str,
    /// The combination's value for each parameter.
    pub parameters: &'a [Value],
    /// The run's seed.
    pub seed: u64,
    /// The figure.
    pub metric: &'a Metric,
}

/// Writes the file; `parameters` are the columns of the varied parameters.
pub fn write<'a>(
    path: &Path,
    parameters: &[Column],
    rows: impl Iterator<Item = Row<'a>>,
) -> Result<(), FileError> {
    let format = Format::of(path)?;
    let rows: Vec<Row<'a>> = rows.collect();
    let written = match format {
        Format::Parquet => to_parquet(path, parameters, &rows),
        Format::Csv => to_csv(path, parameters, &rows),
    };
    written.map_err(|cause| FileError::Write { path: path.to_owned(), cause })
}

fn to_parquet(path: &Path, parameters: &[Column], rows: &[Row<'_>]) -> Result<(), ColumnError> {
    let schema = columns::schema("figures", &columns::columns(false, parameters))?;
    let schema = Arc::new(schema);
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(File::create(path)?, schema, properties)?;
    let mut group = writer.next_row_group()?;
    texts(&mut group, rows, |row| row.scenario)?;
    texts(&mut group, rows, |row| row.combination)?;
    let values: Vec<&[Value]> = rows.iter().map(|row| row.parameters).collect();
    columns::parameters(&mut group, parameters, &values)?;
    let seeds: Vec<i64> = rows.iter().map(|row| row.seed as i64).collect();
    columns::column::<Int64Type>(&mut group, &seeds)?;
    texts(&mut group, rows, |row| &row.metric.vm)?;
    texts(&mut group, rows, |row| row.metric.metric)?;
    texts(&mut group, rows, |row| row.metric.unit)?;
    let values: Vec<f64> = rows.iter().map(|row| row.metric.value).collect();
    columns::column::<DoubleType>(&mut group, &values)?;
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
    columns::column::<ByteArrayType>(group, &texts)
}

fn to_csv(path: &Path, parameters: &[Column], rows: &[Row<'_>]) -> Result<(), ColumnError> {
    let mut csv = CsvTable::begin(File::create(path)?, &columns::columns(false, parameters))?;
    for row in rows {
        let before = [row.scenario.to_owned(), row.combination.to_owned()];
        let metric = row.metric;
        let names = [metric.vm.as_str(), metric.metric, metric.unit];
        csv.row(&before, row.parameters, row.seed, names, metric.value)?;
    }
    csv.end().map(drop)
}

/// Writer of a CSV table, row by row; numbers are written such that parsing them yields the same bits.
pub struct CsvTable<W: Write>(csv::Writer<W>);

impl<W: Write> CsvTable<W> {
    /// Writes the names of the columns.
    pub fn begin(to: W, columns: &[Column]) -> Result<CsvTable<W>, ColumnError> {
        let mut writer = csv::Writer::from_writer(to);
        writer.write_record(columns.iter().map(|column| &column.name))?;
        Ok(CsvTable(writer))
    }

    /// Writes a row: fields before the parameters, the parameters, seed, VM, metric, unit and value.
    pub fn row(
        &mut self,
        before: &[String],
        parameters: &[Value],
        seed: u64,
        names: [&str; 3],
        value: f64,
    ) -> Result<(), ColumnError> {
        for field in before {
            self.0.write_field(field)?;
        }
        for parameter in parameters {
            self.0.write_field(parameter.to_string())?;
        }
        self.0.write_field(seed.to_string())?;
        for name in names {
            self.0.write_field(name)?;
        }
        self.0.write_field(value.to_string())?;
        // An empty write ends the record.
        self.0.write_record(None::<&[u8]>)?;
        Ok(())
    }

    /// Flushes the table and returns the underlying writer.
    pub fn end(mut self) -> Result<W, ColumnError> {
        self.0.flush()?;
        let ended = self.0.into_inner();
        ended.map_err(|error| ColumnError::Io(error.error().kind().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Kind;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    fn columns() -> Vec<Column> {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind };
        vec![
            column("host.scheduler", Kind::Text),
            column("vm.*.vcpus", Kind::Integer),
            column("host.cfs.latency [ns]", Kind::Real),
        ]
    }

    fn written(name: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let metrics = [
            Metric {
                vm: "web, the first".to_owned(),
                metric: "work_rate",
                unit: "1/s",
                value: 1.0 / 3.0,
            },
            Metric { vm: String::new(), metric: "idle", unit: "pCPUs", value: 0.25 },
        ];
        let values = [Value::Text("cfs".to_owned()), Value::Integer(8), Value::Real(1.5)];
        let row = |metric| Row {
            scenario: "s",
            combination: "host.scheduler=cfs",
            parameters: &values,
            seed: 7,
            metric,
        };
        write(&path, &columns(), metrics.iter().map(row)).unwrap();
        (dir, path)
    }

    #[test]
    fn parquet_round_trip_keeps_rows() {
        let (_dir, path) = written("figures.parquet");
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        let names: Vec<String> = rows[0].get_column_iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(
            names,
            [
                "scenario",
                "combination",
                "host.scheduler",
                "vm.*.vcpus",
                "host.cfs.latency [ns]",
                "seed",
                "vm",
                "metric",
                "unit",
                "value"
            ]
        );
        assert_eq!(rows[0].get_string(1).unwrap(), "host.scheduler=cfs");
        assert_eq!(rows[0].get_string(2).unwrap(), "cfs");
        assert_eq!(rows[0].get_long(3).unwrap(), 8);
        assert_eq!(rows[0].get_double(4).unwrap(), 1.5);
        assert_eq!(rows[0].get_ulong(5).unwrap(), 7);
        assert_eq!(rows[0].get_string(6).unwrap(), "web, the first");
        assert_eq!(rows[1].get_string(7).unwrap(), "idle");
        assert_eq!(rows[1].get_double(9).unwrap(), 0.25);
    }

    #[test]
    fn csv_has_same_columns_and_exact_numbers() {
        let (_dir, path) = written("figures.CSV");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "scenario,combination,host.scheduler,vm.*.vcpus,host.cfs.latency [ns],seed,vm,metric,unit,value\n\
             s,host.scheduler=cfs,cfs,8,1.5,7,\"web, the first\",work_rate,1/s,0.3333333333333333\n\
             s,host.scheduler=cfs,cfs,8,1.5,7,,idle,pCPUs,0.25\n"
        );
    }

    #[test]
    fn unknown_extension_is_rejected() {
        let format = |name: &str| Format::of(Path::new(name));
        assert_eq!(format("a.parquet"), Ok(Format::Parquet));
        assert_eq!(format("a"), Ok(Format::Parquet));
        assert_eq!(format("a.CSV"), Ok(Format::Csv));
        let error = format("a.xlsx").unwrap_err().to_string();
        assert!(error.contains("a.xlsx") && error.contains(".csv"), "{error}");
    }

    #[test]
    fn row_without_parameters_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let metric = Metric { vm: String::new(), metric: "idle", unit: "pCPUs", value: 1.0 };
        let row = Row { scenario: "s", combination: "", parameters: &[], seed: 1, metric: &metric };
        let error = write(&path, &columns(), std::iter::once(row)).unwrap_err();
        assert!(matches!(error, FileError::Write { .. }), "{error:?}");
    }
}
