//! The programs of [`program::PROGRAMS`] on this machine, stock against the guest agent and against what an
//! administrator would set by hand: `tandem-lab bench guest`.
//!
//! Each program runs alone, in turn in stock and in every variant ([`measure`]), for some seconds each
//! time; the figures are medians of paired ratios with intervals ([`crate::interval`]), CPU time and
//! awake time per unit of work ([`counters`]), and means over the set. What cannot run here is left out with
//! its reason and counted; it is no failure. A program that should run and does not is one.
//!
//! The agent is `tandem guest run`, started anew for each run, so its time to settle is in every
//! figure. It changes vCPUs and idle settings, journals that, and puts it back; this bench changes
//! nothing but its own folder. Run it on an otherwise idle machine.

pub mod account;
pub mod counters;
pub mod database;
pub mod figures;
pub mod folder;
pub mod held_back;
pub mod inputs;
pub mod measure;
pub mod output;
pub mod paced;
pub mod page;
pub mod process;
pub mod program;
pub mod row;
pub mod session;
pub mod tables;
pub mod token;
pub mod variant;
