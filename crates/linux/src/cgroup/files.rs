//! The files of a cgroup hierarchy: reading, writing, making and removing, with errors that tell a
//! vanished cgroup from a refusal. What both versions of the interface have in common.

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

/// A line of the longest number of a process (PID_MAX_LIMIT is 4,194,304), bytes.
const LONGEST_PID: usize = 8;

/// One mounted hierarchy.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    procfs: ProcFs,
    mount: PathBuf,
    /// `mount` as seen from this process, which differs in tests only.
    folder: PathBuf,
}

impl Hierarchy {
    /// The hierarchy mounted at `mount` of this tree.
    pub fn new(procfs: &ProcFs, mount: &Path) -> Hierarchy {
        Hierarchy { procfs: procfs.clone(), mount: mount.to_owned(), folder: procfs.resolve(mount) }
    }

    /// Where it is mounted.
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

    /// Which cgroup is at this path now.
    pub fn id(&self, cgroup: &CgroupPath) -> Result<CgroupId, CgroupError> {
        let folder = self.folder(cgroup);
        match fs::metadata(&folder) {
            Ok(metadata) => Ok(CgroupId(metadata.ino())),
            Err(error) => Err(self.reading(cgroup, folder, error)),
        }
    }

    /// Who may change a cgroup: whose its folder is, and whose the file of its weight.
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

    /// A file's text without the line's end.
    pub fn read(&self, cgroup: &CgroupPath, file: &str) -> Result<String, CgroupError> {
        let path = self.file(cgroup, file);
        match read_text(&path) {
            Ok(text) => Ok(text.trim_end().to_owned()),
            Err(error) => Err(self.reading(cgroup, path, error)),
        }
    }

    /// A file of one number per line.
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

    /// A file of one thread number per line.
    pub fn read_tids(&self, cgroup: &CgroupPath, file: &str) -> Result<Vec<Tid>, CgroupError> {
        let numbers = self.read_numbers(cgroup, file)?;
        Ok(numbers.into_iter().map(Tid).collect())
    }

    /// The processes in `cgroup.procs`, which v1 may list more than once.
    pub fn read_pids(&self, cgroup: &CgroupPath) -> Result<Vec<Pid>, CgroupError> {
        let mut numbers = self.read_numbers(cgroup, "cgroup.procs")?;
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers.into_iter().map(Pid).collect())
    }

    /// So many of them at most, of as many bytes as those have.
    pub fn some_pids(&self, cgroup: &CgroupPath, most: usize) -> Result<Vec<Pid>, CgroupError> {
        let path = self.file(cgroup, "cgroup.procs");
        let bytes = most.saturating_mul(LONGEST_PID);
        let head = read_head(&path, bytes).map_err(|error| self.reading(cgroup, path, error))?;
        let text = String::from_utf8_lossy(&head);
        // The last line may be a part of one.
        let whole = match head.len() < bytes {
            true => &*text,
            false => text.rsplit_once('\n').map_or("", |(whole, _)| whole),
        };
        let mut numbers = self.numbers(cgroup, "cgroup.procs", whole)?;
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(most);
        Ok(numbers.into_iter().map(Pid).collect())
    }

    /// Writes in one call, as the kernel wants it, to a file that must exist.
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

    /// Writes a thread's number to the file that takes threads.
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

    /// The cgroups right below, in order of their names.
    pub fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
        self.some_children(cgroup, usize::MAX)
    }

    /// So many of them at most: those that the kernel lists first, in order of their names.
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

    /// Makes a cgroup.
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

    /// Removes a cgroup that holds no thread; `threads` is the file that lists them. One that is
    /// gone is fine.
    pub fn remove(&self, cgroup: &CgroupPath, threads: &str) -> Result<(), CgroupError> {
        let path = self.folder(cgroup);
        match fs::remove_dir(&path) {
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                // Whoever may make cgroups below it can make any number.
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

    /// Where a thread is in the hierarchy of `controller`: the path on that line of
    /// `/proc/PID/task/TID/cgroup`. On v1 the line lists the controller, on v2 it is number 0 and lists none.
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
        // What is read is text: what was none has this in its place.
        if found.contains(char::REPLACEMENT_CHARACTER) {
            let cgroup = CgroupPath(found.chars().take(400).collect());
            return Err(CgroupError::NotText { path, cgroup });
        }
        // The kernel says so of a cgroup that was removed; but anybody may call one so that is there.
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

    /// A file that is missing from a cgroup that is there is another matter than a missing cgroup.
    fn reading(&self, cgroup: &CgroupPath, path: PathBuf, source: io::Error) -> CgroupError {
        if is_gone(&source) && !self.folder(cgroup).exists() {
            CgroupError::Gone(cgroup.clone())
        } else {
            CgroupError::Read { path, source }
        }
    }
}
