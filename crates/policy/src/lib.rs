//! Tandem's user-level vCPU scheduling policies.
//!
//! Everything here is pure: observations in, decisions out, without files, clocks or threads.
//! The same code decides in the host daemon, in tests and in simulators.

pub mod assess;
pub mod asymmetric;
pub mod fair_share;
pub mod flexs;
pub mod flexw;
pub mod gleaner;
pub mod host;
pub mod per_thread;
pub mod placement;
pub mod scalability;
pub mod settings;
pub mod turns;
pub mod vm_cpu;

pub use assess::{Assessment, assess};
pub use flexs::{FlexS, FlexSConfig};
pub use flexw::{FlexW, FlexWConfig};
