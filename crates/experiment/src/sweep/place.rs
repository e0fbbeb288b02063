//! Checks of existing files, and atomic creation of files.
//!
//! A file is written in its folder under a random unused hidden name, synced, and then renamed; then the folder is synced.
//! Until then the name refers to the previous file, if any.
//! Callers that turn signals into a flag pass it to [`write()`], which removes the hidden file after an interruption.
//! A SIGKILL can leave the hidden file, which does no harm.

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

/// Error that prevents replacing a file.
#[derive(Debug, Error)]
pub enum OccupiedError {
    /// The file is of another sweep.
    #[error(
        "{} holds something else: {found}. Asked for is {wanted}. Name another file, or replace it \
         with --force",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Identity of the file.
        found: Box<Identity>,
        /// Requested identity.
        wanted: Box<Identity>,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Read(OpenError),
    /// The file is the requested one, but damaged.
    #[error("{} is damaged: replace it with --force", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ContentError,
    },
    /// The file is CSV, which has no identity.
    #[error(
        "{} is there, and a CSV file does not say of which grid it is. Name another file, or replace it \
         with --force",
        .0.display()
    )]
    Csv(PathBuf),
    /// The file is not of a sweep.
    #[error(
        "{} is there and does not hold what is asked for, {wanted}. Name another file, or replace \
         it with --force",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Requested identity.
        wanted: Box<Identity>,
        /// The cause.
        #[source]
        cause: OpenError,
    },
}

/// Error in writing a file.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The name is that of a scenario.
    #[error(
        "{} is a scenario's name, not an output's: name another file, such as sweep.parquet",
        .0.display()
    )]
    Scenario(PathBuf),
    /// The path is a directory.
    #[error("{} is a directory; name a file", .0.display())]
    Directory(PathBuf),
    /// The extension is not that of a table.
    #[error(transparent)]
    Name(#[from] NoTable),
    /// A shard cannot be CSV, which has no identity.
    #[error(
        "{} cannot be shard {shard}: a CSV file does not say of which grid it is. Write shards as Parquet and \
         the merged file as CSV",
        path.display()
    )]
    CsvShard {
        /// The file.
        path: PathBuf,
        /// The requested shard.
        shard: Shard,
    },
    /// The path has no file name.
    #[error("{} names no file", .0.display())]
    NoName(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: ColumnError,
    },
    /// A signal interrupted the command.
    #[error("{} was not written: interrupted before the end", .0.display())]
    Interrupted(PathBuf),
}

/// Returns whether the complete file exists; a different or damaged file is an error.
///
/// With `force` any existing file may be replaced, so the result is false.
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
            checked.map_err(|cause| {
                if cause.is_of_file() {
                    OccupiedError::Damaged { path: path.to_owned(), cause }
                } else {
                    OccupiedError::Read(cause.of(path))
                }
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

/// Checks that a shard's file may have this path.
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

/// Checks that a file can be created at a path, without leaving one.
pub fn check(path: &Path) -> Result<(), WriteError> {
    Partial::create(path).map(drop)
}

/// Writes a file atomically and returns its number of rows.
///
/// `parameters` are the columns of the varied parameters; `is_interrupted` is called before the rename.
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

/// Syncs the folder of a file, so that its name survives a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    match File::open(folder.unwrap_or(Path::new(".")))?.sync_all() {
        // The file system does not support syncing folders.
        Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Returns a random number from the keys of the standard library's hash tables.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// An incomplete file, which is removed on drop unless it was renamed.
struct Partial(PathBuf);

impl Partial {
    fn create(path: &Path) -> Result<(Partial, File), WriteError> {
        let name = path.file_name().ok_or_else(|| WriteError::NoName(path.to_owned()))?;
        Partial::drawn(path, name, random)
            .map_err(|cause| WriteError::Write { path: path.to_owned(), cause: cause.into() })
    }

    /// Draws names until one is unused, and creates the file.
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
        // Fails if the file was renamed; other failures cannot be handled here.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn hidden_file_of_another_process_is_kept() {
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
