//! Files and standard output: figures as JSON, pages.
//!
//! `--json` alone, or `--json -`, prints only JSON to standard output.

use std::path::Path;

use crate::note;
use anyhow::{Context, anyhow};
use serde::Serialize;
use tandem_report::chart::drawing::{Drawing, DrawingError};
use tandem_report::json;

use crate::console::{check_writable, print, wrong_argument};

/// Returns true if JSON goes to standard output.
pub fn is_stdout(json: Option<&Path>) -> bool {
    json == Some(Path::new("-"))
}

/// Checks that JSON can be written to its destination.
pub fn check_json(json: Option<&Path>) -> anyhow::Result<()> {
    match json {
        Some(path) if !is_stdout(json) => check(path),
        _ => Ok(()),
    }
}

/// Checks that a file can be written.
pub fn check(path: &Path) -> anyhow::Result<()> {
    refuse_scenario(path)?;
    Ok(check_writable(path)?)
}

/// Refuses to overwrite a scenario, in case of swapped arguments.
pub fn refuse_scenario(path: &Path) -> anyhow::Result<()> {
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Err(wrong_argument(anyhow!(
            "{} is a scenario's name, not an output's: name another file",
            path.display()
        )));
    }
    Ok(())
}

/// Checks before the run that a picture can be drawn into a file.
pub fn check_picture(path: Option<&Path>) -> anyhow::Result<Option<Drawing>> {
    let Some(path) = path else { return Ok(None) };
    refuse_scenario(path)?;
    let drawing = Drawing::of(path).map_err(|error| match error {
        DrawingError::Form(_) => wrong_argument(error.into()),
        error => error.into(),
    })?;
    check(path)?;
    Ok(Some(drawing))
}

/// Writes a page or picture, and reports its path.
pub fn write_text(path: &Path, what: &str, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    note!("{what}: {}", path.display());
    Ok(())
}

/// Writes figures as JSON to a file, and reports its path.
pub fn save_json(path: &Path, figures: &impl Serialize) -> anyhow::Result<()> {
    json::write(path, figures)?;
    note!("figures: {}", path.display());
    Ok(())
}

/// Writes figures as JSON to a file or standard output, if requested.
pub fn write_json(to: Option<&Path>, figures: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = to else {
        return Ok(());
    };
    if is_stdout(to) { print(&json::text(figures)?) } else { Ok(json::write(path, figures)?) }
}
