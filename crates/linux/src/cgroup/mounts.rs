//! Finds the hierarchy of the cpu controller.
//!
//! Three set-ups are in use: v1 alone, v2 alone, and hybrid, where either may hold the cpu controller.
//! A v1 mount with `cpu` among its options wins, because a controller bound to v1 is not available in v2.
//! Otherwise v2 holds it, if its root offers `cpu`.
//!
//! Source: `/proc/mounts`, fstab(5): device, mount point, type, options; spaces as `\040`.

use std::path::PathBuf;

use crate::cgroup::controller::CpuController;
use crate::cgroup::error::CgroupError;
use crate::cgroup::path::Version;
use crate::cgroup::v1::V1;
use crate::cgroup::v2::V2;
use crate::procfs::{ProcFs, read_text};

/// One line of `/proc/mounts` about cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    is_v2: bool,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v2 = match kind {
            "cgroup" => false,
            "cgroup2" => true,
            _ => return None,
        };
        Some(Mount {
            point: PathBuf::from(unescape(point)),
            is_v2,
            options: options.split(',').map(str::to_owned).collect(),
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}

/// Decodes the octal escapes of `/proc/mounts`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Opens the cpu controller of this host.
pub fn open(procfs: &ProcFs) -> Result<Box<dyn CpuController>, CgroupError> {
    Ok(match find(procfs, "cpu")? {
        (Version::V1, mount) => Box::new(V1::new(procfs, &mount)),
        (Version::V2, mount) => Box::new(V2::new(procfs, &mount)),
    })
}

/// Finds the hierarchy that holds a controller: `cpu`, `cpuset` and so on.
pub fn find(procfs: &ProcFs, controller: &'static str) -> Result<(Version, PathBuf), CgroupError> {
    let path = procfs.resolve("/proc/mounts");
    let text =
        read_text(&path).map_err(|source| CgroupError::Read { path: path.clone(), source })?;
    let mounts: Vec<Mount> = text.lines().filter_map(Mount::parse).collect();
    let writable = |mount: &Mount| {
        if mount.has("ro") {
            Err(CgroupError::ReadOnly { mount: mount.point.clone() })
        } else {
            Ok(())
        }
    };
    if let Some(mount) = mounts.iter().find(|m| !m.is_v2 && m.has(controller)) {
        writable(mount)?;
        return Ok((Version::V1, mount.point.clone()));
    }
    let mut seen = vec![format!("{} cgroup mounts", mounts.len())];
    for mount in mounts.iter().filter(|m| m.is_v2) {
        let controllers = procfs.resolve(&mount.point).join("cgroup.controllers");
        match read_text(&controllers) {
            Ok(text) if text.split_ascii_whitespace().any(|c| c == controller) => {
                writable(mount)?;
                return Ok((Version::V2, mount.point.clone()));
            }
            Ok(text) => seen.push(format!(
                "cgroup2 at {} offers '{}'",
                mount.point.display(),
                text.trim_end()
            )),
            Err(error) => seen.push(format!("{}: {error}", controllers.display())),
        }
    }
    Err(CgroupError::NoController { controller, mounts: path, seen: seen.join(", ") })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn host(mounts: &str, v2_controllers: &str) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::create_dir_all(root.path().join("sys/fs/cgroup/unified")).unwrap();
        fs::write(root.path().join("proc/mounts"), mounts).unwrap();
        for folder in ["sys/fs/cgroup", "sys/fs/cgroup/unified"] {
            let file = root.path().join(folder).join("cgroup.controllers");
            fs::write(file, v2_controllers).unwrap();
        }
        root
    }

    fn opened(mounts: &str, v2_controllers: &str) -> Result<(Version, PathBuf), String> {
        let root = host(mounts, v2_controllers);
        open(&ProcFs::at(root.path()))
            .map(|controller| (controller.version(), controller.mount().to_owned()))
            .map_err(|error| error.to_string())
    }

    const V1_CPU: &str = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n";
    const V1_CPUSET: &str = "cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\n";
    const V2_UNIFIED: &str = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
    const V2_ALONE: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n";

    #[test]
    fn cpu_hierarchy_is_found() {
        let v1 = |path: &str| Ok((Version::V1, PathBuf::from(path)));
        let v2 = |path: &str| Ok((Version::V2, PathBuf::from(path)));
        let hybrid_v1 = format!("{V1_CPUSET}{V1_CPU}{V2_UNIFIED}");
        let hybrid_v2 = format!("{V1_CPUSET}{V2_UNIFIED}");
        assert_eq!(opened(V1_CPU, ""), v1("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(opened(&hybrid_v1, ""), v1("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(opened(&hybrid_v2, "cpu io"), v2("/sys/fs/cgroup/unified"));
        assert_eq!(opened(V2_ALONE, "cpuset cpu io memory"), v2("/sys/fs/cgroup"));
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = |mounts: &str, controllers: &str| opened(mounts, controllers).unwrap_err();
        assert!(error("", "").contains("mount -t cgroup2"));
        assert!(error(V1_CPUSET, "").contains("1 cgroup mounts"));
        assert!(error(V2_ALONE, "memory io").contains("offers 'memory io'"));
        assert!(error(V2_ALONE, "memory").contains("cgroup_disable=cpu"));
        let read_only = V2_ALONE.replace("rw,", "ro,");
        assert!(error(&read_only, "cpu").contains("read-only"));
    }

    #[test]
    fn escapes_in_mount_points_are_decoded() {
        assert_eq!(unescape(r"/a\040b\134c\x"), r"/a b\c\x");
    }
}
