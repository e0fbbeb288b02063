//! What is under a file's name already, and how a complete file comes there.
//!
//! A file is written beside its place, under a hidden name with the process's number, and renamed when
//! it is complete and on the disk. Until then nothing is under its name, or what was there before.
//! SIGINT, SIGTERM and SIGHUP while it is being written remove what has been; before that, nothing has.
//! A kill -9 in that moment can leave the hidden file, which is in nobody's way.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use anyhow::ensure;

use super::file::Reader;
use super::file::Writer;
use super::grid::Identity;
use tandem_linux::interrupt::Interrupt;

/// Whether the complete file is there; an error if another is and may not be replaced.
pub fn is_done(path: &Path, wanted: &Identity, force: bool) -> anyhow::Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    match Reader::open(path) {
        Ok(reader) if reader.identity() == wanted => Ok(true),
        _ if force => Ok(false),
        Ok(reader) => bail!(
            "{} holds something else: {}. Asked for is {wanted}. Name another file, or replace it \
             with --force",
            path.display(),
            reader.identity()
        ),
        Err(error) => Err(error.context(format!(
            "{} is there and does not hold what is asked for, {wanted}. Name another file, or replace \
             it with --force",
            path.display()
        ))),
    }
}

/// Finds out before anything runs whether a file can be put there; leaves nothing.
pub fn check(path: &Path) -> anyhow::Result<()> {
    ensure!(
        path.extension().is_none_or(|extension| extension != "toml"),
        "{} is a scenario's name, not an output's: name another file, such as sweep.parquet",
        path.display()
    );
    ensure!(
        !path.is_dir(),
        "{} is a directory; name a file",
        path.display()
    );
    Partial::create(path).map(drop)
}

/// Writes a file whole or not at all; how many rows it has.
pub fn write(
    path: &Path,
    identity: &Identity,
    rows: impl FnOnce(&mut Writer) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let interrupt = Interrupt::watch()?;
    let (partial, file) = Partial::create(path)?;
    let cannot = || format!("cannot write {}", path.display());
    let mut writer = Writer::new(file, identity).with_context(cannot)?;
    rows(&mut writer)?;
    let rows = writer.finish().with_context(cannot)?;
    interrupt
        .check()
        .with_context(|| format!("{} was not written", path.display()))?;
    std::fs::rename(&partial.0, path).with_context(cannot)?;
    Ok(rows)
}

/// A file that is not complete yet; goes when dropped, unless it was renamed.
struct Partial(PathBuf);

impl Partial {
    fn create(path: &Path) -> anyhow::Result<(Partial, File)> {
        let name = path
            .file_name()
            .with_context(|| format!("{} names no file", path.display()))?;
        let name = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let partial = path.with_file_name(name);
        let file =
            File::create(&partial).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((Partial(partial), file))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Not there: it was renamed. Not removable: nothing more can be done.
        let _ = std::fs::remove_file(&self.0);
    }
}
