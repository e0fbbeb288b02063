//! Columns, cells and rows of a table.

use std::fmt::Display;

use parquet::data_type::ByteArray;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tandem_model::{Nanos, VmId};

macro_rules! columns {
    ($(#[$meta:meta])* $of:ident: $($column:ident = $name:literal,)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::record) enum $of {
            $($column),*
        }

        impl $of {
            /// All columns in the order of the file.
            pub(in crate::record) const ALL: &[$of] = &[$($of::$column),*];

            /// Returns the name in the file.
            pub(in crate::record) fn name(self) -> &'static str {
                match self {
                    $($of::$column => $name),*
                }
            }
        }
    };
}

columns! {
    /// Columns of text.
    Text:
    Item = "item", Source = "source", Name = "name", Cgroup = "cgroup", Program = "program", Allowed = "allowed", Victim = "victim",
    Culprit = "culprit", CulpritName = "culprit_name", CulpritCgroup = "culprit_cgroup", Kind = "kind",
    Evidence = "evidence", What = "what", Want = "want", Failure = "failure", Settings = "settings",
}

columns! {
    /// Columns of whole numbers.
    Int:
    Number = "number", At = "at", Start = "start", Length = "length", Unreadable = "unreadable", Pcpus = "pcpus", Idle = "idle",
    Vcpus = "vcpus", VmThreads = "vm_threads", Tasks = "tasks", Kernel = "kernel", Vm = "vm", Vcpu = "vcpu", Pid = "pid", Tid = "tid",
    Measured = "measured", Due = "due", Wall = "wall", Run = "run", Poll = "poll", Vmm = "vmm", Ready = "ready",
    Limited = "limited", Costop = "costop", Halted = "halted", Ran = "ran", Waited = "waited", Runs = "runs",
    Runnable = "runnable", Time = "time", Count = "count", CulpritVm = "culprit_vm", CulpritVcpu = "culprit_vcpu", Vms = "vms", Of = "of",
    Failed = "failed",
    Wakeups = "wakeups",
}

columns! {
    /// Columns of real numbers.
    Real:
    Weight = "weight",
}

/// A column: a definition level for each row, and the values of defined rows.
#[derive(Clone, Debug)]
pub(in crate::record) struct Cells<T> {
    pub(in crate::record) defined: Vec<i16>,
    pub(in crate::record) values: Vec<T>,
}

impl<T> Default for Cells<T> {
    fn default() -> Cells<T> {
        Cells { defined: Vec::new(), values: Vec::new() }
    }
}

/// A table in columns.
#[derive(Clone, Debug, Default)]
pub(in crate::record) struct Table {
    pub(in crate::record) rows: usize,
    pub(in crate::record) texts: Vec<Cells<ByteArray>>,
    pub(in crate::record) ints: Vec<Cells<i64>>,
    pub(in crate::record) reals: Vec<Cells<f64>>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            rows: 0,
            texts: vec![Cells::default(); Text::ALL.len()],
            ints: vec![Cells::default(); Int::ALL.len()],
            reals: vec![Cells::default(); Real::ALL.len()],
        }
    }

    /// Appends a row of a kind.
    pub(super) fn row(&mut self, kind: &str, interval: u64) -> &mut Table {
        self.rows += 1;
        self.text(Text::Item, kind).int(Int::Number, interval)
    }

    pub(super) fn text(&mut self, column: Text, text: &str) -> &mut Table {
        set(&mut self.texts[column as usize], self.rows, ByteArray::from(text));
        self
    }

    pub(super) fn int(&mut self, column: Int, number: u64) -> &mut Table {
        set(&mut self.ints[column as usize], self.rows, number as i64);
        self
    }

    pub(super) fn time(&mut self, column: Int, time: impl Into<Option<Nanos>>) -> &mut Table {
        if let Some(time) = time.into() {
            self.int(column, time.0);
        }
        self
    }

    /// Fills all columns with nulls up to the last row.
    pub(super) fn fill(&mut self) {
        let rows = self.rows;
        let defined = self.texts.iter_mut().map(|cells| &mut cells.defined);
        let defined = defined.chain(self.ints.iter_mut().map(|cells| &mut cells.defined));
        let defined = defined.chain(self.reals.iter_mut().map(|cells| &mut cells.defined));
        defined.for_each(|defined| defined.resize(rows, 0));
    }
}

/// Sets the cell of the last of `rows` rows; earlier rows without a value are null.
pub(super) fn set<T>(cells: &mut Cells<T>, rows: usize, value: T) {
    cells.defined.resize(rows - 1, 0);
    cells.defined.push(1);
    cells.values.push(value);
}

/// Returns the name of a value that serializes as a string.
pub(super) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("only values that serialize as strings have names: {other:?}"),
    }
}

/// A cursor over the rows, with the positions in each column's values.
pub(super) struct Row<'a> {
    pub(super) table: &'a Table,
    pub(super) row: usize,
    pub(super) texts: Vec<usize>,
    pub(super) ints: Vec<usize>,
    pub(super) reals: Vec<usize>,
}

impl<'a> Row<'a> {
    pub(super) fn text(&self, column: Text) -> Result<Option<&'a str>, String> {
        let cells = &self.table.texts[column as usize];
        match cell(cells, self.row, self.texts[column as usize]) {
            None => Ok(None),
            Some(bytes) => match bytes.as_utf8() {
                Ok(text) => Ok(Some(text)),
                Err(error) => Err(self.wrong(column.name(), error)),
            },
        }
    }

    pub(super) fn int(&self, column: Int) -> Option<u64> {
        let cells = &self.table.ints[column as usize];
        cell(cells, self.row, self.ints[column as usize]).map(|number| *number as u64)
    }

    pub(super) fn real(&self, column: Real) -> Option<f64> {
        let cells = &self.table.reals[column as usize];
        cell(cells, self.row, self.reals[column as usize]).copied()
    }

    pub(super) fn time(&self, column: Int) -> Option<Nanos> {
        self.int(column).map(Nanos)
    }

    pub(super) fn wanted_text(&self, column: Text) -> Result<&'a str, String> {
        let text = self.text(column)?;
        text.ok_or_else(|| self.wrong(column.name(), "null"))
    }

    /// Returns a number that must exist and fit the type.
    pub(super) fn wanted<T: TryFrom<u64>>(&self, column: Int) -> Result<T, String> {
        let number = self.int(column);
        let number = number.ok_or_else(|| self.wrong(column.name(), "null"))?;
        T::try_from(number).map_err(|_| self.wrong(column.name(), number))
    }

    pub(super) fn wanted_time(&self, column: Int) -> Result<Nanos, String> {
        self.wanted(column).map(Nanos)
    }

    pub(super) fn named<T: DeserializeOwned>(&self, column: Text) -> Result<T, String> {
        let text = self.wanted_text(column)?;
        serde_json::from_value(serde_json::Value::from(text))
            .map_err(|error| self.wrong(column.name(), error))
    }

    /// Returns settings; `None` also for settings that this program does not understand.
    pub(super) fn settings<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        let text = self.text(Text::Settings)?;
        Ok(text.and_then(|text| serde_json::from_str(text).ok()))
    }

    pub(super) fn vm(&self) -> Result<VmId, String> {
        self.wanted(Int::Vm).map(VmId)
    }

    pub(super) fn wrong(&self, column: &str, what: impl Display) -> String {
        format!("row {}, column {column}: {what}", self.row)
    }

    /// Moves to the next row.
    pub(super) fn next(&mut self) {
        for (at, cells) in self.texts.iter_mut().zip(&self.table.texts) {
            *at += usize::from(cells.defined[self.row] == 1);
        }
        for (at, cells) in self.ints.iter_mut().zip(&self.table.ints) {
            *at += usize::from(cells.defined[self.row] == 1);
        }
        for (at, cells) in self.reals.iter_mut().zip(&self.table.reals) {
            *at += usize::from(cells.defined[self.row] == 1);
        }
        self.row += 1;
    }
}

pub(super) fn cell<T>(cells: &Cells<T>, row: usize, at: usize) -> Option<&T> {
    match cells.defined[row] {
        1 => cells.values.get(at),
        _ => None,
    }
}
