//! The files of all shards to the one that the whole grid would have written.
//!
//! Rows are taken from all files cell by cell, so memory holds a row group of each and no more. A file is open only while a row group
//! of it is read, so a thousand shards need no more file descriptors than two. Every cell must be there once, in the shard that it
//! belongs to, and the rows of every shard must be those that were written.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::file::{ContentError, OpenError, Reader};
use super::grid::{Identity, Shard};
use super::place;
use super::place::WriteError;

/// Why files cannot be merged.
#[derive(Debug, Error)]
pub enum MergeError {
    /// The file to write is one of those to read.
    #[error(
        "{} is to be written and is one of the shards: the first name is the file to write, the \
         shards follow",
        .0.display()
    )]
    Own(PathBuf),
    /// A file is no shard.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is none.
    #[error("there are no shards to merge")]
    Nothing,
    /// Two are of different grids.
    #[error(
        "{} and {} are of two grids: {own}; and {others}. Merge shards of one",
        path.display(),
        other.display()
    )]
    Grids {
        /// One file.
        path: PathBuf,
        /// What it is of.
        own: Box<Identity>,
        /// The other file.
        other: PathBuf,
        /// What that is of.
        others: Box<Identity>,
    },
    /// Two are of different divisions of one grid.
    #[error(
        "{} is shard {own} and {} is shard {others}: merge shards of one division",
        path.display(),
        other.display()
    )]
    Divisions {
        /// One file.
        path: PathBuf,
        /// Which shard it is.
        own: Shard,
        /// The other file.
        other: PathBuf,
        /// Which shard that is.
        others: Shard,
    },
    /// Two are the same shard.
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
    /// Two have other columns.
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
    /// Some are not there.
    #[error(
        "not all shards are there: {} of {identity} {} missing",
        shards.join(", "),
        if shards.len() == 1 { "is" } else { "are" }
    )]
    Missing {
        /// Which.
        shards: Vec<String>,
        /// The grid.
        identity: Box<Identity>,
    },
    /// It is another grid than was expected.
    #[error(
        "--expect {expected}: the shards are of {found}, with fingerprint {}. Remove them, or write the script anew",
        found.fingerprint
    )]
    Unexpected {
        /// What the shards are of.
        found: Box<Identity>,
        /// The fingerprint that was expected.
        expected: String,
    },
    /// Rows of a shard are not those that were written.
    #[error("{} cannot be joined: run the shard again with --force", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: ContentError,
    },
    /// Rows of a shard cannot be read.
    #[error("cannot read {}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// Why.
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
    /// There are rows too many.
    #[error(
        "{} has rows of cells that are not its own: it is damaged, run the shard again with --force",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The merged file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A shard's file.
struct Part {
    path: PathBuf,
    reader: Reader,
}

/// Shards that belong together, ready to be joined.
pub struct Merge {
    /// From first to last.
    parts: Vec<Part>,
    whole: Identity,
}

impl Merge {
    /// Opens the files of all shards, named in any order, that are to be joined into `out`.
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

    /// What the merged file says about itself.
    pub fn identity(&self) -> &Identity {
        &self.whole
    }

    /// Refuses shards of another grid than that with this fingerprint.
    pub fn expect(&self, fingerprint: &str) -> Result<(), MergeError> {
        match self.whole.fingerprint == fingerprint {
            true => Ok(()),
            false => Err(MergeError::Unexpected {
                found: Box::new(self.whole.clone()),
                expected: fingerprint.to_owned(),
            }),
        }
    }

    /// Writes the merged file, whole or not at all; how many rows it has. Nothing is left once
    /// `is_interrupted` says so.
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
        match cause.is_of_file() {
            true => MergeError::Damaged { path, cause },
            false => MergeError::Rows { path, cause },
        }
    }
}

/// The shards from first to last, and what they make together.
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
