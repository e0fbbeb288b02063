//! Measurements on live hosts: real VMs with the daemon next to them, programs under the agent.
//!
//! `tandem_demo` starts VMs and daemons as processes and measures them; these experiments use it:
//!
//! - [`fairness`] over [`mixes`], [`work`], [`flexs`], [`overhead`], [`changes`], [`churn`];
//! - [`guest`]: programs under the agent;
//! - [`what_if`] and [`record_trial`]: accuracy of the simulator for recorded hosts and programs;
//! - [`simulator`]: speed of the simulator;
//! - [`why_trial`]: accuracy of the causes that `tandem host why` names.
//!
//! They print only progress; [`tables`] shows their figures.
//! A figure outside its target is no failure.

#![allow(
    clippy::result_large_err,
    reason = "an error ends the whole measurement, so its size does not matter"
)]

mod argument;
pub mod bench_page;
pub mod changes;
pub mod churn;
pub mod fairness;
pub mod flexs;
pub mod guest;
pub mod interval;
pub mod mixes;
pub mod overhead;
pub mod pairs;
pub mod record_trial;
pub mod simulator;
pub mod spread;
pub mod tables;
pub mod traces;
pub mod usage;
pub mod what_if;
pub mod why_trial;
pub mod work;

pub use argument::is_of_an_argument;
