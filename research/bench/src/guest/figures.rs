//! The file of figures, a list of rows.
//!
//! The bench saves it after each program, so that a late failure of a long bench loses no earlier figures.

use std::io;
use std::path::{Path, PathBuf};

use tandem_report::json;
use tandem_report::json::JsonError;
use thiserror::Error;

use crate::guest::program;
use crate::guest::row::Row;

/// Error of a file of figures.
#[derive(Debug, Error)]
pub enum FiguresError {
    /// Reading the file failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{} holds no figures of this bench", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// Returns the rows of a file; an empty or missing file has none.
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

/// Sorts rows and writes them to a file.
pub fn save(path: &Path, rows: &[Row]) -> Result<(), JsonError> {
    let mut rows = rows.to_vec();
    in_order(&mut rows);
    json::write(path, &rows)
}

/// Sorts rows in the order of the programs in the set, then by variant.
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
    fn rows_follow_the_order_of_the_set() {
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
    fn figures_round_trip() {
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
