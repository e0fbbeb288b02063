//! Files of a cgroup hierarchy, for both versions of the interface: reading, writing, creating and removing.
//!
//! The errors distinguish a vanished cgroup from a refusal.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cgroup::error::CgroupError;
use crate::cgroup::name::check_name;
use crate::cgroup::path::{CgroupId, CgroupPath, Owners, Version};
use crate::ids::{Pid, Tid};
use crate::procfs::{ProcFs, is_gone, read_head, read_text};
use crate::thread::{ThreadError, ThreadRef};

/// Maximum length of a line with a pid (PID_MAX_LIMIT is 4,194,304), in bytes.
const MAX_PID_LINE: usize = 8;

/// One mounted hierarchy.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    procfs: ProcFs,
    mount: PathBuf,
    /// `mount` as seen from this process; differs in tests only.
    folder: PathBuf,
}

impl Hierarchy {
    /// The hierarchy mounted at `mount` of this tree.
    pub fn new(procfs: &ProcFs, mount: &Path) -> Hierarchy {
        Hierarchy { procfs: procfs.clone(), mount: mount.to_owned(), folder: procfs.resolve(mount) }
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The folder of a cgroup.
    pub fn folder(&self, cgroup: &CgroupPath) -> PathBuf {
        self.folder.join(cgroup.0.trim_start_matches('/'))
    }

    /// A file of a cgroup.
    pub fn file(&self, cgroup: &CgroupPath, file: &str) -> PathBuf {
        self.folder(cgroup).join(file)
    }

    /// Returns the ID of the current cgroup at this path.
    pub fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        let folder = self.folder(cgroup);
        match fs::metadata(&folder) {
            Ok(metadata) => Ok(CgroupId(metadata.ino())),
            Err(error) => Err(self.reading(cgroup, folder, error)),
        }
    }

    /// Returns the owners of a cgroup's folder and of its weight file.
    pub fn owners(&self, cgroup: &CgroupPath, weight: &str) -> Result<Owners, CgroupError> {
        let folder = self.folder(cgroup);
        match fs::metadata(&folder) {
            Ok(metadata) => Ok(Owners {
                folder: metadata.uid(),
                weight: fs::metadata(folder.join(weight)).ok().map(|file| file.uid()),
            }),
            Err(error) => Err(self.reading(cgroup, folder, error)),
        }
    }

    /// Reads a file's text without the line end.
    pub fn read(&self, cgroup: &CgroupPath, file: &str) -> Result<String, CgroupError> {
        let path = self.file(cgroup, file);
        match read_text(&path) {
            Ok(text) => Ok(text.trim_end().to_owned()),
            Err(error) => Err(self.reading(cgroup, path, error)),
        }
    }

    /// Reads a file with one number per line.
    pub fn read_numbers(&self, cgroup: &CgroupPath, file: &str) -> Result<Vec<u32>, CgroupError> {
        let text = self.read(cgroup, file)?;
        self.numbers(cgroup, file, &text)
    }

    fn numbers(
        &self,
        cgroup: &CgroupPath,
        file: &str,
        text: &str,
    ) -> Result<Vec<u32>, CgroupError> {
        text.lines()
            .map(|line| {
                line.trim().parse().map_err(|_| CgroupError::Malformed {
                    path: self.file(cgroup, file),
                    text: line.to_owned(),
                    wanted: "one number per line",
                })
            })
            .collect()
    }

    /// Reads a file with one thread ID per line.
    pub fn read_tids(&self, cgroup: &CgroupPath, file: &str) -> Result<Vec<Tid>, CgroupError> {
        let numbers = self.read_numbers(cgroup, file)?;
        Ok(numbers.into_iter().map(Tid).collect())
    }

    /// Reads the processes in `cgroup.procs`, which v1 may list more than once.
    pub fn read_pids(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        let mut numbers = self.read_numbers(cgroup, "cgroup.procs")?;
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers.into_iter().map(Pid).collect())
    }

    /// Like [`Self::read_pids`], but reads only as many bytes as `most` pids can have.
    pub fn some_pids(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        let path = self.file(cgroup, "cgroup.procs");
        let bytes = most.saturating_mul(MAX_PID_LINE);
        let head = read_head(&path, bytes).map_err(|error| self.reading(cgroup, path, error))?;
        let text = String::from_utf8_lossy(&head);
        // The last line may be incomplete.
        let whole = if head.len() < bytes {
            &*text
        } else {
            text.rsplit_once('\n').map_or("", |(whole, _)| whole)
        };
        let mut numbers = self.numbers(cgroup, "cgroup.procs", whole)?;
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(most);
        Ok(numbers.into_iter().map(Pid).collect())
    }

    /// Writes to an existing file in one call, as the kernel requires.
    pub fn write(
        &self,
        cgroup: &CgroupPath,
        file: &str,
        text: &str,
        hint: fn(&io::Error) -> &'static str,
    ) -> Result<(), CgroupError> {
        let path = self.file(cgroup, file);
        let written = fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| {
            if is_gone(&source) && !self.folder(cgroup).exists() {
                return CgroupError::Gone(cgroup.clone());
            }
            CgroupError::Write {
                action: format!("write '{text}' to"),
                hint: hint(&source),
                path,
                source,
            }
        })
    }

    /// Writes a thread ID to the file that lists threads.
    pub fn write_tid(
        &self,
        cgroup: &CgroupPath,
        file: &str,
        tid: Tid,
        hint: fn(&io::Error) -> &'static str,
    ) -> Result<(), CgroupError> {
        match self.write(cgroup, file, &tid.to_string(), hint) {
            Err(CgroupError::Write { source, .. })
                if source.raw_os_error() == Some(libc::ESRCH) =>
            {
                Err(CgroupError::ThreadGone(tid))
            }
            other => other,
        }
    }

    /// The child cgroups, sorted by name.
    pub fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.some_children(cgroup, usize::MAX)
    }

    /// Like [`Self::children`], but returns only the first `most` that the kernel lists, sorted by name.
    pub fn some_children(
        &self,
        cgroup: &CgroupPath,
        most: usize,
    ) -> Result<Vec<CgroupPath>, CgroupError> {
        let folder = self.folder(cgroup);
        let list = || -> io::Result<Vec<CgroupPath>> {
            let mut children = Vec::new();
            for entry in fs::read_dir(&folder)? {
                if children.len() >= most {
                    break;
                }
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    children.push(cgroup.child(&entry.file_name().to_string_lossy()));
                }
            }
            children.sort();
            Ok(children)
        };
        list().map_err(|error| self.reading(cgroup, folder.clone(), error))
    }

    /// Creates a cgroup.
    pub fn make(&self, parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupError> {
        check_name(parent, name)?;
        let cgroup = parent.child(name);
        let path = self.folder(&cgroup);
        match fs::create_dir(&path) {
            Ok(()) => Ok(cgroup),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(CgroupError::Exists(cgroup))
            }
            Err(error) if is_gone(&error) => Err(CgroupError::Gone(parent.clone())),
            Err(source) => Err(CgroupError::Write {
                action: "make the cgroup".to_owned(),
                path,
                hint: match source.raw_os_error() {
                    Some(libc::EAGAIN) => "; cgroup.max.descendants of a cgroup above is reached",
                    Some(libc::EACCES | libc::EPERM) => "; run Tandem as root",
                    _ => "",
                },
                source,
            }),
        }
    }

    /// Removes a cgroup without threads; `threads` is the file that lists them.
    /// The cgroup may be gone already.
    pub fn remove(&self, cgroup: &CgroupPath, threads: &str) -> Result<(), CgroupError> {
        let path = self.folder(cgroup);
        match fs::remove_dir(&path) {
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                // A tenant can create any number of cgroups below.
                let child = self.some_children(cgroup, 1).unwrap_or_default().pop();
                let threads = self.read_tids(cgroup, threads).map_or(0, |tids| tids.len());
                Err(CgroupError::Busy {
                    cgroup: cgroup.clone(),
                    held: match child {
                        Some(child) => format!(
                            "{threads} threads, and cgroups such as {child}; once those are removed, it can be, too"
                        ),
                        None => format!("{threads} threads"),
                    },
                })
            }
            Err(source) => Err(CgroupError::Write {
                action: "remove the cgroup".to_owned(),
                path,
                source,
                hint: "",
            }),
        }
    }

    /// Returns a thread's cgroup in the hierarchy of `controller`, from its line of `/proc/PID/task/TID/cgroup`.
    /// On v1 the line lists the controller; on v2 it has number 0 and lists none.
    pub fn cgroup_of(
        &self,
        thread: &ThreadRef,
        version: Version,
        controller: &'static str,
    ) -> Result<CgroupPath, CgroupError> {
        let path = self.procfs.task(thread.pid, thread.tid).join("cgroup");
        let text = read_text(&path).map_err(|source| ThreadError::reading(&path, source))?;
        let found = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers) = (parts.next()?, parts.next()?);
            let path = parts.next()?;
            let is_ours = match version {
                Version::V1 => controllers.split(',').any(|listed| listed == controller),
                Version::V2 => number == "0" && controllers.is_empty(),
            };
            is_ours.then_some(path)
        });
        let Some(found) = found else {
            return Err(CgroupError::NotListed {
                path,
                controller,
                text: text.trim_end().replace('\n', ", ").chars().take(400).collect(),
            });
        };
        let cgroup = CgroupPath(found.to_owned());
        // Reading has replaced invalid UTF-8 by this character.
        if found.contains(char::REPLACEMENT_CHARACTER) {
            let cgroup = CgroupPath(found.chars().take(400).collect());
            return Err(CgroupError::NotText { path, cgroup });
        }
        // The kernel marks removed cgroups like this, but an existing one may also have such a name.
        if let Some(removed) = found.strip_suffix(" (deleted)")
            && !self.folder(&cgroup).exists()
        {
            return Err(CgroupError::Gone(CgroupPath(removed.to_owned())));
        }
        if found.starts_with("/..") {
            return Err(CgroupError::OutsideNamespace { cgroup });
        }
        Ok(cgroup)
    }

    /// Error of a read: distinguishes a vanished cgroup from a missing file in an existing one.
    fn reading(&self, cgroup: &CgroupPath, path: PathBuf, source: io::Error) -> CgroupError {
        if is_gone(&source) && !self.folder(cgroup).exists() {
            CgroupError::Gone(cgroup.clone())
        } else {
            CgroupError::Read { path, source }
        }
    }
}
