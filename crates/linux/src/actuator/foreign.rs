//! What somebody else set beside Tandem.

use crate::cgroup::{CgroupPath, Knob};

/// Somebody else set a knob of a cgroup that is not ours: this is what comes back in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Which cgroup.
    pub cgroup: CgroupPath,
    /// Which of its knobs.
    pub knob: Knob,
    /// The knob's text.
    pub text: String,
}
