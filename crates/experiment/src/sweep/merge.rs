//! Joins the files of all shards into the file that the whole grid would have written.
//!
//! Rows are read from all files cell by cell, so memory holds one row group of each file.
//! A file is open only while a row group is read, so the number of file descriptors does not grow with the number of shards.
//! Every cell must occur once, in its shard, and the rows of every shard must match their digest.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::file::{ContentError, OpenError, Reader};
use super::grid::{Identity, Shard};
use super::place;
use super::place::WriteError;

/// Error of a merge.
#[derive(Debug, Error)]
pub enum MergeError {
    /// The file to write is one of those to read.
    #[error(
        "{} is to be written and is one of the shards: the first name is the file to write, the \
         shards follow",
        .0.display()
    )]
    Own(PathBuf),
    /// A file is not a shard.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There are no shards.
    #[error("there are no shards to merge")]
    Nothing,
    /// Two files are of different grids.
    #[error(
        "{} and {} are of two grids: {own}; and {others}. Merge shards of one",
        path.display(),
        other.display()
    )]
    Grids {
        /// One file.
        path: PathBuf,
        /// Its identity.
        own: Box<Identity>,
        /// The other file.
        other: PathBuf,
        /// The other file's identity.
        others: Box<Identity>,
    },
    /// Two files are of different divisions of one grid.
    #[error(
        "{} is shard {own} and {} is shard {others}: merge shards of one division",
        path.display(),
        other.display()
    )]
    Divisions {
        /// One file.
        path: PathBuf,
        /// Its shard.
        own: Shard,
        /// The other file.
        other: PathBuf,
        /// The other file's shard.
        others: Shard,
    },
    /// Two files are the same shard.
    #[error(
        "shard {shard} is there twice, as {} and {}: name it once",
        one.display(),
        other.display()
    )]
    Twice {
        /// The shard.
        shard: Shard,
        /// One file.
        one: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// Two files have different columns.
    #[error(
        "{} and {} have other columns: one of them is damaged, run the shard again with --force",
        path.display(),
        other.display()
    )]
    Columns {
        /// One file.
        path: PathBuf,
        /// The other file.
        other: PathBuf,
    },
    /// Some shards are missing.
    #[error(
        "not all shards are there: {} of {identity} {} missing",
        shards.join(", "),
        if shards.len() == 1 { "is" } else { "are" }
    )]
    Missing {
        /// The missing shards.
        shards: Vec<String>,
        /// The grid.
        identity: Box<Identity>,
    },
    /// The grid does not have the expected fingerprint.
    #[error(
        "--expect {expected}: the shards are of {found}, with fingerprint {}. Remove them, or write the script anew",
        found.fingerprint
    )]
    Unexpected {
        /// Identity of the shards' grid.
        found: Box<Identity>,
        /// The expected fingerprint.
        expected: String,
    },
    /// Rows of a shard are damaged.
    #[error("{} cannot be joined: run the shard again with --force", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ContentError,
    },
    /// Rows of a shard cannot be read.
    #[error("cannot read {}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ContentError,
    },
    /// A cell has no rows.
    #[error(
        "{} has no rows of cell {cell} where they should be: it is damaged, run the shard again with \
         --force",
        path.display()
    )]
    Gap {
        /// The file.
        path: PathBuf,
        /// The cell.
        cell: u64,
    },
    /// A shard has surplus rows.
    #[error(
        "{} has rows of cells that are not its own: it is damaged, run the shard again with --force",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The merged file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// File of a shard.
struct Part {
    path: PathBuf,
    reader: Reader,
}

/// A complete set of shards.
pub struct Merge {
    /// The files in order of the shards.
    parts: Vec<Part>,
    whole: Identity,
}

impl Merge {
    /// Opens the files of all shards, in any order, for a merge into `out`.
    pub fn open(out: &Path, shards: &[PathBuf]) -> Result<Merge, MergeError> {
        if let Ok(out) = out.canonicalize() {
            let same = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| path == out);
            if let Some(shard) = shards.iter().find(same) {
                return Err(MergeError::Own(shard.clone()));
            }
        }
        let mut parts: Vec<Part> = Vec::new();
        for path in shards {
            let reader = Reader::open(path)?;
            parts.push(Part { path: path.clone(), reader });
        }
        in_order(parts)
    }

    /// Returns the identity of the merged file.
    pub fn identity(&self) -> &Identity {
        &self.whole
    }

    /// Checks that the shards are of the grid with this fingerprint.
    pub fn expect(&self, fingerprint: &str) -> Result<(), MergeError> {
        if self.whole.fingerprint == fingerprint {
            Ok(())
        } else {
            Err(MergeError::Unexpected {
                found: Box::new(self.whole.clone()),
                expected: fingerprint.to_owned(),
            })
        }
    }

    /// Writes the merged file atomically and returns its number of rows.
    ///
    /// If `is_interrupted` returns true, no file is left.
    pub fn write(
        &mut self,
        out: &Path,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<u64, MergeError> {
        let Merge { parts, whole } = self;
        let first = parts.first().ok_or(MergeError::Nothing)?;
        let parameters = first.reader.parameters().to_vec();
        place::write(out, whole, &parameters, is_interrupted, |writer| {
            let shards = parts.len() as u64;
            for cell in 0..whole.cells {
                let part = parts.get_mut((cell % shards) as usize).ok_or(MergeError::Nothing)?;
                let mut rows = 0;
                while let Some(row) = part.reader.next_of(cell).map_err(part_error(&part.path))? {
                    writer.push(row);
                    rows += 1;
                }
                if rows == 0 {
                    let path = part.path.clone();
                    return Err(MergeError::Gap { path, cell });
                }
                writer
                    .end_cell()
                    .map_err(|cause| WriteError::Write { path: out.to_owned(), cause })?;
            }
            for part in parts {
                if !part.reader.is_at_end().map_err(part_error(&part.path))? {
                    return Err(MergeError::Foreign(part.path.clone()));
                }
            }
            Ok(())
        })
    }
}

fn part_error(path: &Path) -> impl Fn(ContentError) -> MergeError {
    move |cause| {
        let path = path.to_owned();
        if cause.is_of_file() {
            MergeError::Damaged { path, cause }
        } else {
            MergeError::Rows { path, cause }
        }
    }
}

/// Sorts the shards and checks that they form a complete set.
fn in_order(mut parts: Vec<Part>) -> Result<Merge, MergeError> {
    let first = parts.first().ok_or(MergeError::Nothing)?;
    let (path, identity) = (first.path.clone(), first.reader.identity().clone());
    let parameters = first.reader.parameters().to_vec();
    for part in &parts {
        let own = part.reader.identity();
        if !own.same_grid(&identity) {
            return Err(MergeError::Grids {
                path: part.path.clone(),
                own: Box::new(own.clone()),
                other: path,
                others: Box::new(identity),
            });
        }
        if own.shard.of != identity.shard.of {
            return Err(MergeError::Divisions {
                path: part.path.clone(),
                own: own.shard,
                other: path,
                others: identity.shard,
            });
        }
        if part.reader.parameters() != parameters {
            return Err(MergeError::Columns { path: part.path.clone(), other: path });
        }
    }
    parts.sort_by_key(|part| part.reader.identity().shard.number);
    for pair in parts.windows(2) {
        let [one, other] = pair else { continue };
        let shard = one.reader.identity().shard;
        if shard == other.reader.identity().shard {
            return Err(MergeError::Twice {
                shard,
                one: one.path.clone(),
                other: other.path.clone(),
            });
        }
    }
    let of = identity.shard.of;
    let missing: Vec<String> = (1..=of)
        .map(|number| Shard { number, of })
        .filter(|&shard| {
            let is = |part: &Part| part.reader.identity().shard == shard;
            !parts.iter().any(is)
        })
        .map(|shard| shard.to_string())
        .collect();
    if !missing.is_empty() {
        return Err(MergeError::Missing { shards: missing, identity: Box::new(identity) });
    }
    Ok(Merge { whole: identity.with_shard(Shard::WHOLE), parts })
}
