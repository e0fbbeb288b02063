//! The simulator held against what runs here.
//!
//! - [`kernel`]: the same thread programs on the kernel that runs here and in the simulator (`tandem-sim
//!   kernel`).
//! - [`calibrate`]: microVMs on this machine's KVM and in the simulator (`tandem-lab calibrate`);
//!   [`calibrate::edges`]: who makes whom wait there (`cargo run --example edges`).
//! - [`rest`]: what else runs on this machine, measured and simulated.
//! - [`this_kernel`]: what both must know of the kernel: its scheduler, its tick.
//! - [`what_if`]: changes of a recorded host.
//!
//! Compared are ratios, never absolute times: how fast a machine computes is none of the simulator's
//! business. Nothing here prints; what there is to tell during a measurement is an [`event::Event`].

pub mod calibrate;
pub mod event;
pub mod kernel;
pub mod rest;
pub mod this_kernel;
pub mod what_if;
