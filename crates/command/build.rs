//! What `tandem --version` says: the version, and the commit with its date.
//!
//! The commit is `TANDEM_COMMIT` of the environment where that is given, as by who builds from an archive, else that of the checkout in which this
//! crate lies. An archive, or a copy inside somebody else's repository, has none: then the version stands alone. Whether files were changed since
//! the commit is not said.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What git answers in the repository whose root is the workspace's.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Whether the root of the repository is the workspace's.
fn is_checkout() -> bool {
    let workspace = Path::new("../..").canonicalize();
    let root = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    matches!((workspace, root), (Ok(workspace), Some(root)) if root.canonicalize().is_ok_and(|root| root == workspace))
}

/// Commit and day of the checkout; built again when it has another.
fn of_checkout() -> Option<String> {
    if !is_checkout() {
        return None;
    }
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD".to_owned(), "logs/HEAD".to_owned()];
    for name in names.into_iter().chain(branch) {
        // cargo builds again all the time what depends on a file that is not there.
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
