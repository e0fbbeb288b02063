//! Tandem's kernel-side policies: freestanding C in `c/*.h`, and a safe face for Rust.
//!
//! What must run in the kernel is written once, in C: integers only, nothing allocated, every loop
//! bounded. The kernel patches and BPF include the headers unchanged; the simulator calls the same
//! functions through this crate, so that what is simulated is what ships.
//!
//! - [`Aple`] (`c/aple.h`): the pause-loop threshold of a VM, found by trying.
//! - [`Hvs`] (`c/hvs.h`): whom a spinning vCPU should yield to, and three variants of that.
//!
//! Source: Shan, Ding and Gehani, "APPLES: Efficiently Handling Spin-lock Synchronization on
//! Virtualized Platforms", TPDS 2017.
//!
//! Units: thresholds and costs are cycles; HVS's times are of any one clock that does not go back.
//! There is no clock, no I/O and no randomness here: what happened in, decisions out.
//!
//! ```
//! use tandem_kpolicy::Aple;
//! use tandem_kpolicy::ApleConfig;
//! use tandem_kpolicy::Cause;
//! use tandem_kpolicy::Hvs;
//! use tandem_kpolicy::Order;
//!
//! let mut hvs = Hvs::new(4, Order::Hvs)?;
//! hvs.preempted(2, Cause::Slice, 1_000);
//! hvs.preempted(3, Cause::Spinning, 500);
//! assert_eq!(hvs.candidate(0), Some(2));
//!
//! let mut aple = Aple::new(ApleConfig { epoch_exits: 2, ..ApleConfig::default() })?;
//! assert!(!aple.exit(5_000_u32));
//! if aple.exit(5_000_u32) {
//!     assert_eq!(aple.epoch(1_000_000_u64), 8192 + 1024);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aple;
mod hvs;

pub use aple::{Aple, ApleConfig, AplePolicyError, Cycles};
pub use hvs::{Cause, Hvs, HvsError, List, MOST_VCPUS, Order};
