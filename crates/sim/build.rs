//! Embeds the repository's workloads, so that scenarios find them in any folder.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../workloads");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path().canonicalize()?;
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    // Sort by name: a path includes the extension.
    files.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
    let mut list = String::from("const FILES: &[(&str, &str)] = &[\n");
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        writeln!(list, "    ({name:?}, include_str!({path:?})),")?;
    }
    list.push_str("];\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("workloads.rs"), list)?;
    Ok(())
}
