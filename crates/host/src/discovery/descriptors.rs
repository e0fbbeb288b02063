//! Counts the KVM vCPUs among a process's descriptors, in parts.
//!
//! A process that is no VMM may have any number of descriptors.
//! Each read of the folder that lists them continues the last one.
//! Entries have positions (getdents64(2), `d_off`) that the kernel accepts in lseek(2).

use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, readlinkat_raw};
use rustix::io::Errno;

use super::budget::Slice;

/// Link of the descriptor on which a thread calls KVM_RUN for a vCPU.
const VCPU_LINK: &[u8] = b"anon_inode:kvm-vcpu";

/// Number of descriptors between two reads of the clock; the minimum of each call.
pub(super) const CHUNK: usize = 64;

/// Size for any link to a vCPU; longer ones are cut off and do not match.
const LINK_BYTES: usize = 64;

/// Progress of a count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Position to continue from.
    position: u64,
    /// vCPUs counted so far.
    pub(super) vcpus: usize,
    /// Descriptors read so far.
    pub(super) looked_at: usize,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// More descriptors remain.
    Unfinished,
    /// The number of vCPUs; `None` without permission.
    All(Option<usize>),
}

impl Count {
    /// Continues until all are counted or the slice is over. `folder` is the process's folder in `/proc`.
    pub(super) fn go_on(&mut self, folder: &Path, slice: Slice) -> Counted {
        match self.read(folder, slice) {
            Ok(true) => Counted::All(Some(self.vcpus)),
            Ok(false) => Counted::Unfinished,
            Err(Errno::ACCESS | Errno::PERM) => Counted::All(None),
            // The process has ended, or is ending.
            Err(_) => Counted::All(Some(self.vcpus)),
        }
    }

    /// Returns whether the end was reached.
    fn read(&mut self, folder: &Path, slice: Slice) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(folder.join("fd"), flags, Mode::empty())?;
        if self.position != 0 {
            rustix::fs::seek(&dir, SeekFrom::Start(self.position))?;
        }
        let mut entries = [MaybeUninit::<u8>::uninit(); 4096];
        let mut entries = RawDir::new(&dir, &mut entries);
        let mut looked_at = 0;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_bytes().starts_with(b".") {
                let mut link = [MaybeUninit::<u8>::uninit(); LINK_BYTES];
                // A descriptor may have been closed since.
                if let Ok((link, _)) = readlinkat_raw(&dir, name, &mut link) {
                    self.vcpus += usize::from(is_vcpu_link(link));
                }
                looked_at += 1;
                self.looked_at += 1;
            }
            self.position = entry.next_entry_cookie();
            if looked_at >= CHUNK && looked_at.is_multiple_of(CHUNK) && slice.is_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a link is to a vCPU; older kernels leave out its number.
/// The statistics of a vCPU (`kvm-vcpu-stats:N`), which QEMU also holds, do not match.
pub(super) fn is_vcpu_link(link: &[u8]) -> bool {
    let rest = link.strip_prefix(VCPU_LINK);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
}
