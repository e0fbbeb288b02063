//! The figures as a file, a list of rows: read, added to, and saved after each program, since a bench of an hour
//! must not lose all to what happens in its last minute.

use std::io;
use std::path::{Path, PathBuf};

use tandem_report::json;
use tandem_report::json::JsonError;
use thiserror::Error;

use crate::guest::program;
use crate::guest::row::Row;

/// Why a file's figures are not known.
#[derive(Debug, Error)]
pub enum FiguresError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} holds no figures of this bench", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The rows that a file holds; one that is empty, or not there, holds none.
pub fn read(path: &Path) -> Result<Vec<Row>, FiguresError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            let path = path.to_owned();
            return Err(FiguresError::Read { path, source });
        }
    };
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text)
        .map_err(|source| FiguresError::Other { path: path.to_owned(), source })
}

/// Writes rows to a file, in their order.
pub fn save(path: &Path, rows: &[Row]) -> Result<(), JsonError> {
    let mut rows = rows.to_vec();
    in_order(&mut rows);
    json::write(path, &rows)
}

/// Sorts rows as the set has its programs, then by variant.
pub fn in_order(rows: &mut [Row]) {
    let place = |row: &Row| {
        let mut programs = program::all().map(|p| p.name);
        let at = programs.position(|name| name == row.program);
        (at.unwrap_or(usize::MAX), row.variant)
    };
    rows.sort_by_key(place);
}

#[cfg(test)]
mod tests {
    use tandem_report::explain;

    use super::*;
    use crate::guest::row;
    use crate::guest::variant::Variant;

    #[test]
    fn rows_stand_in_the_order_of_the_set() {
        let mut rows = vec![
            row::tests::row("make", Variant::Agent, 1.0),
            row::tests::row("sched-pipe", Variant::Taskset, 1.0),
            row::tests::row("gone", Variant::Agent, 1.0),
            row::tests::row("sched-pipe", Variant::Agent, 1.0),
        ];
        in_order(&mut rows);
        let names: Vec<String> =
            rows.iter().map(|row| format!("{} {}", row.program, row.variant.name())).collect();
        assert_eq!(names, ["sched-pipe agent", "sched-pipe taskset", "make agent", "gone agent"]);
    }

    #[test]
    fn a_file_of_figures_is_read_back_and_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.json");
        let rows = [row::tests::row("make", Variant::Agent, 1.0)];
        save(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&path).unwrap(), []);
        std::fs::write(&path, "{}").unwrap();
        let error = explain(&read(&path).unwrap_err());
        assert!(error.contains("holds no figures of this bench"), "{error}");
    }
}
