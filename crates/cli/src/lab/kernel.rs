//! Which kernel a machine boots: `stock` and `patched` as `kernel/build` makes them, or an image of
//! one's own.

use std::fmt;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use anyhow::Context;
use anyhow::bail;

/// A kernel, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linux as Debian has it, with the lab's configuration.
    Stock,
    /// The same with Tandem's series.
    Patched,
    /// An image; what it has is found out by running it.
    Image(PathBuf),
}

impl Kind {
    /// From the argument of `--kernel`.
    pub fn parse(text: &str) -> Kind {
        match text {
            "stock" => Kind::Stock,
            "patched" => Kind::Patched,
            path => Kind::Image(path.into()),
        }
    }

    /// The image, built first if it has not been. `top` is the top of Tandem's source.
    pub fn image(&self, top: &Path) -> anyhow::Result<PathBuf> {
        let image = match self {
            Kind::Image(path) => path.clone(),
            built => printed_path(
                &top.join("kernel/build"),
                &[&built.to_string(), "--print-path"],
            )
            .with_context(|| {
                format!(
                    "there is no {built} kernel; --kernel PATH takes the image of another \
                         (stock and patched are built by kernel/build)"
                )
            })?,
        };
        if !fs::metadata(&image).is_ok_and(|file| file.is_file()) {
            bail!(
                "there is no kernel image {}; write stock, patched, or the path of a bzImage",
                image.display()
            );
        }
        fs::canonicalize(&image).with_context(|| format!("cannot resolve {}", image.display()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Stock => f.write_str("stock"),
            Kind::Patched => f.write_str("patched"),
            Kind::Image(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Runs a script whose last line on stdout is a path. What it says on stderr is shown.
pub fn printed_path(script: &Path, arguments: &[&str]) -> anyhow::Result<PathBuf> {
    let output = Command::new(script)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().next_back().unwrap_or_default();
    if !output.status.success() {
        bail!("{} failed ({}): {last}", script.display(), output.status);
    }
    if last.is_empty() {
        bail!("{} printed no path", script.display());
    }
    Ok(PathBuf::from(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_not_there_is_named() {
        let error = Kind::parse("/nowhere/bzImage").image(Path::new("."));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/nowhere/bzImage") && error.contains("stock, patched"));
        assert_eq!(Kind::parse("patched"), Kind::Patched);
    }
}
