//! Where a picture goes, and in which form: SVG, which is what we draw, or PNG, made of it by `rsvg-convert` (librsvg).
//!
//! Whether a PNG can be made is known before anything is measured: [`Drawing::of`] looks for the program. A file's form is its
//! name's extension; without one it is SVG. A PNG has two pixels for each unit of the picture.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thiserror::Error;

/// What makes a PNG of an SVG.
const PROGRAM: &str = "rsvg-convert";

/// Pixels for each unit of the picture.
const ZOOM: &str = "2";

/// Why a picture cannot be drawn into a file.
#[derive(Debug, Error)]
pub enum DrawingError {
    /// Nothing here makes a PNG.
    #[error(
        "{} cannot be made: pictures are drawn as SVG, and {PROGRAM}, which makes a PNG of one, is not in PATH. Install it (Debian: \
         librsvg2-bin), or name {}",
        path.display(),
        path.with_extension("svg").display()
    )]
    NoProgram {
        /// The file.
        path: PathBuf,
    },
    /// Its name says another form.
    #[error("{} cannot be made: pictures are SVG or PNG; name a file that ends in .svg or .png", .0.display())]
    Form(PathBuf),
    /// The system refused it.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The program failed.
    #[error("cannot write {}: {} says: {said}", path.display(), program.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The program.
        program: PathBuf,
        /// What it said.
        said: String,
    },
}

/// Where a picture goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    path: PathBuf,
    /// What makes a PNG of it; `None`: it stays SVG.
    program: Option<PathBuf>,
}

impl Drawing {
    /// By the file's name; refuses what cannot be made here.
    pub fn of(path: &Path) -> Result<Drawing, DrawingError> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        Drawing::with(path, || {
            std::env::split_paths(&folders)
                .map(|folder| folder.join(PROGRAM))
                .find(|program| program.is_file())
        })
    }

    fn with(path: &Path, find: impl FnOnce() -> Option<PathBuf>) -> Result<Drawing, DrawingError> {
        let path = path.to_owned();
        let extension = path.extension().map(|text| text.to_string_lossy().to_lowercase());
        let program = match extension.as_deref() {
            None | Some("svg") => None,
            Some("png") => match find() {
                None => return Err(DrawingError::NoProgram { path }),
                program => program,
            },
            Some(_) => return Err(DrawingError::Form(path)),
        };
        Ok(Drawing { path, program })
    }

    /// Writes the picture, an SVG file's text; where it is.
    pub fn write(&self, svg: &str) -> Result<&Path, DrawingError> {
        let cannot = |cause| DrawingError::Write { path: self.path.clone(), cause };
        let Some(program) = &self.program else {
            std::fs::write(&self.path, svg).map_err(cannot)?;
            return Ok(&self.path);
        };
        let child = Command::new(program)
            .args(["--format", "png", "--zoom", ZOOM, "--output"])
            .arg(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(cannot)?;
        // Who reads only a part of it says why on its standard error.
        let fed = child.stdin.take().map(|mut stdin| stdin.write_all(svg.as_bytes()));
        let output = child.wait_with_output().map_err(cannot)?;
        let failed = |said: String| DrawingError::Program {
            path: self.path.clone(),
            program: program.clone(),
            said,
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(said.trim().replace('\n', "; ")));
        }
        fed.unwrap_or(Ok(())).map_err(|error| failed(error.to_string()))?;
        Ok(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, program: Option<&str>) -> Result<Drawing, String> {
        let drawing = Drawing::with(Path::new(name), || program.map(PathBuf::from));
        drawing.map_err(|error| error.to_string())
    }

    #[test]
    fn the_form_is_the_names() {
        for name in ["a.svg", "a.SVG", "a"] {
            assert_eq!(with(name, None).unwrap().program, None, "{name}");
        }
        let png = with("a.png", Some("p")).unwrap();
        assert_eq!(png.program, Some(PathBuf::from("p")));
        let error = with("dir/a.png", None).unwrap_err();
        for needle in ["dir/a.png", "rsvg-convert", "librsvg2-bin", "dir/a.svg"] {
            assert!(error.contains(needle), "{error}");
        }
        assert!(with("a.jpg", Some("p")).unwrap_err().contains(".svg or .png"));
    }

    #[test]
    fn a_program_that_fails_is_heard() {
        let drawing = with("/nowhere/a.png", Some("/bin/false")).unwrap();
        let error = drawing.write("<svg/>").unwrap_err().to_string();
        assert!(error.contains("/nowhere/a.png") && error.contains("/bin/false"), "{error}");
        let drawing = with("a.png", Some("/no/such/program")).unwrap();
        assert!(drawing.write("<svg/>").is_err());
    }
}
