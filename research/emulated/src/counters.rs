//! KVM's figures of one VM, from its folder in debugfs (`/sys/kernel/debug/kvm/PID-FD`).
//!
//! Counters are reported by their growth, levels by their value.
//! The folder of a VM is the one that appears while the VM starts.
//! Missing files are no error: a stock kernel has no threshold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// Error of a VM's folder.
#[derive(Debug, Error)]
pub enum CounterError {
    /// No folder appeared.
    #[error(
        "no folder for the VM appeared in {0}; is debugfs mounted, and is this kernel's KVM built in?"
    )]
    NoFolder(PathBuf),
    /// Several folders appeared.
    #[error("more than one VM appeared in {0}")]
    Several(PathBuf),
    /// Writing to a file in the folder failed.
    #[error("cannot write {value} to {path}; does this kernel have it?: {source}")]
    Write {
        /// The value.
        value: String,
        /// Path of the file.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

/// KVM's folder in debugfs.
pub const KVM: &str = "/sys/kernel/debug/kvm";

/// Reported counters, limited because the serial port is slow.
const COUNTERS: [&str; 19] = [
    "exits",
    "halt_exits",
    "halt_wakeup",
    "irq_injections",
    "directed_yield_attempted",
    "directed_yield_successful",
    "ple_exits",
    "hvs_resource",
    "hvs_lock",
    "hvs_yielded",
    "yields_directed",
    "yields_helped",
    "tlb_flush_hypercalls",
    "tlb_flush_ipis",
    "tlb_flush_refused",
    "fast_wakes",
    "aple_rounds",
    "aple_discarded",
    "preemption_reported",
];

/// Reported levels, which rise and fall.
const LEVELS: [&str; 3] = ["aple_threshold", "aple_base", "aple_inefficiency"];

/// Returns the folders of all current VMs.
pub fn folders(kvm: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(kvm).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Returns the folder that has appeared since `before`.
pub fn appeared(kvm: &Path, before: &BTreeSet<PathBuf>) -> Result<PathBuf, CounterError> {
    let now = folders(kvm);
    let mut new = now.difference(before);
    match (new.next(), new.next()) {
        (Some(folder), None) => Ok(folder.clone()),
        (None, _) => Err(CounterError::NoFolder(kvm.to_owned())),
        _ => Err(CounterError::Several(kvm.to_owned())),
    }
}

/// Returns the current counters of a VM.
pub fn counters(folder: &Path) -> BTreeMap<String, u64> {
    read(folder, &COUNTERS)
}

/// Returns the current levels of a VM.
pub fn levels(folder: &Path) -> BTreeMap<String, u64> {
    read(folder, &LEVELS)
}

fn read(folder: &Path, names: &[&str]) -> BTreeMap<String, u64> {
    let value = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let known = names.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?)));
    known.collect()
}

/// Returns the growth of each counter that grew, and of `ple_exits` even if it is zero.
pub fn growth(
    first: &BTreeMap<String, u64>,
    last: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let grown = last.iter().map(|(name, value)| {
        let before = first.get(name).copied().unwrap_or_default();
        (name.clone(), value.saturating_sub(before))
    });
    grown.filter(|(name, grown)| *grown > 0 || name == "ple_exits").collect()
}

/// Writes a value into a VM's folder.
pub fn write(folder: &Path, name: &str, value: &str) -> Result<(), CounterError> {
    let path = folder.join(name);
    fs::write(&path, value).map_err(|source| CounterError::Write {
        value: value.to_owned(),
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_folder_belongs_to_the_vm() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("10-4")).unwrap();
        fs::write(root.path().join("exits"), "3\n").unwrap();
        let before = folders(root.path());
        assert_eq!(before.len(), 1);
        let error = appeared(root.path(), &before).unwrap_err().to_string();
        assert!(error.contains("debugfs"), "{error}");
        fs::create_dir(root.path().join("10-9")).unwrap();
        let folder = appeared(root.path(), &before).unwrap();
        assert!(folder.ends_with("10-9"));
    }

    #[test]
    fn growth_omits_zeros() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, value: &str| fs::write(root.path().join(name), value).unwrap();
        put("exits", "100\n");
        put("halt_exits", "5\n");
        put("ple_exits", "7\n");
        put("other", "1\n");
        let first = counters(root.path());
        put("exits", "130\n");
        let grown = growth(&first, &counters(root.path()));
        let expected = [("exits".to_owned(), 30), ("ple_exits".to_owned(), 0)];
        assert_eq!(grown, BTreeMap::from(expected));
        assert!(levels(root.path()).is_empty());
        let error = write(Path::new("/nowhere"), "aple_threshold", "1").unwrap_err();
        assert!(error.to_string().contains("/nowhere/aple_threshold"));
    }
}
