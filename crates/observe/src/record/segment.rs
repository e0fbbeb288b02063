//! Conversion of consecutive frames to a Parquet file and back.
//!
//! The file has one row group. Repeating names and numbers use a dictionary, times use delta encoding, which takes as many bits as needed. It is
//! not compressed and has no statistics, since no reader filters rows by value.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use serde::{Deserialize, Serialize};
use tandem_model::Nanos;

use super::frame::Frame;
use super::table::{Cells, Int, Real, Table, Text};
use super::{RecordError, SEGMENT, VERSION, VERSIONS, durable, part, table};

/// The keys of the file's metadata.
const VERSION_KEY: &str = "tandem_record";
const SUMMARY_KEY: &str = "tandem_summary";

/// Summary of a segment in its metadata, so that unwanted segments need not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The number of the first interval.
    pub(super) first: u64,
    /// Number of intervals.
    pub(super) intervals: u64,
    /// Begin of the first interval, in ns since 1970.
    pub(super) from: Nanos,
    /// End of the last interval.
    pub(super) to: Nanos,
    /// The same by CLOCK_MONOTONIC; `None` in files of version 1.
    #[serde(default)]
    pub(super) steady: Option<Range<Nanos>>,
}

impl Summary {
    /// Summarizes consecutive frames; `None` if there are none.
    pub(super) fn of<'a>(
        first: u64,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) -> Option<Summary> {
        let of = |frame: &Frame| Summary {
            first,
            intervals: 1,
            from: frame.at,
            to: frame.end(),
            steady: Some(frame.steady()),
        };
        let frames = frames.into_iter().map(of);
        frames.reduce(|one, two| Summary {
            first,
            intervals: one.intervals + two.intervals,
            from: one.from.min(two.from),
            to: one.to.max(two.to),
            steady: one
                .steady
                .zip(two.steady)
                .map(|(one, two)| one.start.min(two.start)..one.end.max(two.end)),
        })
    }
}

/// Writes a segment under a temporary name, syncs and renames it. Returns its path and size.
pub(super) fn write(
    folder: &Path,
    first: u64,
    frames: &[Frame],
) -> Result<(PathBuf, u64), RecordError> {
    let unfinished = part(folder, first, "part");
    let written = write_whole(&unfinished, first, frames).and_then(|sum| {
        let path = folder.join(format!("{first:010}-{sum:016x}.{SEGMENT}"));
        fs::rename(&unfinished, &path).map_err(RecordError::io("rename", &unfinished))?;
        durable::folder(folder)?;
        let metadata = fs::metadata(&path).map_err(RecordError::io("read", &path))?;
        Ok((path, metadata.len()))
    });
    if written.is_err() {
        // The frames are still in the journal.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Writes the file, and returns its check sum.
fn write_whole(path: &Path, first: u64, frames: &[Frame]) -> Result<u64, RecordError> {
    let file = File::create(path).map_err(RecordError::io("write", path))?;
    let table = Table::of(first, frames);
    let summary = Summary::of(first, frames);
    let written = columns(file, &table, summary).map_err(|error| match error {
        // The system's error is clearer than the library's wrapping.
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => RecordError::io("write", path)(*error),
            Err(error) => refused(path, error),
        },
        other => refused(path, other),
    });
    durable::file(&written?, path)?;
    check_sum(path)
}

/// Returns the FNV-1a hash of a file. Parquet has no check sum of the whole file, and the library panics on some damaged files.
pub(super) fn check_sum(path: &Path) -> Result<u64, RecordError> {
    let bytes = fs::read(path).map_err(RecordError::io("read", path))?;
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(sum)
}

/// Verifies a file by the check sum in its name.
fn check(path: &Path) -> Result<(), RecordError> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let sum = stem.and_then(|stem| u64::from_str_radix(stem.split_once('-')?.1, 16).ok());
    match sum {
        None => Err(RecordError::damaged(path, "its name has no check sum")),
        Some(sum) if sum != check_sum(path)? => Err(RecordError::damaged(
            path,
            "it is not as it was written (its check sum is not that of its name)",
        )),
        Some(_) => Ok(()),
    }
}

fn refused(path: &Path, why: impl ToString) -> RecordError {
    RecordError::Parquet { path: path.to_owned(), why: why.to_string() }
}

fn schema() -> Result<TypePtr, ParquetError> {
    let column = |name: &str, physical, logical| {
        let column = Type::primitive_type_builder(name, physical);
        let column = column.with_repetition(Repetition::OPTIONAL);
        column.with_logical_type(logical).build().map(Arc::new)
    };
    let texts = Text::ALL
        .iter()
        .map(|text| column(text.name(), PhysicalType::BYTE_ARRAY, Some(LogicalType::String)));
    let ints = Int::ALL.iter().map(|int| column(int.name(), PhysicalType::INT64, None));
    let reals = Real::ALL.iter().map(|real| column(real.name(), PhysicalType::DOUBLE, None));
    let fields: Result<Vec<TypePtr>, ParquetError> = texts.chain(ints).chain(reals).collect();
    let schema = Type::group_type_builder("record").with_fields(fields?);
    Ok(Arc::new(schema.build()?))
}

/// Whether values hardly repeat, so that a dictionary would be useless.
fn is_time(int: Int) -> bool {
    !matches!(
        int,
        Int::Vm
            | Int::Vcpu
            | Int::Pid
            | Int::Tid
            | Int::Pcpus
            | Int::Unreadable
            | Int::Measured
            | Int::Runnable
            | Int::CulpritVm
            | Int::CulpritVcpu
            | Int::Vms
            | Int::Of
            | Int::Failed
    )
}

fn properties(summary: Option<Summary>) -> WriterProperties {
    let mut values = vec![KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string())];
    if let Some(summary) = summary.and_then(|summary| serde_json::to_string(&summary).ok()) {
        values.push(KeyValue::new(SUMMARY_KEY.to_owned(), summary));
    }
    let mut properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(values));
    for int in Int::ALL.iter().filter(|int| is_time(**int)) {
        let path = ColumnPath::from(int.name());
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}

/// Writes all columns, and returns the file.
fn columns(file: File, table: &Table, summary: Option<Summary>) -> Result<File, ParquetError> {
    let mut writer = SerializedFileWriter::new(file, schema()?, Arc::new(properties(summary)))?;
    let mut group = writer.next_row_group()?;
    for cells in &table.texts {
        column::<ByteArrayType>(&mut group, cells)?;
    }
    for cells in &table.ints {
        column::<Int64Type>(&mut group, cells)?;
    }
    for cells in &table.reals {
        column::<DoubleType>(&mut group, cells)?;
    }
    group.close()?;
    writer.into_inner()
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    cells: &Cells<T::T>,
) -> Result<(), ParquetError> {
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("a column too many".to_owned()))?;
    let typed = column.typed::<T>();
    typed.write_batch(&cells.values, Some(&cells.defined), None)?;
    column.close()
}

/// An open segment with its metadata.
pub(super) struct Segment {
    reader: SerializedFileReader<File>,
    pub(super) summary: Summary,
}

/// Opens a segment without reading its frames.
pub(super) fn open(path: &Path) -> Result<Segment, RecordError> {
    check(path)?;
    let file = File::open(path).map_err(RecordError::io("read", path))?;
    let reader =
        SerializedFileReader::new(file).map_err(|error| RecordError::damaged(path, error))?;
    let values = reader.metadata().file_metadata().key_value_metadata();
    let value = |key: &str| {
        let value = values?.iter().find(|value| value.key == key)?;
        value.value.clone()
    };
    let Some(version) = value(VERSION_KEY) else {
        let why = "it is a Parquet file without Tandem's metadata";
        return Err(RecordError::damaged(path, why));
    };
    if !version.parse().is_ok_and(|version| VERSIONS.contains(&version)) {
        return Err(RecordError::Version { path: path.to_owned(), found: version });
    }
    let summary = value(SUMMARY_KEY).unwrap_or_default();
    let summary = serde_json::from_str(&summary);
    let summary = summary.map_err(|error| {
        RecordError::damaged(path, format!("its metadata '{SUMMARY_KEY}': {error}"))
    })?;
    Ok(Segment { reader, summary })
}

impl Segment {
    /// Reads all frames, by number.
    pub(super) fn frames(&self, path: &Path) -> Result<BTreeMap<u64, Frame>, RecordError> {
        let mut frames = BTreeMap::new();
        for group in 0..self.reader.num_row_groups() {
            let table = self.table(group);
            let table = table.map_err(|error| RecordError::damaged(path, error))?;
            let read = table::frames(&table).map_err(|why| RecordError::damaged(path, why))?;
            frames.extend(read);
        }
        if frames.len() as u64 != self.summary.intervals {
            let (found, of) = (frames.len(), self.summary.intervals);
            return Err(RecordError::damaged(path, format!("it has {found} of {of} intervals")));
        }
        Ok(frames)
    }

    /// Reads a row group. Columns missing in the file are null in all rows.
    fn table(&self, group: usize) -> Result<Table, ParquetError> {
        let group = self.reader.get_row_group(group)?;
        let rows = group.metadata().num_rows();
        let rows =
            usize::try_from(rows).map_err(|error| ParquetError::General(error.to_string()))?;
        let columns = group.metadata().schema_descr();
        let reader = |name: &str, physical| {
            let at = (0..columns.num_columns()).find(|at| columns.column(*at).name() == name);
            let Some(at) = at else {
                return Ok(None);
            };
            if columns.column(at).physical_type() == physical {
                group.get_column_reader(at).map(Some)
            } else {
                Err(ParquetError::General(format!("column {name} is not of type {physical}")))
            }
        };
        let texts = Text::ALL.iter().map(|text| {
            cells::<ByteArrayType>(reader(text.name(), PhysicalType::BYTE_ARRAY)?, rows)
        });
        let ints = Int::ALL
            .iter()
            .map(|int| cells::<Int64Type>(reader(int.name(), PhysicalType::INT64)?, rows));
        let reals = Real::ALL
            .iter()
            .map(|real| cells::<DoubleType>(reader(real.name(), PhysicalType::DOUBLE)?, rows));
        Ok(Table {
            rows,
            texts: texts.collect::<Result<_, ParquetError>>()?,
            ints: ints.collect::<Result<_, ParquetError>>()?,
            reals: reals.collect::<Result<_, ParquetError>>()?,
        })
    }
}

fn cells<T: DataType>(
    reader: Option<ColumnReader>,
    rows: usize,
) -> Result<Cells<T::T>, ParquetError> {
    let mut cells: Cells<T::T> = Cells::default();
    if let Some(reader) = reader {
        let mut reader = get_typed_column_reader::<T>(reader);
        loop {
            let levels = Some(&mut cells.defined);
            let (read, _, _) = reader.read_records(rows, levels, None, &mut cells.values)?;
            if read == 0 {
                break;
            }
        }
        if cells.defined.len() != rows {
            let found = cells.defined.len();
            return Err(ParquetError::General(format!("a column has {found} of {rows} rows")));
        }
    }
    cells.defined.resize(rows, 0);
    Ok(cells)
}
