//! Controller of a host: turns the observations of an accounting period into decisions.
//!
//! One interface, [`Host`] (observe → decide → apply), is implemented by the live fleet of VMs
//! and by the simulated world.
//! Both run the same [`Controller`] with the same [`ControllerConfig`], so the simulated code is the code that ships:
//! the idle watch that skips decisions, fair shares, placement, rounding to the knobs, dry runs.
//!
//! The controller keeps no state of applied decisions: every observation contains the current settings.
//!
//! Policies are files next to this one. [`registry`] lists them all; CONTRIBUTING.md describes how to add one.

pub mod apart;
pub mod asymmetric;
pub mod config;
pub mod configured;
pub mod controller;
pub mod fair;
pub mod flexs;
pub mod idle_watch;
pub mod knobs;
pub mod observation;
pub mod policy;
pub mod registry;
mod swaps;
pub mod turns;

pub use config::{ControllerConfig, Placement};
pub use controller::{Controller, Host, Period};
pub use knobs::{Knobs, WeightKnob};
pub use observation::{HostObservation, IdleTimes};
pub use policy::Policy;
