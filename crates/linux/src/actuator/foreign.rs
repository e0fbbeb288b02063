//! Settings that another process changed while Tandem manages them.

use crate::cgroup::{CgroupPath, Knob};

/// A foreign value of a knob, in a cgroup that Tandem did not create; the restore reverts to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The cgroup.
    pub cgroup: CgroupPath,
    /// The knob.
    pub knob: Knob,
    /// The knob's text.
    pub text: String,
}
