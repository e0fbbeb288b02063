//! Figures as an Arrow table, in long form: a row for each figure of each VM and run, with a column for each parameter.
//!
//! The columns are those of the files of `tandem-sim --table`.
//! The table supports the Arrow PyCapsule interface
//! (<https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>), so pyarrow and polars use it without copying.
//! A schema requested by the consumer is ignored, as the interface permits.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array, ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
    UInt64Array,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tandem_experiment::columns;
use tandem_experiment::parameters::{Column, Kind, Value};

/// One figure with its keys.
pub struct Line<'a> {
    /// The cell of a grid.
    pub cell: u64,
    /// The scenario's name.
    pub scenario: &'a str,
    /// Name of the combination.
    pub combination: &'a str,
    /// Its value of each parameter.
    pub parameters: &'a [Value],
    /// The run's seed.
    pub seed: u64,
    /// The VM; empty: the host.
    pub vm: &'a str,
    /// The metric.
    pub metric: &'a str,
    /// The unit.
    pub unit: &'a str,
    /// The value.
    pub value: f64,
}

/// A column under construction.
enum Filling {
    Seed(Vec<u64>),
    Integer(Vec<i64>),
    Real(Vec<f64>),
    Text(StringBuilder),
}

impl Filling {
    fn new(column: &Column) -> Filling {
        match column.kind {
            Kind::Integer if column.name == columns::SEED => Filling::Seed(Vec::new()),
            Kind::Integer => Filling::Integer(Vec::new()),
            Kind::Real => Filling::Real(Vec::new()),
            Kind::Text => Filling::Text(StringBuilder::new()),
        }
    }

    /// Appends a value; in valid files its type is that of the column.
    fn push(&mut self, value: &Value) {
        match (self, value) {
            (Filling::Integer(column), Value::Integer(number)) => column.push(*number),
            (Filling::Integer(column), _) => column.push(0),
            (Filling::Seed(column), _) => column.push(0),
            (Filling::Real(column), value) => column.push(value.number().unwrap_or(f64::NAN)),
            (Filling::Text(column), Value::Text(text)) => column.append_value(text),
            (Filling::Text(column), value) => column.append_value(value.to_string()),
        }
    }

    fn push_seed(&mut self, seed: u64) {
        if let Filling::Seed(column) = self {
            column.push(seed);
        }
    }

    fn push_text(&mut self, text: &str) {
        if let Filling::Text(column) = self {
            column.append_value(text);
        }
    }

    fn end(self) -> ArrayRef {
        match self {
            Filling::Seed(values) => Arc::new(UInt64Array::from(values)),
            Filling::Integer(values) => Arc::new(Int64Array::from(values)),
            Filling::Real(values) => Arc::new(Float64Array::from(values)),
            Filling::Text(mut values) => Arc::new(values.finish()),
        }
    }
}

/// Figures as an Arrow table.
#[derive(Clone)]
#[pyclass(frozen, skip_from_py_object, module = "tandem_sched._native")]
pub struct Table {
    batch: RecordBatch,
}

impl Table {
    /// Makes a table of lines; only grids have a column for the cell.
    pub fn new<'a>(
        has_cell: bool,
        parameters: &[Column],
        lines: impl Iterator<Item = Line<'a>>,
    ) -> PyResult<Table> {
        let columns = columns::columns(has_cell, parameters);
        let mut fillings: Vec<Filling> = columns.iter().map(Filling::new).collect();
        for line in lines {
            let mut next = fillings.iter_mut();
            let mut fill = |value: &dyn Fn(&mut Filling)| next.next().into_iter().for_each(value);
            if has_cell {
                fill(&|column| column.push(&Value::Integer(line.cell as i64)));
            }
            fill(&|column| column.push_text(line.scenario));
            fill(&|column| column.push_text(line.combination));
            for value in line.parameters {
                fill(&|column| column.push(value));
            }
            fill(&|column| column.push_seed(line.seed));
            fill(&|column| column.push_text(line.vm));
            fill(&|column| column.push_text(line.metric));
            fill(&|column| column.push_text(line.unit));
            fill(&|column| column.push(&Value::Real(line.value)));
        }
        let field = |column: &Column| {
            let kind = match column.kind {
                Kind::Integer if column.name == columns::SEED => DataType::UInt64,
                Kind::Integer => DataType::Int64,
                Kind::Real => DataType::Float64,
                Kind::Text => DataType::Utf8,
            };
            Field::new(&column.name, kind, false)
        };
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<Field>>());
        let arrays: Vec<ArrayRef> = fillings.into_iter().map(Filling::end).collect();
        let batch = RecordBatch::try_new(Arc::new(schema), arrays).map_err(arrow)?;
        Ok(Table { batch })
    }
}

fn arrow(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

#[pymethods]
impl Table {
    /// Arrow PyCapsule interface: a stream of one batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Arrow PyCapsule interface: the schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.schema_ref().as_ref()).map_err(arrow)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the names of the columns in their order.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        let schema = self.batch.schema();
        let fields = schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Returns a column as a list.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let Some(column) = self.batch.column_by_name(name) else {
            let names = self.column_names().join(", ");
            return Err(PyKeyError::new_err(format!(
                "no column is called {name:?}: there are {names}"
            )));
        };
        let column = column.as_any();
        if let Some(numbers) = column.downcast_ref::<Int64Array>() {
            return numbers.values().to_vec().into_pyobject(py);
        }
        if let Some(numbers) = column.downcast_ref::<UInt64Array>() {
            return numbers.values().to_vec().into_pyobject(py);
        }
        if let Some(numbers) = column.downcast_ref::<Float64Array>() {
            return numbers.values().to_vec().into_pyobject(py);
        }
        let texts = column.downcast_ref::<StringArray>();
        let texts: Vec<&str> = texts.into_iter().flat_map(|texts| texts.iter().flatten()).collect();
        texts.into_pyobject(py)
    }
}
