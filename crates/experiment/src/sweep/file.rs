//! The Parquet file of a shard: the table of `compare` with a column of cell numbers.
//!
//! The metadata identifies the grid and has a digest of the content.
//! Rows are in the order of cells.
//! A row group ends with the first cell that brings it to 65,536 rows.
//! Its end depends only on the rows, so a merged file has the same groups as a file of the whole grid.
//! Writing and reading hold one row group at a time.
//!
//! Input is not trusted: the schema, the order of cells and the digest are checked.
//! A panic of the Parquet library, which occurs on some damaged pages, is an error too.
//! The digest (same hash as a grid's fingerprint) covers the metadata, the columns of parameters and every row.
//! It is verified after the last row: [`Reader::is_at_end`].
//! It detects damage, not forgery, and does not cover unused data such as the minimum and maximum of a page.
//!
//! A reader keeps its file open only while it reads a row group, so the number of file descriptors is small.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::num::TryFromIntError;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Type as PhysicalType;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use thiserror::Error;

use super::grid::{Fingerprint, Identity, IdentityError};
use crate::columns;
use crate::columns::{ColumnError, column};
use crate::parameters::{Column, FIGURES, Kind, Value};

/// Name of the schema.
const NAME: &str = "sweep";

/// Number of columns before those of parameters.
const BEFORE: usize = 3;

/// Metadata key of the digest.
const DIGEST: &str = "tandem.digest";

/// Errors of Linux if the process or the system has no file descriptor left: EMFILE, ENFILE.
const NO_DESCRIPTOR: [i32; 2] = [24, 23];

/// Minimum number of rows of a row group, except the last.
const GROUP: usize = 65_536;

/// Error in reading a sweep's file.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// There is no file descriptor left.
    #[error(
        "cannot read {}: no file descriptor is left; close files, or raise the limit (ulimit -n)",
        path.display()
    )]
    Descriptors {
        /// The file, which may be valid.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The file is not a sweep's, or is damaged.
    #[error("{} is no complete file of tandem-sim sweep", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ContentError,
    },
}

/// Error of the content of a file.
#[derive(Debug, Error)]
pub enum ContentError {
    /// The file is not valid Parquet.
    #[error(transparent)]
    Parquet(ParquetError),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is no file descriptor left.
    #[error("no file descriptor is left; close files, or raise the limit (ulimit -n)")]
    Descriptors(#[source] io::Error),
    /// The metadata has no digest.
    #[error("its metadata has no {DIGEST}: an earlier version of tandem wrote it")]
    NoDigest,
    /// The content does not match the digest.
    #[error("it is damaged: the digest of its content is {found}, and {wanted} was written")]
    Digest {
        /// Digest of the content.
        found: String,
        /// Digest in the metadata.
        wanted: String,
    },
    /// The metadata is not that of a sweep.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The schema is not that of a sweep.
    #[error("it has other columns than a sweep's")]
    Columns,
    /// The Parquet library panicked, or a value cannot be decoded.
    #[error("it is damaged: its values cannot be decoded")]
    Damaged,
    /// A cell's number is negative.
    #[error("row {0} has no possible cell")]
    Cell(usize),
    /// A row group has a negative number of rows.
    #[error("it has a negative number of rows")]
    Rows(#[source] TryFromIntError),
    /// A column has fewer values than there are rows.
    #[error("column {column} of a row group ends after {values} rows of {rows}")]
    Short {
        /// Index of the column.
        column: usize,
        /// Number of values.
        values: usize,
        /// Number of rows.
        rows: usize,
    },
}

impl From<ParquetError> for ContentError {
    fn from(cause: ParquetError) -> ContentError {
        match cause {
            ParquetError::External(cause) => match cause.downcast::<io::Error>() {
                Ok(cause) if is_no_descriptor(&cause) => ContentError::Descriptors(*cause),
                Ok(cause) => ContentError::Io(*cause),
                Err(cause) => ContentError::Parquet(ParquetError::External(cause)),
            },
            cause => ContentError::Parquet(cause),
        }
    }
}

impl OpenError {
    /// Returns whether the file is at fault, not this process or machine.
    pub fn is_of_file(&self) -> bool {
        matches!(self, OpenError::Foreign { cause, .. } if cause.is_of_file())
    }
}

impl ContentError {
    /// Adds the path of the file.
    pub fn of(self, path: &Path) -> OpenError {
        match self {
            ContentError::Io(cause) | ContentError::Descriptors(cause) => open_error(path, cause),
            cause => OpenError::Foreign { path: path.to_owned(), cause },
        }
    }

    /// Returns whether the file is at fault, not this process or machine.
    pub fn is_of_file(&self) -> bool {
        !matches!(self, ContentError::Io(_) | ContentError::Descriptors(_))
    }
}

fn is_no_descriptor(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code.is_some_and(|code| NO_DESCRIPTOR.contains(&code))
}

/// One figure with its cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of the cell in the grid.
    pub cell: u64,
    /// The scenario's name.
    pub scenario: ByteArray,
    /// The combination's name; empty for the unchanged scenario.
    pub combination: ByteArray,
    /// The combination's value for each parameter.
    pub parameters: Arc<[Value]>,
    /// The run's seed.
    pub seed: u64,
    /// The VM; empty: the host.
    pub vm: ByteArray,
    /// The metric.
    pub metric: ByteArray,
    /// The unit.
    pub unit: ByteArray,
    /// The value.
    pub value: f64,
}

impl Row {
    /// Adds the row to a digest in an unambiguous encoding.
    fn digest(&self, digest: &mut Fingerprint) {
        let mut text = |text: &[u8]| {
            digest.bytes(&(text.len() as u64).to_le_bytes());
            digest.bytes(text);
        };
        let texts = [&self.scenario, &self.combination, &self.vm];
        let texts = texts.into_iter().chain([&self.metric, &self.unit]);
        texts.for_each(|bytes| text(bytes.data()));
        for value in self.parameters.iter() {
            match value {
                Value::Text(own) => text(own.as_bytes()),
                Value::Integer(number) => text(&number.to_le_bytes()),
                Value::Real(number) => text(&number.to_bits().to_le_bytes()),
            }
        }
        for number in [self.cell, self.seed, self.value.to_bits()] {
            digest.bytes(&number.to_le_bytes());
        }
    }
}

/// Returns the digest of a file without rows.
fn digest_of(identity: &Identity, parameters: &[Column]) -> Fingerprint {
    let mut digest = Fingerprint::default();
    // Writing to a `Fingerprint` cannot fail.
    let _ = write!(digest, "{:?} {parameters:?}", identity.to_pairs());
    digest
}

/// The rows of a row group.
#[derive(Debug, Default)]
struct Columns {
    cell: Vec<i64>,
    scenario: Vec<ByteArray>,
    combination: Vec<ByteArray>,
    parameters: Vec<Arc<[Value]>>,
    seed: Vec<i64>,
    vm: Vec<ByteArray>,
    metric: Vec<ByteArray>,
    unit: Vec<ByteArray>,
    value: Vec<f64>,
}

impl Columns {
    fn row(&self, at: usize) -> Option<Row> {
        Some(Row {
            cell: u64::try_from(*self.cell.get(at)?).ok()?,
            scenario: self.scenario.get(at)?.clone(),
            combination: self.combination.get(at)?.clone(),
            parameters: Arc::clone(self.parameters.get(at)?),
            seed: *self.seed.get(at)? as u64,
            vm: self.vm.get(at)?.clone(),
            metric: self.metric.get(at)?.clone(),
            unit: self.unit.get(at)?.clone(),
            value: *self.value.get(at)?,
        })
    }
}

/// Writes a file, row by row.
pub struct Writer {
    writer: SerializedFileWriter<File>,
    parameters: Vec<Column>,
    columns: Columns,
    digest: Fingerprint,
    rows: u64,
}

impl Writer {
    /// Creates a writer; `parameters` are the columns of the varied parameters.
    pub fn new(
        file: File,
        identity: &Identity,
        parameters: &[Column],
    ) -> Result<Writer, ColumnError> {
        let pairs = identity.to_pairs().into_iter();
        let pairs = pairs.map(|(key, value)| KeyValue::new(key.to_owned(), value));
        let properties =
            WriterProperties::builder().set_key_value_metadata(Some(pairs.collect())).build();
        let schema = columns::schema(NAME, &columns::columns(true, parameters))?;
        Ok(Writer {
            writer: SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?,
            parameters: parameters.to_vec(),
            columns: Columns::default(),
            digest: digest_of(identity, parameters),
            rows: 0,
        })
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        row.digest(&mut self.digest);
        self.columns.cell.push(row.cell as i64);
        self.columns.scenario.push(row.scenario);
        self.columns.combination.push(row.combination);
        self.columns.parameters.push(row.parameters);
        self.columns.seed.push(row.seed as i64);
        self.columns.vm.push(row.vm);
        self.columns.metric.push(row.metric);
        self.columns.unit.push(row.unit);
        self.columns.value.push(row.value);
        self.rows += 1;
    }

    /// Ends the current cell.
    pub fn end_cell(&mut self) -> Result<(), ColumnError> {
        if self.columns.cell.len() >= GROUP { self.end_group() } else { Ok(()) }
    }

    /// Completes the file, syncs it to disk, and returns its number of rows.
    pub fn finish(mut self) -> Result<u64, ColumnError> {
        if !self.columns.cell.is_empty() {
            self.end_group()?;
        }
        let digest = KeyValue::new(DIGEST.to_owned(), self.digest.to_string());
        self.writer.append_key_value_metadata(digest);
        self.writer.into_inner()?.sync_all()?;
        Ok(self.rows)
    }

    fn end_group(&mut self) -> Result<(), ColumnError> {
        let columns = std::mem::take(&mut self.columns);
        let mut group = self.writer.next_row_group()?;
        column::<Int64Type>(&mut group, &columns.cell)?;
        column::<ByteArrayType>(&mut group, &columns.scenario)?;
        column::<ByteArrayType>(&mut group, &columns.combination)?;
        let values: Vec<&[Value]> = columns.parameters.iter().map(|row| &**row).collect();
        columns::parameters(&mut group, &self.parameters, &values)?;
        column::<Int64Type>(&mut group, &columns.seed)?;
        column::<ByteArrayType>(&mut group, &columns.vm)?;
        column::<ByteArrayType>(&mut group, &columns.metric)?;
        column::<ByteArrayType>(&mut group, &columns.unit)?;
        column::<DoubleType>(&mut group, &columns.value)?;
        group.close()?;
        Ok(())
    }
}

/// Reads a file, row by row.
pub struct Reader {
    path: PathBuf,
    identity: Identity,
    parameters: Vec<Column>,
    /// Digest in the metadata.
    wanted: String,
    /// Digest of the rows so far.
    digest: Fingerprint,
    groups: usize,
    columns: Columns,
    /// Index of the next row in `columns`.
    at: usize,
    /// Index of the next row group.
    group: usize,
}

impl Reader {
    /// Opens a file and reads its metadata.
    pub fn open(path: &Path) -> Result<Reader, OpenError> {
        let file = File::open(path).map_err(|cause| open_error(path, cause))?;
        Reader::new(path, file).map_err(|cause| cause.of(path))
    }

    fn new(path: &Path, file: File) -> Result<Reader, ContentError> {
        let reader = guarded(|| Ok(SerializedFileReader::new(file)?))?;
        let metadata = reader.metadata().file_metadata();
        let pairs = metadata.key_value_metadata();
        let get = |key: &str| {
            let pair = pairs?.iter().find(|pair| pair.key == key)?;
            pair.value.clone()
        };
        let identity = Identity::from_pairs(get)?;
        let parameters = parameters_of(metadata.schema())?;
        Ok(Reader {
            path: path.to_owned(),
            wanted: get(DIGEST).ok_or(ContentError::NoDigest)?,
            digest: digest_of(&identity, &parameters),
            groups: reader.num_row_groups(),
            identity,
            parameters,
            columns: Columns::default(),
            at: 0,
            group: 0,
        })
    }

    /// Returns the identity of the grid and shard.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the columns of the varied parameters.
    pub fn parameters(&self) -> &[Column] {
        &self.parameters
    }

    /// Returns the next row if it is of this cell.
    pub fn next_of(&mut self, cell: u64) -> Result<Option<Row>, ContentError> {
        let row = self.peek()?.filter(|row| row.cell == cell);
        if let Some(row) = &row {
            row.digest(&mut self.digest);
            self.at += 1;
        }
        Ok(row)
    }

    /// Returns whether all rows were read; fails if they do not match the digest.
    pub fn is_at_end(&mut self) -> Result<bool, ContentError> {
        if self.peek()?.is_some() {
            return Ok(false);
        }
        let found = self.digest.to_string();
        if found == self.wanted {
            Ok(true)
        } else {
            Err(ContentError::Digest { found, wanted: self.wanted.clone() })
        }
    }

    /// Reads the remaining rows; fails if the rows do not match the digest.
    pub fn check(mut self) -> Result<(), ContentError> {
        while let Some(row) = self.peek()? {
            row.digest(&mut self.digest);
            self.at += 1;
        }
        self.is_at_end().map(drop)
    }

    fn peek(&mut self) -> Result<Option<Row>, ContentError> {
        while self.at >= self.columns.cell.len() {
            if self.group >= self.groups {
                return Ok(None);
            }
            let file = File::open(&self.path).map_err(|cause| {
                if is_no_descriptor(&cause) {
                    ContentError::Descriptors(cause)
                } else {
                    ContentError::Io(cause)
                }
            })?;
            let (group, parameters) = (self.group, &self.parameters);
            self.columns = guarded(|| {
                let reader = SerializedFileReader::new(file)?;
                if group >= reader.num_row_groups() {
                    return Err(ContentError::Damaged);
                }
                read_group(&*reader.get_row_group(group)?, parameters)
            })?;
            self.group += 1;
            self.at = 0;
        }
        match self.columns.row(self.at) {
            Some(row) => Ok(Some(row)),
            None => Err(ContentError::Cell(self.at)),
        }
    }
}

fn open_error(path: &Path, cause: io::Error) -> OpenError {
    let path = path.to_owned();
    if is_no_descriptor(&cause) {
        OpenError::Descriptors { path, cause }
    } else {
        OpenError::Read { path, cause }
    }
}

/// Calls `read` and turns a panic of the library into an error.
///
/// It disables the panic hook of the whole process, so no other thread may run.
fn guarded<T>(read: impl FnOnce() -> Result<T, ContentError>) -> Result<T, ContentError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    match result {
        Ok(result) => result,
        Err(_) => Err(ContentError::Damaged),
    }
}

/// Returns the columns of parameters in a schema; fails if it is not that of a sweep.
fn parameters_of(schema: &Type) -> Result<Vec<Column>, ContentError> {
    let fields = schema.get_fields();
    let after = FIGURES.len() - BEFORE;
    let between = fields.get(BEFORE..fields.len().saturating_sub(after));
    let column = |field: &Arc<Type>| {
        let kind = match field.is_primitive().then(|| field.get_physical_type()) {
            Some(PhysicalType::INT64) => Kind::Integer,
            Some(PhysicalType::DOUBLE) => Kind::Real,
            Some(PhysicalType::BYTE_ARRAY) => Kind::Text,
            _ => return Err(ContentError::Columns),
        };
        let name = field.name().to_owned();
        Ok(Column { name, kind })
    };
    let between = between.ok_or(ContentError::Columns)?;
    let parameters: Vec<Column> = between.iter().map(column).collect::<Result<_, _>>()?;
    if *schema == columns::schema(NAME, &columns::columns(true, &parameters))? {
        Ok(parameters)
    } else {
        Err(ContentError::Columns)
    }
}

fn read_group(group: &dyn RowGroupReader, parameters: &[Column]) -> Result<Columns, ContentError> {
    let after = BEFORE + parameters.len();
    let cell = read_column::<Int64Type>(group, 0)?;
    Ok(Columns {
        parameters: read_parameters(group, parameters, cell.len())?,
        cell,
        scenario: read_column::<ByteArrayType>(group, 1)?,
        combination: read_column::<ByteArrayType>(group, 2)?,
        seed: read_column::<Int64Type>(group, after)?,
        vm: read_column::<ByteArrayType>(group, after + 1)?,
        metric: read_column::<ByteArrayType>(group, after + 2)?,
        unit: read_column::<ByteArrayType>(group, after + 3)?,
        value: read_column::<DoubleType>(group, after + 4)?,
    })
}

/// Returns the parameter values of each row; consecutive rows with equal values share them.
fn read_parameters(
    group: &dyn RowGroupReader,
    parameters: &[Column],
    rows: usize,
) -> Result<Vec<Arc<[Value]>>, ContentError> {
    let read = |(at, column): (usize, &Column)| -> Result<Vec<Value>, ContentError> {
        Ok(match column.kind {
            Kind::Integer => {
                let numbers = read_column::<Int64Type>(group, BEFORE + at)?;
                numbers.into_iter().map(Value::Integer).collect()
            }
            Kind::Real => {
                let numbers = read_column::<DoubleType>(group, BEFORE + at)?;
                numbers.into_iter().map(Value::Real).collect()
            }
            Kind::Text => {
                let text = |bytes: ByteArray| match bytes.as_utf8() {
                    Ok(text) => Ok(Value::Text(text.to_owned())),
                    Err(_) => Err(ContentError::Damaged),
                };
                let texts = read_column::<ByteArrayType>(group, BEFORE + at)?;
                texts.into_iter().map(text).collect::<Result<_, _>>()?
            }
        })
    };
    let columns = parameters.iter().enumerate().map(read);
    let columns: Vec<Vec<Value>> = columns.collect::<Result<_, _>>()?;
    let mut all: Vec<Arc<[Value]>> = Vec::with_capacity(rows.min(GROUP));
    for at in 0..rows {
        let same = |values: &&Arc<[Value]>| {
            let mut pairs = columns.iter().zip(values.iter());
            pairs.all(|(column, value)| column.get(at) == Some(value))
        };
        let row = match all.last().filter(same) {
            Some(values) => Arc::clone(values),
            None => columns
                .iter()
                .map(|column| column.get(at).cloned())
                .collect::<Option<Arc<[Value]>>>()
                .ok_or(ContentError::Damaged)?,
        };
        all.push(row);
    }
    Ok(all)
}

/// Returns all values of a column of a group.
///
/// The number of rows is untrusted, so memory is allocated only for values that are read.
fn read_column<T: DataType>(
    group: &dyn RowGroupReader,
    at: usize,
) -> Result<Vec<T::T>, ContentError> {
    let rows = usize::try_from(group.metadata().num_rows()).map_err(ContentError::Rows)?;
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(at)?);
    let mut values = Vec::new();
    while values.len() < rows {
        let most = (rows - values.len()).min(GROUP);
        let (records, _, _) = reader.read_records(most, None, None, &mut values)?;
        if records == 0 {
            return Err(ContentError::Short { column: at, values: values.len(), rows });
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::grid::Shard;

    #[test]
    fn round_trip_spans_row_groups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.parquet");
        let pairs = |key: &str| match key {
            "tandem.shard" => Some(Shard::WHOLE.to_string()),
            _ => Some("5".to_owned()),
        };
        let identity = Identity::from_pairs(pairs).unwrap();
        let row = |cell: u64, at: usize| Row {
            cell,
            scenario: "s".into(),
            combination: "".into(),
            parameters: [
                Value::Text(format!("p{}", at % 3)),
                Value::Integer(cell as i64 * 2),
                Value::Real(cell as f64 / 7.0),
            ]
            .into(),
            seed: u64::MAX - cell,
            vm: format!("vm{}", at % 7).as_str().into(),
            metric: "m".into(),
            unit: "1".into(),
            value: at as f64 / 3.0,
        };
        // The first three cells together exceed a group, and so does the fifth.
        let rows = [GROUP / 2, GROUP / 4, GROUP / 2, 1, GROUP + 1];
        let column = |name: &str, kind| Column { name: name.to_owned(), kind };
        let parameters = [
            column("policies", Kind::Text),
            column("vm.*.vcpus", Kind::Integer),
            column("host.x [ns]", Kind::Real),
        ];
        let file = File::create(&path).unwrap();
        let mut writer = Writer::new(file, &identity, &parameters).unwrap();
        for (cell, &rows) in (0..).zip(&rows) {
            (0..rows).for_each(|at| writer.push(row(cell, at)));
            writer.end_cell().unwrap();
        }
        assert_eq!(writer.finish().unwrap(), rows.iter().sum::<usize>() as u64);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(*reader.identity(), identity);
        assert_eq!(reader.parameters(), parameters);
        assert_eq!(reader.groups, 2);
        for (cell, &rows) in (0..).zip(&rows) {
            assert!(!reader.is_at_end().unwrap());
            for at in 0..rows {
                assert_eq!(reader.next_of(cell).unwrap(), Some(row(cell, at)));
            }
            assert_eq!(reader.next_of(cell).unwrap(), None);
        }
        assert!(reader.is_at_end().unwrap());
        Reader::open(&path).unwrap().check().unwrap();
    }

    #[test]
    fn lack_of_descriptors_does_not_blame_file() {
        let path = Path::new("s.parquet");
        for code in NO_DESCRIPTOR {
            let error = open_error(path, io::Error::from_raw_os_error(code));
            assert!(error.to_string().contains("no file descriptor"), "{error}");
            assert!(!error.is_of_file());
            let inner = Box::new(io::Error::from_raw_os_error(code));
            let error = ContentError::from(ParquetError::External(inner));
            assert!(matches!(error, ContentError::Descriptors(_)), "{error}");
        }
        let error = open_error(path, io::Error::from_raw_os_error(2));
        assert!(matches!(error, OpenError::Read { .. }), "{error}");
    }
}
