//! The cpu controller of cgroup v1 and v2, and code that it shares with other controllers.
//!
//! [`path`] identifies cgroups, and [`knob`] their settings.
//! [`controller`] is the trait over [`v1`] and [`v2`], which [`mounts`] finds and opens.
//! [`files`] reads and writes a hierarchy of any controller.
//! [`ownership`] finds the cgroup that belongs to one VM alone; the other modules do not know VMs.
//!
//! Non-goal: journaling. Outside of tests, only the actuator changes cgroups, and it journals the changes.
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
pub use path::{CgroupId, CgroupPath, MAX_PATH_LENGTH, Owners, Version};
pub use stat::Throttled;
