//! Division of a grid into shards of about a second for many machines, with one file per shard.
//!
//! The folder of `all.parquet` is `all.parquet.shards`, and its files are `0001-of-0120.parquet` and so on.
//! Existing files take precedence: a repeated sweep keeps its division, whatever the speed of this machine, and runs only the missing shards.
//! Files of different grids or divisions are never mixed, and damaged files do not count as complete.
//! Files with other names are left alone.
//!
//! The duration of a shard is estimated on this machine with short runs of a few cells, spread over the grid.
//! So the number of shards varies; the merged file does not depend on it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tandem_model::Nanos;
use tandem_sim::{Scenario, World};
use thiserror::Error;

use super::file::{OpenError, Reader};
use super::grid::{Grid, Identity, SHARDS, Shard};
use crate::execute;
use crate::execute::ExecuteError;
use crate::progress::Progress;

/// Target duration of a shard on one CPU.
const SHARD: Duration = Duration::from_secs(1);

/// Number of cells that are tried for the estimate.
const TRIED: u64 = 8;

/// Maximum duration of a trial.
const TRIAL: Duration = Duration::from_millis(100);

/// Error of a division.
#[derive(Debug, Error)]
pub enum DivisionError {
    /// The folder cannot be read.
    #[error("cannot read the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A file is not a shard, or is damaged.
    #[error("{} is among the shards and is none: remove it, or name another file for the sweep", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: OpenError,
    },
    /// A file cannot be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(OpenError),
    /// A file is of another sweep.
    #[error(
        "{} is of another sweep: {found}. Asked for is {wanted}. Remove the folder, or name another file for the sweep",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Identity of the file.
        found: Box<Identity>,
        /// Identity of the expected shard.
        wanted: Box<Identity>,
    },
    /// A file is of another division.
    #[error(
        "{} is shard {found}, and there are to be {of} shards: remove the folder, or leave the number of shards out",
        path.display()
    )]
    Divided {
        /// The file.
        path: PathBuf,
        /// The shard of the file.
        found: Shard,
        /// The expected number of shards.
        of: u32,
    },
    /// The number of shards is out of range.
    #[error(
        "{0} shards are not possible: 1 … {most}, and not more than there are cells",
        most = SHARDS.end()
    )]
    Number(u32),
    /// The estimate was interrupted.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// A grid in shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Folder of the shards' files.
    pub folder: PathBuf,
    /// Number of shards.
    pub of: u32,
    /// Shards with complete files.
    pub done: Vec<u32>,
}

impl Division {
    /// Determines the division of the grid whose file is `out`.
    ///
    /// The number of shards is `of`, or that of the existing files, or else makes shards of about a second.
    /// With `force`, files of other grids and divisions and damaged files are removed; otherwise they are an error.
    pub fn of(
        grid: &Grid,
        out: &Path,
        of: Option<u32>,
        force: bool,
        progress: &dyn Progress,
    ) -> Result<Division, DivisionError> {
        let most = grid.cells().min(u64::from(*SHARDS.end()));
        if let Some(of) = of.filter(|of| !(1..=most).contains(&u64::from(*of))) {
            return Err(DivisionError::Number(of));
        }
        let folder = folder(out);
        let mut found: Vec<(PathBuf, Shard)> = Vec::new();
        for (path, shard) in files(&folder)? {
            match check(&path, shard, grid) {
                Ok(()) => found.push((path, shard)),
                Err(DivisionError::Foreign { .. } | DivisionError::Other { .. }) if force => {
                    remove(&path)?;
                }
                Err(error) => return Err(error),
            }
        }
        let first = found.first().map(|(_, shard)| shard.of);
        let of = match of.or(first) {
            Some(of) => of,
            None => measured(grid, progress)?,
        };
        if let Some((path, shard)) = found.iter().find(|(_, shard)| shard.of != of) {
            if !force {
                let (path, found) = (path.clone(), *shard);
                return Err(DivisionError::Divided { path, found, of });
            }
            let mut others = found.iter().filter(|(_, shard)| shard.of != of);
            others.try_for_each(|(path, _)| remove(path))?;
            found.retain(|(_, shard)| shard.of == of);
        }
        let mut done: Vec<u32> = found.iter().map(|(_, shard)| shard.number).collect();
        done.sort_unstable();
        Ok(Division { folder, of, done })
    }

    /// Returns the path of a shard's file.
    pub fn file(&self, number: u32) -> PathBuf {
        self.folder.join(name(Shard { number, of: self.of }))
    }

    /// Returns the paths of all shards' files.
    pub fn files(&self) -> Vec<PathBuf> {
        (1..=self.of).map(|number| self.file(number)).collect()
    }

    /// Returns the shards without a complete file.
    pub fn missing(&self) -> Vec<u32> {
        (1..=self.of).filter(|number| self.done.binary_search(number).is_err()).collect()
    }
}

/// Returns the folder of the shards of a file.
pub fn folder(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".shards");
    PathBuf::from(name)
}

/// Returns the name of a shard's file.
fn name(shard: Shard) -> String {
    format!("{:04}-of-{:04}.parquet", shard.number, shard.of)
}

/// Returns the shard of a file name, or `None` for other names.
fn named(file: &str) -> Option<Shard> {
    let (number, of) = file.strip_suffix(".parquet")?.split_once("-of-")?;
    let shard: Shard = format!("{number}/{of}").parse().ok()?;
    (name(shard) == file).then_some(shard)
}

fn remove(path: &Path) -> Result<(), DivisionError> {
    std::fs::remove_file(path)
        .map_err(|cause| DivisionError::Remove { path: path.to_owned(), cause })
}

/// Returns the shards' files in a folder, sorted by name; empty if the folder does not exist.
fn files(folder: &Path) -> Result<Vec<(PathBuf, Shard)>, DivisionError> {
    let cannot = |cause| DivisionError::Folder { path: folder.to_owned(), cause };
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if let Some(shard) = path.file_name().and_then(OsStr::to_str).and_then(named) {
            files.push((path, shard));
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}

/// Checks that a file is this shard of this grid, complete and undamaged.
fn check(path: &Path, shard: Shard, grid: &Grid) -> Result<(), DivisionError> {
    let open_error = |cause: OpenError| {
        if cause.is_of_file() {
            DivisionError::Foreign { path: path.to_owned(), cause }
        } else {
            DivisionError::Read(cause)
        }
    };
    let reader = Reader::open(path).map_err(open_error)?;
    let (found, wanted) = (reader.identity(), grid.identity(shard));
    if *found != wanted {
        return Err(DivisionError::Other {
            path: path.to_owned(),
            found: Box::new(found.clone()),
            wanted: Box::new(wanted),
        });
    }
    let checked = reader.check();
    checked.map_err(|cause| open_error(cause.of(path)))
}

/// Estimates the number of shards such that each takes about a second on a CPU of this machine.
fn measured(grid: &Grid, progress: &dyn Progress) -> Result<u32, ExecuteError> {
    let cells = grid.cells();
    let tried = cells.min(TRIED);
    let (mut simulated, mut took) = (0.0, 0.0);
    for at in 0..tried {
        // The middle of each of `tried` equal parts.
        let number = (2 * at + 1) * cells / (2 * tried);
        let Some(cell) = grid.cell(number) else {
            continue;
        };
        let scenario = Scenario { seed: cell.seed, ..cell.scenario.clone() };
        let watch = Stopwatch::begin(progress);
        // A run that was stopped at the limit suffices for the estimate.
        let _ = execute::run(&mut World::new(&scenario), scenario.duration, &watch);
        if progress.is_cancelled() {
            return Err(ExecuteError::Cancelled);
        }
        simulated += watch.simulated.load(Ordering::Relaxed) as f64;
        took += watch.began.elapsed().as_secs_f64();
    }
    let all: f64 = (0..cells)
        .filter_map(|cell| grid.cell(cell))
        .map(|cell| cell.scenario.duration.0 as f64)
        .sum();
    let seconds = took / simulated.max(1.0) * all;
    let most = cells.min(u64::from(*SHARDS.end())) as f64;
    let shards = (seconds / SHARD.as_secs_f64()).ceil();
    Ok(shards.clamp(1.0, most.max(1.0)) as u32)
}

/// Stops a run after [`TRIAL`], and counts its simulated time.
struct Stopwatch<'a> {
    outer: &'a dyn Progress,
    began: Instant,
    simulated: AtomicU64,
}

impl Stopwatch<'_> {
    fn begin(outer: &dyn Progress) -> Stopwatch<'_> {
        Stopwatch { outer, began: Instant::now(), simulated: AtomicU64::new(0) }
    }
}

impl Progress for Stopwatch<'_> {
    fn begin(&self, _total: Nanos) {}

    fn say(&self, _what: &str) {}

    fn add(&self, time: Nanos) {
        self.simulated.fetch_add(time.0, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.began.elapsed() > TRIAL || self.outer.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use crate::{sweep, vary};
    use tandem_sim::scenario::load::Source;

    fn grid(duration: &str, runs: u32) -> Grid {
        let text = format!(
            "duration = \"{duration}\"\n[machine]\npcpus = 2\n[[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"mutex\"\n"
        );
        let source = Source::from_text("s.toml", &text).unwrap();
        let combinations = vary::combinations(Vec::new(), &["vm.a.vcpus=1,2".to_owned()]);
        Grid::read(&source, &combinations.unwrap(), runs).unwrap()
    }

    #[test]
    fn number_of_shards_follows_duration() {
        assert_eq!(measured(&grid("1ms", 2), &Silent), Ok(1));
        // Hours of simulated time: the number of cells and 1000 limit the number of shards.
        assert_eq!(measured(&grid("4000s", 3), &Silent), Ok(6));
        assert_eq!(measured(&grid("4000s", 900), &Silent), Ok(1000));
    }

    #[test]
    fn existing_shards_determine_division() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("all.parquet");
        let small = grid("1ms", 3);
        let divide = |of| Division::of(&small, &out, of, false, &Silent);
        let division = divide(Some(4)).unwrap();
        assert_eq!(division.missing(), [1, 2, 3, 4]);
        std::fs::create_dir(&division.folder).unwrap();
        let write = |grid: &Grid, number: u32, of: u32, path: &Path| {
            let figures = sweep::run(grid, Shard { number, of }, 1, &Silent).unwrap();
            figures.write(path, &|| false).unwrap();
        };
        write(&small, 3, 4, &division.file(3));
        std::fs::write(division.folder.join(".0001-of-0004.parquet.7.partial"), "").unwrap();
        std::fs::write(division.folder.join("3.log"), "").unwrap();
        let again = divide(None).unwrap();
        assert_eq!((again.of, again.done.as_slice()), (4, &[3][..]));
        assert_eq!(again.missing(), [1, 2, 4]);
        assert!(matches!(divide(Some(5)), Err(DivisionError::Divided { .. })));
        assert!(matches!(divide(Some(7)), Err(DivisionError::Number(7))));
        assert!(matches!(divide(Some(0)), Err(DivisionError::Number(0))));
        let other = Division::of(&grid("2ms", 3), &out, None, false, &Silent);
        assert!(matches!(other, Err(DivisionError::Other { .. })), "{other:?}");
        std::fs::write(division.file(1), "nonsense").unwrap();
        assert!(matches!(divide(None), Err(DivisionError::Foreign { .. })));
    }

    #[test]
    fn force_removes_conflicting_shards_only() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("all.parquet");
        let (own, other) = (grid("1ms", 3), grid("2ms", 3));
        let divide = |of, force| Division::of(&own, &out, of, force, &Silent);
        let division = divide(Some(4), false).unwrap();
        std::fs::create_dir(&division.folder).unwrap();
        let write = |grid: &Grid, shard: Shard, path: &Path| {
            let figures = sweep::run(grid, shard, 1, &Silent).unwrap();
            figures.write(path, &|| false).unwrap();
        };
        let part = |number, of| Shard { number, of };
        let mine = division.folder.join("mine.parquet");
        std::fs::write(&mine, "a user's own").unwrap();
        write(&own, part(1, 4), &division.file(1));
        write(&other, part(2, 4), &division.file(2));
        // Shard 4 under the name of shard 3.
        write(&own, part(4, 4), &division.file(3));
        let five = division.folder.join(name(part(5, 5)));
        write(&own, part(5, 5), &five);
        let mut bytes = std::fs::read(division.file(1)).unwrap();
        assert!(divide(Some(4), false).is_err());
        assert!(division.file(2).exists() && five.exists());
        let forced = divide(Some(4), true).unwrap();
        assert_eq!(forced.done, [1]);
        assert_eq!(std::fs::read(&mine).unwrap(), b"a user's own");
        let left = std::fs::read_dir(&division.folder).unwrap().count();
        assert_eq!(left, 2, "the shard that is done, and the user's file");
        // Changes a letter in a page; the footer stays intact.
        let name = b"work_rate";
        let at = bytes.windows(name.len()).position(|part| part == name);
        bytes[at.unwrap()] ^= 1;
        std::fs::write(division.file(1), &bytes).unwrap();
        let error = divide(None, false).unwrap_err();
        assert!(matches!(error, DivisionError::Foreign { .. }), "{error}");
        assert_eq!(divide(Some(4), true).unwrap().missing(), [1, 2, 3, 4]);
    }

    #[test]
    fn shard_names_are_recognized() {
        assert_eq!(named("0003-of-0120.parquet"), Some(Shard { number: 3, of: 120 }));
        for wrong in [
            "3-of-120.parquet",
            "0004-of-0003.parquet",
            ".0003-of-0120.parquet",
            "all.parquet",
            "0003-of-0120.csv",
        ] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
    }
}
