//! Schemas and columns of all our Parquet files.
//!
//! Columns are required, dictionary-encoded and not compressed: names repeat, so dictionaries suffice.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{ConvertedType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::Type;
use thiserror::Error;

use crate::parameters::{Column, FIGURES, Kind, Value};

/// The column of seeds, which are unsigned: up to 2^64 - 1.
pub const SEED: &str = "seed";

/// The column that follows those of parameters.
const AFTER_PARAMETERS: &str = SEED;

/// Error in writing columns.
#[derive(Debug, Error)]
pub enum ColumnError {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// An error of the Parquet library.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// An error of the CSV library.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// The schema has fewer columns than are written.
    #[error("a column is missing")]
    Missing,
}

/// Returns the columns of a table of figures: those of [`FIGURES`] (`cell` only with `has_cell`), with the parameters before `seed`.
pub fn columns(has_cell: bool, parameters: &[Column]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for name in FIGURES.iter().skip(usize::from(!has_cell)) {
        if *name == AFTER_PARAMETERS {
            columns.extend_from_slice(parameters);
        }
        columns.push(Column {
            name: (*name).to_owned(),
            kind: match *name {
                "cell" | SEED => Kind::Integer,
                "value" => Kind::Real,
                _ => Kind::Text,
            },
        });
    }
    columns
}

/// Returns the schema of a table with these columns.
pub fn schema(name: &str, columns: &[Column]) -> Result<Type, ParquetError> {
    let field = |column: &Column| -> Result<Arc<Type>, ParquetError> {
        let builder = match column.kind {
            Kind::Integer if column.name == SEED => {
                Type::primitive_type_builder(SEED, PhysicalType::INT64)
                    .with_converted_type(ConvertedType::UINT_64)
            }
            Kind::Integer => Type::primitive_type_builder(&column.name, PhysicalType::INT64),
            Kind::Real => Type::primitive_type_builder(&column.name, PhysicalType::DOUBLE),
            Kind::Text => Type::primitive_type_builder(&column.name, PhysicalType::BYTE_ARRAY)
                .with_converted_type(ConvertedType::UTF8),
        };
        let builder = builder.with_repetition(Repetition::REQUIRED);
        builder.build().map(Arc::new)
    };
    let fields: Result<Vec<Arc<Type>>, ParquetError> = columns.iter().map(field).collect();
    Type::group_type_builder(name).with_fields(fields?).build()
}

/// Writes the next column of a row group.
pub fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    values: &[T::T],
) -> Result<(), ColumnError> {
    let mut column = group.next_column()?.ok_or(ColumnError::Missing)?;
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()?;
    Ok(())
}

/// Writes the next columns of a row group, those of parameters; each row must have a value for each.
pub fn parameters(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    columns: &[Column],
    rows: &[&[Value]],
) -> Result<(), ColumnError> {
    for (at, of) in columns.iter().enumerate() {
        let values = || rows.iter().map(|row| row.get(at));
        match of.kind {
            Kind::Integer => {
                let value = |value: Option<&Value>| match value {
                    Some(Value::Integer(number)) => Ok(*number),
                    _ => Err(ColumnError::Missing),
                };
                column::<Int64Type>(group, &values().map(value).collect::<Result<Vec<_>, _>>()?)?;
            }
            Kind::Real => {
                let value = |value: Option<&Value>| {
                    let number = value.and_then(Value::number);
                    number.ok_or(ColumnError::Missing)
                };
                column::<DoubleType>(group, &values().map(value).collect::<Result<Vec<_>, _>>()?)?;
            }
            Kind::Text => {
                let value = |value: Option<&Value>| match value {
                    Some(Value::Text(text)) => Ok(ByteArray::from(text.as_str())),
                    _ => Err(ColumnError::Missing),
                };
                let values = values().map(value).collect::<Result<Vec<_>, _>>()?;
                column::<ByteArrayType>(group, &values)?;
            }
        }
    }
    Ok(())
}
