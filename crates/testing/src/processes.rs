//! Commands that tests run, and searches for leftover cgroups and processes.

use std::path::Path;
use std::process::{Command, Output};

/// Returns whether this process may change cgroups; if not, prints that the test is skipped.
pub fn may_change_cgroups() -> bool {
    if !rustix::process::getuid().is_root() {
        println!("skipped: making cgroups needs root");
        return false;
    }
    match tandem_linux::cgroup::open(&tandem_linux::ProcFs::host()) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

/// Runs a command; panics with its stderr if it fails.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
    output
}

/// Returns the cgroups below `/sys/fs/cgroup` with `part` in their names.
pub fn cgroups_named(part: &str) -> Vec<String> {
    fn walk(folder: &Path, part: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(part) {
                    found.push(entry.path().display().to_string());
                }
                walk(&entry.path(), part, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), part, &mut found);
    found
}

/// Returns the processes with `part` in their command lines.
pub fn processes_with(part: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(part))
        .collect()
}
