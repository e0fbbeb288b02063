//! Parameters of the emulated machine's kernel: `MODULE.NAME` (module parameters) and `sched.NAME` (of the scheduler, in debugfs).
//!
//! Some module parameters can be set only at boot ([`boot_only`]), so a variant that sets one needs a separate boot.
//! The agent writes the others before a run and reverts them after it, so that runs in one boot do not depend on their order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// Error of a parameter.
#[derive(Debug, Error)]
pub enum SettingError {
    /// The setting is malformed.
    #[error(
        "'{0}' is not a setting; write MODULE.NAME=VALUE such as kvm.aple=1, or sched.NAME=VALUE \
         such as sched.base_slice_ns=3000000"
    )]
    Form(String),
    /// The name is malformed.
    #[error("'{0}' is not a parameter; write MODULE.NAME or sched.NAME")]
    Name(String),
    /// This kernel lacks the parameter.
    #[error(
        "this kernel has no parameter {name} ({path}); is it the patched kernel that was meant?"
    )]
    Unknown {
        /// Name of the parameter.
        name: String,
        /// Path of the missing file.
        path: PathBuf,
    },
    /// The kernel refused the value.
    #[error("the kernel refused {name}={value} ({path}): {source}")]
    Refused {
        /// Name of the parameter.
        name: String,
        /// The value.
        value: String,
        /// Path of its file.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

/// Read-only parameters of stock KVM (arch/x86/kvm/vmx/vmx.c and svm/svm.c of Linux 6.12).
const BOOT_ONLY: [&str; 12] = [
    "kvm_intel.ple_gap",
    "kvm_intel.ple_window",
    "kvm_intel.ple_window_grow",
    "kvm_intel.ple_window_shrink",
    "kvm_intel.ple_window_max",
    "kvm_amd.pause_filter_thresh",
    "kvm_amd.pause_filter_count",
    "kvm_amd.pause_filter_count_grow",
    "kvm_amd.pause_filter_count_shrink",
    "kvm_amd.pause_filter_count_max",
    "kvm.enable_virt_at_load",
    "kvm.mmio_caching",
];

/// Parameters in a report, if the kernel has them.
pub const REPORTED: [&str; 16] = [
    "kvm_intel.ple_gap",
    "kvm_intel.ple_window",
    "kvm_intel.ple_window_grow",
    "kvm_intel.ple_window_shrink",
    "kvm_intel.ple_window_max",
    "kvm.aple",
    "kvm.aple_initial",
    "kvm.aple_lower",
    "kvm.aple_upper",
    "kvm.hvs",
    "kvm.fast_reactivation",
    "kvm.pv_flush_hypercall",
    "kvm.yield_lag_credit",
    "kvm.halt_poll_ns",
    "sched.base_slice_ns",
    "sched.features",
];

/// Returns whether a parameter must be on the kernel's command line.
pub fn boot_only(name: &str) -> bool {
    BOOT_ONLY.contains(&name)
}

/// Parses `MODULE.NAME=VALUE`.
pub fn parse(text: &str) -> Result<(String, String), SettingError> {
    let parts = text.split_once('=').filter(|(name, value)| {
        let simple = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let two = name.split_once('.');
        two.is_some_and(|(module, name)| simple(module) && simple(name))
            && !value.is_empty()
            && !value.contains(char::is_whitespace)
    });
    match parts {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(SettingError::Form(text.to_owned())),
    }
}

/// Returns the file of a parameter below `root`.
fn path(root: &Path, name: &str) -> Result<PathBuf, SettingError> {
    match name.split_once('.') {
        Some(("sched", name)) => Ok(root.join("sys/kernel/debug/sched").join(name)),
        Some((module, name)) => {
            Ok(root.join("sys/module").join(module).join("parameters").join(name))
        }
        None => Err(SettingError::Name(name.to_owned())),
    }
}

/// Returns a parameter's current value; `None` if this kernel lacks it.
pub fn read(root: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(path(root, name).ok()?).ok()?;
    Some(text.trim().to_owned())
}

/// Sets the parameters and returns their previous values.
pub fn apply(
    root: &Path,
    settings: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, SettingError> {
    let mut before = BTreeMap::new();
    for (name, value) in settings {
        let path = path(root, name)?;
        let Some(old) = read(root, name) else {
            let name = name.clone();
            return Err(SettingError::Unknown { name, path });
        };
        fs::write(&path, value).map_err(|source| SettingError::Refused {
            name: name.clone(),
            value: value.clone(),
            path,
            source,
        })?;
        before.insert(name.clone(), old);
    }
    Ok(before)
}

/// Returns all reported parameters that this kernel has.
/// The scheduler's features are limited to those about buddies, which affect directed yields.
pub fn report(root: &Path) -> BTreeMap<String, String> {
    let known = REPORTED.iter().filter_map(|name| {
        let value = read(root, name)?;
        let value = match *name {
            "sched.features" => {
                let words = value.split_whitespace();
                let buddies: Vec<&str> = words.filter(|word| word.contains("BUDDY")).collect();
                buddies.join(" ")
            }
            _ => value,
        };
        Some(((*name).to_owned(), value))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_needs_module_and_name() {
        assert_eq!(parse("kvm.aple=1").unwrap(), ("kvm.aple".to_owned(), "1".to_owned()));
        for bad in ["aple=1", "kvm.aple", "kvm.aple=", "kvm./etc=1", "kvm.a=1 b"] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("MODULE.NAME=VALUE"), "{error}");
        }
        assert!(boot_only("kvm_intel.ple_window") && !boot_only("kvm.aple"));
    }

    #[test]
    fn missing_parameter_is_named() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/module/kvm/parameters");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("halt_poll_ns"), "200000\n").unwrap();
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let before = apply(root.path(), &one("kvm.halt_poll_ns", "0")).unwrap();
        assert_eq!(before["kvm.halt_poll_ns"], "200000");
        assert_eq!(report(root.path())["kvm.halt_poll_ns"], "0");
        let error = apply(root.path(), &one("kvm.aple", "1")).unwrap_err();
        assert!(error.to_string().contains("no parameter kvm.aple"));
    }
}
