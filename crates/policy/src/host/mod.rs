//! The controller of a host: the whole decision of an accounting period, from observations to decisions.
//!
//! One seam, [`Host`] (observe → decide → apply), is implemented by the live fleet of VMs and by the simulated world. Both run the
//! same [`Controller`] with the same [`ControllerConfig`], so what is simulated is what ships: the idle watch that skips decisions, fair
//! shares, placement, rounding to what the knobs take, dry runs.
//!
//! The controller keeps no belief about what was applied. Every observation says what is in force.
//!
//! Policies are files beside this one. [`registry`] names them all; CONTRIBUTING.md says what a new one needs.

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
