//! Sets the text of `tandem --version`: the version, and the commit with its date.
//!
//! The commit is the environment's `TANDEM_COMMIT` if set, as in builds from an archive, else that of this crate's checkout.
//! An archive, or a copy inside another repository, has none, and the version stands alone.
//! Uncommitted changes are not shown.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the output of a git command; `None` if it fails or is empty.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Returns true if the root of the repository is the workspace's.
fn is_checkout() -> bool {
    let workspace = Path::new("../..").canonicalize();
    let root = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    matches!((workspace, root), (Ok(workspace), Some(root)) if root.canonicalize().is_ok_and(|root| root == workspace))
}

/// Returns commit and date of the checkout, and requests a rebuild when it changes.
fn of_checkout() -> Option<String> {
    if !is_checkout() {
        return None;
    }
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD".to_owned(), "logs/HEAD".to_owned()];
    for name in names.into_iter().chain(branch) {
        // cargo always rebuilds if such a file does not exist.
        if let Some(path) = git(&["rev-parse", "--git-path", &name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["log", "-1", "--abbrev=12", "--format=%h, %cs"])
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TANDEM_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let given = std::env::var("TANDEM_COMMIT").ok();
    let commit = given.filter(|commit| !commit.is_empty()).or_else(of_checkout);
    let whole = match &commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo::rustc-env=TANDEM_VERSION={whole}");
    let day =
        commit.as_deref().and_then(|commit| commit.split_once(", ")).map_or("", |(_, day)| day);
    println!("cargo::rustc-env=TANDEM_DAY={day}");
}
