//! Which kernel a machine boots: one of those that `kernel/build` makes, or an image of one's own.

use std::path::{Path, PathBuf};
use std::{fmt, fs};
use thiserror::Error;

use crate::event::{Event, Tell};
use crate::file::FileError;
use crate::script;
use crate::script::ScriptError;

/// Why there is no kernel to boot.
#[derive(Debug, Error)]
pub enum KernelError {
    /// One of ours could not be built.
    #[error(
        "there is no {kind} kernel; --kernel PATH takes the image of another (those of Tandem are \
         built by {script}): {source}"
    )]
    Build {
        /// Which.
        kind: String,
        /// What builds it.
        script: PathBuf,
        /// What went wrong.
        source: ScriptError,
    },
    /// There is no such file.
    #[error(
        "there is no kernel image {0}; write stock, patched, small, debug, or the path of a bzImage"
    )]
    NoImage(PathBuf),
    /// The image's full path cannot be found out.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A kernel, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linux as Debian has it, with the lab's configuration.
    Stock,
    /// The same with Tandem's series.
    Patched,
    /// The series in a kernel with little else.
    Small,
    /// The series, with lockdep and KASAN.
    Debug,
    /// An image; what it has is found out by running it.
    Image(PathBuf),
}

impl Kind {
    /// From the argument of `--kernel`.
    pub fn parse(text: &str) -> Kind {
        match text {
            "stock" => Kind::Stock,
            "patched" => Kind::Patched,
            "small" => Kind::Small,
            "debug" => Kind::Debug,
            path => Kind::Image(path.into()),
        }
    }

    /// The image, built first if it has not been. `top` is the top of Tandem's source.
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

/// The image of a kernel that `script` builds; said first if that takes its time.
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
    fn a_kernel_is_built_only_if_it_has_not_been() {
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
    fn an_image_that_is_not_there_is_named() {
        let error = Kind::parse("/nowhere/bzImage").image(Path::new("."), &|_| ());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/nowhere/bzImage") && error.contains("stock, patched, small"));
        assert_eq!(Kind::parse("patched"), Kind::Patched);
    }
}
