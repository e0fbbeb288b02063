//! Output file of a picture: SVG, or PNG converted from SVG by `rsvg-convert` (librsvg).
//!
//! [`Drawing::of`] looks for the program, so a missing converter is an error before any measurement.
//! The file's extension determines the format; the default is SVG.
//! A PNG has two pixels per unit of the picture.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use thiserror::Error;

/// Converter from SVG to PNG.
const PROGRAM: &str = "rsvg-convert";

/// Pixels per unit of the picture.
const ZOOM: &str = "2";

/// Error in drawing a picture to a file.
#[derive(Debug, Error)]
pub enum DrawingError {
    /// The converter to PNG is not installed.
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
    /// The extension is neither SVG nor PNG.
    #[error("{} cannot be made: pictures are SVG or PNG; name a file that ends in .svg or .png", .0.display())]
    Form(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The converter failed.
    #[error("cannot write {}: {} says: {said}", path.display(), program.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The converter.
        program: PathBuf,
        /// Its error output.
        said: String,
    },
}

/// Output file of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    path: PathBuf,
    /// Converter to PNG; `None`: the file is SVG.
    program: Option<PathBuf>,
}

impl Drawing {
    /// Checks that a file of this format can be drawn here.
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

    /// Writes the picture, given as the text of an SVG file, and returns its path.
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
        // A converter that stops reading early explains the reason on its standard error.
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
    fn extension_determines_format() {
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
    fn converter_failure_is_reported() {
        let drawing = with("/nowhere/a.png", Some("/bin/false")).unwrap();
        let error = drawing.write("<svg/>").unwrap_err().to_string();
        assert!(error.contains("/nowhere/a.png") && error.contains("/bin/false"), "{error}");
        let drawing = with("a.png", Some("/no/such/program")).unwrap();
        assert!(drawing.write("<svg/>").is_err());
    }
}
