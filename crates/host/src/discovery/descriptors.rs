//! Counting the KVM vCPUs among a process's descriptors, some at a time.
//!
//! A process that is no VMM may have as many descriptors as it likes. The folder that lists them is read from where the last
//! reading ended: its entries have positions (getdents64(2), `d_off`) that the kernel takes back (lseek(2)).

use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, readlinkat_raw};
use rustix::io::Errno;

use super::budget::Slice;

/// What a thread that runs a vCPU's KVM_RUN holds open.
const VCPU_LINK: &[u8] = b"anon_inode:kvm-vcpu";

/// Descriptors looked at between two looks at the clock; at least so many in each go.
pub(super) const CHUNK: usize = 64;

/// Room for any link to a vCPU; longer ones are cut off, and are none.
const LINK_BYTES: usize = 64;

/// How far a count has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Where to go on.
    position: u64,
    /// vCPUs so far.
    pub(super) vcpus: usize,
    /// Descriptors looked at so far.
    pub(super) looked_at: usize,
}

/// What came of going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// There is more to be looked at.
    Unfinished,
    /// So many vCPUs; `None`: the process does not let us look.
    All(Option<usize>),
}

impl Count {
    /// Goes on until all is counted, or the slice is over. `folder` is the process's folder in `/proc`.
    pub(super) fn go_on(&mut self, folder: &Path, slice: Slice) -> Counted {
        match self.read(folder, slice) {
            Ok(true) => Counted::All(Some(self.vcpus)),
            Ok(false) => Counted::Unfinished,
            Err(Errno::ACCESS | Errno::PERM) => Counted::All(None),
            // It is gone, or as good as that.
            Err(_) => Counted::All(Some(self.vcpus)),
        }
    }

    /// True: to the end.
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
                // Closed a moment ago.
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

/// Whether a link is to a vCPU; older kernels leave out its number. A vCPU's figures (`kvm-vcpu-stats:N`), which QEMU holds
/// too, are no vCPU.
pub(super) fn is_vcpu_link(link: &[u8]) -> bool {
    let rest = link.strip_prefix(VCPU_LINK);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"))
}
