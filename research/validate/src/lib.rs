//! Validation of the simulator on this machine.
//!
//! - [`kernel`]: the same thread programs on the running kernel and in the simulator (`tandem-sim
//!   kernel`).
//! - [`calibrate`]: microVMs on this machine's KVM and in the simulator (`tandem-lab calibrate`);
//!   [`calibrate::edges`]: their wait edges (`cargo run --example edges`).
//! - [`rest`]: background load of this machine, measured and simulated.
//! - [`this_kernel`]: parameters of the running kernel: scheduler, tick, halt polling.
//! - [`what_if`]: changes of a recorded host.
//!
//! Comparisons use ratios, because the simulator does not model the speed of a machine.
//! This crate does not print; measurements report their progress as [`event::Event`]s.

pub mod calibrate;
pub mod event;
pub mod kernel;
pub mod rest;
pub mod this_kernel;
pub mod what_if;
