//! Files and standard output: figures as JSON, pages.
//!
//! `--json` alone, or `--json -`, means standard output, which then holds nothing else.

use std::path::Path;

use crate::note;
use anyhow::{Context, anyhow};
use serde::Serialize;
use tandem_report::chart::drawing::{Drawing, DrawingError};
use tandem_report::json;

use crate::console::{check_writable, print, wrong_argument};

/// Whether JSON goes to standard output.
pub fn is_stdout(json: Option<&Path>) -> bool {
    json == Some(Path::new("-"))
}

/// Whether JSON can be written where it should.
pub fn check_json(json: Option<&Path>) -> anyhow::Result<()> {
    match json {
        Some(path) if !is_stdout(json) => check(path),
        _ => Ok(()),
    }
}

/// Whether a file can be written.
pub fn check(path: &Path) -> anyhow::Result<()> {
    refuse_scenario(path)?;
    Ok(check_writable(path)?)
}

/// A scenario is never overwritten, however the arguments are mixed up.
pub fn refuse_scenario(path: &Path) -> anyhow::Result<()> {
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Err(wrong_argument(anyhow!(
            "{} is a scenario's name, not an output's: name another file",
            path.display()
        )));
    }
    Ok(())
}

/// Whether a picture can be drawn into a file, found out before anything runs.
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

/// Writes a page or picture, and says where it is.
pub fn write_text(path: &Path, what: &str, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    note!("{what}: {}", path.display());
    Ok(())
}

/// Writes figures as JSON to a file, and says where they are.
pub fn save_json(path: &Path, figures: &impl Serialize) -> anyhow::Result<()> {
    json::write(path, figures)?;
    note!("figures: {}", path.display());
    Ok(())
}

/// Writes figures as JSON.
pub fn write_json(to: Option<&Path>, figures: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = to else {
        return Ok(());
    };
    match is_stdout(to) {
        true => print(&json::text(figures)?),
        false => Ok(json::write(path, figures)?),
    }
}
