//! The cpu controller of cgroups, versions 1 and 2, and what other controllers share with it.
//!
//! [`path`] names cgroups, [`knob`] what can be set on them, [`controller`] is the trait over [`v1`] and [`v2`], which
//! [`mounts`] finds and opens. [`files`] reads and writes a hierarchy of any controller. [`ownership`] finds out
//! whether a VM has a cgroup to itself; nothing else here knows VMs.
//!
//! Nothing here journals: the actuator does, and is the only caller that changes anything, outside of tests.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/, scheduler/sched-bwc.rst.

pub mod controller;
pub mod error;
pub mod files;
pub mod knob;
pub mod mounts;
pub mod name;
pub mod ownership;
pub mod path;
pub mod stat;
pub mod v1;
pub mod v2;

pub use controller::{CpuController, IDLE_CLASS};
pub use error::CgroupError;
pub use knob::{Knob, Quota};
pub use mounts::open;
pub use name::{check_length, check_name};
pub use path::{CgroupId, CgroupPath, LONGEST, Owners, Version};
pub use stat::Throttled;
