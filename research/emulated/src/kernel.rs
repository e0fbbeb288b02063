//! The kernel that a machine boots: one that `kernel/build` builds, or any image.

use std::path::{Path, PathBuf};
use std::{fmt, fs};
use thiserror::Error;

use crate::event::{Event, Tell};
use crate::file::FileError;
use crate::script;
use crate::script::ScriptError;

/// Error of a kernel.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Building one of Tandem's kernels failed.
    #[error(
        "there is no {kind} kernel; --kernel PATH takes the image of another (those of Tandem are \
         built by {script}): {source}"
    )]
    Build {
        /// Kind of the kernel.
        kind: String,
        /// The build script.
        script: PathBuf,
        /// Its error.
        source: ScriptError,
    },
    /// The image does not exist.
    #[error(
        "there is no kernel image {0}; write stock, patched, small, debug, or the path of a bzImage"
    )]
    NoImage(PathBuf),
    /// Resolving the image's path failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A requested kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's Linux with the lab's configuration.
    Stock,
    /// The same with Tandem's patch series.
    Patched,
    /// A minimal kernel with the series.
    Small,
    /// A kernel with the series, lockdep and KASAN.
    Debug,
    /// An image with unknown features.
    Image(PathBuf),
}

impl Kind {
    /// Parses the argument of `--kernel`.
    pub fn parse(text: &str) -> Kind {
        match text {
            "stock" => Kind::Stock,
            "patched" => Kind::Patched,
            "small" => Kind::Small,
            "debug" => Kind::Debug,
            path => Kind::Image(path.into()),
        }
    }

    /// Returns the image, and builds it if necessary. `top` is the top of Tandem's source.
    pub fn image(&self, top: &Path, tell: Tell) -> Result<PathBuf, KernelError> {
        let image = match self {
            Kind::Image(path) => path.clone(),
            built => build(&top.join("kernel/build"), &built.to_string(), tell)?,
        };
        if !fs::metadata(&image).is_ok_and(|file| file.is_file()) {
            return Err(KernelError::NoImage(image));
        }
        Ok(fs::canonicalize(&image).map_err(FileError::of("resolve", &image))?)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Stock => f.write_str("stock"),
            Kind::Patched => f.write_str("patched"),
            Kind::Small => f.write_str("small"),
            Kind::Debug => f.write_str("debug"),
            Kind::Image(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns the image of a kernel that `script` builds; reports an event before a build.
fn build(script: &Path, kind: &str, tell: Tell) -> Result<PathBuf, KernelError> {
    let failed =
        |source| KernelError::Build { kind: kind.to_owned(), script: script.to_owned(), source };
    let image = script::printed_path(script, &[kind, "--print-path"]).map_err(failed)?;
    if image.is_file() {
        return Ok(image);
    }
    tell(Event::BuildingKernel { kind: kind.to_owned() });
    script::printed_path(script, &[kind]).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_built_once() {
        let folder = tempfile::tempdir().unwrap();
        let (script, image) = (folder.path().join("build"), folder.path().join("bzImage"));
        let text = format!(
            "#!/bin/sh\n[ \"$2\" ] || {{ echo building; touch {0}; echo x >>{0}.times; }}\necho {0}\n",
            image.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for _ in 0..2 {
            assert_eq!(build(&script, "stock", &|_| ()).unwrap(), image);
        }
        let times = fs::read_to_string(image.with_extension("times")).unwrap();
        assert_eq!(times, "x\n");
        let error = build(Path::new("/nowhere/build"), "stock", &|_| ()).unwrap_err();
        assert!(error.to_string().contains("--kernel PATH"), "{error}");
    }

    #[test]
    fn missing_image_is_named() {
        let error = Kind::parse("/nowhere/bzImage").image(Path::new("."), &|_| ());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/nowhere/bzImage") && error.contains("stock, patched, small"));
        assert_eq!(Kind::parse("patched"), Kind::Patched);
    }
}
