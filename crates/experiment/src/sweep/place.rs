//! What is under a file's name already, and how a complete file comes there.
//!
//! A file is written beside its place, under a hidden name that was drawn and that nobody had, and renamed when it is complete and on
//! the disk; then the folder is brought to the disk too. Until then nothing is under its name, or what was there before.
//! Whoever turns signals into a flag says so to [`write()`], which then removes what it has written.
//! A kill -9 in that moment can leave the hidden file, which is in nobody's way.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::file::{ContentError, OpenError, Reader};
use super::grid::{Identity, Shard};
use super::writer::Writer;
use crate::columns::ColumnError;
use crate::figures::{Format, NoTable};
use crate::parameters::Column;

/// Why a file may not be replaced.
#[derive(Debug, Error)]
pub enum OccupiedError {
    /// It is a sweep's, but another's.
    #[error(
        "{} holds something else: {found}. Asked for is {wanted}. Name another file, or replace it \
         with --force",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: Box<Identity>,
        /// What it should.
        wanted: Box<Identity>,
    },
    /// It cannot be read, whatever it is.
    #[error(transparent)]
    Read(OpenError),
    /// It is what was asked for, and damaged.
    #[error("{} is damaged: replace it with --force", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: ContentError,
    },
    /// Nobody can tell what it is.
    #[error(
        "{} is there, and a CSV file does not say of which grid it is. Name another file, or replace it \
         with --force",
        .0.display()
    )]
    Csv(PathBuf),
    /// It is no sweep's at all.
    #[error(
        "{} is there and does not hold what is asked for, {wanted}. Name another file, or replace \
         it with --force",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: Box<Identity>,
        /// What it is.
        #[source]
        cause: OpenError,
    },
}

/// Why a file cannot be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The name is that of a scenario.
    #[error(
        "{} is a scenario's name, not an output's: name another file, such as sweep.parquet",
        .0.display()
    )]
    Scenario(PathBuf),
    /// There is a directory.
    #[error("{} is a directory; name a file", .0.display())]
    Directory(PathBuf),
    /// Its name says that it is no table.
    #[error(transparent)]
    Name(#[from] NoTable),
    /// A shard's file must say which one it is.
    #[error(
        "{} cannot be shard {shard}: a CSV file does not say of which grid it is. Write shards as Parquet and \
         the merged file as CSV",
        path.display()
    )]
    CsvShard {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        shard: Shard,
    },
    /// The path ends in no name.
    #[error("{} names no file", .0.display())]
    NoName(PathBuf),
    /// The system or the library refused it.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: ColumnError,
    },
    /// Somebody asked us to stop.
    #[error("{} was not written: interrupted before the end", .0.display())]
    Interrupted(PathBuf),
}

/// Whether the complete file is there; an error if another is, or a damaged one. With `force` whatever is there may be replaced.
pub fn is_done(path: &Path, wanted: &Identity, force: bool) -> Result<bool, OccupiedError> {
    if force || !path.exists() {
        return Ok(false);
    }
    if Format::of(path) == Ok(Format::Csv) {
        return Err(OccupiedError::Csv(path.to_owned()));
    }
    match Reader::open(path) {
        Ok(reader) if reader.identity() == wanted => {
            let checked = reader.check().map(|()| true);
            checked.map_err(|cause| match cause.is_of_file() {
                true => OccupiedError::Damaged { path: path.to_owned(), cause },
                false => OccupiedError::Read(cause.of(path)),
            })
        }
        Ok(reader) => Err(OccupiedError::Other {
            path: path.to_owned(),
            found: Box::new(reader.identity().clone()),
            wanted: Box::new(wanted.clone()),
        }),
        Err(cause) if !cause.is_of_file() => Err(OccupiedError::Read(cause)),
        Err(cause) => Err(OccupiedError::Foreign {
            path: path.to_owned(),
            wanted: Box::new(wanted.clone()),
            cause,
        }),
    }
}

/// Whether a shard's file may be called so.
pub fn check_name(path: &Path, shard: Shard) -> Result<(), WriteError> {
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Err(WriteError::Scenario(path.to_owned()));
    }
    if path.is_dir() {
        return Err(WriteError::Directory(path.to_owned()));
    }
    if Format::of(path)? == Format::Csv && shard.of > 1 {
        let path = path.to_owned();
        return Err(WriteError::CsvShard { path, shard });
    }
    Ok(())
}

/// Finds out before anything runs whether a file can be put there; leaves nothing.
pub fn check(path: &Path) -> Result<(), WriteError> {
    Partial::create(path).map(drop)
}

/// Writes a file whole or not at all; how many rows it has. `parameters` are the columns of what was varied; `is_interrupted`
/// is asked before the file comes under its name.
pub fn write<E: From<WriteError>>(
    path: &Path,
    identity: &Identity,
    parameters: &[Column],
    is_interrupted: &dyn Fn() -> bool,
    rows: impl FnOnce(&mut Writer) -> Result<(), E>,
) -> Result<u64, E> {
    let format = Format::of(path).map_err(WriteError::Name)?;
    let (partial, file) = Partial::create(path)?;
    let cannot = |cause: ColumnError| WriteError::Write { path: path.to_owned(), cause };
    let writer = Writer::new(file, format, identity, parameters);
    let mut writer = writer.map_err(cannot)?;
    rows(&mut writer)?;
    let rows = writer.finish().map_err(cannot)?;
    if is_interrupted() {
        return Err(WriteError::Interrupted(path.to_owned()).into());
    }
    std::fs::rename(&partial.0, path).map_err(|cause| cannot(cause.into()))?;
    sync_folder(path).map_err(|cause| cannot(cause.into()))?;
    Ok(rows)
}

/// Sees to it that a file's name outlasts a loss of power.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    match File::open(folder.unwrap_or(Path::new(".")))?.sync_all() {
        // File systems that cannot do it say so.
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// A number that nobody else draws, on any machine: from the keys with which the standard library guards its hash tables.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A file that is not complete yet; goes when dropped, unless it was renamed.
struct Partial(PathBuf);

impl Partial {
    fn create(path: &Path) -> Result<(Partial, File), WriteError> {
        let name = path.file_name().ok_or_else(|| WriteError::NoName(path.to_owned()))?;
        Partial::drawn(path, name, random)
            .map_err(|cause| WriteError::Write { path: path.to_owned(), cause: cause.into() })
    }

    /// Draws until there is no such file.
    fn drawn(path: &Path, name: &OsStr, draw: impl Fn() -> u64) -> io::Result<(Partial, File)> {
        loop {
            let name = format!(".{}.{:016x}.partial", name.to_string_lossy(), draw());
            let partial = path.with_file_name(name);
            match File::create_new(&partial) {
                Ok(file) => return Ok((Partial(partial), file)),
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Not there: it was renamed. Not removable: nothing more can be done.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_hidden_file_of_another_process_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.parquet");
        let other = folder.path().join(".s.parquet.0000000000000007.partial");
        std::fs::write(&other, "another's").unwrap();
        let next = Cell::new(7);
        let draw = || next.replace(next.get() + 1);
        let (partial, _) = Partial::drawn(&path, OsStr::new("s.parquet"), draw).unwrap();
        assert_eq!(next.get(), 9);
        drop(partial);
        assert_eq!(std::fs::read(&other).unwrap(), b"another's");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_ne!(random(), random());
    }
}
