//! Tandem's kernel-side policies: freestanding C in `c/*.h`, with safe bindings for Rust.
//!
//! Policies that run in the kernel are written once, in C: integers only, without allocation, with bounded loops.
//! The kernel patches and BPF programs include the headers unchanged.
//! The simulator calls the same functions through this crate, so it simulates the shipped code.
//!
//! - [`Aple`] (`c/aple.h`): adapts the pause-loop threshold of a VM by trials.
//! - [`Hvs`] (`c/hvs.h`): chooses the vCPU that a spinning one should yield to, with three variants.
//!
//! Source: Shan, Ding and Gehani, "APPLES: Efficiently Handling Spin-lock Synchronization on
//! Virtualized Platforms", TPDS 2017.
//!
//! Units: thresholds and costs are cycles; HVS's times are of one monotonic clock.
//! This crate uses no clock, I/O or randomness: events in, decisions out.
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
pub use hvs::{Cause, Hvs, HvsError, List, MAX_VCPUS, Order};
