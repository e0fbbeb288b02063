//! The initramfs of an emulated machine, and an appended archive with the job.
//!
//! `research/lab/initramfs/build` builds the initramfs (static busybox, static `tandem`, init).
//! The kernel unpacks consecutive archives into one tree.
//! Format: cpio "newc", Documentation/driver-api/early-userspace/buffer-format.rst of Linux.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

use crate::file::FileError;
use crate::job::Job;
use crate::script;
use crate::script::ScriptError;

/// Error of the initramfs.
#[derive(Debug, Error)]
pub enum PayloadError {
    /// Building it failed.
    #[error("there is no initramfs; --initramfs FILE takes one that is built already: {0}")]
    Build(#[source] ScriptError),
    /// The file does not exist.
    #[error("there is no initramfs {path}: {source}")]
    Missing {
        /// Its path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Reading it failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Serializing the job failed.
    #[error("cannot write the job: {0}")]
    Job(#[from] serde_json::Error),
}

/// Path of the job in the initramfs.
const JOB: &str = "job.json";

/// Returns the path of the initramfs, and builds it if necessary. `top` is the top of Tandem's source.
pub fn initramfs(top: &Path, given: Option<&Path>) -> Result<PathBuf, PayloadError> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => script::printed_path(&top.join("research/lab/initramfs/build"), &["--print-path"])
            .map_err(PayloadError::Build)?,
    };
    fs::canonicalize(&path).map_err(|source| PayloadError::Missing { path, source })
}

/// Returns the initramfs with an appended job.
pub fn with_job(initramfs: &Path, job: &Job) -> Result<Vec<u8>, PayloadError> {
    let mut bytes = fs::read(initramfs).map_err(FileError::of("read the initramfs", initramfs))?;
    // Each archive starts at a multiple of four; the kernel skips zeros between them.
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let text = serde_json::to_string(job)?;
    bytes.extend(archive(JOB, text.as_bytes()));
    Ok(bytes)
}

/// Returns an archive with one file.
fn archive(name: &str, data: &[u8]) -> Vec<u8> {
    const FILE_READABLE: u32 = 0o100_644;
    let mut bytes = entry(name, FILE_READABLE, data);
    bytes.extend(entry("TRAILER!!!", 0, &[]));
    bytes
}

fn entry(name: &str, mode: u32, data: &[u8]) -> Vec<u8> {
    let fields = [1, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    let mut bytes = b"070701".to_vec();
    for field in fields {
        bytes.extend(format!("{field:08x}").into_bytes());
    }
    bytes.extend(name.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_newc_format() {
        let bytes = archive("job.json", b"{}");
        let text = String::from_utf8_lossy(&bytes);
        // Magic, then thirteen fields of eight digits: inode, mode, …, size, …, length of the name.
        assert!(text.starts_with("07070100000001000081a4"));
        assert_eq!(&text[6 + 6 * 8..6 + 7 * 8], "00000002");
        assert_eq!(&text[6 + 11 * 8..6 + 12 * 8], "00000009");
        assert_eq!(&text[110..119], "job.json\0");
        assert_eq!(&text[120..122], "{}");
        assert_eq!(&text[124..130], "070701");
        assert!(text.contains("TRAILER!!!") && bytes.len().is_multiple_of(4));
    }

    #[test]
    fn job_follows_the_initramfs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [0x1f, 0x8b, 1, 2, 3]).unwrap();
        let job = Job { runs: Vec::new(), calibration: None };
        let bytes = with_job(file.path(), &job).unwrap();
        assert_eq!(&bytes[..14], b"\x1f\x8b\x01\x02\x03\x00\x00\x00070701");
        let error = initramfs(Path::new("."), Some(Path::new("/nowhere"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere"));
    }
}
